//! What Kennel answers to a request that goes no further, whoever it stands between.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Id, Key, Malformed, error_reply, notification, quoted, result_reply};

pub(crate) const INVALID_REQUEST: i32 = -32600;
pub(crate) const INTERNAL_ERROR: i32 = -32603;

/// The answer to a ping.
pub(crate) fn pong(id: &[u8]) -> Vec<u8> {
    result_reply(id, "{}")
}

/// To a request whose id some SDKs drop.
pub(crate) fn odd_id(id: &[u8]) -> Vec<u8> {
    let message = "this id is no string and no integer below 2^53: use one that is";
    error_reply(id, INVALID_REQUEST, message, None)
}

/// To a request whose id is taken.
pub(crate) fn duplicate_id(id: &[u8], key: &Key) -> Vec<u8> {
    let message = format!("a request with the id {key} is in flight: use another id");
    error_reply(id, INVALID_REQUEST, &message, None)
}

/// To what was meant as a request and is none: with its id, if that much can be told. Else nobody knows
/// who waits.
pub(crate) fn malformed(line: &[u8], why: Malformed) -> Option<(Key, Vec<u8>)> {
    #[derive(Deserialize)]
    struct Meant<'a> {
        #[serde(borrow)]
        id: &'a RawValue,
        #[serde(borrow, rename = "method")]
        _method: &'a RawValue,
    }

    let Malformed::Shape(_) = why else {
        return None;
    };
    // A list of two values would be read as one as well.
    if !line.trim_ascii_start().starts_with(b"{") {
        return None;
    }
    let meant: Meant<'_> = serde_json::from_slice(line).ok()?;
    let id = Id::alone(meant.id.get()).filter(Id::is_acceptable)?;
    let message = why.to_string();
    let refused = error_reply(id.raw(), INVALID_REQUEST, &message, None);
    Some((id.key(), refused))
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
