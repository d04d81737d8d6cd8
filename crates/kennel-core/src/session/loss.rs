//! How an upstream begins, and what becomes of what it had when it is lost.

use crate::message::{Key, Message, Outcome, notification, splice_id};

use super::errands::{Errand, Why};
use super::in_flight::{Awaited, Unsent, What};
use super::note::Note;
use super::offer::List;
use super::replay::Judgement;
use super::reply::{self, Refusal, SERVER_RESTARTED, SERVER_UNAVAILABLE};
use super::{Phase, Session, progress};

/// Where a notification names the subscription it belongs to (modern).
pub(super) const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

impl Session {
    /// An upstream is there that has heard nothing yet. It gets the handshake first, if the app began
    /// one; once it has answered that, what stands, what is sent again, and all that waits.
    ///
    /// Its answer goes to the app only if the app has none yet. A session of protocol 2026-07-28 has
    /// no handshake, and goes on at once.
    pub fn upstream_attached(&mut self) {
        if self.is_attached() {
            self.upstream_lost(SERVER_RESTARTED, Unsent::Nothing);
        }
        self.reverse.attached();
        (self.ending, self.retry_after) = (None, None);
        self.handed = 0;
        self.began_a_task = false;
        match &self.handshake {
            Some(handshake) => {
                self.to_upstream.push_back(handshake.request().to_vec());
                self.phase = Phase::Greeting;
            }
            None => self.open(),
        }
    }

    /// The upstream is gone. Of what it was asked, what [`Replay`](super::Replay) allows is asked of the next
    /// one, and so is what is known never to have reached it (`unsent`). The rest is answered: `-32603`, with
    /// this `reason` (one word, as [`SERVER_RESTARTED`]) and an unknown outcome in its data. What it asked the
    /// app is cancelled. The handshake, if the app has no answer to it yet, waits for the next upstream.
    pub fn upstream_lost(&mut self, reason: &str, unsent: Unsent<'_>) {
        self.lose_upstream(reason, None, unsent);
    }

    /// `why`: for people, where the upstream was given up rather than lost.
    fn lose_upstream(&mut self, reason: &str, why: Option<&str>, unsent: Unsent<'_>) {
        if !self.is_attached() {
            return;
        }
        self.phase = Phase::Detached;
        self.to_upstream.clear();
        for errand in self.errands.upstream_lost() {
            self.in_flight.progress.unmute(errand.token.as_ref());
        }
        let mut again = Vec::new();
        let mut refused = 0;
        for (key, request, unsent) in self.in_flight.upstream_lost(unsent, self.handed) {
            match self.judge(&request, unsent) {
                Judgement::Again => again.push((key, request)),
                Judgement::Pong => self.to_app.push_back(reply::pong(&request.id)),
                Judgement::Refuse => {
                    refused += 1;
                    self.in_flight.ended(&request);
                    let lost = reply::lost(&request, reason, why, self.ending);
                    self.to_app.push_back(lost);
                }
            }
        }
        if !again.is_empty() || refused > 0 {
            let again = again.len();
            self.notes.push(Note::Lost { again, refused });
        }
        // The latest first: each goes in front of those before it.
        for (key, request) in again.into_iter().rev() {
            let place = self.queue.front();
            let line = self.in_flight.wait_again(key.clone(), request, place);
            self.queue.put_back(place, line, key);
        }
        for shown in self.reverse.upstream_lost() {
            self.to_app.push_back(reply::cancelled(&shown, reason));
        }
    }

    /// No upstream can be had. All that waits is refused, and so is every later request until an
    /// upstream is attached or [expected](Self::upstream_expected) again: `-32603` with the reason
    /// [`SERVER_UNAVAILABLE`], saying `why` (for people) and giving `detail` (the server's last words
    /// on stderr) in its data. Pings are answered still: the session itself lives. What it stands on is kept,
    /// open subscriptions of either era included: they go on with the next upstream.
    pub fn give_up(&mut self, why: &str, detail: &str) {
        self.lose_upstream(SERVER_UNAVAILABLE, Some(why), Unsent::Nothing);
        if self.handshake.as_ref().is_some_and(|it| !it.is_answered()) {
            self.handshake = None;
        }
        let mut refusal = Refusal::new(why, detail, self.ending);
        refusal.retry_after = self.retry_after;
        self.phase = Phase::GivenUp(refusal);
        self.refuse_what_waits();
    }

    pub(super) fn refuse_what_waits(&mut self) {
        let Phase::GivenUp(refusal) = &self.phase else {
            return;
        };
        for request in self.in_flight.waiting(self.app_is_done) {
            self.to_app.push_back(refusal.reply_to(&request));
        }
        let in_flight = &self.in_flight;
        self.queue.keep_only(|key| in_flight.stage(key).is_some());
    }

