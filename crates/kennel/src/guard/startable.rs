//! Whether a command can be started at all, told before the one it is to replace is stopped (lesson 34).
//!
//! To start the successor first and stop the incumbent then is not possible in general: both want the same
//! port. What can be known without starting it is checked here: the program is there and executable, whoever
//! interprets it is too, and a script can be parsed. What only its run shows (a missing module, a bad
//! setting) cannot be.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use kennel_sys::process::ProcessRef;
use rustix::fs::{Access, access};
use serde::{Deserialize, Serialize};

/// How many interpreters one may hide behind another.
const DEPTH: usize = 4;
/// No parser takes longer, or it is not believed to say anything.
const PARSING: Duration = Duration::from_secs(10);

/// Why a command cannot be started, and a shell's code for that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unstartable {
    pub(super) code: u8,
    pub(super) words: String,
}

/// What a command runs: files whose change makes it another program, and scripts that somebody can parse.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Parts {
    files: Vec<PathBuf>,
    scripts: Vec<Script>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Script {
    language: Language,
    /// Whoever can say whether it is one.
    program: PathBuf,
    path: PathBuf,
}

/// A file of the program, as it was when the server was started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stamp {
    path: PathBuf,
    file: (u64, u64),
    length: u64,
    modified: (i64, i64),
}

/// Checks `command` as far as can be without starting it.
pub(super) fn check(command: &[OsString]) -> Result<(), Unstartable> {
    parts(command)?.scripts.iter().try_for_each(parses)
}

/// The files whose change makes a running server outdated: the program, and its script.
pub(super) fn stamps(command: &[OsString]) -> Vec<Stamp> {
    let files = parts(command).unwrap_or_default().files;
    files.into_iter().filter_map(stamp).collect()
}

/// Whether a file is not any more what it was.
pub(super) fn changed(stamps: &[Stamp]) -> bool {
    let differs = |old: &Stamp| stamp(old.path.clone()).as_ref() != Some(old);
    stamps.iter().any(differs)
}

fn stamp(path: PathBuf) -> Option<Stamp> {
    let path = path.canonicalize().ok()?;
    let meta = path.metadata().ok()?;
    Some(Stamp {
        file: (meta.dev(), meta.ino()),
        length: meta.len(),
        modified: (meta.mtime(), meta.mtime_nsec()),
        path,
    })
}

fn parts(command: &[OsString]) -> Result<Parts, Unstartable> {
    let name = command.first().map_or(OsStr::new(""), OsString::as_os_str);
    let file = find(name)?;
    let mut head = head_of(&file)?;
    let mut interpreter: Option<PathBuf> = None;
    for _ in 0..DEPTH {
        let Some(line) = shebang(&head) else { break };
        let found = interpreter_of(&line).and_then(|name| find(&name));
        let found = found.map_err(|cause| Unstartable {
            code: 126,
            words: format!("{}: bad interpreter: {}", file.display(), cause.words),
        })?;
        head = head_of(&found)?;
        interpreter = Some(found);
    }
    if foreign_machine(&head) {
        return Err(Unstartable {
            code: 126,
            words: format!("{}: built for another kind of machine", file.display()),
        });
    }
    let mut parts = Parts::default();
    let mut add = |program: &Path, path: PathBuf| {
        if let Some(language) = Language::of(program) {
            let program = program.to_owned();
            parts.scripts.push(Script {
                language,
                program,
                path: path.clone(),
            });
        }
        parts.files.push(path);
    };
    if let Some(interpreter) = &interpreter {
        add(interpreter, file.clone());
    }
    // An interpreter may itself be a script in front of another one.
    let argument = Language::of(&file).and_then(|language| language.script(&command[1..]));
    if let Some(argument) = argument {
        add(&file, PathBuf::from(argument));
    }
    parts.files.push(interpreter.unwrap_or(file));
    Ok(parts)
}

/// Looks for a program as a shell would.
fn find(name: &OsStr) -> Result<PathBuf, Unstartable> {
    let shown = name.display();
    let not_found = || Unstartable {
        code: 127,
        words: format!("{shown}: command not found"),
    };
    let runnable = |path: &Path| path.is_file() && access(path, Access::EXEC_OK).is_ok();
    let candidates: Vec<PathBuf> = match name.as_bytes().contains(&b'/') {
        true => vec![PathBuf::from(name)],
        false => {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path)
                .map(|dir| dir.join(name))
                .collect()
        }
    };
    if let Some(path) = candidates.iter().find(|path| runnable(path)) {
        return Ok(path.clone());
    }
    let there = candidates.iter().find(|path| path.exists());
    let there = there.filter(|_| !name.is_empty()).ok_or_else(not_found)?;
    Err(Unstartable {
        code: 126,
        words: format!("{}: not an executable file", there.display()),
    })
}

