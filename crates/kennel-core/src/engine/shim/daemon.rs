//! Connections to a daemon: election, control messages, silence, loss.

use std::time::Duration;

use super::sharing::Return;
use super::upstream::{Attached, Next, Silence, Upstream};
use super::{Action, Elected, Listing, Purpose, Sharing, Shim};
use crate::election::{Activity, Patience, StuckCheck, StuckWatch};
use crate::hello::{Control, Lost};
use crate::message::Line;
use crate::session::{SERVER_RESTARTED, Unsent, Verdict};
use crate::time::Moment;

/// How long a daemon may be silent with a request pending before it is pinged.
const PING_AFTER: Duration = Duration::from_secs(1);
/// Time between two checks of a daemon that was pinged.
const CHECK_EVERY: Duration = Duration::from_millis(250);

impl Silence {
    pub(super) fn next_timeout(&self) -> Option<Moment> {
        match self {
            Silence::None | Silence::Suspected => None,
            Silence::Since(since) => Some(*since + PING_AFTER),
            Silence::Asked { check_at, .. } => Some(*check_at),
        }
    }
}

impl Shim {
    /// Handles a line of the daemon: a line of its server, or a control message.
    pub(super) fn daemon_line(&mut self, line: Line<'_>, now: Moment) -> Verdict {
        match Control::parse_from_daemon(line.bytes()) {
            None => {
                let verdict = self.answered(line);
                if verdict == Verdict::Abandon {
                    self.daemon_lost(Unsent::Nothing, now);
                }
                verdict
            }
            Some(control) => {
                self.control(control, now);
                Verdict::Drop
            }
        }
    }

    fn control(&mut self, control: Control, now: Moment) {
        match control {
            Control::Stderr(line) => self.actions.push_back(Action::PassStderr(line)),
            Control::Pipes => self.actions.push_back(Action::TakePipes),
            Control::Moved => {
                if let Upstream::Attached(attached) = &mut self.upstream {
                    attached.moved = true;
                }
            }
            Control::Lost(lost) if lost.shortage => self.shared_server_cannot_start(&lost, now),
            Control::Lost(lost) => self.shared_server_lost(&lost, now),
            Control::Going => self.daemon_lost(Unsent::Nothing, now),
            Control::Stopped => self.shared_server_stopped(Unsent::Nothing, now),
            // The server has not received what it has not answered.
            Control::Resting => self.shared_server_stopped(Unsent::LastBytes(usize::MAX), now),
            Control::Solo(solo) => {
                let unsent = Unsent::Reported {
                    ids: &solo.unsent,
                    received: solo.received,
                };
                self.session.handle_upstream_lost(SERVER_RESTARTED, unsent);
                self.abandon_election();
                self.sharing = Sharing::Dedicated;
                self.why_dedicated = Some(solo.why);
                self.daemon_lost(Unsent::Nothing, now);
            }
            Control::Ping | Control::Pong | Control::Again | Control::Unknown => {}
        }
    }

    /// Handles a lost shared server. The connection to the daemon stays.
    fn shared_server_lost(&mut self, lost: &Lost, now: Moment) {
        // Exit as a shell would: the session never had this server.
        if let Some(code) = lost.exit.filter(|_| !self.answered_once) {
            self.ending.refuse(code, Some(lost.detail.clone()));
        }
        let unsent = Unsent::Reported {
            ids: &lost.unsent,
            received: lost.received,
        };
        self.session.set_server_exit(lost.ended);
        self.session.handle_upstream_lost(&lost.reason, unsent);
        if !lost.is_final && !self.session.app_is_done() {
            return self.begin_again();
        }
        if let Upstream::Attached(attached) = &mut self.upstream {
            attached.gave_up = true;
        }
        self.session.set_retry_after(lost.retry_after);
        let retry_after = lost.retry_after.map(Duration::from_millis);
        self.retry_at = retry_after.map(|after| now + after);
        let why = "the server exited and is not restarted";
        self.session.give_up(why, &lost.detail);
    }

    /// Continues with the next server on the same connection.
    fn begin_again(&mut self) {
        self.actions.push_back(Action::Send(Control::Again));
        self.attach();
    }

    /// Retries, on request, a server that the daemon gave up.
    pub(super) fn retry_given_up_server(&mut self) {
        if let Upstream::Attached(attached) = &mut self.upstream
            && std::mem::take(&mut attached.gave_up)
        {
            self.begin_again();
        }
    }

