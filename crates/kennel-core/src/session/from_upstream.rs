//! What follows from a line of the upstream.

use crate::message::{Batch, Id, Key, Message, Notification, Outcome, Request, Response};

use super::batch::{self, Edit};
use super::in_flight::Stage;
use super::note::{Note, Side};
use super::reverse::Shown;
use super::{Phase, Session, Verdict, reply};

/// What becomes of one message of the upstream.
enum Fate {
    /// It goes to the app.
    Pass,

    /// The same, with another id.
    PassAs(Edit),

    /// It goes nowhere.
    Stop,

    /// It goes nowhere, and no other of this upstream does.
    Abandon,
}

impl Session {
    /// A line of the upstream.
    ///
    /// Answers pass if somebody waits for them; a late, second or unknown one is dropped. The
    /// server's own requests pass, each under an id that no earlier upstream's request had; one
    /// whose id some SDKs drop, or that is open already, is answered with `-32600` instead. A
    /// bad line is dropped: some apps disconnect on one.
    pub fn from_upstream(&mut self, line: &[u8]) -> Verdict {
        if !self.is_attached() {
            self.notes.push(Note::Stale);
            return Verdict::Drop;
        }
        let verdict = match Message::parse(line) {
            Ok(Message::Batch(batch)) => self.batch_from_upstream(&batch),
            Ok(message) => match self.judge_upstream(&message) {
                Fate::Pass => Verdict::Forward,
                Fate::PassAs(edit) => Verdict::Replace(edit.of_line(line)),
                Fate::Stop => Verdict::Drop,
                Fate::Abandon => Verdict::Abandon,
            },
            Err(why) => {
                self.notes.push(Note::Malformed(Side::Upstream, why));
                Verdict::Drop
            }
        };
        if verdict == Verdict::Abandon {
            self.upstream_lost(reply::SERVER_RESTARTED);
        }
        self.behind_what_waits(line, verdict)
    }

    /// A line does not overtake what the app was to be told before it.
    fn behind_what_waits(&mut self, line: &[u8], verdict: Verdict) -> Verdict {
        if self.to_app.is_empty() {
            return verdict;
        }
        match verdict {
            Verdict::Forward => self.to_app.push_back(line.to_vec()),
            Verdict::Replace(other) => self.to_app.push_back(other),
            Verdict::Drop | Verdict::Abandon => return verdict,
        }
        Verdict::Drop
    }

    fn batch_from_upstream(&mut self, batch: &Batch<'_>) -> Verdict {
        let mut untouched = true;
        let mut kept = Vec::new();
        for member in &batch.members {
            match self.judge_upstream(&member.message) {
                Fate::Pass => kept.push(member.whole.bytes().to_vec()),
                Fate::PassAs(edit) => {
                    untouched = false;
                    kept.push(edit.of_member(member));
                }
                Fate::Stop => untouched = false,
                Fate::Abandon => {
                    self.to_app.extend(batch::join(kept));
                    return Verdict::Abandon;
                }
            }
        }
        match batch::join(kept) {
            None => Verdict::Drop,
            Some(_) if untouched => Verdict::Forward,
            Some(rest) => Verdict::Replace(rest),
        }
    }

    fn judge_upstream(&mut self, message: &Message<'_>) -> Fate {
        match message {
            Message::Request(request) => self.request_from_upstream(request),
            Message::Notification(notification) => self.notification_from_upstream(notification),
            Message::Response(response) => self.response_from_upstream(response),
            // No batch is in a batch, and a whole one is judged by its members.
            Message::Batch(_) => Fate::Stop,
        }
    }

    fn request_from_upstream(&mut self, request: &Request<'_>) -> Fate {
        let id = request.id;
        let key = id.key();
        if let Key::Odd(_) = key {
            self.to_upstream.push_back(reply::odd_id(id.raw()));
            self.notes.push(Note::OddId(Side::Upstream, key));
            return Fate::Stop;
        }
        if self.reverse.is_open(&key) {
            let refused = reply::duplicate_id(id.raw(), &key);
            self.to_upstream.push_back(refused);
            self.notes.push(Note::DuplicateId(Side::Upstream, key));
            return Fate::Stop;
        }
        pass_as(&id, self.reverse.ask(&id, key))
    }

    fn notification_from_upstream(&mut self, notification: &Notification<'_>) -> Fate {
        let id = match notification.cancelled() {
            Ok(Some(id)) => id,
            Ok(None) => return Fate::Pass,
            Err(why) => {
                self.notes.push(Note::Malformed(Side::Upstream, why));
                return Fate::Stop;
            }
        };
        let key = id.key();
        if let Some(shown) = self.reverse.cancel(&key) {
            return pass_as(&id, shown);
        }
        // Since 2026-07-28 a server may end a subscription this way, which is a request of the app. No
        // other: the server's own request with that id may just have been answered.
        if self.in_flight.is_subscription(&key) {
            self.in_flight.cancel(&key);
            return Fate::Pass;
        }
        self.notes.push(Note::UnknownCancel(Side::Upstream, key));
        Fate::Stop
    }

    fn response_from_upstream(&mut self, response: &Response<'_>) -> Fate {
        let Some(key) = response.id.map(|id| id.key()) else {
            self.notes.push(Note::UnknownAnswer(Side::Upstream, None));
            return Fate::Stop;
        };
        if let (Phase::Greeting, Some(handshake)) = (&self.phase, &self.handshake)
            && *handshake.key() == key
        {
            return self.greeted(&response.outcome);
        }
        self.era.answered(&key, &response.outcome);
        match self.in_flight.stage(&key) {
            Some(Stage::Sent | Stage::Cancelled) => {
                self.in_flight.remove(&key);
                Fate::Pass
            }
            Some(Stage::Handshake) => self.handshake_answered(&response.outcome),
            // What was not asked cannot be answered.
            Some(Stage::Queued(_)) | None => {
                let note = Note::UnknownAnswer(Side::Upstream, Some(key));
                self.notes.push(note);
                Fate::Stop
            }
        }
    }

    /// The answer to an `initialize` that was sent by us.
    fn greeted(&mut self, outcome: &Outcome<'_>) -> Fate {
        let handshake = self
            .handshake
            .as_ref()
            .expect("a handshake is greeted with");
        match outcome {
            Outcome::Error(_) if handshake.is_answered() => {
                self.notes.push(Note::HandshakeRefused);
                return Fate::Abandon;
            }
            Outcome::Error(_) => {}
            Outcome::Result(_) => {
                let initialized = handshake.confirmation().map(<[u8]>::to_vec);
                self.to_upstream.extend(initialized);
            }
        }
        self.phase = Phase::Open;
        match handshake.is_answered() {
            true => Fate::Stop,
            false => self.handshake_answered(outcome),
        }
    }

    /// The answer to `initialize` that the app waits for.
    fn handshake_answered(&mut self, outcome: &Outcome<'_>) -> Fate {
        if let Some(handshake) = &mut self.handshake {
            self.in_flight.remove(&handshake.key().clone());
            match outcome {
                Outcome::Result(_) => handshake.answer(),
                // There is nothing to say again: the app may begin another one.
                Outcome::Error(_) => self.handshake = None,
            }
        }
        Fate::Pass
    }
}

fn pass_as(id: &Id<'_>, shown: Shown) -> Fate {
    match shown {
        Shown::AsItIs => Fate::Pass,
        Shown::As(new) => Fate::PassAs(Edit {
            place: id.part().range(),
            new,
        }),
    }
}
