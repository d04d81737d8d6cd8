//! Error responses to requests of clients that are refused, and to server requests that no client can answer.

use crate::message::{Id, Malformed, Request, error_reply, reply};

const METHOD_NOT_FOUND: i32 = -32601;
const INVALID_PARAMS: i32 = -32602;

/// Reason of an error to the server: the client of its request is gone.
const CLIENT_GONE: &str = "client_gone";
/// Reason of an error to the server: its request could be for several clients.
const AMBIGUOUS_CLIENT: &str = "ambiguous_client";

/// Maximum bytes of a URI that is subscribed to.
pub(super) const URI_LIMIT: usize = 8 * 1024;
/// Maximum bytes of the subscriptions of one client.
pub(super) const SUBSCRIPTIONS_LIMIT: usize = 4 << 20;

/// The error response to a request that is not forwarded.
#[derive(Debug)]
pub(super) enum Refused {
    /// This response line.
    With(Vec<u8>),
    /// An error for a duplicate key.
    Malformed(Malformed),
}

impl Refused {
    /// Returns the response line for the request with this id.
    pub(super) fn reply(self, id: &Id<'_>) -> Vec<u8> {
        match self {
            Refused::With(line) => line,
            Refused::Malformed(why) => {
                error_reply(id.raw(), reply::INVALID_REQUEST, &why.to_string(), None)
            }
        }
    }

    /// An error for a malformed or misplaced request.
    pub(super) fn invalid_request(id: &Id<'_>, message: &str) -> Refused {
        Refused::With(error_reply(id.raw(), reply::INVALID_REQUEST, message, None))
    }

    /// An error for a method that this session does not have.
    pub(super) fn method_not_found(id: &Id<'_>, message: &str) -> Refused {
        Refused::With(error_reply(id.raw(), METHOD_NOT_FOUND, message, None))
    }

    /// An error for missing or invalid parameters.
    pub(super) fn invalid_params(id: &Id<'_>, message: &str) -> Refused {
        Refused::With(error_reply(id.raw(), INVALID_PARAMS, message, None))
    }

    /// An error for a subscription past the limit of its client.
    pub(super) fn too_many_subscriptions(id: &Id<'_>, limit: usize) -> Refused {
        let message = format!(
            "too many subscriptions: the limit of this session is {limit} bytes; unsubscribe from some first"
        );
        let data = r#"{"reason":"too_many_subscriptions"}"#;
        let code = reply::OVERLOADED;
        Refused::With(error_reply(id.raw(), code, &message, Some(data)))
    }

    /// An error for a task of another session. It does not reveal that the task exists.
    pub(super) fn foreign_task(id: &Id<'_>) -> Refused {
        Refused::With(no_such_task(id.raw()))
    }
}

/// Refuses a request that changes a shared server for several clients and has members other than `member`: the
/// response may depend on them, and other clients get the same response.
pub(super) fn refuse_other_members(
    request: &Request<'_>,
    member: &str,
    shared: bool,
) -> Result<(), Refused> {
    let keys = request.params.map(|params| params.keys());
    let mut keys = keys.iter().flatten();
    match keys.find(|key| shared && *key != member && *key != "_meta") {
        None => Ok(()),
        Some(_) => {
            let message = format!(
                "params may contain only {member}, because several sessions share this server"
            );
            let line = error_reply(request.id.raw(), INVALID_PARAMS, &message, None);
            Err(Refused::With(line))
        }
    }
}

/// The error for a client: the task belongs to another session, or does not exist.
pub(super) fn no_such_task(id: &[u8]) -> Vec<u8> {
    error_reply(id, INVALID_PARAMS, "no such task", None)
}

impl std::convert::From<Malformed> for Refused {
    fn from(why: Malformed) -> Refused {
        Refused::Malformed(why)
    }
}

/// The error for a client: the server exited on `server/discover`.
pub(super) fn ended_on_discover(id: &[u8]) -> Vec<u8> {
    let message = "the server exited on server/discover, so it does not support it";
    error_reply(id, METHOD_NOT_FOUND, message, None)
}

/// The error for the server: no client has the roots capability.
pub(super) fn no_roots(id: &[u8]) -> Vec<u8> {
    error_reply(id, METHOD_NOT_FOUND, "the client has no roots", None)
}

/// Maximum bytes of a `roots/list` request of the server. It is stored, because another client may have to answer it.
pub(super) const ROOTS_LIST_LIMIT: usize = 64 * 1024;

/// The error for the server: the response to `roots/list` is longer than [`ROOTS_LIST_LIMIT`].
pub(super) fn long_roots_list(id: &[u8]) -> Vec<u8> {
    let message =
        format!("the response to roots/list is longer than {ROOTS_LIST_LIMIT} bytes: shorten it");
    error_reply(id, reply::INVALID_REQUEST, &message, None)
}

/// The error for the server: the client that had to answer is gone.
pub(super) fn client_gone(id: &[u8]) -> Vec<u8> {
    let data = format!(r#"{{"reason":"{CLIENT_GONE}"}}"#);
    let message = "the client of this request is gone";
    error_reply(id, reply::INTERNAL_ERROR, message, Some(&data))
}

/// The error for the server: the request could be for several clients.
pub(super) fn ambiguous_client(id: &[u8]) -> Vec<u8> {
    let data = format!(r#"{{"reason":"{AMBIGUOUS_CLIENT}"}}"#);
    let message = "several clients share this server, and this request could be for any of them";
    error_reply(id, reply::INTERNAL_ERROR, message, Some(&data))
}

/// The error for the server: the client's response names a task of another session.
pub(super) fn answer_to_foreign_task(id: &[u8]) -> Vec<u8> {
    let message = "the client's response names a task of another session";
    error_reply(id, INVALID_PARAMS, message, None)
}

/// The notification to the server that cancels a call of a client that is gone.
pub(super) fn cancel_call(assigned: u64) -> Vec<u8> {
    reply::cancelled(assigned.to_string().as_bytes(), CLIENT_GONE)
}