fn head_of(path: &Path) -> Result<Vec<u8>, Unstartable> {
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(256).read_to_end(&mut head));
    match read {
        // May be run though not read: nothing more can be said.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Ok(Vec::new()),
        Err(error) => Err(Unstartable {
            code: 126,
            words: format!("{}: {error}", path.display()),
        }),
        Ok(0) => Err(Unstartable {
            code: 126,
            words: format!("{}: an empty file", path.display()),
        }),
        Ok(_) => Ok(head),
    }
}

fn shebang(head: &[u8]) -> Option<Vec<OsString>> {
    let line = head.strip_prefix(b"#!")?;
    let line = line.split(|&byte| byte == b'\n').next()?;
    let words = line.split(|byte| byte.is_ascii_whitespace());
    let words = words.filter(|word| !word.is_empty());
    Some(words.map(|word| OsStr::from_bytes(word).into()).collect())
}

/// Who runs a script: the word behind `#!`, or what that one looks for (`env`).
fn interpreter_of(line: &[OsString]) -> Result<OsString, Unstartable> {
    let first = line.first().ok_or(Unstartable {
        code: 126,
        words: "no interpreter is named".to_owned(),
    })?;
    if Path::new(first).file_name() != Some(OsStr::new("env")) {
        return Ok(first.clone());
    }
    let is_option = |word: &&OsString| {
        let bytes = word.as_bytes();
        bytes.starts_with(b"-") || bytes.contains(&b'=')
    };
    let behind = line[1..].iter().find(|word| !is_option(word));
    Ok(behind.unwrap_or(first).clone())
}

/// An ELF file whose machine is not the one that we are built for.
fn foreign_machine(head: &[u8]) -> bool {
    let machine = |head: &[u8]| {
        let elf = head.starts_with(b"\x7fELF") && head.len() >= 20;
        elf.then(|| [head[4], head[5], head[18], head[19]])
    };
    let ours = head_of(Path::new("/proc/self/exe")).ok();
    match (machine(head), ours.and_then(|head| machine(&head))) {
        // The same kind of processor may run its smaller sibling's programs.
        (Some(theirs), Some(ours)) => theirs[1..] != ours[1..] && theirs[0] == ours[0],
        _ => false,
    }
}

/// Interpreters that can be asked whether a script is one, without running it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Language {
    Python,
    Node,
    Shell,
    Ruby,
}

impl Language {
    fn of(program: &Path) -> Option<Language> {
        let name = program.file_name()?.to_str()?;
        let plain = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
        Some(match plain {
            "python" | "pypy" => Language::Python,
            "node" | "nodejs" => Language::Node,
            "sh" | "bash" | "dash" => Language::Shell,
            "ruby" => Language::Ruby,
            _ => return None,
        })
    }

    /// The script among the arguments, where that is plain: behind nothing but flags that take no value.
    fn script(self, arguments: &[OsString]) -> Option<&OsStr> {
        let flags: &[&str] = match self {
            Language::Python => &["-u", "-B", "-O", "-OO", "-s", "-S", "-E", "-I", "-q"],
            Language::Node => &["--enable-source-maps", "--no-warnings", "--trace-warnings"],
            Language::Shell => &["-e", "-u", "-x", "-eu"],
            Language::Ruby => &["-w"],
        };
        let is_flag = |word: &&OsString| flags.iter().any(|flag| word.as_os_str() == *flag);
        let script = arguments.iter().find(|word| !is_flag(word))?;
        (!script.as_bytes().starts_with(b"-")).then_some(script)
    }

