//! The decisions of `kennel run`: which upstream a session has, when it gets another one, and when it ends.
//!
//! [`Shim`] contains the [`Session`], which decides what each line means, and adds everything around it: when to start
//! a server, elect a daemon, stop, hibernate, go dedicated and return to sharing, and what control messages mean.
//!
//! A driver calls, each time it wakes:
//!
//! 1. [`handle_app_line`](Shim::handle_app_line), [`handle_upstream_line`](Shim::handle_upstream_line) and
//!    [`handle`](Shim::handle) for each event;
//! 2. [`advance`](Shim::advance) with the time;
//! 3. [`poll_action`](Shim::poll_action) until there is none, [`poll_to_app`](Shim::poll_to_app) and
//!    [`poll_to_upstream`](Shim::poll_to_upstream) as far as the other side takes lines;
//! 4. [`handle_output_written`](Shim::handle_output_written) and [`end`](Shim::end);
//! 5. [`next_timeout`](Shim::next_timeout), and sleeps until then.
//!
//! | file | decides |
//! |---|---|
//! | `upstream.rs` | nothing: the states of the upstream |
//! | `from_app.rs` | what a line of the app starts |
//! | `server.rs` | the dedicated server: start, loss, hibernation |
//! | `daemon.rs` | connections to a daemon: election, control messages, loss |
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
use crate::engine::silence::{DueAction, SilenceTimer};
use crate::message::Line;
use crate::session::{Replay, Session, Unsent, Verdict};
use crate::time::Moment;

/// The settings of a session.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The requests that are replayed to the next upstream.
    pub replay: Replay,
    /// How the session shares its server. `None`: it does not share.
    pub sharing: Option<SharingSettings>,
    /// Why the session does not share, for people.
    pub why_dedicated: Option<String>,
    /// Stop the server after this idle time.
    pub hibernate: Option<Duration>,
    /// How long a server may take to exit after the end of its input.
    pub after_eof: Duration,
    /// Whether the end of the app's process ends the session. Then an app that closed its input may read its output at
    /// any time; else the session ends after a time limit.
    pub app_is_watched: bool,
}

/// The settings of a session that shares.
#[derive(Debug, Clone)]
pub struct SharingSettings {
    /// Only sessions of the modern era share: the app's first request decides.
    pub modern_only: bool,
    /// How long a daemon may take to be ready.
    pub start_timeout: Duration,
    /// Why sessions of another era do not share.
    pub why: String,
}

/// A session and its successive upstreams.
#[derive(Debug)]
pub struct Shim {
    session: Session,
    settings: Settings,
    sharing: Sharing,
    why_dedicated: Option<String>,
    upstream: Upstream,
    limit: RestartLimit,
    /// The time before which no request starts a server.
    retry_at: Option<Moment>,
    /// Whether the app has sent its first request.
    introduced: bool,
    client_name: Option<String>,
    /// Whether any upstream has answered. A server that exits before that is broken.
    answered_once: bool,
    /// Whether the present or last upstream has answered.
    upstream_answered: bool,
    /// When the app last sent a request or got a response.
    last_used: Moment,
    silence: SilenceTimer,
    ending: Ending,
    actions: VecDeque<Action>,
}

