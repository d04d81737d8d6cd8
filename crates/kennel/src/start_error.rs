//! Error messages for a server's program that cannot be started, with the exit codes of a shell.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use kennel_sys::program::{StartFailure, become_program};
use kennel_sys::text::os_string;

use crate::exit_code::{CANNOT_START, COMMAND_NOT_FOUND};
use crate::search_path;

/// Maximum bytes of a `#!` line that the kernel reads.
const MAX_SHEBANG: usize = 256;

/// A program that could not be started.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt<'a> {
    pub(crate) program: &'a OsStr,
    /// The directory to start it in; `None` for that of this process.
    pub(crate) cwd: Option<&'a Path>,
    /// The `PATH` to look for it in.
    pub(crate) path: Option<&'a OsStr>,
}

/// Runs the server in this process, without Kennel.
pub(crate) fn become_server(command: &[OsString], cwd: Option<&Path>) -> ExitCode {
    let mut process = Command::new(&command[0]);
    process.args(&command[1..]);
    if let Some(cwd) = cwd {
        process.current_dir(cwd);
    }
    let error = become_program(&mut process);
    let (code, message) = explain_here(&command[0], cwd, error.raw_os_error().unwrap_or_default());
    crate::fail_with(code, &message)
}

/// Like [`explain`], with the `PATH` of this process.
pub(crate) fn explain_here(program: &OsStr, cwd: Option<&Path>, errno: i32) -> (u8, String) {
    let path = std::env::var_os("PATH");
    let attempt = Attempt {
        program,
        cwd,
        path: path.as_deref(),
    };
    explain(attempt, errno)
}

/// The exit code and the message for a start that failed with `errno`.
pub(crate) fn explain(attempt: Attempt<'_>, errno: i32) -> (u8, String) {
    let program = attempt.program.display();
    match StartFailure::of(errno) {
        StartFailure::NotFound => not_found(attempt),
        StartFailure::AccessDenied => (CANNOT_START, format!("{program}: permission denied")),
        StartFailure::Shortage(error) | StartFailure::Other(error) => {
            (CANNOT_START, format!("{program}: {error}"))
        }
    }
}

/// The explanation of `ENOENT`, the kernel's error for a missing program, a missing directory and a missing interpreter.
fn not_found(attempt: Attempt<'_>) -> (u8, String) {
    let program = attempt.program.display();
    if let Some(cwd) = attempt.cwd.filter(|cwd| !cwd.is_dir()) {
        let message = format!("{}: no such directory to start {program} in", cwd.display());
        return (COMMAND_NOT_FOUND, message);
    }
    let file = attempt.find();
    match file.and_then(|file| missing_interpreter(&file)) {
        Some((kind, file, interpreter)) => {
            let (file, interpreter) = (file.display(), interpreter.display());
            let message =
                format!("{kind} {file} needs interpreter {interpreter}, which does not exist");
            (CANNOT_START, message)
        }
        None => (COMMAND_NOT_FOUND, format!("{program}: command not found")),
    }
}

impl Attempt<'_> {
    /// The file of the program, as `execvp` finds it.
    fn find(&self) -> Option<PathBuf> {
        let cwd = self.cwd.unwrap_or(Path::new(""));
        let path = self.path.unwrap_or_default();
        let candidates = search_path::candidates(self.program, cwd, path);
        candidates.into_iter().find(|path| path.is_file())
    }
}

/// The first missing interpreter of a file: the kind and path of the file that needs it, and its own path.
fn missing_interpreter(file: &Path) -> Option<(&'static str, PathBuf, PathBuf)> {
    let mut file = file.to_owned();
    for _ in 0..crate::interpreter::MAX_DEPTH {
        let (kind, interpreter) = interpreter_of(&file).ok().flatten()?;
        if !interpreter.exists() {
            return Some((kind, file, interpreter));
        }
        file = interpreter;
    }
    None
}

/// The interpreter of a script, or the dynamic loader of a program; with the kind of file.
fn interpreter_of(path: &Path) -> io::Result<Option<(&'static str, PathBuf)>> {
    let mut file = crate::interpreter::open(path)?;
    let mut head = Vec::new();
    file.by_ref()
        .take(MAX_SHEBANG as u64)
        .read_to_end(&mut head)?;
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let mut words = line.split(|byte| [b' ', b'\t'].contains(byte));
        let interpreter = words.find(|word| !word.is_empty());
        return Ok(interpreter.map(|word| ("script", path_of(word))));
    }
    Ok(loader_of(&mut file, &head)?.map(|loader| ("program", loader)))
}

fn path_of(bytes: &[u8]) -> PathBuf {
    PathBuf::from(os_string(bytes))
}