    /// Handles a shared server that a person stopped or that hibernates: its daemon ends, too.
    fn shared_server_stopped(&mut self, unsent: Unsent<'_>, now: Moment) {
        self.leave_daemon();
        self.hibernate(unsent, now);
    }

    /// Handles a daemon that lacks resources to start a server.
    fn shared_server_cannot_start(&mut self, lost: &Lost, now: Moment) {
        let unsent = Unsent::Reported {
            ids: &lost.unsent,
            received: lost.received,
        };
        self.session.handle_upstream_lost(&lost.reason, unsent);
        self.leave_daemon();
        let why = format!(
            "the daemon lacks resources to start a server: {}",
            lost.detail
        );
        self.go_dedicated_for_now(&why, Return::with_max_delay(now));
    }

    /// Handles a lost or unresponsive daemon: another one is elected, as the restart limit allows.
    pub(super) fn daemon_lost(&mut self, unsent: Unsent<'_>, now: Moment) {
        let suspected = match &self.upstream {
            Upstream::Attached(attached) => matches!(attached.silence, Silence::Suspected),
            _ => return,
        };
        self.actions.push_back(Action::Disconnect);
        self.upstream = match suspected {
            // The election that examines the lost daemon finds another one.
            true => Upstream::Electing,
            false => Upstream::GaveUp,
        };
        self.session.handle_upstream_lost(SERVER_RESTARTED, unsent);
        // Requests that were not sent yet still need an answer.
        if self.session.app_is_done() && self.session.in_flight() == 0 {
            self.abandon_election();
            return self.give_up("the daemon exited", "");
        }
        if !suspected {
            self.wait_for_another_daemon(now);
        }
    }

    fn wait_for_another_daemon(&mut self, now: Moment) {
        match self.limit.record_loss(now, self.upstream_answered) {
            Some(at) => {
                self.session.expect_upstream();
                self.upstream = Upstream::Waiting { until: at };
            }
            None => self.give_up_until_retry("daemons ended too often", "", now),
        }
    }

    /// Closes the connection, and cancels an election about its daemon.
    pub(super) fn leave_daemon(&mut self) {
        self.abandon_election();
        if let Upstream::Attached(_) = self.upstream {
            self.actions.push_back(Action::Disconnect);
            self.upstream = Upstream::GaveUp;
        }
    }

    /// Cancels the election, if there is one.
    fn abandon_election(&mut self) {
        match &mut self.upstream {
            Upstream::Electing => self.upstream = Upstream::GaveUp,
            Upstream::Attached(attached) if matches!(attached.silence, Silence::Suspected) => {
                attached.silence = Silence::None;
            }
            _ => return,
        }
        self.actions.push_back(Action::AbandonElection);
    }

    pub(super) fn elected(&mut self, elected: Elected, now: Moment) {
        match elected {
            Elected::NotStuck => match &mut self.upstream {
                Upstream::Attached(attached) => attached.silence = Silence::None,
                // The daemon was lost at the same moment.
                Upstream::Electing => self.wait_for_another_daemon(now),
                _ => {}
            },
            Elected::Connected { handshake } => match &self.sharing {
                Sharing::DedicatedForNow(_) => self.return_to(now),
                Sharing::Shared | Sharing::Dedicated => self.connected(handshake, now),
            },
            Elected::NoDaemon { why } => match &mut self.sharing {
                Sharing::DedicatedForNow(attempts) => attempts.failed(now),
                Sharing::Shared | Sharing::Dedicated => {
                    self.session
                        .handle_upstream_lost(SERVER_RESTARTED, Unsent::Nothing);
                    self.disconnect_after_election();
                    self.go_dedicated_for_now(&why, Return::first(now));
                }
            },
        }
    }

    /// Closes the connection. The election has ended, so it need not be cancelled.
    fn disconnect_after_election(&mut self) {
        if let Upstream::Attached(_) = self.upstream {
            self.actions.push_back(Action::Disconnect);
        }
    }

    fn connected(&mut self, handshake: Option<Vec<u8>>, now: Moment) {
        self.actions.push_back(Action::UseConnection);
        self.upstream = Upstream::Attached(Attached::default());
        self.attach();
        if let Some(handshake) = handshake
            && self.session.poll_to_upstream() != Some(handshake)
        {
            // The daemon got a greeting that the session would not send any more.
            self.daemon_lost(Unsent::Nothing, now);
        }
    }

