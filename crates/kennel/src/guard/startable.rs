//! Checks whether a command can be started at all, before the server that it is to replace is stopped (lesson 34).
//!
//! Starting the successor first and stopping the incumbent then is not possible in general: both need the same port.
//! This checks what can be known without a start: the program exists and is executable, so is its interpreter, and a
//! script can be parsed. What only a run shows (a missing module, an invalid setting) it cannot know.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use kennel_sys::fs::may_execute;
use kennel_sys::process::ProcessRef;
use kennel_sys::program::this_program;

use crate::interpreter::{self, Language};
use crate::search_path;

/// Maximum time for a parser; after that, its answer is ignored.
const PARSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a command cannot be started, and a shell's exit code for that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unstartable {
    pub(super) code: u8,
    pub(super) words: String,
}

/// A script that a command runs, and that its interpreter can parse.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Script {
    language: Language,
    /// The interpreter that can check it.
    program: PathBuf,
    path: PathBuf,
}

/// Checks `command` as far as possible without starting it.
pub(super) fn check(command: &[OsString]) -> Result<(), Unstartable> {
    scripts(command)?.iter().try_for_each(check_syntax)
}

fn scripts(command: &[OsString]) -> Result<Vec<Script>, Unstartable> {
    let name = command.first().map_or(OsStr::new(""), OsString::as_os_str);
    let file = find(name)?;
    let mut head = read_head(&file)?;
    let mut interpreter: Option<PathBuf> = None;
    for _ in 0..interpreter::MAX_DEPTH {
        let Some(line) = interpreter::shebang(&head) else {
            break;
        };
        let found = interpreter_of(&line).and_then(find);
        let found = found.map_err(|cause| Unstartable {
            code: 126,
            words: format!("{}: bad interpreter: {}", file.display(), cause.words),
        })?;
        head = read_head(&found)?;
        interpreter = Some(found);
    }
    if foreign_machine(&head) {
        return Err(Unstartable {
            code: 126,
            words: format!("{}: built for another kind of machine", file.display()),
        });
    }
    // An interpreter may itself be a script for another one.
    let argument = Language::of(&file).and_then(|language| language.script(&command[1..]));
    let argument = argument.map(|script| (file.clone(), PathBuf::from(script)));
    let named = interpreter.map(|interpreter| (interpreter, file));
    let script = |(program, path): (PathBuf, PathBuf)| {
        Language::of(&program).map(|language| Script {
            language,
            program,
            path,
        })
    };
    Ok([named, argument]
        .into_iter()
        .flatten()
        .filter_map(script)
        .collect())
}

fn interpreter_of(line: &[OsString]) -> Result<&OsStr, Unstartable> {
    let found = interpreter::interpreter_of(line).ok_or_else(|| Unstartable {
        code: 126,
        words: "the first line names no interpreter".to_owned(),
    });
    found.map(OsString::as_os_str)
}

/// Looks for a program as a shell does.
fn find(name: &OsStr) -> Result<PathBuf, Unstartable> {
    let shown = name.display();
    let not_found = || Unstartable {
        code: 127,
        words: format!("{shown}: command not found"),
    };
    let runnable = |path: &Path| path.is_file() && may_execute(path);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let candidates = search_path::candidates(name, Path::new(""), &path);
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

fn read_head(path: &Path) -> Result<Vec<u8>, Unstartable> {
    let unstartable = |words: String| Unstartable { code: 126, words };
    match interpreter::read_head(path) {
        // It may be executable but not readable: nothing more can be checked.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Ok(Vec::new()),
        Err(error) => Err(unstartable(format!("{}: {error}", path.display()))),
        Ok(head) if head.is_empty() => Err(unstartable(format!(
            "{}: the file is empty",
            path.display()
        ))),
        Ok(head) => Ok(head),
    }
}

/// Whether this is an ELF file for another machine than the one this program was built for.
fn foreign_machine(head: &[u8]) -> bool {
    let machine = |head: &[u8]| {
        let elf = head.starts_with(b"\x7fELF") && head.len() >= 20;
        elf.then(|| [head[4], head[5], head[18], head[19]])
    };
    let ours = read_head(&this_program()).ok();
    match (machine(head), ours.and_then(|head| machine(&head))) {
        // A 64-bit processor may run programs of its 32-bit variant.
        (Some(theirs), Some(ours)) => theirs[1..] != ours[1..] && theirs[0] == ours[0],
        _ => false,
    }
}

/// The arguments that make an interpreter parse a file without running it.
fn parser(language: Language) -> &'static [&'static str] {
    const PYTHON: &str = "import sys; compile(open(sys.argv[1], 'rb').read(), sys.argv[1], 'exec')";
    match language {
        Language::Python => &["-I", "-c", PYTHON],
        Language::Node => &["--check"],
        Language::Shell => &["-n"],
        Language::Ruby => &["-c"],
    }
}

/// Whether the interpreter can check this file: it may also run directories and archives, and node languages that it
/// cannot check.
fn can_check(language: Language, script: &Path) -> bool {
    let known = |names: &[&str]| {
        script
            .extension()
            .is_some_and(|it| names.iter().any(|name| it == *name))
    };
    match language {
        Language::Node => known(&["js", "mjs", "cjs"]),
        Language::Python => !known(&["zip", "pyz", "whl", "pyc"]),
        Language::Shell | Language::Ruby => true,
    }
}

fn check_syntax(script: &Script) -> Result<(), Unstartable> {
    let Script {
        language,
        program,
        path,
    } = script;
    let broken = |words: String| Unstartable { code: 126, words };
    match path.metadata() {
        Err(error) => return Err(broken(format!("{}: {error}", path.display()))),
        Ok(meta) if !meta.is_file() || !can_check(*language, path) => return Ok(()),
        Ok(_) => {}
    }
    let mut asked = Command::new(program);
    asked.args(parser(*language)).arg(path);
    asked
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    // If the interpreter cannot be started, that is no reason to refuse.
    let Ok(mut child) = asked.spawn() else {
        return Ok(());
    };
    let in_time = ProcessRef::open(child.id()).and_then(|child| child.wait(Some(PARSE_TIMEOUT)));
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
    fn a_visibly_broken_command_is_reported_before_it_is_started() {
        let scope = Scope::new("startable");
        let plain = scope.path("plain");
        std::fs::write(&plain, "x").unwrap();
        for (command, code, words) in [
            (vec!["no-such-command".into()], 127, "command not found"),
            (vec!["/no/such/command".into()], 127, "command not found"),
            (vec![plain.into()], 126, "not an executable file"),
            (vec![script(&scope, "empty", "")], 126, "the file is empty"),
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
}
