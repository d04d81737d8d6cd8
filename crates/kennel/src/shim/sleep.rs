//! Where the shim sleeps, and on what.

use std::io;
use std::time::{Duration, Instant};

use kennel_sys::process::{ProcessRef, SWEEP};
use kennel_sys::starter::Starter;
use rustix::event::epoll::EventFlags;

use super::lines::Outbox;
use super::watch::{self, Who};
use super::{ENOUGH, Shim, Upstream, spare};

/// What an output says when nobody reads it any more.
const GONE: EventFlags = EventFlags::ERR
    .union(EventFlags::HUP)
    .union(EventFlags::RDHUP);

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
        let app_speaks = self.say_what_is_wanted()?;
        let timeout = match app_speaks {
            true => Some(Duration::ZERO),
            false => self.timeout(),
        };
        self.watch.sleep(&mut self.happened, timeout)?;
        let mut ready = Ready {
            // Without an event for its end, it is looked at whenever we wake.
            starter_stirs: self.lacks_events(),
            app_speaks,
            ..Ready::default()
        };
        for event in &self.happened {
            match watch::who(event) {
                Some(Who::Signals) => ready.signalled = true,
                Some(Who::Starter) => ready.starter_stirs = true,
                Some(Who::Stdin) => ready.app_speaks = true,
                Some(Who::Stdout) => ready.app_is_deaf = { event.flags }.intersects(GONE),
                Some(Who::ServerOut) => ready.server_speaks = true,
                Some(Who::ServerErr) => ready.server_complains = true,
                Some(Who::Warden) => ready.warden_reports = true,
                Some(Who::Election) => ready.elected = true,
                Some(Who::Daemon) => ready.daemon_speaks = true,
                // What waits for them is written whenever we wake.
                Some(Who::Stderr | Who::ServerIn) | None => {}
            }
        }
        Ok(ready)
    }

    /// Tells the kernel, where it has changed. `true` if the app's input is ready without an event.
    fn say_what_is_wanted(&self) -> io::Result<bool> {
        let to_write = |waiting: &Outbox| match waiting.is_empty() {
            true => EventFlags::empty(),
            false => EventFlags::OUT,
        };
        let when = |wanted: bool, events| wanted.then_some(events);
        let app_listens = self.to_app.len() < ENOUGH;
        let mut upstream_is_slow = false;
        // Even with nothing to write: an error says that nobody reads any more.
        let hangup = match self.ends_apart {
            true => EventFlags::RDHUP,
            false => EventFlags::empty(),
        };
        self.stdout.want(Some(to_write(&self.to_app) | hangup))?;
        let waits = !self.to_stderr.is_empty();
        self.stderr.want(when(waits, EventFlags::OUT))?;
        if let Some(Upstream { server, .. }) = &self.server {
            if let Some(stdout) = &server.stdout {
                stdout.want(when(app_listens, EventFlags::IN))?;
            }
            if let Some(stderr) = &server.stderr {
                stderr.want(Some(EventFlags::IN))?;
            }
            if let Some(stdin) = &server.stdin {
                stdin.want(when(!server.to.is_empty(), EventFlags::OUT))?;
            }
            server.tree.want(Some(EventFlags::IN))?;
            upstream_is_slow = server.to.len() >= ENOUGH;
        }
        if let Some(link) = &self.link {
            let listens = when(app_listens, EventFlags::IN).unwrap_or(EventFlags::empty());
            link.socket.want(Some(to_write(&link.to) | listens))?;
            upstream_is_slow |= link.to.len() >= ENOUGH;
        }
        if let Some(election) = &self.election {
            election.want(Some(EventFlags::IN))?;
        }
        let hears = self.stdin_open && !upstream_is_slow && !self.session.queue_is_full();
        self.stdin.want(when(hears, EventFlags::IN))
    }

    fn timeout(&self) -> Option<Duration> {
        let next_start = self.next_start.filter(|_| self.server.is_none());
        // While there is something to write, that is what is waited for.
        let leave_at = self.leave_at.filter(|_| self.to_app.is_empty());
        let moments = [
            next_start,
            leave_at,
            self.next_rest(),
            self.next_count(),
            self.next_look_for_a_daemon(),
            spare::due(),
        ];
        let moments = moments.into_iter().flatten();
        let moments = moments.map(|at| at.saturating_duration_since(Instant::now()));
        let look = self
            .link
            .as_ref()
            .and_then(|link| link.next_look(self.session.owed() > 0));
        let soonest = moments.chain(look).min();
        match (soonest, self.lacks_events()) {
            (Some(soonest), true) => Some(soonest.min(SWEEP)),
            (None, true) => Some(SWEEP),
            (soonest, false) => soonest,
        }
    }

    /// Whether somebody is watched whose end the kernel does not tell.
    fn lacks_events(&self) -> bool {
        self.watched().any(|process| process.exit_fd().is_none())
    }

    pub(super) fn watched(&self) -> impl Iterator<Item = &ProcessRef> {
        let watched = match &self.starter {
            Starter::Watch(watched) => watched.as_slice(),
            Starter::Gone(_) | Starter::Nobody => &[],
        };
        watched.iter().map(|watched| &watched.process)
    }
}
