//! What the clients say, on its way to the server.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use kennel_core::lifetime::ClientId;
use kennel_core::message::Owned;
use kennel_core::mux::Lane;
use serde::{Deserialize, Serialize};

use super::super::daemon_state::DaemonState;
use super::super::spare::give_back;
use super::super::tasks::Descriptor;
use super::ServerIo;

impl ServerIo {
    /// Writes what the clients say to the server, until it hears no more.
    pub(in crate::daemon) async fn feed(
        &self,
        daemon: &DaemonState,
        stdin: Rc<Descriptor<OwnedFd>>,
    ) {
        *self.stdin.borrow_mut() = Rc::downgrade(&stdin);
        loop {
            match self.write_some(daemon, &stdin) {
                Ok(true) => {}
                Ok(false) => self.news.notified().await,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if stdin.room().await.is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    /// Writes some of what is to be written to the server next; `false` if that is nothing. What is not written
    /// stays where others find it.
    fn write_some(&self, daemon: &DaemonState, stdin: &Descriptor<OwnedFd>) -> io::Result<bool> {
        let mut cut = self.cut.borrow_mut();
        if cut.is_none() {
            let chunk = daemon.engine.borrow_mut().next_chunk(self.slot);
            *cut = chunk.map(Unwritten::new);
            if cut.is_some() {
                self.stirred.notify_waiters();
            }
        }
        let Some(chunk) = &mut *cut else {
            return Ok(false);
        };
        self.width.suit(stdin, chunk.line.len() - chunk.done);
        chunk.done += rustix::io::write(stdin, &chunk.line[chunk.done..])?;
        if chunk.done == chunk.line.len() {
            give_back(cut.take().map(|chunk| chunk.line));
            daemon.engine.borrow_mut().set_writing(self.slot, false);
        }
        Ok(true)
    }

    /// Writes a line to the server at once, for nothing is ahead of it: nobody is woken for that.
    pub(in crate::daemon) fn write_line(
        &self,
        daemon: &DaemonState,
        lane: Lane,
        mut line: Owned,
        by: Option<ClientId>,
    ) {
        let Some(stdin) = self.stdin.borrow().upgrade() else {
            let mut engine = daemon.engine.borrow_mut();
            return engine.queue_for_server(self.slot, lane, line, by);
        };
        line.push(b'\n');
        self.width.suit(&*stdin, line.len());
        // If it hears no more, whoever writes the rest will see.
        let done = rustix::io::write(&*stdin, &line).unwrap_or(0);
        if done < line.len() {
            self.cut.replace(Some(Unwritten { line, done }));
            daemon.engine.borrow_mut().set_writing(self.slot, true);
            self.news.notify_one();
        } else {
            give_back(Some(line));
        }
        // It waited for its turn until now: whoever said it may say more.
        if by.is_none_or(|by| lane != Lane::Of(by)) {
            self.stirred.notify_waiters();
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

    /// The lines of which not all is written: one that lacks its newline alone may be understood.
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
