//! The process of a server as sessions and daemons start it: its tree, our ends of its pipes, and its last lines on stderr.

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

/// Capacity in bytes of the pipe of a server's stdout: large lines need fewer reads.
pub(crate) const PIPE_SIZE: usize = 256 * 1024;
/// Maximum bytes of a line on stderr. A longer line is split: a line without an end, such as a progress bar, must not fill
/// our memory.
pub(crate) const MAX_STDERR_LINE: usize = 64 * 1024;
/// Maximum number of stderr lines that are kept for an error.
const MAX_TAIL_LINES: usize = 20;
/// Maximum bytes that are kept of each of those.
const MAX_TAIL_LINE_BYTES: usize = 500;

/// A server to start, and the settings for its start.
#[derive(Debug)]
pub(crate) struct ServerLaunch<'a> {
    pub(crate) command: Vec<OsString>,
    /// The environment, or ours.
    pub(crate) env: Option<Vec<(OsString, OsString)>>,
    /// The working directory, or ours.
    pub(crate) cwd: Option<PathBuf>,
    pub(crate) ladder: Ladder,
    pub(crate) detached: Detached,
    /// The directory for the record of the tree.
    pub(crate) records: Option<&'a RuntimeDir>,
    /// Capacity in bytes of the pipe of its stdin.
    pub(crate) stdin_size: usize,
}

/// Our ends of a server's pipes. All are non-blocking.
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
        // An error is no harm: an unprivileged user may have used up the quota for larger pipes.
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
    /// Sets `O_NONBLOCK`. No other process shares these open files, so none is affected.
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
    /// Adds a line, and drops the oldest one if there are too many.
    pub(crate) fn push(&mut self, line: &[u8]) {
        if self.0.len() == MAX_TAIL_LINES {
            self.0.pop_front();
        }
        let line = &line[..line.len().min(MAX_TAIL_LINE_BYTES)];
        self.0.push_back(String::from_utf8_lossy(line).into_owned());
    }

    /// The lines, separated by newlines.
    pub(crate) fn text(&self) -> String {
        let lines: Vec<&str> = self.0.iter().map(String::as_str).collect();
        lines.join("\n")
    }
}

/// Whether more bytes may follow after this result of a read.
pub(crate) fn is_still_open(read: &io::Result<usize>) -> bool {
    match read {
        Ok(count) => *count > 0,
        Err(error) => matches!(
            error.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
        ),
    }
}

/// Converts the exit of a server's first process for the session's errors.
pub(crate) fn server_exit(exit: Exit) -> ServerExit {
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
        for number in 0..MAX_TAIL_LINES + 5 {
            tail.push(format!("line {number}").as_bytes());
        }
        tail.push(&[b'x'; 2 * MAX_TAIL_LINE_BYTES]);
        let text = tail.text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines.len(), lines[0]), (MAX_TAIL_LINES, "line 6"));
        assert_eq!(lines[MAX_TAIL_LINES - 1].len(), MAX_TAIL_LINE_BYTES);
        let saved = serde_json::to_string(&tail).unwrap();
        let restored: StderrTail = serde_json::from_str(&saved).unwrap();
        assert_eq!(restored.text(), text);
    }
}
