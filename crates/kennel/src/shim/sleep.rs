//! Where the shim sleeps, and on what.

use std::io;
use std::time::Instant;

use kennel_sys::io::{Interest, Wait};
use kennel_sys::process::{ProcessRef, SWEEP};
use kennel_sys::starter::Starter;

use super::origin::Origin;
use super::{ENOUGH, Shim};
use crate::lines::{Outbox, buffer_pool};

/// What happened.
#[derive(Default)]
pub(super) struct Ready {
    pub(super) signalled: bool,
    /// Somebody who is watched may be gone.
    pub(super) starter_stirs: bool,
    pub(super) app_speaks: bool,
    pub(super) app_is_deaf: bool,
    pub(super) server_speaks: bool,
    pub(super) server_complains: bool,
    pub(super) warden_reports: bool,
    pub(super) daemon_speaks: bool,
    pub(super) elected: bool,
}

impl Shim {
    pub(super) fn sleep(&mut self) -> io::Result<Ready> {
        self.set_interests()?;
        let wait = self.next_moment().map_or(Wait::Forever, Wait::Until);
        self.reactor.wait(wait, &mut self.events)?;
        let mut ready = Ready {
            // Without an event for its end, it is looked at whenever we wake.
            starter_stirs: self.lacks_events(),
            ..Ready::default()
        };
        for event in &self.events {
            match Origin::of(event.token) {
                Some(Origin::Signals) => ready.signalled = true,
                Some(Origin::Starter) => ready.starter_stirs = true,
                Some(Origin::Stdin) => ready.app_speaks = true,
                // Nothing is read there: it is the end.
                Some(Origin::Stdout) => ready.app_is_deaf = event.readable,
                Some(Origin::ServerStdout) => ready.server_speaks = true,
                Some(Origin::ServerStderr) => ready.server_complains = true,
                Some(Origin::Reports) => ready.warden_reports = true,
                Some(Origin::Election) => ready.elected = true,
                Some(Origin::Daemon) => ready.daemon_speaks = true,
                // What waits for them is written whenever we wake.
                Some(Origin::Stderr | Origin::ServerStdin) | None => {}
            }
        }
        Ok(ready)
    }

    /// Says what is waited for. The system is told where it has changed.
    fn set_interests(&self) -> io::Result<()> {
        let when = |wanted: bool, interest| if wanted { interest } else { Interest::NONE };
        let room_for = |waiting: &Outbox| when(!waiting.is_empty(), Interest::WRITE);
        let app_listens = self.to_app.len() < ENOUGH;
        let mut upstream_is_slow = false;
        // Even with nothing to write: an error says that nobody reads any more.
        self.stdout.set_interest(Interest {
            writable: !self.to_app.is_empty(),
            half_close: self.ends_apart,
            ..Interest::HANGUP
        })?;
        let stderr_waits = !self.to_stderr.is_empty();
        self.stderr
            .set_interest(when(stderr_waits, Interest::WRITE))?;
        if let Some(server) = &self.server {
            if let Some(stdout) = &server.stdout {
                stdout.set_interest(when(app_listens, Interest::READ))?;
            }
            if let Some(stderr) = &server.stderr {
                stderr.set_interest(Interest::READ)?;
            }
            if let Some(stdin) = &server.stdin {
                stdin.set_interest(room_for(&server.to))?;
            }
            server.tree.set_interest(Interest::READ)?;
            upstream_is_slow = server.to.len() >= ENOUGH;
        }
        if let Some(link) = &self.link {
            link.set_interest(self.read_ahead == 0)?;
            upstream_is_slow |= link.to.len() >= ENOUGH;
        }
        // An app that does not read is not heard either: else refusals and errors for it would fill our memory.
        let hears = self.stdin_open
            && app_listens
            && !upstream_is_slow
            && !self.engine.session().queue_is_full();
        self.stdin.set_interest(when(hears, Interest::READ))
    }

    /// When to wake, though nothing happens.
    fn next_moment(&self) -> Option<Instant> {
        let on_engine_clock = [self.engine.next_timeout(), self.next_count()];
        let moments = [
            on_engine_clock
                .into_iter()
                .flatten()
                .min()
                .map(|at| self.instant(at)),
            self.election.as_ref().map(|it| it.pending.overdue_at()),
            buffer_pool::due(),
            self.lacks_events().then(|| Instant::now() + SWEEP),
        ];
        moments.into_iter().flatten().min()
    }

    /// Whether somebody is watched whose end the kernel does not tell.
    fn lacks_events(&self) -> bool {
        self.watched().any(|process| !process.has_exit_event())
    }

    pub(super) fn watched(&self) -> impl Iterator<Item = &ProcessRef> {
        let watched = match &self.starter {
            Starter::Watch(origin) => &origin[..],
            Starter::Gone(_) | Starter::NoProcess => &[],
        };
        watched.iter().map(|watched| &*watched.process)
    }
}
