//! The shim as a daemon's client: what it hears from an election and from the daemon.

use std::time::{Duration, Instant};

use kennel_core::hello::Control;
use kennel_core::session::{SERVER_RESTARTED, Unsent, Verdict};

use super::hear::{TooLongHeard, hear_too_long};
use super::lines::Outbox;
use super::link::Link;
use super::watch::Who;
use super::{Shim, millis_until};
use crate::election::{Greeted, Outcome};

/// Whether a connection to a daemon goes on; of two answers the lesser counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stays {
    /// The server hibernates: it starts again only when somebody asks for something. What is not answered was
    /// never heard.
    Rests,
    /// A person stopped the server: the same, but for what was under way.
    NotUntilNeeded,
    No,
    Yes,
}

impl Shim {
    pub(super) fn hear_election(&mut self) {
        let Some(outcome) = self.election.as_ref().and_then(|election| election.take()) else {
            return;
        };
        self.election = None;
        self.elected(outcome);
    }

    pub(super) fn elected(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::NotStuck => match &mut self.link {
                Some(link) => link.is_there(),
                // Gone in the same moment.
                None => self.lose_daemon(),
            },
            Outcome::Connected {
                socket,
                daemon,
                greeted,
                ..
            } => {
                let socket = self.watch.over(socket, Who::Daemon);
                let mut link = Box::new(Link::new(socket, daemon));
                if self.for_now.is_some() {
                    return self.come_back(link);
                }
                self.given_up = false;
                self.upstream_answered = false;
                self.session.upstream_attached();
                if let Some(Greeted { line, unsaid }) = greeted {
                    if self.session.poll_to_upstream() != Some(line) {
                        // It heard what the session does not say any more.
                        return self.lose_daemon();
                    }
                    link.to.push_rest(&unsaid);
                }
                self.link = Some(link);
            }
            Outcome::Solo { why } => self.go_solo(&why),
        }
    }

    pub(super) fn hear_daemon(&mut self) {
        let Some(mut link) = self.link.take() else {
            return;
        };
        let mut stays = match link.read() {
            true => Stays::Yes,
            false => Stays::No,
        };
        let mut shortage = None;
        loop {
            while let Some(line) = link.from.next_message() {
                let verdict = match Control::parse(line.bytes()) {
                    None => {
                        self.answered_once = true;
                        self.upstream_answered = true;
                        self.answers_until = None;
                        self.session.from_upstream(line)
                    }
                    Some(Control::Moved) => {
                        link.moved = true;
                        continue;
                    }
                    Some(Control::Pipes) => {
                        link.hear_of_pipes(&self.watch);
                        continue;
                    }
                    Some(Control::Lost(lost)) if lost.shortage => {
                        shortage = Some(lost);
                        continue;
                    }
                    Some(word) => {
                        stays = stays.min(self.obey(word, &mut link.to));
                        continue;
                    }
                };
                match verdict {
                    Verdict::Forward => self.to_app.push_last(&mut link.from),
                    Verdict::Replace(line) => self.to_app.push(&line),
                    Verdict::Drop => {}
                    Verdict::Abandon => stays = Stays::No,
                }
            }
            let Some(line) = link.from.next_too_long(true) else {
                break;
            };
            crate::warn(&line.note("the server"));
            for message in line.messages() {
                match hear_too_long(&message, &mut self.session, &mut self.to_app) {
                    TooLongHeard::Done => {}
                    TooLongHeard::Asks => link.to.push(&message.refusal()),
                    TooLongHeard::Abandoned => stays = Stays::No,
                }
            }
        }
        // It serves those it has to the end: nothing that is under way is lost on the way to another one.
        if link.moved && !self.session.owes() {
            stays = stays.min(Stays::No);
        }
        self.link = Some(link);
        if let Some(lost) = shortage {
            return self.go_solo_for_long(&lost);
        }
        match stays {
            Stays::Yes => {}
            Stays::No => self.lose_daemon(),
            Stays::Rests => self.rest(Unsent::LastBytes(usize::MAX)),
            Stays::NotUntilNeeded => self.rest(Unsent::Nothing),
        }
    }

    /// Does what a word of Kennel's says; tells whether the connection goes on.
    fn obey(&mut self, word: Control, to_daemon: &mut Outbox) -> Stays {
        match word {
            Control::Stderr(line) => self.to_stderr.push(line.as_bytes()),
            Control::Lost(lost) => {
                // As a shell would: nobody ever had this server.
                if !self.answered_once && lost.exit.is_some() {
                    crate::fail(&lost.detail);
                    self.refused = lost.exit;
                }
                let unsent = Unsent::Told {
                    ids: &lost.unsent,
                    heard: lost.heard,
                };
                self.session.upstream_ended(lost.ended);
                self.session.upstream_lost(&lost.reason, unsent);
                if lost.final_word || self.session.app_is_done() {
                    self.given_up = true;
                    self.session.retry_after(lost.retry_after);
                    let retry_after = lost.retry_after.map(Duration::from_millis);
                    self.retry_at = retry_after.map(|after| Instant::now() + after);
                    self.session
                        .give_up("the server ended, and does not start again", &lost.detail);
                } else {
                    self.begin_again(to_daemon);
                }
            }
            Control::Going => return Stays::No,
            Control::Stopped => return Stays::NotUntilNeeded,
            Control::Resting => return Stays::Rests,
            Control::Solo(solo) => {
                let unsent = Unsent::Told {
                    ids: &solo.unsent,
                    heard: solo.heard,
                };
                self.session.upstream_lost(SERVER_RESTARTED, unsent);
                self.sharing = None;
                self.why_solo = Some(solo.why);
                return Stays::No;
            }
            Control::Moved
            | Control::Ping
            | Control::Pong
            | Control::Again
            | Control::Pipes
            | Control::Unknown => {}
        }
        Stays::Yes
    }

    /// Somebody asks again for a server that was given up: the daemon tries again, too.
    pub(super) fn ask_again(&mut self) {
        if self.given_up
            && let Some(mut link) = self.link.take()
        {
            self.given_up = false;
            self.begin_again(&mut link.to);
            self.link = Some(link);
        }
    }

    /// On the same connection, with the next server.
    fn begin_again(&mut self, to_daemon: &mut Outbox) {
        to_daemon.push(&Control::Again.line());
        self.upstream_answered = false;
        self.session.upstream_attached();
    }

    /// The daemon is gone, or does not answer: elect anew, as the budget allows. Without anything to ask,
    /// that has time until there is.
    pub(super) fn lose_daemon(&mut self) {
        self.link = None;
        self.given_up = false;
        self.session
            .upstream_lost(SERVER_RESTARTED, Unsent::Nothing);
        // What was never sent still wants its answer.
        if self.session.app_is_done() && self.session.in_flight() == 0 {
            return self.session.give_up("the daemon ended", "");
        }
        if self.election.is_some() {
            // The one that asks after it finds another.
            return;
        }
        let now = Instant::now();
        match self.limit.lost(now, self.upstream_answered) {
            Some(at) => {
                self.session.upstream_expected();
                self.next_start = Some(at);
            }
            None => {
                self.retry_at = self.limit.retry_at();
                self.session.retry_after(millis_until(self.retry_at, now));
                self.session.give_up("daemons ended too often", "");
            }
        }
    }
}
