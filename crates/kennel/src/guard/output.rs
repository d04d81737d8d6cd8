//! The output of a detached server: written into a log of limited size.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, PipeReader, PipeWriter};
use std::time::Instant;

use kennel_sys::io::Waitable;
use kennel_sys::runtime_dir::{DirError, RuntimeDir};
use kennel_sys::stdio;

use crate::daemon::{Log, Quota};
use crate::lines::Inbox;

/// Maximum bytes of a line; a longer one is logged in parts, because a line without end must not fill the memory.
const MAX_LINE_BYTES: usize = 64 * 1024;
/// Maximum number of its lines that are logged within a minute.
const LINES: usize = 1000;
/// Prefix of Kennel's own lines in this log. A line of the server that begins with it, or with the escape, is escaped.
pub(crate) const KENNEL_PREFIX: &str = "kennel: ";
pub(crate) const ESCAPE: char = '\\';
/// Maximum number of reads from a stream in one turn.
const READS: usize = 16;
/// Number of last lines shown to the person whose server did not start.
const TAIL: usize = 10;
/// Maximum length of each of them: all together fit into a pipe.
const TAIL_LINE: usize = 500;

/// The server's stdout and stderr, and the log that they are written to.
pub(super) struct Output {
    streams: Vec<(PipeReader, Inbox)>,
    log: Log,
    quota: RefCell<Quota>,
    last: RefCell<VecDeque<String>>,
}

impl Output {
    /// The log in `dir`, and the server's ends of its streams.
    pub(super) fn new(dir: &RuntimeDir) -> Result<(Output, [PipeWriter; 2]), String> {
        let log = Log::open(dir).map_err(|error: DirError| error.to_string())?;
        let pipe = || -> io::Result<(PipeReader, PipeWriter)> {
            let (ours, theirs) = io::pipe()?;
            stdio::set_nonblocking(&ours)?;
            Ok((ours, theirs))
        };
        let both = pipe().and_then(|stdout| Ok((stdout, pipe()?)));
        let ((stdout, their_stdout), (stderr, their_stderr)) =
            both.map_err(|error| format!("cannot create a pipe for the server's output: {error}"))?;
        let streams = [stdout, stderr].map(|stream| (stream, Inbox::default()));
        let output = Output {
            streams: streams.into(),
            log,
            quota: RefCell::new(Quota::new(LINES)),
            last: RefCell::default(),
        };
        Ok((output, [their_stdout, their_stderr]))
    }

    /// Readable when the server wrote something, or closed a stream.
    pub(super) fn sources(&self) -> impl Iterator<Item = &dyn Waitable> {
        self.streams
            .iter()
            .map(|(stream, _)| stream as &dyn Waitable)
    }

    /// Logs the output that is available now.
    pub(super) fn log_available(&mut self) {
        let mut streams = std::mem::take(&mut self.streams);
        streams.retain_mut(|(stream, inbox)| {
            // A server that writes without end must not keep the guard from its other events.
            for _ in 0..READS {
                let read = inbox.read(&*stream);
                while let Some(line) = inbox.next_line() {
                    self.line(line);
                }
                let open = match &read {
                    Ok(0) => false,
                    Ok(_) => true,
                    Err(error) => error.kind() == io::ErrorKind::WouldBlock,
                };
                if (!open || inbox.len() > MAX_LINE_BYTES)
                    && let Some(rest) = inbox.rest()
                {
                    self.line(&rest);
                }
                if !open || read.is_err() {
                    return open;
                }
            }
            true
        });
        self.streams = streams;
    }

    /// Logs a line of Kennel.
    pub(super) fn note(&self, words: &str) {
        self.log.line(format!("{KENNEL_PREFIX}{words}"));
    }

    /// The last lines, formatted to follow a sentence.
    pub(super) fn tail(&self) -> String {
        let last = self.last.borrow();
        if last.is_empty() {
            return "; it printed nothing".to_owned();
        }
        let lines: Vec<&str> = last.iter().map(String::as_str).collect();
        format!("; its last output:\n{}", lines.join("\n"))
    }

    fn line(&self, line: &[u8]) {
        let text = String::from_utf8_lossy(line);
        let left_out = self.quota.borrow_mut().next(Instant::now());
        if let Some(left_out @ 1..) = left_out {
            self.note(&format!(
                "{left_out} more lines of its output were not logged"
            ));
        }
        if left_out.is_some() {
            self.log.line(format_args!("{}{text}", escape_of(&text)));
        }
        let mut last = self.last.borrow_mut();
        if last.len() == TAIL {
            last.pop_front();
        }
        last.push_back(text.chars().take(TAIL_LINE).collect());
    }
}

/// The escape for a line of the server, if it needs one.
fn escape_of(line: &str) -> &'static str {
    match line.starts_with(KENNEL_PREFIX) || line.starts_with(ESCAPE) {
        true => "\\",
        false => "",
    }
}
