//! Responses that Kennel itself sends, to apps, clients and servers.

use std::ops::ControlFlow;

use super::repair::{self, RecoveredFields};
use super::{Key, MAX_ID, Malformed, Request, error_reply, notification, quoted, result_reply};

/// Maximum number of requests of one session without a response.
pub const IN_FLIGHT_LIMIT: usize = 10_000;
/// Maximum messages of a batch. More would take many times their bytes in memory.
pub const BATCH_LIMIT: usize = 10_000;
/// Maximum bytes of an id or a progress token.
pub const NAME_LIMIT: usize = 1024;
/// Maximum bytes of all ids longer than [`NAME_LIMIT`] that a session has in flight.
pub(crate) const LONG_IDS_LIMIT: usize = 4 << 20;
/// Maximum bytes stored for the requests of one client in flight: ids, progress tokens and parameters.
pub(crate) const CALLS_LIMIT: usize = 4 << 20;
/// Maximum bytes stored for requests of a server: ids, and lines that may be sent to another client.
pub(crate) const SERVER_REQUESTS_LIMIT: usize = 4 << 20;
/// Maximum bytes of `initialize`.
pub const INITIALIZE_LIMIT: usize = 1 << 20;

pub(crate) const PARSE_ERROR: i32 = -32700;
pub(crate) const INVALID_REQUEST: i32 = -32600;
pub(crate) const INTERNAL_ERROR: i32 = -32603;
/// The first of the codes that servers may define.
pub(crate) const OVERLOADED: i32 = -32000;

/// The response to a ping.
pub(crate) fn pong(id: &[u8]) -> Vec<u8> {
    result_reply(id, "{}")
}

/// The error for a request whose id some SDKs drop.
pub(crate) fn odd_id(id: &[u8]) -> Vec<u8> {
    let message = "the id is neither a string nor an integer";
    error_reply(id, INVALID_REQUEST, message, None)
}

/// The error for a request whose id is in flight.
pub(crate) fn duplicate_id(id: &[u8], key: &Key) -> Vec<u8> {
    let message = format!("a request with the id {key} is in flight: use another id");
    error_reply(id, INVALID_REQUEST, &message, None)
}

