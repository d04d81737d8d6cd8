//! Requests of clients that go no further, and what the server hears where nobody answers it.

use crate::message::{Id, Malformed, Request, error_reply, reply};

const METHOD_NOT_FOUND: i32 = -32601;
const INVALID_PARAMS: i32 = -32602;

/// Why the server's request has no answer: the client it was for is gone.
const CLIENT_GONE: &str = "client_gone";
/// Why the server's request has no answer: it could be for any of several clients.
const AMBIGUOUS_CLIENT: &str = "ambiguous_client";

/// Maximum bytes of a URI that is subscribed to.
pub(super) const URI_LIMIT: usize = 8 * 1024;
/// Maximum bytes of the subscriptions of one client.
pub(super) const SUBSCRIPTIONS_LIMIT: usize = 4 << 20;

/// What is answered instead of forwarding a request.
#[derive(Debug)]
pub(super) enum Refused {
    /// This line.
    With(Vec<u8>),
    /// An error that says that a key comes twice.
    Malformed(Malformed),
}

impl Refused {
    pub(super) fn with(line: Vec<u8>) -> Refused {
        Refused::With(line)
    }

    /// The line for the request with this id.
    pub(super) fn reply(self, id: &Id<'_>) -> Vec<u8> {
        match self {
            Refused::With(line) => line,
            Refused::Malformed(why) => {
                error_reply(id.raw(), reply::INVALID_REQUEST, &why.to_string(), None)
            }
        }
    }

    /// A request of the modern era where `initialize` was said.
    pub(super) fn enveloped(id: &Id<'_>) -> Refused {
        let message = "this session began with initialize: a request must not name its own version";
        Refused::With(error_reply(id.raw(), reply::INVALID_REQUEST, message, None))
    }

    /// `initialize` where requests say all themselves.
    pub(super) fn initialize_in_modern(id: &Id<'_>) -> Refused {
        let message = "this server speaks 2026-07-28 or later, which has no initialize";
        Refused::With(error_reply(id.raw(), METHOD_NOT_FOUND, message, None))
    }

    /// A modern request that lacks what the specification wants in every one, and has a code for.
    pub(super) fn without_envelope(id: &Id<'_>) -> Refused {
        let message = "_meta lacks io.modelcontextprotocol/protocolVersion or io.modelcontextprotocol/clientCapabilities";
        Refused::With(error_reply(id.raw(), INVALID_PARAMS, message, None))
    }

    /// `server/discover` where `initialize` is spoken: some servers end on it.
    pub(super) fn discover_in_legacy(id: &Id<'_>) -> Refused {
        let message = "this server is spoken to with initialize: it has no server/discover";
        Refused::With(error_reply(id.raw(), METHOD_NOT_FOUND, message, None))
    }

    /// A notification with an id, which makes it a request.
    pub(super) fn notification_with_id(id: &Id<'_>) -> Refused {
        let message = "a notification has no id: send it without one";
        Refused::With(error_reply(id.raw(), METHOD_NOT_FOUND, message, None))
    }

    /// A subscription, or its end, without a URI.
    pub(super) fn no_uri(id: &Id<'_>) -> Refused {
        let message = "uri is no string";
        Refused::With(error_reply(id.raw(), INVALID_PARAMS, message, None))
    }

    /// A log level that is none of the protocol's. Some servers take `"DEBUG"` or `["debug"]` for `"debug"`, for all clients.
    pub(super) fn no_level(id: &Id<'_>) -> Refused {
        let message = "level is none of the protocol's, such as \"debug\"";
        Refused::With(error_reply(id.raw(), INVALID_PARAMS, message, None))
    }

    /// A request about a task that does not say which where the protocol wants it.
    pub(super) fn no_task_id(id: &Id<'_>) -> Refused {
        let message = "taskId is missing";
        Refused::With(error_reply(id.raw(), INVALID_PARAMS, message, None))
    }

    /// A progress token that can be neither told apart from others nor told back.
    pub(super) fn odd_progress_token(id: &Id<'_>) -> Refused {
        let message = "progressToken is neither a string nor a number";
        Refused::With(error_reply(id.raw(), INVALID_PARAMS, message, None))
    }