/// The dynamic loader that a 64-bit ELF program names (`PT_INTERP`).
fn loader_of(file: &mut File, head: &[u8]) -> io::Result<Option<PathBuf>> {
    const PT_INTERP: u64 = 3;
    let native_order = if cfg!(target_endian = "little") { 1 } else { 2 };
    if !head.starts_with(b"\x7fELF\x02") || head.get(5) != Some(&native_order) {
        return Ok(None);
    }
    let number = |bytes: &[u8], at: usize, length: usize| -> Option<u64> {
        let mut wide = [0u8; 8];
        let field = bytes.get(at..at + length)?;
        match cfg!(target_endian = "little") {
            true => wide[..length].copy_from_slice(field),
            false => wide[8 - length..].copy_from_slice(field),
        }
        Some(u64::from_ne_bytes(wide))
    };
    let table = number(head, 32, 8).zip(number(head, 54, 2).zip(number(head, 56, 2)));
    let Some((table, (size, count))) = table else {
        return Ok(None);
    };
    for at in 0..count {
        let mut header = vec![0u8; usize::try_from(size).unwrap_or_default()];
        file.seek(SeekFrom::Start(table.saturating_add(at * size)))?;
        file.read_exact(&mut header)?;
        if number(&header, 0, 4) != Some(PT_INTERP) {
            continue;
        }
        let (Some(offset), Some(length)) = (number(&header, 8, 8), number(&header, 32, 8)) else {
            return Ok(None);
        };
        file.seek(SeekFrom::Start(offset))?;
        let mut name = Vec::new();
        file.by_ref()
            .take(length.min(4096))
            .read_to_end(&mut name)?;
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        return Ok((!name.is_empty()).then(|| path_of(name)));
    }
    Ok(None)
}

/// Whether a start failed because of a shortage of the machine, not because of the server.
pub(crate) fn is_shortage(errno: i32) -> bool {
    matches!(StartFailure::of(errno), StartFailure::Shortage(_))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use kennel_testkit::Scope;

    use super::*;

    fn file(scope: &Scope, name: &str, text: &[u8]) -> PathBuf {
        let path = scope.path(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// Starts a program that cannot be started; returns the explanation of the error.
    fn started(program: &OsStr, cwd: Option<&Path>, path: Option<&OsStr>) -> (u8, String) {
        let mut command = std::process::Command::new(program);
        command.envs(path.map(|path| ("PATH", path)));
        command.current_dir(cwd.unwrap_or(Path::new("/")));
        let error = command.spawn().expect_err("it cannot be started");
        let attempt = Attempt { program, cwd, path };
        explain(attempt, error.raw_os_error().unwrap())
    }

    #[test]
    fn a_missing_interpreter_is_distinguished_from_a_missing_command() {
        let scope = Scope::new("interpreter");
        let script = file(&scope, "script", b"#!/no/such/python -u\nprint()\n");
        let missing = "needs interpreter /no/such/python, which does not exist";
        let (code, words) = started(script.as_os_str(), None, None);
        assert_eq!(code, 126, "{words}");
        assert_eq!(words, format!("script {} {missing}", script.display()));
        // By its name, in a directory of PATH, and relative to the directory it is started in.
        let dir = script.parent().unwrap();
        let by_name = started(OsStr::new("script"), None, Some(dir.as_os_str()));
        assert!(by_name.1.ends_with(missing), "{by_name:?}");
        let relative = started(OsStr::new("./script"), Some(dir), None);
        assert!(relative.1.ends_with(missing), "{relative:?}");
        // A script whose interpreter is a script.
        let line = format!("#! {}\n", script.display());
        let outer = file(&scope, "outer", line.as_bytes());
        let (_, words) = started(outer.as_os_str(), None, None);
        assert!(words.ends_with(missing), "{words}");
        for absent in ["no-such-command", "/no/such/command"] {
            let (code, words) = started(OsStr::new(absent), None, Some(OsStr::new("/usr/bin")));
            assert_eq!((code, words), (127, format!("{absent}: command not found")));
        }
    }

    #[test]
    fn a_missing_loader_of_a_program_is_named() {
        let scope = Scope::new("loader");
        let mut bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let exe = scope.path("exe");
        std::fs::write(&exe, &bytes).unwrap();
        let Some((_, loader)) = interpreter_of(&exe).unwrap() else {
            return; // A static build has none.
        };
        let name = loader.as_os_str().as_encoded_bytes();
        let at = bytes.windows(name.len()).position(|it| it == name).unwrap();
        bytes[at + 1] = b'!';
        let broken = file(&scope, "broken", &bytes);
        let (code, words) = started(broken.as_os_str(), None, None);
        assert_eq!(code, 126, "{words}");
        assert!(words.contains("needs interpreter /!"), "{words}");
    }

    #[test]
    fn a_missing_directory_and_a_missing_permission_are_reported() {
        let scope = Scope::new("start-error");
        let nowhere = scope.path("nowhere");
        let (code, words) = started(OsStr::new("/bin/sh"), Some(&nowhere), None);
        assert_eq!(code, 127);
        assert!(
            words.contains("no such directory to start /bin/sh in"),
            "{words}"
        );
        let closed = scope.path("closed");
        std::fs::write(&closed, "#!/bin/sh\n").unwrap();
        let (code, words) = started(closed.as_os_str(), None, None);
        assert_eq!(
            (code, words),
            (126, format!("{}: permission denied", closed.display()))
        );
    }
}
