//! The decisions of `kennel run`: which upstream a session has, when it gets another one, and when it ends.
//!
//! [`Shim`] contains the [`Session`], which decides what each line means, and adds everything around it: when to start a
//! server, elect a daemon, stop, hibernate, fall back to a server of its own and return to sharing, and what a control
//! message of the daemon means.
//!
//! A driver calls, in this order, each time it wakes:
//!
//! 1. [`app_line`](Shim::app_line), [`upstream_line`](Shim::upstream_line) and [`handle`](Shim::handle) with what happened;
//! 2. [`advance`](Shim::advance) with the time;
//! 3. [`poll_action`](Shim::poll_action) until there is none, [`poll_to_app`](Shim::poll_to_app) and
//!    [`poll_to_upstream`](Shim::poll_to_upstream) as far as the other side takes lines;
//! 4. [`output_written`](Shim::output_written) and [`end`](Shim::end);
//! 5. then it sleeps until [`next_timeout`](Shim::next_timeout).
//!
//! | file | what it decides |
//! |---|---|
//! | `upstream.rs` | nothing: the states of the upstream |
//! | `from_app.rs` | what a line of the app starts |
//! | `server.rs` | the life of the session's own server: start, loss, hibernation |
//! | `daemon.rs` | the life of a connection: election, control messages, loss |
//! | `sharing.rs` | when a session that could not share tries again |
//! | `ending.rs` | when the session ends |
//! | `action.rs` | nothing: events, actions and ends |

mod action;
mod daemon;
mod ending;
mod from_app;
mod server;
mod sharing;
mod upstream;

use std::collections::VecDeque;
use std::time::Duration;

pub use action::{Action, Elected, End, Event, Listing, Purpose};

use ending::Ending;
use sharing::Sharing;
use upstream::{Next, Silence, Upstream};

use crate::engine::RestartLimit;
use crate::engine::stopped::{Due, StoppedCheck};
use crate::engine::survivors::Survivors;
use crate::message::Line;
use crate::session::{Replay, Session, Verdict};
use crate::time::Moment;

/// How a session is to be run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Which requests are sent again to the next upstream.
    pub replay: Replay,
    /// Whether the session shares its server.
    pub sharing: Option<SharingSettings>,
    /// Why the session does not share, if that was decided before.
    pub why_dedicated: Option<String>,
    /// Stop an idle server after this time.
    pub hibernate: Option<Duration>,
    /// How long a server may take to end by itself after the end of its input.
    pub after_eof: Duration,
    /// The end of the app's process ends the session. So an app that closed its input may read its output as late as it
    /// likes; else the session ends after a while.
    pub app_is_watched: bool,
}

/// How a session shares.
#[derive(Debug, Clone)]
pub struct SharingSettings {
    /// Only sessions of the modern era share: the app's first request decides.
    pub modern_only: bool,
    /// How long a daemon may take to be ready.
    pub start_timeout: Duration,
    /// Why sessions of another era do not share.
    pub why: String,
}

/// One session, over however many upstreams.
#[derive(Debug)]
pub struct Shim {
    session: Session,
    settings: Settings,
    sharing: Sharing,
    why_dedicated: Option<String>,
    upstream: Upstream,
    limit: RestartLimit,
    /// Before this, no request starts a server.
    retry_at: Option<Moment>,
    /// The app has made its first request.
    introduced: bool,
    client_name: Option<String>,
    /// Some upstream has answered: a server that exits before that is broken, not unlucky.
    answered_once: bool,
    /// The present upstream, or the last one, has answered.
    upstream_answered: bool,
    /// When the app last asked something, or was answered.
    last_used: Moment,
    stopped: StoppedCheck,
    survivors: Survivors,
    ending: Ending,
    actions: VecDeque<Action>,
}

