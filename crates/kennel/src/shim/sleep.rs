//! Waits for the next event or timeout of the shim.

use std::io;
use std::time::Instant;

use kennel_sys::io::{Interest, Wait};
use kennel_sys::process::{POLL_INTERVAL, ProcessRef};
use kennel_sys::starter::Starter;

use super::event_source::EventSource;
use super::{MAX_QUEUED_BYTES, Shim};
use crate::lines::{Outbox, buffer_pool};

/// The event sources that are ready.
#[derive(Default)]
pub(super) struct Ready {
    pub(super) signalled: bool,
    /// A watched process may have exited.
    pub(super) starter_exited: bool,
    pub(super) app_readable: bool,
    pub(super) stdout_closed: bool,
    pub(super) server_readable: bool,
    pub(super) stderr_readable: bool,
    pub(super) warden_readable: bool,
    pub(super) daemon_readable: bool,
    pub(super) elected: bool,
}

impl Shim {
    /// Waits until an event source is ready or a timeout is due.
    pub(super) fn sleep(&mut self) -> io::Result<Ready> {
        self.set_interests()?;
        let wait = self.next_wake().map_or(Wait::Forever, Wait::Until);
        self.reactor.wait(wait, &mut self.events)?;
        let mut ready = Ready {
            // A process without an exit event is checked at each wake-up.
            starter_exited: self.needs_polling(),
            ..Ready::default()
        };
        for event in &self.events {
            match EventSource::of(event.token) {
                Some(EventSource::Signals) => ready.signalled = true,
                Some(EventSource::Starter) => ready.starter_exited = true,
                Some(EventSource::Stdin) => ready.app_readable = true,
                // Nothing is ever read there: this means that stdout is closed.
                Some(EventSource::Stdout) => ready.stdout_closed = event.readable,
                Some(EventSource::ServerStdout) => ready.server_readable = true,
                Some(EventSource::ServerStderr) => ready.stderr_readable = true,
                Some(EventSource::Reports) => ready.warden_readable = true,
                Some(EventSource::Election) => ready.elected = true,
                Some(EventSource::Daemon) => ready.daemon_readable = true,
                // Queued bytes are written at each wake-up.
                Some(EventSource::Stderr | EventSource::ServerStdin) | None => {}
            }
        }
        Ok(ready)
    }

    /// Updates the poll interests. Only changes cost a system call.
    fn set_interests(&self) -> io::Result<()> {
        let when = |wanted: bool, interest| if wanted { interest } else { Interest::NONE };
        let room_for = |outbox: &Outbox| when(!outbox.is_empty(), Interest::WRITE);
        let may_write_to_app = self.to_app.len() < MAX_QUEUED_BYTES;
        let mut upstream_is_slow = false;
        // Even with nothing to write: an error shows that stdout has no reader.
        self.stdout.set_interest(Interest {
            writable: !self.to_app.is_empty(),
            half_close: self.stdio_is_separate,
            ..Interest::HANGUP
        })?;
        let has_stderr = !self.to_stderr.is_empty();
        self.stderr
            .set_interest(when(has_stderr, Interest::WRITE))?;
        if let Some(server) = &self.server {
            if let Some(stdout) = &server.stdout {
                stdout.set_interest(when(may_write_to_app, Interest::READ))?;
            }
            if let Some(stderr) = &server.stderr {
                stderr.set_interest(Interest::READ)?;
            }
            if let Some(stdin) = &server.stdin {
                stdin.set_interest(room_for(&server.to))?;
            }
            server.tree.set_interest(Interest::READ)?;
            upstream_is_slow = server.to.len() >= MAX_QUEUED_BYTES;
        }
        if let Some(conn) = &self.conn {
            conn.set_interest(self.read_ahead == 0)?;
            upstream_is_slow |= conn.to.len() >= MAX_QUEUED_BYTES;
        }
        // Input is not read from an app that does not read: else errors for it would fill our memory.
        let reads_app = self.stdin_open
            && may_write_to_app
            && !upstream_is_slow
            && !self.engine.session().queue_is_full();
        self.stdin.set_interest(when(reads_app, Interest::READ))
    }

    /// The time of the next timeout.
    fn next_wake(&self) -> Option<Instant> {
        let on_engine_clock = [self.engine.next_timeout(), self.next_record_update()];
        let moments = [
            on_engine_clock
                .into_iter()
                .flatten()
                .min()
                .map(|at| self.instant(at)),
            self.election.as_ref().map(|it| it.pending.overdue_at()),
            buffer_pool::due(),
            self.needs_polling().then(|| Instant::now() + POLL_INTERVAL),
        ];
        moments.into_iter().flatten().min()
    }

    /// Whether a watched process has no exit event.
    fn needs_polling(&self) -> bool {
        self.watched().any(|process| !process.has_exit_event())
    }

    /// The processes whose exit ends the session.
    pub(super) fn watched(&self) -> impl Iterator<Item = &ProcessRef> {
        let watched = match &self.starter {
            Starter::Watch(origin) => &origin[..],
            Starter::Gone(_) | Starter::NoProcess => &[],
        };
        watched.iter().map(|watched| &*watched.process)
    }
}
