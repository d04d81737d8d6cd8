//! The shim as a daemon's client: what an election found, and what the daemon sends.

use kennel_core::engine::shim::{Elected, Event};
use kennel_core::session::Verdict;

use super::Shim;
use super::link::Link;
use super::watch::Who;
use crate::election::{Greeted, Outcome};

impl Shim {
    pub(super) fn hear_election(&mut self) {
        let Some(outcome) = self.election.as_ref().and_then(|election| election.take()) else {
            return;
        };
        self.election = None;
        self.elected(outcome);
    }

    pub(super) fn elected(&mut self, outcome: Outcome) {
        let elected = match outcome {
            Outcome::NotStuck => Elected::NotStuck,
            Outcome::Solo { why } => Elected::NoDaemon { why },
            Outcome::Connected {
                socket,
                daemon,
                greeted,
                ..
            } => {
                let socket = self.watch.over(socket, Who::Daemon);
                let mut link = Box::new(Link::new(socket, daemon));
                let greeting = greeted.map(|Greeted { line, unsaid }| {
                    link.to.push_rest(&unsaid);
                    line
                });
                self.new_link = Some(link);
                Elected::Connected { greeting }
            }
        };
        self.engine.handle(Event::Elected(elected), self.now);
    }

    pub(super) fn read_daemon(&mut self) {
        let Some(link) = &mut self.link else {
            return;
        };
        let read = link.read();
        if read.is_some_and(|count| count > 0) {
            self.engine.upstream_spoke();
        }
        let links = self.links;
        while links == self.links && self.take_line_of_daemon() {
            // A control message may have another connection used, or this one closed, before its next line is read.
            self.carry_out();
        }
        if read.is_none() && links == self.links {
            self.engine.handle(Event::DaemonClosed, self.now);
        }
    }

    /// Takes one line that the daemon sent; `false` if there is none.
    fn take_line_of_daemon(&mut self) -> bool {
        let Some(link) = &mut self.link else {
            return false;
        };
        if let Some(line) = link.from.next_message() {
            match self.engine.upstream_line(line, self.now) {
                Verdict::Forward => self.to_app.push_last(&mut link.from),
                Verdict::Replace(line) => self.to_app.push(&line),
                Verdict::Drop | Verdict::Abandon => {}
            }
            return true;
        }
        let Some(line) = link.from.next_too_long(true) else {
            return false;
        };
        crate::warn(&line.note("the server"));
        for message in line.messages() {
            match message.in_its_place() {
                // In place of an answer that is too long, the app gets an error.
                Some(answer) => match self.engine.upstream_line(&answer[..], self.now) {
                    Verdict::Forward => self.to_app.push(&answer),
                    Verdict::Replace(other) => self.to_app.push(&other),
                    Verdict::Drop | Verdict::Abandon => {}
                },
                // A request of the server: it is told why it gets no answer.
                None if message.id.is_some() => link.to.push(&message.refusal()),
                None => {}
            }
        }
        true
    }
}
