//! The process of a server as sessions and daemons start it: its tree, our ends of its pipes, and what it wrote last to stderr.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, PipeReader, PipeWriter};
use std::path::PathBuf;

use kennel_core::session::ServerExit;
use kennel_sys::io::set_pipe_size;
use kennel_sys::runtime_dir::RuntimeDir;
use kennel_sys::stdio::set_nonblocking;
use kennel_sys::tree::{Detached, Exit, Ladder, Launch, Tree};
use serde::{Deserialize, Serialize};

/// Bytes that the pipe of a server's stdout holds: large lines need fewer turns.
pub(crate) const PIPE_SIZE: usize = 256 * 1024;
/// Maximum bytes of a line on stderr. A longer line is taken in parts: one that never ends, such as a progress bar, must not
/// fill our memory.
pub(crate) const MAX_STDERR_LINE: usize = 64 * 1024;
/// How much of what the server wrote last to stderr is kept for an error.
const TAIL_LINES: usize = 20;
const TAIL_LINE_BYTES: usize = 500;

/// What to start, and how.
#[derive(Debug)]
pub(crate) struct ServerLaunch<'a> {
    pub(crate) command: Vec<OsString>,
    /// The environment, or ours.
    pub(crate) env: Option<Vec<(OsString, OsString)>>,
    /// The working directory, or ours.
    pub(crate) cwd: Option<PathBuf>,
    pub(crate) ladder: Ladder,
    pub(crate) detached: Detached,
    /// Where the tree is put on record.
    pub(crate) records: Option<&'a RuntimeDir>,
    /// Bytes that the pipe of its stdin holds.
    pub(crate) stdin_size: usize,
}

/// Our ends of a server's pipes. None of them blocks.
#[derive(Debug)]
pub(crate) struct ServerPipes {
    pub(crate) stdin: PipeWriter,
    pub(crate) stdout: PipeReader,
    pub(crate) stderr: PipeReader,
}

impl ServerLaunch<'_> {
    /// Starts the server under a warden.
    pub(crate) fn start(self) -> io::Result<(Tree, ServerPipes)> {
        let (stdin, to_server) = io::pipe()?;
        let (from_server, stdout) = io::pipe()?;
        let (errors, stderr) = io::pipe()?;
        // Smaller pipes only cost turns: an unprivileged user may have used up its share of larger ones.
        set_pipe_size(&from_server, PIPE_SIZE);
        set_pipe_size(&to_server, self.stdin_size);
        let pipes = ServerPipes {
            stdin: to_server,
            stdout: from_server,
            stderr: errors,
        };
        pipes.set_nonblocking()?;
        let tree = Launch {
            server: self.command,
            warden: vec![crate::this_build::itself().into(), "warden".into()],
            stdio: [stdin.into(), stdout.into(), stderr.into()],
            env: self.env,
            cwd: self.cwd,
            ladder: self.ladder,
            detached: self.detached,
            records: self.records.map(RuntimeDir::handle),
        }
        .start()?;
        Ok((tree, pipes))
    }
}

impl ServerPipes {
    /// They are ours alone: a flag of them is nobody else's.
    pub(crate) fn set_nonblocking(&self) -> io::Result<()> {
        set_nonblocking(&self.stdin)?;
        set_nonblocking(&self.stdout)?;
        set_nonblocking(&self.stderr)
    }
}

/// The last lines of a server's stderr.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct StderrTail(VecDeque<String>);

impl StderrTail {
    /// Keeps a line, and forgets the oldest one if there are too many.
    pub(crate) fn push(&mut self, line: &[u8]) {
        if self.0.len() == TAIL_LINES {
            self.0.pop_front();
        }
        let line = &line[..line.len().min(TAIL_LINE_BYTES)];
        self.0.push_back(String::from_utf8_lossy(line).into_owned());
    }

    /// All of them.
    pub(crate) fn text(&self) -> String {
        let lines: Vec<&str> = self.0.iter().map(String::as_str).collect();
        lines.join("\n")
    }
}

/// Whether more may come after a read that ended so.
pub(crate) fn is_still_open(read: &io::Result<usize>) -> bool {
    match read {
        Ok(count) => *count > 0,
        Err(error) => matches!(
            error.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
        ),
    }
}

/// How a server ended, for the errors of a session.
pub(crate) fn ending(exit: Exit) -> ServerExit {
    match exit {
        Exit::Code(code) => ServerExit::Code(code),
        Exit::Signal(signal) => ServerExit::Signal(signal),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_of_stderr_are_kept_and_long_ones_are_cut() {
        let mut tail = StderrTail::default();
        for number in 0..TAIL_LINES + 5 {
            tail.push(format!("line {number}").as_bytes());
        }
        tail.push(&[b'x'; 2 * TAIL_LINE_BYTES]);
        let text = tail.text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines.len(), lines[0]), (TAIL_LINES, "line 6"));
        assert_eq!(lines[TAIL_LINES - 1].len(), TAIL_LINE_BYTES);
        let saved = serde_json::to_string(&tail).unwrap();
        let restored: StderrTail = serde_json::from_str(&saved).unwrap();
        assert_eq!(restored.text(), text);
    }
}