    /// Starts a dedicated server because no daemon can be had: Kennel must never be worse than no Kennel.
    fn go_dedicated_for_now(&mut self, why: &str, attempts: Return) {
        self.warn(format!("no daemon, using a dedicated server: {why}"));
        self.sharing = Sharing::DedicatedForNow(attempts);
        self.why_dedicated = Some(why.to_owned());
        self.start_server();
    }

    /// When to try to share again. Not while a request is pending: its response wakes the shim, too.
    pub(super) fn share_again_at(&self) -> Option<Moment> {
        let Sharing::DedicatedForNow(attempts) = &self.sharing else {
            return None;
        };
        let may_leave =
            !attempts.electing && !self.upstream.hibernates() && self.session.is_quiet();
        (may_leave && !self.session.app_is_done()).then_some(attempts.next)
    }

    pub(super) fn try_to_share(&mut self) {
        if let Sharing::DedicatedForNow(attempts) = &mut self.sharing {
            attempts.electing = true;
            self.actions.push_back(Action::Elect(Purpose::Return));
        }
    }

    /// Handles the connection to a daemon. Its server starts when the dedicated server's process tree is empty: two
    /// writers on one store are worse than a late response.
    fn return_to(&mut self, now: Moment) {
        let Sharing::DedicatedForNow(attempts) = &mut self.sharing else {
            return;
        };
        if !self.session.is_quiet() || self.session.app_is_done() {
            attempts.failed(now);
            return self.actions.push_back(Action::DropConnection);
        }
        self.warn("a daemon is available again; sharing its server");
        self.sharing = Sharing::Shared;
        self.why_dedicated = None;
        self.actions.push_back(Action::List(Listing::Nothing));
        self.stop_server();
        self.session
            .handle_upstream_lost(SERVER_RESTARTED, Unsent::Nothing);
        match &mut self.upstream {
            Upstream::Draining(next) => *next = Next::Attach,
            _ => {
                self.upstream = Upstream::Attached(Attached::default());
                self.actions.push_back(Action::UseConnection);
                self.attach();
            }
        }
    }

    /// Stops the server of a session that would share. The session stays, and its next request starts an election.
    pub(super) fn stop_for_now(&mut self, unread: usize, now: Moment) {
        if !self.is_dedicated_for_now() {
            return;
        }
        self.abandon_sharing(now);
        self.sharing = Sharing::Shared;
        self.why_dedicated = None;
        self.stop_server();
        self.hibernate(Unsent::LastBytes(unread), now);
    }

    /// Cancels the election of an attempt to share again.
    pub(super) fn abandon_sharing(&mut self, now: Moment) {
        if let Sharing::DedicatedForNow(attempts) = &mut self.sharing
            && attempts.electing
        {
            attempts.failed(now);
            self.actions.push_back(Action::AbandonElection);
        }
    }

    /// Pings a daemon that is silent with a request pending, and leaves a daemon without runtime directory when none
    /// is.
    pub(super) fn check_daemon(&mut self, now: Moment) {
        let Upstream::Attached(attached) = &mut self.upstream else {
            return;
        };
        if !self.session.has_pending_requests() {
            if attached.moved {
                return self.daemon_lost(Unsent::Nothing, now);
            }
            return attached.silence.is_over();
        }
        match &mut attached.silence {
            Silence::None => attached.silence = Silence::Since(now),
            Silence::Since(since) if now >= *since + PING_AFTER => {
                attached.silence = Silence::Asked {
                    watch: StuckWatch::new(Patience::First, now),
                    check_at: now + CHECK_EVERY,
                };
                self.actions.push_back(Action::Send(Control::Ping));
            }
            Silence::Asked { check_at, .. } if now >= *check_at => {
                *check_at = now + CHECK_EVERY;
                self.actions.push_back(Action::CheckDaemon);
            }
            Silence::Since(_) | Silence::Asked { .. } | Silence::Suspected => {}
        }
    }

    pub(super) fn daemon_checked(&mut self, work: Option<Activity>, now: Moment) {
        let Upstream::Attached(attached) = &mut self.upstream else {
            return;
        };
        if let Silence::Asked { watch, .. } = &mut attached.silence
            && matches!(
                watch.check(work, now),
                StuckCheck::Stuck | StuckCheck::Overdue
            )
        {
            attached.silence = Silence::Suspected;
            self.actions.push_back(Action::Elect(Purpose::CheckSuspect));
        }
    }
}
