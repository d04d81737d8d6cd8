//! Where the shim sleeps, and on what.

use std::io;
use std::time::{Duration, Instant};

use kennel_sys::events::Alarm;
use kennel_sys::process::{ProcessRef, SWEEP};
use kennel_sys::starter::Starter;
use rustix::event::epoll::EventFlags;

use super::lines::Outbox;
use super::watch::{self, NEWS, Watch, Watched, Who};
use super::{ENOUGH, Shim, spare};

/// What an output says when nobody reads it any more.
const GONE: EventFlags = EventFlags::ERR
    .union(EventFlags::HUP)
    .union(EventFlags::RDHUP);

/// A sleep that may take longer than this is ended by an alarm.
const LONG: Duration = Duration::from_millis(100);

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
    alarmed: bool,
}

/// An alarm, and when it rings.
pub(super) struct Alarmed {
    alarm: Watched<Alarm>,
    rings_at: Option<Instant>,
}

impl Alarmed {
    fn new(watch: &Watch) -> io::Result<Alarmed> {
        let alarm = watch.over(Alarm::new()?, Who::Alarm);
        alarm.want(Some(EventFlags::IN))?;
        Ok(Alarmed {
            alarm,
            rings_at: None,
        })
    }
}

impl Shim {
    pub(super) fn sleep(&mut self) -> io::Result<Ready> {
        let app_speaks = self.say_what_is_wanted()?;
        let timeout = match app_speaks {
            true => Some(Duration::ZERO),
            false => self.unless_alarmed(self.next_moment()),
        };
        self.watch.sleep(&mut self.happened, timeout)?;
        let mut ready = Ready {
            // Without an event for its end, it is looked at whenever we wake.
            starter_stirs: self.lacks_events(),
            app_speaks,
            ..Ready::default()
        };
        for event in &self.happened {
            let who = watch::who(event);
            if { event.flags }.intersects(GONE) {
                self.tell_again(who);
            }
            match who {
                Some(Who::Signals) => ready.signalled = true,
                Some(Who::Starter) => ready.starter_stirs = true,
                Some(Who::Stdin) => ready.app_speaks = true,
                Some(Who::Stdout) => ready.app_is_deaf = { event.flags }.intersects(GONE),
                Some(Who::ServerOut) => ready.server_speaks = true,
                Some(Who::ServerErr) => ready.server_complains = true,
                Some(Who::Warden) => ready.warden_reports = true,
                Some(Who::Election) => ready.elected = true,
                Some(Who::Daemon) => ready.daemon_speaks = true,
                Some(Who::Alarm) => ready.alarmed = true,
                // What waits for them is written whenever we wake.
                Some(Who::Stderr | Who::ServerIn) | None => {}
            }
        }
        if ready.alarmed {
            self.turn_off_alarm();
        }
        Ok(ready)
    }

    /// One that has gone may have said more than is read at once, and will say no more that would be news.
    fn tell_again(&self, who: Option<Who>) {
        match who {
            Some(Who::Stdin) => self.stdin.tell_again(),
            Some(Who::ServerOut) => {
                if let Some(server) = &self.server
                    && let Some(stdout) = &server.stdout
                {
                    stdout.tell_again();
                }
            }
            Some(Who::Daemon) => {
                if let Some(link) = &self.link {
                    link.tell_again();
                }
            }
            _ => {}
        }
    }

    /// How long to sleep until then, where no alarm can be had for it: the kernel would be told anew for each line how
    /// long that may be. One that is set for an earlier moment stays so: we wake, and find nothing to do.
    fn unless_alarmed(&mut self, moment: Option<Instant>) -> Option<Duration> {
        let moment = moment?;
        let rings_at = self.alarm.as_ref().and_then(|alarm| alarm.rings_at);
        if rings_at.is_some_and(|rings_at| rings_at <= moment) {
            return None;
        }
        let timeout = moment.saturating_duration_since(Instant::now());
        if timeout < LONG {
            return Some(timeout);
        }
        if self.alarm.is_none() {
            self.alarm = Alarmed::new(&self.watch).ok();
        }
        let Some(alarm) = &mut self.alarm else {
            return Some(timeout);
        };
        alarm.alarm.set(Some(timeout));
        alarm.rings_at = Some(moment);
        None
    }

    /// Turns the alarm off: it is set again for the next moment, if there is one.
    pub(super) fn turn_off_alarm(&mut self) {
        if let Some(alarm) = &mut self.alarm {
            alarm.rings_at = None;
            alarm.alarm.set(None);
        }
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
        if let Some(server) = &self.server {
            if let Some(stdout) = &server.stdout {
                stdout.want(when(app_listens, NEWS))?;
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
            link.want(app_listens)?;
            upstream_is_slow |= link.to.len() >= ENOUGH;
        }
        if let Some(election) = &self.election {
            election.want(Some(EventFlags::IN))?;
        }
        // An app that does not read is not heard either: else refusals and errors for it would fill our memory.
        let hears = self.stdin_open
            && app_listens
            && !upstream_is_slow
            && !self.engine.session().queue_is_full();
        self.stdin.want(when(hears, self.stdin.speaks))
    }

    /// When to wake, though nothing happens.
    fn next_moment(&self) -> Option<Instant> {
        let moments = [
            self.engine.next_timeout().map(|at| self.instant(at)),
            self.next_count(),
            self.election.as_ref().map(|election| election.overdue_at()),
            spare::due(),
            self.lacks_events().then(|| Instant::now() + SWEEP),
        ];
        moments.into_iter().flatten().min()
    }

    /// Whether somebody is watched whose end the kernel does not tell.
    fn lacks_events(&self) -> bool {
        self.watched().any(|process| process.exit_fd().is_none())
    }

    pub(super) fn watched(&self) -> impl Iterator<Item = &ProcessRef> {
        let watched = match &self.starter {
            Starter::Watch(origin) => &origin[..],
            Starter::Gone(_) | Starter::Nobody => &[],
        };
        watched.iter().map(|watched| &watched.process)
    }
}