    /// A subscription to a URI that is too long to be kept.
    pub(super) fn long_uri(id: &Id<'_>) -> Refused {
        let message =
            format!("the URI is longer than {URI_LIMIT} bytes: subscribe to a shorter one");
        Refused::With(error_reply(id.raw(), INVALID_PARAMS, &message, None))
    }

    /// A subscription of a client that has as many as are kept for one.
    pub(super) fn too_many_subscriptions(id: &Id<'_>, limit: usize) -> Refused {
        let message = format!(
            "too many subscriptions: those of this session may take up {limit} bytes now; end some first"
        );
        let data = r#"{"reason":"too_many_subscriptions"}"#;
        Refused::With(error_reply(
            id.raw(),
            reply::OVERLOADED,
            &message,
            Some(data),
        ))
    }

    /// A task of another session, of which this one is to know nothing.
    pub(super) fn foreign_task(id: &Id<'_>) -> Refused {
        Refused::With(no_such_task(id.raw()))
    }
}

/// Refuses a request that changes a shared server for several clients and says more than `member`: the answer may be about
/// that, and others get the same answer.
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
            let message =
                format!("params has more members than {member}, and others share this server");
            let line = error_reply(request.id.raw(), INVALID_PARAMS, &message, None);
            Err(Refused::With(line))
        }
    }
}

/// To a client: a task of another session, of which this one is to know nothing.
pub(super) fn no_such_task(id: &[u8]) -> Vec<u8> {
    error_reply(id, INVALID_PARAMS, "no such task", None)
}

impl std::convert::From<Malformed> for Refused {
    fn from(why: Malformed) -> Refused {
        Refused::Malformed(why)
    }
}

/// The server ended instead of an answer to `server/discover`.
pub(super) fn ended_on_discover(id: &[u8]) -> Vec<u8> {
    let message = "the server has no server/discover: it ended on it";
    error_reply(id, METHOD_NOT_FOUND, message, None)
}

/// To the server: nobody here can list roots.
pub(super) fn no_roots(id: &[u8]) -> Vec<u8> {
    error_reply(id, METHOD_NOT_FOUND, "the client has no roots", None)
}

/// Maximum bytes of a `roots/list` of the server: it is kept, for another client may have to answer it.
pub(super) const ROOTS_LIST_LIMIT: usize = 64 * 1024;

/// To the server: its `roots/list` is longer than [`ROOTS_LIST_LIMIT`].
pub(super) fn long_roots_list(id: &[u8]) -> Vec<u8> {
    let message = format!("roots/list is longer than {ROOTS_LIST_LIMIT} bytes: send less");
    error_reply(id, reply::INVALID_REQUEST, &message, None)
}

/// To the server: the one to answer is not there any more.
pub(super) fn client_gone(id: &[u8]) -> Vec<u8> {
    let data = format!(r#"{{"reason":"{CLIENT_GONE}"}}"#);
    let message = "the client this is for is gone";
    error_reply(id, reply::INTERNAL_ERROR, message, Some(&data))
}

/// To the server: it cannot be told who is to answer.
pub(super) fn ambiguous_client(id: &[u8]) -> Vec<u8> {
    let data = format!(r#"{{"reason":"{AMBIGUOUS_CLIENT}"}}"#);
    let message = "several clients share this server, and this could be for any of them";
    error_reply(id, reply::INTERNAL_ERROR, message, Some(&data))
}

/// To the server: the client's answer says that it belongs to a task of another session.
pub(super) fn answer_to_foreign_task(id: &[u8]) -> Vec<u8> {
    let message = "the answer of the client names a task that is not its own";
    error_reply(id, INVALID_PARAMS, message, None)
}

/// To the server: a call is of no more use to anybody, for its client is gone.
pub(super) fn abandoned(minted: u64) -> Vec<u8> {
    reply::cancelled(minted.to_string().as_bytes(), CLIENT_GONE)
}
