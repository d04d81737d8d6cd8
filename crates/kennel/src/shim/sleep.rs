//! Where the shim sleeps: one `poll` over everything that could happen.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use kennel_sys::process::{ProcessRef, SWEEP};
use kennel_sys::starter::Starter;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::lines::Outbox;
use super::{ENOUGH, Shim, Upstream};

/// What `poll` found, by who asked for it.
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
    pub(super) fn sleep(&self) -> io::Result<Ready> {
        let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(8);
        let mut place = |fd, events| {
            fds.push(PollFd::from_borrowed_fd(fd, events));
            fds.len() - 1
        };
        let signals = place(self.signals.as_fd(), PollFlags::IN);
        // Even with nothing to write: an error says that nobody reads any more.
        let write = |waiting: &Outbox| {
            if waiting.is_empty() {
                PollFlags::empty()
            } else {
                PollFlags::OUT
            }
        };
        let stdout = place(self.stdout.as_fd(), write(&self.to_app) | PollFlags::RDHUP);
        let mut stdin = None;
        let (mut from_server, mut errors, mut reports) = (None, None, None);
        let mut upstream_is_slow = false;
        if let Some(Upstream { server, .. }) = &self.server {
            if self.to_app.len() < ENOUGH {
                from_server = server
                    .stdout
                    .as_ref()
                    .map(|fd| place(fd.as_fd(), PollFlags::IN));
            }
            errors = server
                .stderr
                .as_ref()
                .map(|fd| place(fd.as_fd(), PollFlags::IN));
            reports = Some(place(server.as_fd(), PollFlags::IN));
            upstream_is_slow = server.to.len() >= ENOUGH;
            if let (Some(fd), false) = (&server.stdin, server.to.is_empty()) {
                place(fd.as_fd(), PollFlags::OUT);
            }
        }
        let mut from_daemon = None;
        if let Some(link) = &self.link {
            let mut wanted = write(&link.to);
            if self.to_app.len() < ENOUGH {
                wanted |= PollFlags::IN;
            }
            from_daemon = Some(place(link.as_fd(), wanted));
            upstream_is_slow |= link.to.len() >= ENOUGH;
        }
        let elected = self
            .election
            .as_ref()
            .map(|pending| place(pending.as_fd(), PollFlags::IN));
        if self.stdin_open && !upstream_is_slow && !self.session.queue_is_full() {
            stdin = Some(place(self.stdin.as_fd(), PollFlags::IN));
        }
        if !self.to_stderr.is_empty() {
            place(self.stderr.as_fd(), PollFlags::OUT);
        }
        let exits: Vec<Option<usize>> = self
            .watched()
            .map(|process| Some(place(process.exit_fd()?, PollFlags::IN)))
            .collect();
        let timeout = self
            .timeout()
            .and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let happened =
            |index: Option<usize>| index.is_some_and(|index| !fds[index].revents().is_empty());
        let gone = PollFlags::ERR | PollFlags::HUP | PollFlags::RDHUP | PollFlags::NVAL;
        Ok(Ready {
            signalled: happened(Some(signals)),
            // Without an event for its end, it is looked at whenever we wake.
            starter_stirs: exits.iter().any(|&exit| exit.is_none() || happened(exit)),
            app_speaks: happened(stdin),
            app_is_deaf: fds[stdout].revents().intersects(gone),
            server_speaks: happened(from_server),
            server_complains: happened(errors),
            warden_reports: happened(reports),
            daemon_speaks: happened(from_daemon),
            elected: happened(elected),
        })
    }

    fn timeout(&self) -> Option<Duration> {
        let now = Instant::now();
        let no_events = self.watched().any(|process| process.exit_fd().is_none());
        let next_start = self.next_start.filter(|_| self.server.is_none());
        let moments = [next_start, self.leave_at].into_iter().flatten();
        let moments = moments.map(|at| at.saturating_duration_since(now));
        let look = self
            .link
            .as_ref()
            .and_then(|link| link.next_look(self.session.in_flight() > 0));
        let soonest = moments.chain(look).min();
        match (soonest, no_events) {
            (Some(soonest), true) => Some(soonest.min(SWEEP)),
            (None, true) => Some(SWEEP),
            (soonest, false) => soonest,
        }
    }

    pub(super) fn watched(&self) -> impl Iterator<Item = &ProcessRef> {
        let watched = match &self.starter {
            Starter::Watch(watched) => watched.as_slice(),
            Starter::Gone(_) | Starter::Nobody => &[],
        };
        watched.iter().map(|watched| &watched.process)
    }
}
