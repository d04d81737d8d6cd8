//! What the session says in its own name.

use crate::message::reply::INTERNAL_ERROR;
use crate::message::{Method, error_reply, quoted};

use super::in_flight::Awaited;

pub(super) use crate::message::reply::{
    cancelled, duplicate_id, malformed, odd_id, pong, second_initialize,
};

/// Why requests were cut off: the server behind them ended, and another takes its place.
pub const SERVER_RESTARTED: &str = "server_restarted";

/// Why requests are refused: there is no server, and none to be expected.
pub const SERVER_UNAVAILABLE: &str = "server_unavailable";

/// To a request that was sent to an upstream that is lost.
pub(super) fn outcome_unknown(request: &Awaited, reason: &str) -> Vec<u8> {
    let method = &request.method;
    let message = format!(
        "the server was lost while {method} was under way: it may be done or not, and was not repeated"
    );
    let reason = quoted(reason);
    let data = format!(r#"{{"reason":{reason},"outcome":"unknown","replayed":false}}"#);
    error_reply(&request.id, INTERNAL_ERROR, &message, Some(&data))
}

/// What every request is answered while no upstream can be had.
#[derive(Debug)]
pub(super) struct Refusal {
    message: String,
    data: String,
}

impl Refusal {
    pub(super) fn new(why: &str, detail: &str) -> Refusal {
        let reason = quoted(SERVER_UNAVAILABLE);
        let detail = quoted(detail);
        Refusal {
            message: format!("the server is not available: {why}"),
            data: format!(
                r#"{{"reason":{reason},"detail":{detail},"outcome":"unsent","replayed":false}}"#
            ),
        }
    }

    pub(super) fn reply(&self, id: &[u8]) -> Vec<u8> {
        error_reply(id, INTERNAL_ERROR, &self.message, Some(&self.data))
    }
}

/// As much of a method's name as a person wants to read.
pub(super) fn shortened(method: &Method<'_>) -> Box<str> {
    const ENOUGH: usize = 64;
    let name = method.name();
    match name.char_indices().nth(ENOUGH) {
        Some((end, _)) => name[..end].into(),
        None => name.into(),
    }
}
