//! As a daemon's client: what it hears from an election and from the daemon.

use std::time::Duration;

use kennel_core::election::{Look, Patience, Watch};
use kennel_core::hello::Control;
use kennel_core::session::{SERVER_RESTARTED, Unsent, Verdict};

use super::{ASK_AFTER, LOOK_EVERY, Link, Shim, Stays, hello};
use crate::elector::{Elected, Elector};
use crate::kernel::{End, Heard, Kernel, Pid};
use crate::spare;

impl Shim {
    pub(super) fn wake_up(&mut self, kernel: &Kernel) {
        if std::mem::take(&mut self.resting) {
            self.session.upstream_expected();
            self.next_start = Some(kernel.now);
        }
    }

    pub(super) fn ask_again(&mut self, kernel: &mut Kernel) {
        if self.given_up
            && let Some(link) = &self.link
        {
            self.given_up = false;
            kernel.write(link.end.write, &Control::Again.line());
            self.upstream_answered = false;
            self.session.upstream_attached();
        }
    }

    pub(super) fn hear_daemon(&mut self, kernel: &mut Kernel) -> bool {
        let Some(link) = &mut self.link else {
            return false;
        };
        let end = link.end;
        if !kernel.readable(end.read) {
            return false;
        }
        let stays = match kernel.read(end.read) {
            Heard::Nothing => return false,
            Heard::End => Stays::No,
            Heard::Line(line) => {
                link.is_there();
                match Control::parse(&line) {
                    Some(word) => self.obey(word, end, kernel),
                    None => {
                        self.answered_once = true;
                        self.upstream_answered = true;
                        match self.session.from_upstream(&line[..]) {
                            Verdict::Forward => drop(kernel.write(self.stdout, &line)),
                            Verdict::Replace(line) => drop(kernel.write(self.stdout, &line)),
                            Verdict::Drop => {}
                            Verdict::Abandon => {
                                self.lose_daemon(kernel);
                                return true;
                            }
                        }
                        Stays::Yes
                    }
                }
            }
        };
        match stays {
            Stays::Yes => {}
            Stays::No => self.lose_daemon(kernel),
            Stays::NotUntilNeeded => self.rest(kernel),
        }
        true
    }

    pub(super) fn obey(&mut self, word: Control, end: End, kernel: &mut Kernel) -> Stays {
        kernel.say(self.pid, || format!("is told {word:?}"));
        match word {
            Control::Lost(lost) => {
                let unsent = Unsent::Told {
                    ids: &lost.unsent,
                    heard: lost.heard,
                };
                self.session.upstream_lost(&lost.reason, unsent);
                if lost.final_word || self.session.app_is_done() {
                    self.given_up = true;
                    let retry_after = lost.retry_after.map(Duration::from_millis);
                    self.retry_at = retry_after.map(|after| kernel.now + after);
                    self.session.give_up("the server does not start again", "");
                } else {
                    kernel.write(end.write, &Control::Again.line());
                    self.upstream_answered = false;
                    self.session.upstream_attached();
                }
                Stays::Yes
            }
            Control::Going => Stays::No,
            Control::Stopped => Stays::NotUntilNeeded,
            Control::Solo(solo) => {
                let unsent = Unsent::Told {
                    ids: &solo.unsent,
                    heard: solo.heard,
                };
                self.session.upstream_lost(SERVER_RESTARTED, unsent);
                self.shares = false;
                Stays::No
            }
            _ => Stays::Yes,
        }
    }

    pub(super) fn drop_link(&mut self, kernel: &mut Kernel) {
        if let Some(link) = self.link.take() {
            kernel.hang_up(link.end);
        }
    }

    pub(super) fn lose_daemon(&mut self, kernel: &mut Kernel) {
        kernel.say(self.pid, || "loses its daemon".to_owned());
        self.drop_link(kernel);
        self.given_up = false;
        self.session
            .upstream_lost(SERVER_RESTARTED, Unsent::Nothing);
        if self.session.app_is_done() && self.session.in_flight() == 0 {
            return self.session.give_up("the daemon ended", "");
        }
        if self.election.is_some() {
            return;
        }
        let lost = self
            .limit
            .lost(spare::instant(kernel.now), self.upstream_answered);
        self.retry_at = self.limit.retry_at().map(spare::moment);
        match lost {
            Some(at) => {
                self.session.upstream_expected();
                self.next_start = Some(spare::moment(at));
            }
            None => self.session.give_up("daemons ended too often", ""),
        }
    }

    /// A person stopped the server: the next request starts it again.
    pub(super) fn rest(&mut self, kernel: &mut Kernel) {
        self.drop_link(kernel);
        self.given_up = false;
        if let Some(election) = self.election.take() {
            election.abandon(kernel);
        }
        let busy = !self.session.is_quiet();
        self.session
            .upstream_lost(SERVER_RESTARTED, Unsent::Nothing);
        if self.session.app_is_done() && self.session.owed() == 0 {
            return self.session.give_up("it was stopped", "");
        }
        self.resting = true;
        if busy {
            self.wake_up(kernel);
        }
    }

    pub(super) fn elect_on(&mut self, kernel: &mut Kernel) -> bool {
        let Some(election) = self.election.as_mut().filter(|it| it.is_ready(kernel)) else {
            return false;
        };
        if let Some(outcome) = election.turn(kernel) {
            self.election = None;
            self.elected(outcome, kernel);
        }
        true
    }

    pub(super) fn elected(&mut self, outcome: Elected, kernel: &mut Kernel) {
        match outcome {
            Elected::NotStuck => match &mut self.link {
                Some(link) => link.is_there(),
                None => self.lose_daemon(kernel),
            },
            Elected::Connected(end) => {
                self.drop_link(kernel);
                self.given_up = false;
                self.link = Some(Link {
                    end,
                    silent: None,
                    asked: None,
                });
                self.upstream_answered = false;
                self.session.upstream_attached();
            }
            Elected::Solo => {
                self.shares = false;
                self.drop_link(kernel);
                self.session
                    .upstream_lost(SERVER_RESTARTED, Unsent::Nothing);
                self.start_own(kernel);
            }
        }
    }

    pub(super) fn look_after_daemon(&mut self, kernel: &mut Kernel) -> bool {
        if self.election.is_some() || self.session.owed() == 0 {
            return false;
        }
        let Some(link) = &mut self.link else {
            return false;
        };
        let now = kernel.now;
        let suspect = match (&mut link.asked, link.silent) {
            (Some((watch, at)), _) if *at <= now => {
                *at = now + LOOK_EVERY;
                watch.look(kernel.work(link.end.peer), now) == Look::Stuck
            }
            (None, Some(since)) if since + ASK_AFTER <= now => {
                kernel.write(link.end.write, &Control::Ping.line());
                link.asked = Some((Watch::new(Patience::First, now), now + LOOK_EVERY));
                false
            }
            _ => return false,
        };
        if suspect {
            let suspect = link.end.peer;
            self.elect(Some(suspect), kernel);
        }
        true
    }

    pub(super) fn elect(&mut self, suspect: Option<Pid>, kernel: &Kernel) {
        let hello = hello(self.pid, self.app, kernel.house.in_turn).line();
        self.election = Some(Elector::new(self.pid, hello, suspect, kernel.now));
    }
}
