//! The shim as a daemon's client: outcomes of elections, and input from the daemon.

use std::sync::Arc;

use kennel_core::engine::shim::{Elected, Event};
use kennel_core::session::Verdict;

use kennel_sys::events::Waker;
use kennel_sys::io::{Interest, Source};

use super::daemon_conn::DaemonConn;
use super::event_source::EventSource;
use super::input::handle_too_long_line;
use super::{MAX_QUEUED_BYTES, Shim};
use crate::election::{Outcome, Pending, SentHandshake};

/// An election that runs in a thread.
#[derive(Debug)]
pub(super) struct ElectionPending {
    pub(super) pending: Pending,
    /// Becomes readable once the election is decided.
    _decided: Source<Arc<Waker>>,
}

impl Shim {
    pub(super) fn await_election(&mut self, pending: Pending) {
        let (token, interest) = (EventSource::Election.token(), Interest::READ);
        match Source::with(&self.reactor, pending.decided(), token, interest) {
            Ok(_decided) => self.election = Some(ElectionPending { pending, _decided }),
            Err(error) => self.handle_outcome(Outcome::Solo {
                why: format!("cannot wait for the election thread: {error}"),
            }),
        }
    }

    pub(super) fn take_election_result(&mut self) {
        let Some(outcome) = self.election.as_ref().and_then(|it| it.pending.take()) else {
            return;
        };
        self.election = None;
        self.handle_outcome(outcome);
    }

    pub(super) fn handle_outcome(&mut self, outcome: Outcome) {
        let elected = match outcome {
            Outcome::NotStuck => Elected::NotStuck,
            Outcome::Solo { why } => Elected::NoDaemon { why },
            Outcome::Connected {
                socket,
                daemon,
                greeted,
                ..
            } => {
                let mut conn = Box::new(DaemonConn::new(&self.reactor, socket, daemon));
                let handshake = greeted.map(|SentHandshake { line, unsent }| {
                    conn.to.push_rest(&unsent);
                    line
                });
                self.new_conn = Some(conn);
                Elected::Connected { handshake }
            }
        };
        self.engine.handle(Event::Elected(elected), self.now);
    }

    pub(super) fn read_daemon(&mut self) {
        let Some(conn) = &mut self.conn else {
            return;
        };
        let app_is_slow = self.to_app.len() >= MAX_QUEUED_BYTES;
        let read = conn.read(app_is_slow);
        if let Some(count @ 1..) = read {
            self.engine.handle_upstream_bytes();
            if app_is_slow {
                self.read_ahead += count;
            }
        }
        let conn_count = self.conn_count;
        while conn_count == self.conn_count && self.take_line_of_daemon() {
            // A control message may replace or close the connection before its next line is read.
            self.carry_out();
        }
        if read.is_none() && conn_count == self.conn_count {
            let unwritten = self.conn.as_ref().map_or(0, |conn| conn.unwritten());
            self.engine
                .handle(Event::DaemonClosed { unwritten }, self.now);
        }
    }

    /// Takes one line that the daemon sent; `false` if there is none.
    fn take_line_of_daemon(&mut self) -> bool {
        let Some(conn) = &mut self.conn else {
            return false;
        };
        if let Some(line) = conn.from.next_message() {
            match self.engine.handle_upstream_line(line, self.now) {
                Verdict::Forward => self.to_app.push_last(&mut conn.from),
                Verdict::Replace(line) => self.to_app.push(&line),
                Verdict::Drop | Verdict::Abandon => {}
            }
            return true;
        }
        let Some(line) = conn.from.next_too_long(true) else {
            return false;
        };
        let (refusals, _) =
            handle_too_long_line(&mut self.engine, &mut self.to_app, line, self.now);
        for refusal in refusals {
            conn.to.push_control_line(&refusal);
        }
        true
    }
}
