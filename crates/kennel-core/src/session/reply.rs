//! What the session says in its own name.

use crate::message::{Key, Method, error_reply, notification, quoted, result_reply};

use super::in_flight::Awaited;

/// Why requests were cut off: the server behind them ended, and another takes its place.
pub const SERVER_RESTARTED: &str = "server_restarted";

/// Why requests are refused: there is no server, and none to be expected.
pub const SERVER_UNAVAILABLE: &str = "server_unavailable";

const INVALID_REQUEST: i32 = -32600;
const INTERNAL_ERROR: i32 = -32603;

/// The answer to a ping while there is nobody else to give it.
pub(super) fn pong(id: &[u8]) -> Vec<u8> {
    result_reply(id, "{}")
}

/// To a request whose id some SDKs drop.
pub(super) fn odd_id(id: &[u8]) -> Vec<u8> {
    let message = "this id is no string and no integer below 2^53: use one that is";
    error_reply(id, INVALID_REQUEST, message, None)
}

/// To a request whose id is taken.
pub(super) fn duplicate_id(id: &[u8], key: &Key) -> Vec<u8> {
    let message = format!("a request with the id {key} is in flight: use another id");
    error_reply(id, INVALID_REQUEST, &message, None)
}

/// To an `initialize` after the first one.
pub(super) fn second_initialize(id: &[u8]) -> Vec<u8> {
    let message = "this session was initialized before: start another one";
    error_reply(id, INVALID_REQUEST, message, None)
}

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

/// To the app, for a request of a server that is lost.
pub(super) fn cancelled(id: &[u8], reason: &str) -> Vec<u8> {
    let id = String::from_utf8_lossy(id);
    let reason = quoted(reason);
    let params = format!(r#"{{"requestId":{id},"reason":{reason}}}"#);
    notification("notifications/cancelled", &params)
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
