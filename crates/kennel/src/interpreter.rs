//! Finds the interpreter that a script names in its first line, and the script among an interpreter's arguments.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use kennel_sys::fs::open_without_waiting;
use kennel_sys::text::os_string;

/// Maximum number of interpreters that are scripts for another interpreter: the kernel's limit.
pub(crate) const MAX_DEPTH: usize = 4;
/// Number of bytes read of a file: the kernel reads no longer `#!` line.
const HEAD_BYTES: u64 = 256;

/// Interpreters whose arguments this module can parse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Language {
    Python,
    Node,
    Shell,
    Ruby,
}

impl Language {
    pub(crate) fn of(program: &Path) -> Option<Language> {
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

    /// The script among the arguments, if only flags without a value come before it.
    pub(crate) fn script(self, arguments: &[OsString]) -> Option<&OsStr> {
        let flags: &[&str] = match self {
            Language::Python => &["-u", "-B", "-O", "-OO", "-s", "-S", "-E", "-I", "-q"],
            Language::Node => &["--enable-source-maps", "--no-warnings", "--trace-warnings"],
            Language::Shell => &["-e", "-u", "-x", "-eu"],
            Language::Ruby => &["-w"],
        };
        let is_flag = |word: &&OsString| flags.iter().any(|flag| word.as_os_str() == *flag);
        let script = arguments.iter().find(|word| !is_flag(word))?;
        (!script.as_encoded_bytes().starts_with(b"-")).then_some(script)
    }
}

/// Reads the first [`HEAD_BYTES`] bytes of a file.
pub(crate) fn read_head(path: &Path) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    open(path)?.take(HEAD_BYTES).read_to_end(&mut head)?;
    Ok(head)
}

/// Opens a program for reading. Refuses all but regular files, so that it never waits for the other end of a named
/// pipe.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let file = open_without_waiting(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        )),
    }
}

/// The words of the `#!` line, if the file begins with one.
pub(crate) fn shebang(head: &[u8]) -> Option<Vec<OsString>> {
    let line = head.strip_prefix(b"#!")?;
    let line = line.split(|&byte| byte == b'\n').next()?;
    let words = line.split(|byte| byte.is_ascii_whitespace());
    let words = words.filter(|word| !word.is_empty());
    Some(words.map(os_string).collect())
}

/// The program that runs a script: the first word after `#!`, or the program that `env` finds in `PATH`. `None` if there
/// is no word.
pub(crate) fn interpreter_of(line: &[OsString]) -> Option<&OsString> {
    let first = line.first()?;
    if Path::new(first).file_name() != Some(OsStr::new("env")) {
        return Some(first);
    }
    let is_option = |word: &&OsString| {
        let bytes = word.as_encoded_bytes();
        bytes.starts_with(b"-") || bytes.contains(&b'=')
    };
    let program = line[1..].iter().find(|word| !is_option(word));
    Some(program.unwrap_or(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An open that waits for a writer would never return: there is none.
    #[test]
    fn a_program_that_is_a_named_pipe_is_refused_without_waiting_for_a_writer() {
        let scope = kennel_testkit::Scope::new("program-pipe");
        let pipe = scope.path("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, 0o700.into()).unwrap();
        let refused = open(&pipe).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        assert!(read_head(pipe.parent().unwrap()).is_err());
    }
}
