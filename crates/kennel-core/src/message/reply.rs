//! What Kennel answers to a request that goes no further, whoever it stands between.

use std::ops::ControlFlow;

use super::repair::{self, Meant};
use super::{Key, LONGEST_ID, Malformed, Request, error_reply, notification, quoted, result_reply};

/// How many requests of one session may be without an answer.
pub const IN_FLIGHT_LIMIT: usize = 10_000;
/// Maximum messages of a batch. More than that take many times their own length in memory.
pub const BATCH_LIMIT: usize = 10_000;
/// How long an id or a progress token may be, in bytes.
pub const NAME_LIMIT: usize = 1024;
/// Maximum bytes of all ids longer than [`NAME_LIMIT`] that a session has in flight.
pub(crate) const LONG_IDS_LIMIT: usize = 4 << 20;
/// Maximum bytes of what is kept of the requests of one client in flight: their ids, progress tokens and parameters.
pub(crate) const CALLS_LIMIT: usize = 4 << 20;
/// Maximum bytes of what is kept of the requests that a server waits for: their ids, and lines to be asked again.
pub(crate) const SERVER_REQUESTS_LIMIT: usize = 4 << 20;
/// How long `initialize` may be, in bytes.
pub const INITIALIZE_LIMIT: usize = 1 << 20;

pub(crate) const PARSE_ERROR: i32 = -32700;
pub(crate) const INVALID_REQUEST: i32 = -32600;
pub(crate) const INTERNAL_ERROR: i32 = -32603;
/// The first of the codes that servers may define.
pub(crate) const OVERLOADED: i32 = -32000;

/// The answer to a ping.
pub(crate) fn pong(id: &[u8]) -> Vec<u8> {
    result_reply(id, "{}")
}

/// To a request whose id some SDKs drop.
pub(crate) fn odd_id(id: &[u8]) -> Vec<u8> {
    let message = "this id is no string and no integer: use one that is";
    error_reply(id, INVALID_REQUEST, message, None)
}

/// To a request whose id is taken.
pub(crate) fn duplicate_id(id: &[u8], key: &Key) -> Vec<u8> {
    let message = format!("a request with the id {key} is in flight: use another id");
    error_reply(id, INVALID_REQUEST, &message, None)
}

/// To a line that is no message: an error with its id, if that can be read and is not taken, else with `null`. To a batch,
/// one for each member. Nothing to what was meant as an answer or a notification, nor to a blank line.
pub(crate) fn malformed(
    line: &[u8],
    why: Malformed,
    is_taken: impl Fn(&Key) -> bool,
) -> Vec<Vec<u8>> {
    if line.trim_ascii().is_empty() {
        return Vec::new();
    }
    let line = repair::without_prefix(line);
    let code = match why {
        Malformed::Shape(_) | Malformed::LongBatch => INVALID_REQUEST,
        _ => PARSE_ERROR,
    };
    let message = why.to_string();
    let nameless = || error_reply(b"null", code, &message, None);
    let mut refused = Vec::new();
    let mut has_nameless = false;
    let mut refuse = |meant: Meant| {
        let is_answer = meant.has_outcome && !meant.has_method;
        let is_notification = meant.has_method && !meant.has_id;
        let is_free = |id: &String| Key::of(id.as_bytes()).is_some_and(|key| !is_taken(&key));
        match meant.id.filter(is_free) {
            _ if is_answer || is_notification => {}
            Some(id) => refused.push(error_reply(id.as_bytes(), code, &message, None)),
            // One is enough, however many members a batch has.
            None => has_nameless = true,
        }
    };
    let mut members = 0;
    if why != Malformed::LongBatch {
        repair::for_each_element(line, |member| {
            members += 1;
            if members > BATCH_LIMIT {
                return ControlFlow::Break(());
            }
            refuse(member);
            ControlFlow::Continue(())
        });
    }
    // Too many to be answered one by one.
    if why == Malformed::LongBatch || members > BATCH_LIMIT {
        return vec![nameless()];
    }
    if members == 0 {
        refuse(Meant::of(line).unwrap_or_default());
    }
    if has_nameless {
        refused.push(nameless());
    }
    refused
}

/// An error in the place of a peer's answer that is malformed: whoever waits gets one.
pub(crate) fn malformed_answer(id: &[u8], why: Malformed) -> Vec<u8> {
    let message = format!("the answer is malformed: {why}");
    let data = r#"{"reason":"malformed_answer","outcome":"unknown","replayed":false}"#;
    error_reply(id, INTERNAL_ERROR, &message, Some(data))
}