/// The response to a malformed line: an error with its id if that can be read and is not in flight, otherwise with
/// `null`. For a batch, one error for each member. No response to a malformed response or notification, nor to a blank
/// line.
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
    let error_with_null_id = || error_reply(b"null", code, &message, None);
    let mut refused = Vec::new();
    let mut needs_null_id = false;
    let mut refuse = |meant: RecoveredFields| {
        let is_answer = meant.has_outcome && !meant.has_method;
        let is_notification = meant.has_method && !meant.has_id;
        let is_free = |id: &String| Key::of(id.as_bytes()).is_some_and(|key| !is_taken(&key));
        match meant.id.filter(is_free) {
            _ if is_answer || is_notification => {}
            Some(id) => refused.push(error_reply(id.as_bytes(), code, &message, None)),
            // One is enough for a whole batch.
            None => needs_null_id = true,
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
    // Too many for one error each.
    if why == Malformed::LongBatch || members > BATCH_LIMIT {
        return vec![error_with_null_id()];
    }
    if members == 0 {
        refuse(RecoveredFields::of(line).unwrap_or_default());
    }
    if needs_null_id {
        refused.push(error_with_null_id());
    }
    refused
}

/// An error in place of a malformed response.
pub(crate) fn malformed_answer(id: &[u8], why: Malformed) -> Vec<u8> {
    let message = format!("malformed response: {why}");
    let data = r#"{"reason":"malformed_answer","outcome":"unknown","replayed":false}"#;
    error_reply(id, INTERNAL_ERROR, &message, Some(data))
}

/// The error for a request past [`IN_FLIGHT_LIMIT`].
pub(crate) fn too_many(id: &[u8]) -> Vec<u8> {
    let message = format!(
        "too many requests in flight: {IN_FLIGHT_LIMIT} have no response yet; wait for responses first"
    );
    let data = r#"{"reason":"too_many_requests","outcome":"unsent","replayed":false}"#;
    error_reply(id, OVERLOADED, &message, Some(data))
}

/// The error for a request of a client whose requests in flight exceed [`CALLS_LIMIT`].
pub(crate) fn too_much(id: &[u8]) -> Vec<u8> {
    let message = format!(
        "too many requests in flight: they take up {CALLS_LIMIT} bytes; wait for responses first"
    );
    let data = r#"{"reason":"too_many_requests","outcome":"unsent","replayed":false}"#;
    error_reply(id, OVERLOADED, &message, Some(data))
}

/// Whether a request has an id or a progress token that is too long to store.
pub(crate) fn has_long_name(request: &Request<'_>) -> bool {
    let token = || {
        let token = request.params?.search_at(&["_meta", "progressToken"]);
        token.ok().flatten()
    };
    // If the whole is short, its parts are.
    let is_long = |bytes: &[u8]| bytes.len() > NAME_LIMIT;
    let params = request.params.is_some_and(|params| is_long(params.bytes()));
    is_long(request.id.raw()) || params && token().is_some_and(|token| is_long(token.bytes()))
}

/// The error for a request whose id or progress token exceeds [`NAME_LIMIT`]: they are stored until the response.
pub(crate) fn long_name(id: &[u8]) -> Vec<u8> {
    let message = format!("the id or the progress token is longer than {NAME_LIMIT} bytes");
    error_reply(id, INVALID_REQUEST, &message, None)
}

/// The error for a server request whose id exceeds [`NAME_LIMIT`]. A much longer id is not repeated, because the response
/// is queued until the server reads it.
pub(crate) fn long_server_id(id: &[u8]) -> Option<Vec<u8>> {
    const REPEATED: usize = 64 * 1024;
    if id.len() <= NAME_LIMIT {
        return None;
    }
    let message = format!("the id is longer than {NAME_LIMIT} bytes: use a shorter one");
    let id = if id.len() > REPEATED { b"null" } else { id };
    Some(error_reply(id, INVALID_REQUEST, &message, None))
}

/// The error that replaces a server's response to `initialize` that exceeds [`INITIALIZE_LIMIT`]: it is stored for all
/// clients.
pub(crate) fn long_initialize_response(id: &[u8]) -> Vec<u8> {
    let message =
        format!("the server's response to initialize is longer than {INITIALIZE_LIMIT} bytes");
    let data = r#"{"reason":"answer_too_long"}"#;
    error_reply(id, INTERNAL_ERROR, &message, Some(data))
}

/// The error that replaces a response that is too long to be copied for all clients that wait.
pub(crate) fn not_copied(id: &[u8]) -> Vec<u8> {
    let message = "the server's response is too long to be copied for all clients that wait for it; send the request again";
    let data = r#"{"reason":"answer_too_long"}"#;
    error_reply(id, INTERNAL_ERROR, message, Some(data))
}

/// The error for an app's request whose id is too long, or whose id exceeds the limit for all long ids together.
pub(crate) fn long_id(id: &[u8]) -> Vec<u8> {
    let message = format!(
        "the id is too long: the limit is {MAX_ID} bytes, and {LONG_IDS_LIMIT} for all ids in flight that are longer than {NAME_LIMIT}"
    );
    error_reply(id, INVALID_REQUEST, &message, None)
}

/// The error for an `initialize` that exceeds [`INITIALIZE_LIMIT`].
pub fn long_initialize(id: &[u8]) -> Vec<u8> {
    let message = format!("initialize is longer than {INITIALIZE_LIMIT} bytes: shorten it");
    error_reply(id, INVALID_REQUEST, &message, None)
}

/// The error for a second `initialize`.
pub(crate) fn second_initialize(id: &[u8]) -> Vec<u8> {
    let message = "this session is already initialized: start another one";
    error_reply(id, INVALID_REQUEST, message, None)
}

/// Builds the cancellation of the request with this id.
pub(crate) fn cancelled(id: &[u8], reason: &str) -> Vec<u8> {
    let id = String::from_utf8_lossy(id);
    let reason = quoted(reason);
    let params = format!(r#"{{"requestId":{id},"reason":{reason}}}"#);
    notification("notifications/cancelled", &params)
}