    fn parser(self) -> &'static [&'static str] {
        const PYTHON: &str =
            "import sys; compile(open(sys.argv[1], 'rb').read(), sys.argv[1], 'exec')";
        match self {
            Language::Python => &["-I", "-c", PYTHON],
            Language::Node => &["--check"],
            Language::Shell => &["-n"],
            Language::Ruby => &["-c"],
        }
    }

    /// Directories and archives are run too, and node knows more languages than it can check.
    fn can_check(self, script: &Path) -> bool {
        let known = |names: &[&str]| {
            script
                .extension()
                .is_some_and(|it| names.iter().any(|name| it == *name))
        };
        match self {
            Language::Node => known(&["js", "mjs", "cjs"]),
            Language::Python => !known(&["zip", "pyz", "whl", "pyc"]),
            Language::Shell | Language::Ruby => true,
        }
    }
}

fn parses(script: &Script) -> Result<(), Unstartable> {
    let Script {
        language,
        program,
        path,
    } = script;
    let broken = |words: String| Unstartable { code: 126, words };
    match path.metadata() {
        Err(error) => return Err(broken(format!("{}: {error}", path.display()))),
        Ok(meta) if !meta.is_file() || !language.can_check(path) => return Ok(()),
        Ok(_) => {}
    }
    let mut asked = Command::new(program);
    asked.args(language.parser()).arg(path);
    asked
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    // Nobody to ask is no reason to refuse.
    let Ok(mut child) = asked.spawn() else {
        return Ok(());
    };
    let in_time = ProcessRef::open(child.id()).and_then(|child| child.wait(Some(PARSING)));
    if let Ok(false) = in_time {
        let _ = child.kill();
        let _ = child.wait();
        return Ok(());
    }
    let Ok(output) = child.wait_with_output() else {
        return Ok(());
    };
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim_end().lines().last().unwrap_or_default();
    Err(broken(format!(
        "{} cannot be parsed: {said}",
        path.display()
    )))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use kennel_testkit::Scope;

    use super::*;

    fn script(scope: &Scope, name: &str, text: &str) -> OsString {
        let path = scope.path(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path.into()
    }

    #[test]
    fn what_can_be_seen_to_be_broken_is_said_before_it_is_started() {
        let scope = Scope::new("startable");
        let plain = scope.path("plain");
        std::fs::write(&plain, "x").unwrap();
        for (command, code, words) in [
            (vec!["no-such-command".into()], 127, "command not found"),
            (vec!["/no/such/command".into()], 127, "command not found"),
            (vec![plain.into()], 126, "not an executable file"),
            (vec![script(&scope, "empty", "")], 126, "an empty file"),
            (
                vec![script(&scope, "lost", "#!/no/such/shell\n")],
                126,
                "bad interpreter",
            ),
            (
                vec![script(&scope, "env", "#!/usr/bin/env no-such-shell\n")],
                126,
                "bad interpreter",
            ),
            (
                vec![script(&scope, "cut", "#!/bin/sh\nif\n")],
                126,
                "cannot be parsed",
            ),
            (
                vec!["sh".into(), "/no/such/script".into()],
                126,
                "/no/such/script",
            ),
            (
                vec!["sh".into(), script(&scope, "open", "echo '\n")],
                126,
                "cannot be parsed",
            ),
        ] {
            let refused = check(&command).expect_err(words);
            assert_eq!(refused.code, code, "{command:?}");
            assert!(refused.words.contains(words), "{refused:?}");
        }
        for command in [
            vec!["sh".into()],
            vec!["sh".into(), "-c".into(), "exit".into()],
            vec![script(&scope, "fine", "#!/usr/bin/env sh\nexit 0\n")],
            vec!["/proc/self/exe".into()],
        ] {
            assert_eq!(check(&command), Ok(()), "{command:?}");
        }
    }

    #[test]
    fn a_program_is_outdated_when_it_or_its_script_changed() {
        let scope = Scope::new("stamps");
        let file = script(&scope, "server", "#!/bin/sh\nexit 0\n");
        let (program, of_shell) = (vec![file.clone()], vec!["sh".into(), file.clone()]);
        let before = [stamps(&program), stamps(&of_shell)];
        assert!(
            before
                .iter()
                .all(|stamps| stamps.len() == 2 && !changed(stamps))
        );
        let aside = script(&scope, "next", "#!/bin/sh\nexit 1\n");
        std::fs::rename(aside, &file).unwrap();
        assert!(before.iter().all(|stamps| changed(stamps)));
        std::fs::remove_file(&file).unwrap();
        assert!(before.iter().all(|stamps| changed(stamps)));
        assert!(!changed(&stamps(&["sh".into()])));
    }
}