    fn judge(&self, lost: &Awaited, unsent: bool) -> Judgement {
        // Nobody will hear what it tells.
        let deaf = self.app_is_done && lost.is_subscription();
        // Some servers that were greeted end when they are asked this.
        let fatal = self.handshake.is_some() && &*lost.method == "server/discover";
        match deaf || fatal {
            true => Judgement::Refuse,
            false => self.replay.judge(lost, unsent, &self.tools),
        }
    }

    /// The upstream may be asked now. First of all it is told what the one before it had been told.
    pub(super) fn open(&mut self) {
        self.phase = Phase::Open;
        for line in self.standing.lines() {
            self.ask(&line, Why::Restore);
        }
        if let Some(listed) = self.tools.listed()
            && self.app_hears_of_tools()
        {
            let request = listed.request.clone();
            self.ask(&request, Why::CompareTools);
        }
    }

    /// The answer to what the session asked itself.
    pub(super) fn errand_done(&mut self, errand: &Errand, outcome: &Outcome<'_>) {
        self.in_flight.progress.unmute(errand.token.as_ref());
        match (errand.why, outcome) {
            (Why::Restore, Outcome::Result(_)) => {}
            (Why::Restore, Outcome::Error(_)) => self.notes.push(Note::StateRefused),
            (Why::CompareTools, Outcome::Result(result)) => {
                if self.tools.differ(result) {
                    self.announce(List::Tools);
                }
            }
            // It is to be hoped that the app's own question fares better.
            (Why::CompareTools, Outcome::Error(_)) => {}
        }
    }

    /// Tells the app that a list may be another one, where it expects to hear that.
    pub(super) fn announce(&mut self, list: List) {
        if list == List::Tools {
            self.tools.forget();
        }
        if self.handshake.is_some() {
            self.to_app.push_back(notification(list.changed(), "{}"));
            return;
        }
        for id in self.in_flight.hear_of_tools() {
            let id = String::from_utf8_lossy(id);
            let params = format!(r#"{{"_meta":{{"{SUBSCRIPTION}":{id}}}}}"#);
            self.to_app.push_back(notification(list.changed(), &params));
        }
    }

    /// What the answer to a request means to the session.
    pub(super) fn learn(&mut self, request: &Awaited, outcome: &Outcome<'_>) {
        // Before it is looked at again: of most there is nothing to learn.
        if let What::Ping | What::Listen(_) | What::Other = request.what {
            return;
        }
        let (Outcome::Result(result), Some(line), Some(asked)) =
            (outcome, request.kept(), request.kept_request())
        else {
            return;
        };
        let uri = || {
            let uri = asked.params?.member("uri").ok()??;
            uri.string().map(|uri| uri.into_owned())
        };
        match request.what {
            What::ListTools => self.tools.learn(line, &asked, result),
            What::SetLevel => self.standing.level_set(request.order, line.to_vec()),
            What::Subscribe => {
                if let Some(uri) = uri() {
                    self.standing.subscribed(uri, request.order, line.to_vec());
                }
            }
            What::Unsubscribe => {
                if let Some(uri) = uri() {
                    self.standing.unsubscribed(&uri);
                }
            }
            What::Ping | What::Listen(_) | What::Other => {}
        }
    }

    /// A line goes to the upstream; `message` if there may be requests in it.
    pub(super) fn handed_out(&mut self, line: &[u8], message: Option<&Message<'_>>) {
        // Without its last character it cannot be understood; without its newline it can, at the end of input.
        let end = self.handed + line.trim_ascii_end().len() as u64;
        self.handed += line.len() as u64 + 1;
        let mut sent = |message: &Message<'_>, bytes: &[u8]| {
            if let Message::Request(request) = message {
                self.began_a_task |= request.params.is_some_and(|it| it.may_have("task"));
                self.in_flight.sent(request, bytes, end);
            }
        };
        match message {
            Some(Message::Batch(batch)) => {
                for member in &batch.members {
                    sent(&member.message, member.whole.bytes());
                }
            }
            Some(message) => sent(message, line),
            None => {}
        }
    }

    fn app_hears_of_tools(&self) -> bool {
        match &self.handshake {
            Some(handshake) => handshake.announces(List::Tools),
            None => self.in_flight.hear_of_tools().next().is_some(),
        }
    }

    /// Asks this upstream what the app once asked another, under an id of the session's own.
    fn ask(&mut self, line: &[u8], why: Why) {
        let Ok(Message::Request(request)) = Message::parse(line) else {
            return;
        };
        let token = progress::token(request.params);
        if let Some(token) = &token {
            self.in_flight.progress.mute(token);
        }
        let in_flight = &self.in_flight;
        let is_taken = |key: &Key| in_flight.stage(key).is_some();
        let id = self.errands.begin(Errand { why, token }, is_taken);
        let line = splice_id(line, &request.id, id.as_bytes());
        self.to_upstream.push_back(line);
    }
}