impl Shim {
    /// A session that begins now.
    pub fn new(settings: Settings, now: Moment) -> Shim {
        Shim {
            session: Session::replaying(settings.replay),
            sharing: match &settings.sharing {
                Some(_) => Sharing::Shared,
                None => Sharing::Dedicated,
            },
            why_dedicated: settings.why_dedicated.clone(),
            settings,
            upstream: Upstream::Waiting { until: now },
            limit: RestartLimit::default(),
            retry_at: None,
            introduced: false,
            client_name: None,
            answered_once: false,
            upstream_answered: false,
            last_used: now,
            stopped: StoppedCheck::default(),
            survivors: Survivors::default(),
            ending: Ending::default(),
            actions: VecDeque::new(),
        }
    }

    /// What to do with a line of the upstream: of the session's own server, or of a daemon.
    pub fn upstream_line<'a>(&mut self, line: impl Into<Line<'a>>, now: Moment) -> Verdict {
        let line = line.into();
        match &self.upstream {
            Upstream::Attached(_) => self.daemon_line(line, now),
            Upstream::Dedicated => {
                if self.settings.hibernate.is_some() && !self.session.is_quiet() {
                    self.last_used = now;
                }
                self.answered(line)
            }
            // It was lost before this line was read.
            _ => Verdict::Drop,
        }
    }

    /// Bytes came from the upstream, be it only a part of a line.
    pub fn upstream_spoke(&mut self) {
        self.stopped.server_spoke();
        self.survivors.spoke();
        if let Upstream::Attached(attached) = &mut self.upstream {
            attached.silence.is_over();
        }
    }

    fn answered(&mut self, line: Line<'_>) -> Verdict {
        self.answered_once = true;
        self.upstream_answered = true;
        self.ending.answered();
        self.session.from_upstream(line)
    }

    /// Takes an event that is no line.
    pub fn handle(&mut self, event: Event, now: Moment) {
        match event {
            Event::AppClosed => self.app_closed(),
            Event::InputChecked { closed } => self.ending.input_checked(closed, now),
            Event::ServerStarted => {}
            Event::ServerNotStarted { why } => self.server_not_started(&why),
            Event::ServerRefused { code } => self.ending.refuse(code, None),
            Event::ServerLost {
                unread,
                ending,
                stderr,
            } => self.server_lost(unread, ending, &stderr, now),
            Event::ServerExited {
                ending,
                stdin_closed,
            } => self.server_exited(ending, stdin_closed),
            Event::ServerTreeEmpty => self.server_tree_empty(),
            Event::ServerOutdated => self.replace_server(now),
            Event::StopAsked { unread } => self.stop_for_now(unread, now),
            Event::StoppedChecked { pid } => {
                if self.stopped.checked(pid, now) {
                    self.actions.push_back(Action::ReportStopped);
                }
            }
            Event::Elected(elected) => self.elected(elected, now),
            Event::DaemonClosed => self.daemon_lost(now),
            Event::DaemonChecked(work) => self.daemon_checked(work, now),
        }
    }

    /// Does what is due by now. Call it each time after all events were handled.
    pub fn advance(&mut self, now: Moment) {
        if self.hibernate_at().is_some_and(|at| now >= at) {
            self.stop_server();
            self.hibernate(crate::session::Unsent::Nothing, now);
        }
        if self.return_at().is_some_and(|at| now >= at) {
            self.try_to_return();
        }
        self.check_daemon(now);
        if let Upstream::Waiting { until } = self.upstream
            && now >= until
        {
            self.start();
        }
        self.stop_waiting_for_answers(now);
        self.check_stopped(now);
    }

    /// When to call [`advance`](Self::advance), though nothing happens.
    pub fn next_timeout(&self) -> Option<Moment> {
        let of_upstream = match &self.upstream {
            Upstream::Waiting { until } => Some(*until),
            Upstream::Attached(attached) => attached.silence.next_timeout(),
            _ => None,
        };
        let timeouts = [
            of_upstream,
            self.hibernate_at(),
            self.return_at(),
            self.stopped.next_timeout(),
            self.survivors.next_timeout().filter(|_| self.has_server()),
            self.ending.next_timeout(!self.session.is_idle()),
        ];
        timeouts.into_iter().flatten().min()
    }

    /// Whether there is something to do.
    pub fn has_actions(&self) -> bool {
        !self.actions.is_empty()
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The next line for the app.
    pub fn poll_to_app(&mut self) -> Option<Vec<u8>> {
        self.session.poll_to_app()
    }

    /// The next line for the upstream: the session's own server, or the daemon.
    pub fn poll_to_upstream(&mut self) -> Option<Vec<u8>> {
        self.session.poll_to_upstream()
    }

    /// The next note of the session.
    pub fn poll_note(&mut self) -> Option<crate::session::Note> {
        self.session.poll_note()
    }

    /// The session, to be asked where it stands.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Whether the session's own server serves: lines may be written to it, and are read from it.
    pub fn has_server(&self) -> bool {
        matches!(self.upstream, Upstream::Dedicated)
    }

    /// Whether no upstream is wanted before the next request.
    pub fn hibernates(&self) -> bool {
        self.upstream.hibernates()
    }

    /// Whether the session shares, or would if its server were not stopped.
    pub fn is_shared(&self) -> bool {
        matches!(self.sharing, Sharing::Shared)
    }

    /// Whether the session has a server of its own only because no daemon could be had.
    pub fn is_dedicated_for_now(&self) -> bool {
        self.has_server() && matches!(self.sharing, Sharing::ForNow(_))
    }

    /// Why the session has a server of its own, if anybody wonders.
    pub fn why_dedicated(&self) -> Option<&str> {
        self.why_dedicated.as_deref()
    }

    /// The name that the app gave itself.
    pub fn client_name(&self) -> Option<&str> {
        self.client_name.as_deref()
    }

    /// Whether an upstream has ever answered.
    pub fn answered_once(&self) -> bool {
        self.answered_once
    }

    /// Whether nothing of the app's will be sent any more: the upstream may have the end of its input.
    pub fn app_said_all(&self) -> bool {
        self.session.app_is_done() && self.session.all_is_sent()
    }

    /// An upstream is there and has heard nothing yet.
    fn attach(&mut self) {
        self.upstream_answered = false;
        self.session.upstream_attached();
    }

    /// Starts what the session talks to.
    fn start(&mut self) {
        let Sharing::Shared = self.sharing else {
            return self.start_server();
        };
        // A daemon that this session may not share would be started for nobody.
        let modern_only = self
            .settings
            .sharing
            .as_ref()
            .is_some_and(|it| it.modern_only);
        if modern_only && !self.introduced {
            self.upstream = Upstream::Unintroduced;
            return;
        }
        self.upstream = Upstream::Electing;
        self.actions.push_back(Action::Elect(Purpose::Attach));
    }

    /// No upstream before a request; `None` if the session was told to wait for one.
    fn give_up(&mut self, why: &str, stderr: &str) {
        self.session.give_up(why, stderr);
        self.upstream = match self.upstream {
            Upstream::Draining(_) => Upstream::Draining(Next::GiveUp),
            _ => Upstream::GaveUp,
        };
    }

    /// The restart limit was reached: a request may try again, and is told when.
    fn give_up_until_retry(&mut self, why: &str, stderr: &str, now: Moment) {
        self.retry_at = self.limit.retry_at();
        self.session.retry_after(millis_until(self.retry_at, now));
        self.give_up(why, stderr);
    }

    fn check_stopped(&mut self, now: Moment) {
        let pending = self.has_server() && self.session.owes();
        match self.stopped.advance(pending, now) {
            Due::Nothing => {}
            Due::Check => self.actions.push_back(Action::CheckStopped),
            Due::Cancelled => self.actions.push_back(Action::TimerCancelled),
        }
        if self.survivors.advance(pending, now) {
            self.actions.push_back(Action::LoseServer);
        }
    }

    fn warn(&mut self, words: impl Into<String>) {
        self.actions.push_back(Action::Warn(words.into()));
    }
}

impl Silence {
    fn is_over(&mut self) {
        if !matches!(self, Silence::Suspected) {
            *self = Silence::None;
        }
    }
}

/// How many milliseconds it is until then, if it is in the future.
fn millis_until(moment: Option<Moment>, now: Moment) -> Option<u64> {
    let wait = moment? - now;
    // Rounded up: earlier is too early.
    u64::try_from(wait.as_micros().div_ceil(1000))
        .ok()
        .filter(|wait| *wait > 0)
}