/// To a request of a session that has [`IN_FLIGHT_LIMIT`] without an answer.
pub(crate) fn too_many(id: &[u8]) -> Vec<u8> {
    let message = format!(
        "too many requests in flight: {IN_FLIGHT_LIMIT} have no answer yet; wait for answers first"
    );
    let data = r#"{"reason":"too_many_requests","outcome":"unsent","replayed":false}"#;
    error_reply(id, OVERLOADED, &message, Some(data))
}

/// To a request of a client whose requests in flight take up [`CALLS_LIMIT`].
pub(crate) fn too_much(id: &[u8]) -> Vec<u8> {
    let message = format!(
        "too many requests in flight: what is kept of them takes up {CALLS_LIMIT} bytes; wait for answers first"
    );
    let data = r#"{"reason":"too_many_requests","outcome":"unsent","replayed":false}"#;
    error_reply(id, OVERLOADED, &message, Some(data))
}

/// Whether a request has an id or a progress token that is too long to be kept.
pub(crate) fn has_long_name(request: &Request<'_>) -> bool {
    let token = || {
        let token = request.params?.at_if_any(&["_meta", "progressToken"]);
        token.ok().flatten()
    };
    // What is short as a whole has nothing long in it.
    let is_long = |bytes: &[u8]| bytes.len() > NAME_LIMIT;
    let params = request.params.is_some_and(|params| is_long(params.bytes()));
    is_long(request.id.raw()) || params && token().is_some_and(|token| is_long(token.bytes()))
}

/// To a request whose id or progress token is longer than [`NAME_LIMIT`]: they are kept until it is answered.
pub(crate) fn long_name(id: &[u8]) -> Vec<u8> {
    let message = format!("the id or the progress token is longer than {NAME_LIMIT} bytes");
    error_reply(id, INVALID_REQUEST, &message, None)
}

/// To a request of a server whose id is longer than [`NAME_LIMIT`]. One that is much longer is not repeated: the answer
/// waits until the server reads it.
pub(crate) fn long_server_id(id: &[u8]) -> Option<Vec<u8>> {
    const REPEATED: usize = 64 * 1024;
    if id.len() <= NAME_LIMIT {
        return None;
    }
    let message = format!("the id is longer than {NAME_LIMIT} bytes: use a shorter one");
    let id = if id.len() > REPEATED { b"null" } else { id };
    Some(error_reply(id, INVALID_REQUEST, &message, None))
}

/// In place of a server's answer to `initialize` that is longer than [`INITIALIZE_LIMIT`]: it is kept for all clients.
pub(crate) fn long_welcome(id: &[u8]) -> Vec<u8> {
    let message = format!(
        "the server's answer to initialize is longer than {INITIALIZE_LIMIT} bytes, and is not passed on"
    );
    let data = r#"{"reason":"answer_too_long"}"#;
    error_reply(id, INTERNAL_ERROR, &message, Some(data))
}

/// In place of an answer that several clients wait for, and that is too long to be copied for all of them.
pub(crate) fn not_copied(id: &[u8]) -> Vec<u8> {
    let message =
        "the server's answer is too long to be copied for all clients that wait for it: ask again";
    let data = r#"{"reason":"answer_too_long"}"#;
    error_reply(id, INTERNAL_ERROR, message, Some(data))
}

/// To a request of an app whose id is too long, or would be beside the long ids of others.
pub(crate) fn long_id(id: &[u8]) -> Vec<u8> {
    let message = format!(
        "the id is too long: {LONGEST_ID} bytes are the most, and {LONG_IDS_LIMIT} for all ids longer than {NAME_LIMIT} in flight"
    );
    error_reply(id, INVALID_REQUEST, &message, None)
}

/// To an `initialize` that is longer than [`INITIALIZE_LIMIT`].
pub fn long_initialize(id: &[u8]) -> Vec<u8> {
    let message = format!("initialize is longer than {INITIALIZE_LIMIT} bytes: send less");
    error_reply(id, INVALID_REQUEST, &message, None)
}

/// To an `initialize` after the first one.
pub(crate) fn second_initialize(id: &[u8]) -> Vec<u8> {
    let message = "this session was initialized before: start another one";
    error_reply(id, INVALID_REQUEST, message, None)
}

/// That the request with this id, as the receiver knows it, is of no more use.
pub(crate) fn cancelled(id: &[u8], reason: &str) -> Vec<u8> {
    let id = String::from_utf8_lossy(id);
    let reason = quoted(reason);
    let params = format!(r#"{{"requestId":{id},"reason":{reason}}}"#);
    notification("notifications/cancelled", &params)
}
