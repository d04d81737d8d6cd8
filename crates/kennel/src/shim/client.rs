//! The shim as a daemon's client: what it hears from an election and from the daemon.

use std::time::Instant;

use kennel_core::hello::Control;
use kennel_core::session::{SERVER_RESTARTED, Verdict};

use super::link::Link;
use super::{STDERR_WAITING, Shim};
use crate::election::{Outcome, Pending};

/// Whether a connection to a daemon goes on; of two answers the lesser counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stays {
    /// A person stopped the server: it starts again only when somebody asks for something.
    NotUntilNeeded,
    No,
    Yes,
}

impl Shim {
    pub(super) fn hear_election(&mut self) {
        let Some(outcome) = self.election.as_ref().and_then(Pending::take) else {
            return;
        };
        self.election = None;
        match outcome {
            Outcome::Connected { socket, daemon, .. } => {
                self.link = Some(Link::new(socket, daemon));
                self.session.upstream_attached();
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
        while let Some(line) = link.from.next_line() {
            let verdict = match Control::parse(line) {
                None => self.session.from_upstream(line),
                Some(word) => {
                    stays = stays.min(self.obey(word));
                    continue;
                }
            };
            match verdict {
                Verdict::Forward => self.to_app.push(line),
                Verdict::Replace(line) => self.to_app.push(&line),
                Verdict::Drop => {}
                Verdict::Abandon => stays = Stays::No,
            }
        }
        self.link = Some(link);
        if stays != Stays::Yes {
            self.lose_daemon();
        }
        if stays == Stays::NotUntilNeeded && !self.session.app_is_done() {
            self.next_start = None;
        }
    }

    /// Does what a word of Kennel's says; tells whether the connection goes on.
    fn obey(&mut self, word: Control) -> Stays {
        match word {
            Control::Stderr(line) => {
                if self.to_stderr.len() + line.len() < STDERR_WAITING {
                    self.to_stderr.push(line.as_bytes());
                }
            }
            Control::Lost(lost) => {
                self.session.upstream_lost(&lost.reason);
                if lost.final_word || self.session.app_is_done() {
                    self.given_up = true;
                    self.session
                        .give_up("the server ended, and does not start again", &lost.detail);
                } else {
                    self.session.upstream_attached();
                }
            }
            Control::Going | Control::Moved => return Stays::No,
            Control::Stopped => return Stays::NotUntilNeeded,
            Control::Ping | Control::Pong | Control::Unknown => {}
        }
        Stays::Yes
    }

    /// The daemon is gone, or does not answer: elect anew, as the budget allows. Without anything to ask,
    /// that has time until there is.
    pub(super) fn lose_daemon(&mut self) {
        self.link = None;
        self.given_up = false;
        self.session.upstream_lost(SERVER_RESTARTED);
        if self.session.app_is_done() {
            return self.session.give_up("the daemon ended", "");
        }
        match self.budget.spend(Instant::now()) {
            Some(at) => self.next_start = Some(at),
            None => self.session.give_up("daemons ended too often", ""),
        }
    }
}
