//! A daemon as the shim's upstream: one socket, lines both ways, and Kennel's own words among them.

use std::cell::Cell;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use kennel_core::hello::Control;
use kennel_sys::process::ProcessRef;
use rustix::net::SendFlags;

use super::lines::{Inbox, Outbox};
use super::watch::Watched;
use super::width::Width;
use crate::election::stuck::{Look, Patience, Watch};

/// A daemon that owes an answer this long is asked whether it is there.
const ASK_AFTER: Duration = Duration::from_secs(1);
/// How often one that was asked is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// A connection to a daemon.
#[derive(Debug)]
pub(crate) struct Link {
    pub(super) socket: Watched<UnixStream>,
    width: Width,
    pub(crate) daemon: Option<ProcessRef>,
    pub(crate) from: Inbox,
    pub(crate) to: Outbox,
    said_all: bool,
    /// Its place is gone: it serves those it has, and others meet elsewhere.
    pub(crate) moved: bool,
    /// Since when it owes something and says nothing.
    silent: Cell<Option<Instant>>,
    /// It was asked, and has not answered.
    asked: Option<Watch>,
}

impl Link {
    pub(super) fn new(socket: Watched<UnixStream>, daemon: Option<ProcessRef>) -> Link {
        Link {
            socket,
            width: Width::default(),
            daemon,
            from: Inbox::default(),
            to: Outbox::default(),
            said_all: false,
            moved: false,
            silent: Cell::default(),
            asked: None,
        }
    }

    /// Writes what it takes now. One that takes no more tells so when it is read.
    pub(crate) fn flush(&mut self) {
        let (socket, width) = (&*self.socket, &self.width);
        let written = self.to.flush(|bytes| {
            width.suit(socket, bytes.len());
            send(socket, bytes)
        });
        if written.is_err() {
            self.to.clear();
        }
    }

    /// Sends the beginning of a long line, before all of it has come.
    pub(crate) fn send_ahead(&mut self, from_app: &Inbox) {
        let (socket, width) = (&*self.socket, &self.width);
        self.to.send_ahead(from_app, |bytes| {
            width.suit(socket, from_app.len());
            send(socket, bytes)
        });
    }

    /// Says that no more will come; answers still do.
    pub(crate) fn end_input(&mut self) {
        if !self.said_all {
            self.said_all = true;
            let _ = self.socket.shutdown(Shutdown::Write);
        }
    }

    /// Reads what it said; `false` once it is gone.
    pub(crate) fn read(&mut self) -> bool {
        let read = self.from.receive(&self.socket);
        self.socket.was_read(&read);
        match read {
            Ok(0) => false,
            Ok(_) => {
                self.is_there();
                true
            }
            Err(error) => matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
            ),
        }
    }

    /// While `something_waits` for it, makes sure that it is there. `Err` with the daemon, if that is known,
    /// once it has to be taken for stuck.
    pub(crate) fn look_after(&mut self, something_waits: bool) -> Result<(), Option<ProcessRef>> {
        if !something_waits {
            self.is_there();
            return Ok(());
        }
        let silent_since = self.silent_since();
        match &mut self.asked {
            None if silent_since.elapsed() >= ASK_AFTER => {
                self.to.push(&Control::Ping.line());
                self.flush();
                let daemon = self.daemon.as_ref().map(ProcessRef::identity);
                let watched = daemon.and_then(|identity| ProcessRef::find(identity).ok()?);
                self.asked = Some(Watch::new(watched, Patience::First));
                Ok(())
            }
            None => Ok(()),
            Some(watch) => match watch.look() {
                Look::Stuck => Err(watch.take_process()),
                Look::Waiting | Look::Works | Look::Unseen => Ok(()),
            },
        }
    }

    /// It was heard of elsewhere.
    pub(crate) fn is_there(&mut self) {
        self.silent.set(None);
        self.asked = None;
    }

    fn silent_since(&self) -> Instant {
        let since = self.silent.get().unwrap_or_else(Instant::now);
        self.silent.set(Some(since));
        since
    }

    /// When to look after it next.
    pub(crate) fn next_look(&self, something_waits: bool) -> Option<Instant> {
        match &self.asked {
            _ if !something_waits => None,
            Some(_) => Some(Instant::now() + LOOK_EVERY),
            None => Some(self.silent_since() + ASK_AFTER),
        }
    }
}

fn send(socket: &UnixStream, bytes: &[u8]) -> io::Result<usize> {
    Ok(rustix::net::send(socket, bytes, SendFlags::NOSIGNAL)?)
}
