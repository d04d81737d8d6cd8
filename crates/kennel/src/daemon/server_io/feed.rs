//! Writes the lines of clients to their server.

use std::io::{self, PipeWriter, Write};

use kennel_core::lifetime::ClientId;
use kennel_core::message::Owned;
use kennel_core::mux::Lane;
use kennel_sys::io::{Interest, Source};
use serde::{Deserialize, Serialize};

use super::super::daemon_state::DaemonState;
use super::super::queue::recycle;
use super::super::server::ServerStage;
use super::ServerIo;

impl ServerIo {
    /// Handles room in stdin: writes lines until the pipe is full.
    pub(in crate::daemon) fn on_writable(&self, daemon: &DaemonState) {
        let stdin = self.running.borrow().as_ref().and_then(|it| it.stdin());
        let Some(stdin) = stdin else {
            return;
        };
        let interest = loop {
            match self.write_some(daemon, &stdin) {
                Ok(true) => {}
                Ok(false) => break Ok(Interest::NONE),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => break Ok(Interest::WRITE),
                    io::ErrorKind::Interrupted => {}
                    _ => break Err(error),
                },
            }
        };
        if interest.and_then(|it| stdin.set_interest(it)).is_err() {
            self.stdin_failed(daemon);
        }
    }

    /// Handles a failed write: no process reads stdin any more.
    fn stdin_failed(&self, daemon: &DaemonState) {
        let running = self.running.borrow().clone();
        if let Some(running) = running {
            running.close_stdin();
        }
        self.close(daemon);
    }

    /// Writes some of the next lines; `false` if there are none. The rest stays in `unwritten`, where a snapshot finds it.
    fn write_some(&self, daemon: &DaemonState, stdin: &Source<PipeWriter>) -> io::Result<bool> {
        let mut unwritten = self.unwritten.borrow_mut();
        if unwritten.is_none() {
            let chunk = daemon.engine.borrow_mut().next_chunk(self.slot);
            *unwritten = chunk.map(Unwritten::new);
            if unwritten.is_some() {
                self.wake_throttled(daemon);
            }
        }
        let Some(chunk) = &mut *unwritten else {
            return Ok(false);
        };
        self.width.fit(stdin, chunk.line.len() - chunk.done);
        chunk.done += (&**stdin).write(&chunk.line[chunk.done..])?;
        if chunk.done == chunk.line.len() {
            recycle(unwritten.take().map(|chunk| chunk.line));
            daemon.engine.borrow_mut().set_writing(self.slot, false);
        }
        Ok(true)
    }

    /// Writes a line at once: no other line is ahead of it.
    pub(in crate::daemon) fn write_line(
        &self,
        daemon: &DaemonState,
        lane: Lane,
        mut line: Owned,
        by: Option<ClientId>,
    ) {
        let stdin = self.running.borrow().as_ref().and_then(|it| it.stdin());
        // A line of the action before this one may be written in part.
        let must_queue =
            self.stage.get() == ServerStage::Waiting || self.unwritten.borrow().is_some();
        let Some(stdin) = stdin.filter(|_| !must_queue) else {
            let mut engine = daemon.engine.borrow_mut();
            return engine.queue_for_server(self.slot, lane, line, by);
        };
        line.push(b'\n');
        self.width.fit(&*stdin, line.len());
        // If no process reads stdin any more, the next write finds that.
        let done = (&**stdin).write(&line).unwrap_or(0);
        if done < line.len() {
            self.unwritten.replace(Some(Unwritten { line, done }));
            daemon.engine.borrow_mut().set_writing(self.slot, true);
            if stdin.set_interest(Interest::WRITE).is_err() {
                self.declare_lost(daemon);
            }
        } else {
            recycle(Some(line));
        }
        // It had waited in a lane: its client may send more.
        if by.is_none_or(|by| lane != Lane::Of(by)) {
            self.wake_throttled(daemon);
        }
    }
}

/// Whole lines, and how much of them is written.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Unwritten {
    #[serde(with = "kennel_core::hello::text_of_bytes")]
    pub(super) line: Owned,
    done: usize,
}

impl Unwritten {
    pub(super) fn new(line: Owned) -> Unwritten {
        Unwritten { line, done: 0 }
    }

    /// The lines that are not written completely. A line that lacks only its newline may have been read.
    pub(super) fn cut_off(&self) -> impl Iterator<Item = &[u8]> {
        let mut end = 0;
        let lines = self.line.split_inclusive(|&byte| byte == b'\n');
        lines.filter_map(move |line| {
            let start = end;
            end += line.len();
            let line = line.trim_ascii_end();
            (self.done < start + line.len()).then_some(line)
        })
    }
}