impl Shim {
    /// Creates a session.
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
            silence: SilenceTimer::default(),
            ending: Ending::default(),
            actions: VecDeque::new(),
        }
    }

    /// Handles a line of the upstream: the dedicated server or a daemon.
    pub fn handle_upstream_line<'a>(&mut self, line: impl Into<Line<'a>>, now: Moment) -> Verdict {
        let line = line.into();
        match &self.upstream {
            Upstream::Attached(_) => self.daemon_line(line, now),
            Upstream::Dedicated => {
                if self.settings.hibernate.is_some() && !self.session.is_quiet() {
                    self.last_used = now;
                }
                self.answered(line)
            }
            // The upstream was lost before this line was read.
            _ => Verdict::Drop,
        }
    }

    /// Records bytes of the upstream, even if they are only a part of a line.
    pub fn handle_upstream_bytes(&mut self) {
        self.silence.handle_output();
        if let Upstream::Attached(attached) = &mut self.upstream {
            attached.silence.is_over();
        }
    }

    fn answered(&mut self, line: Line<'_>) -> Verdict {
        self.answered_once = true;
        self.upstream_answered = true;
        self.ending.answered();
        self.session.handle_upstream_line(line)
    }

    /// Handles an event other than a line.
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
            } => self.handle_server_lost(unread, ending, &stderr, now),
            Event::ServerExited {
                ending,
                stdin_closed,
            } => self.server_exited(ending, stdin_closed),
            Event::ServerTreeEmpty => self.server_tree_empty(),
            Event::ServerOutdated => self.replace_server(now),
            Event::StopRequested { unread } => self.stop_for_now(unread, now),
            Event::StoppedChecked { pid } => {
                if self.silence.handle_check(pid, now) {
                    self.actions.push_back(Action::ReportStopped);
                }
            }
            Event::Elected(elected) => self.elected(elected, now),
            Event::DaemonClosed { unwritten } => {
                self.daemon_lost(Unsent::LastBytes(unwritten), now);
            }
            Event::DaemonChecked(work) => self.daemon_checked(work, now),
        }
    }

    /// Performs what is due. Call it after all events were handled.
    pub fn advance(&mut self, now: Moment) {
        if self.hibernate_at().is_some_and(|at| now >= at) {
            self.stop_server();
            self.hibernate(Unsent::Nothing, now);
        }
        if self.share_again_at().is_some_and(|at| now >= at) {
            self.try_to_share();
        }
        self.check_daemon(now);
        if let Upstream::Waiting { until } = self.upstream
            && now >= until
        {
            self.start();
        }
        self.stop_waiting_for_answers(now);
        self.check_silence(now);
    }

    /// When to call [`advance`](Self::advance).
    pub fn next_timeout(&self) -> Option<Moment> {
        let of_upstream = match &self.upstream {
            Upstream::Waiting { until } => Some(*until),
            Upstream::Attached(attached) => attached.silence.next_timeout(),
            _ => None,
        };
        let timeouts = [
            of_upstream,
            self.hibernate_at(),
            self.share_again_at(),
            self.silence.next_timeout(),
            self.ending.next_timeout(!self.session.is_idle()),
        ];
        timeouts.into_iter().flatten().min()
    }

    /// Whether there is an action to carry out.
    pub fn has_actions(&self) -> bool {
        !self.actions.is_empty()
    }

    /// Returns the next action.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Returns the next line for the app.
    pub fn poll_to_app(&mut self) -> Option<Vec<u8>> {
        self.session.poll_to_app()
    }

    /// Returns the next line for the upstream: the dedicated server or the daemon.
    pub fn poll_to_upstream(&mut self) -> Option<Vec<u8>> {
        self.session.poll_to_upstream()
    }

    /// Returns the next note of the session for the log.
    pub fn poll_note(&mut self) -> Option<crate::session::Note> {
        self.session.poll_note()
    }

    /// The session, for inspection.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Whether there is a dedicated server: lines are written to it and read from it.
    pub fn has_server(&self) -> bool {
        matches!(self.upstream, Upstream::Dedicated)
    }

    /// Whether the server is stopped until the next request.
    pub fn hibernates(&self) -> bool {
        self.upstream.hibernates()
    }

    /// Whether the session shares, even if its server is stopped.
    pub fn is_shared(&self) -> bool {
        matches!(self.sharing, Sharing::Shared)
    }

    /// Whether the session is dedicated only because there was no daemon.
    pub fn is_dedicated_for_now(&self) -> bool {
        self.has_server() && matches!(self.sharing, Sharing::DedicatedForNow(_))
    }

    /// Why the session is dedicated, for people.
    pub fn why_dedicated(&self) -> Option<&str> {
        self.why_dedicated.as_deref()
    }

    /// The name in the app's `initialize`.
    pub fn client_name(&self) -> Option<&str> {
        self.client_name.as_deref()
    }

    /// Whether any upstream has answered.
    pub fn answered_once(&self) -> bool {
        self.answered_once
    }

    /// Whether all of the app's input was sent, so that the upstream may get the end of its input.
    pub fn all_input_is_sent(&self) -> bool {
        self.session.app_is_done() && self.session.all_is_sent()
    }

    /// Starts the session with a new upstream.
    fn attach(&mut self) {
        self.upstream_answered = false;
        self.session.handle_upstream_attached();
    }

    /// Starts the upstream.
    fn start(&mut self) {
        let Sharing::Shared = self.sharing else {
            return self.start_server();
        };
        // Do not start a daemon that this session may not share.
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

    /// Gives up the upstream until the next request.
    fn give_up(&mut self, why: &str, stderr: &str) {
        self.session.give_up(why, stderr);
        self.upstream = match self.upstream {
            Upstream::Draining(_) => Upstream::Draining(Next::GiveUp),
            _ => Upstream::GaveUp,
        };
    }

    /// Gives up because of the restart limit. Errors say when a request may try again.
    fn give_up_until_retry(&mut self, why: &str, stderr: &str, now: Moment) {
        self.retry_at = self.limit.retry_at();
        self.session
            .set_retry_after(millis_until(self.retry_at, now));
        self.give_up(why, stderr);
    }

    fn check_silence(&mut self, now: Moment) {
        let pending = self.has_server() && self.session.has_pending_requests();
        let action = match self.silence.advance(pending, now) {
            DueAction::Nothing => return,
            DueAction::CheckStopped => Action::CheckStopped,
            DueAction::Lost => Action::DeclareServerLost,
            DueAction::TimerCancelled => Action::TimerCancelled,
        };
        self.actions.push_back(action);
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

/// Milliseconds until a time, if it is in the future.
fn millis_until(moment: Option<Moment>, now: Moment) -> Option<u64> {
    let wait = moment? - now;
    // Rounded up: earlier is too early.
    u64::try_from(wait.as_micros().div_ceil(1000))
        .ok()
        .filter(|wait| *wait > 0)
}
