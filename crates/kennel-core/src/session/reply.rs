//! Error responses of the session itself.

use std::borrow::Cow;

use crate::message::reply::INTERNAL_ERROR;
use crate::message::{error_reply, quoted};

use super::in_flight::PendingRequest;
use super::server_exit::ServerExit;

pub(super) use crate::message::reply::{
    cancelled, duplicate_id, long_id, long_initialize, long_server_id, malformed, malformed_answer,
    odd_id, pong, second_initialize, too_many,
};

/// Reason: the server ended, and another one takes its place.
pub const SERVER_RESTARTED: &str = "server_restarted";

/// Reason: there is no server, and none is expected.
pub const SERVER_UNAVAILABLE: &str = "server_unavailable";

/// The error for a request that was sent to a lost or given up upstream (`why`) and is not replayed.
pub(super) fn lost_request_error(
    request: &PendingRequest,
    reason: &str,
    why: Option<&str>,
    ending: Option<ServerExit>,
) -> Vec<u8> {
    let method = &request.method;
    let message = match (request.may_have_run(), why, request.replays()) {
        (false, ..) => format!(
            "the server exited before it received {method}, which is too long to store; send it again"
        ),
        (true, Some(why), _) => format!("{method} has no response: {why}; outcome unknown"),
        (true, None, 0) => format!("server exited during {method}; outcome unknown; not retried"),
        (true, None, times) => format!(
            "server exited during {method} {} times; outcome unknown",
            times + 1
        ),
    };
    let message = match ending {
        Some(ending) => format!("{message} (server {ending})"),
        None => message,
    };
    let outcome_members = outcome_members(request);
    let reason = quoted(reason);
    let ending = ending.map_or_else(String::new, |it| format!(",{}", it.data()));
    let detail = why.map_or_else(String::new, |why| format!(r#","detail":{}"#, quoted(why)));
    let data = format!(r#"{{"reason":{reason},{outcome_members}{ending}{detail}}}"#);
    error_reply(&request.id, INTERNAL_ERROR, &message, Some(&data))
}

/// Members that say whether the request was processed and replayed.
fn outcome_members(request: &PendingRequest) -> String {
    let outcome = match request.may_have_run() {
        true => "unknown",
        false => "unsent",
    };
    let replayed = request.replays() > 0;
    format!(r#""outcome":"{outcome}","replayed":{replayed}"#)
}

/// The error response to every request while there is no upstream.
#[derive(Debug)]
pub(super) struct Refusal {
    message: String,
    reason: String,
    ending: String,
    /// Milliseconds until a request may start a server.
    pub(super) retry_after: Option<u64>,
}

impl Refusal {
    pub(super) fn new(why: &str, detail: &str, ending: Option<ServerExit>) -> Refusal {
        let reason = quoted(SERVER_UNAVAILABLE);
        let detail = match ending {
            // There was no output on stderr.
            Some(ending) if detail.is_empty() => quoted(&ending.to_string()),
            _ => quoted(tail_of(detail)),
        };
        let why = match ending {
            Some(ending) => format!("{why} ({ending})"),
            None => why.to_owned(),
        };
        Refusal {
            message: format!("the server is not available: {why}"),
            reason: format!(r#""reason":{reason},"detail":{detail}"#),
            ending: ending.map_or_else(String::new, |it| format!(",{}", it.data())),
            retry_after: None,
        }
    }

    /// The error for a new request.
    pub(super) fn reply(&self, id: &[u8]) -> Vec<u8> {
        self.error_line(id, r#""outcome":"unsent","replayed":false"#)
    }

    /// The error for a queued request, which an earlier server may have received.
    pub(super) fn reply_to(&self, request: &PendingRequest) -> Vec<u8> {
        self.error_line(&request.id, &outcome_members(request))
    }

    fn error_line(&self, id: &[u8], outcome_members: &str) -> Vec<u8> {
        let Refusal {
            reason,
            ending,
            message,
            retry_after,
        } = self;
        let (retry, words) = match retry_after {
            Some(millis) => (
                format!(r#","retryAfterMs":{millis}"#),
                format!("; a request may start it again in {millis} ms"),
            ),
            None => Default::default(),
        };
        let data = format!("{{{reason},{outcome_members}{ending}{retry}}}");
        let message = format!("{message}{words}");
        error_reply(id, INTERNAL_ERROR, &message, Some(&data))
    }
}

/// The end of a server's stderr: as much as each error response replays.
fn tail_of(detail: &str) -> &str {
    const MAX_SHOWN_STDERR: usize = 2048;
    let mut length = 0;
    let kept = detail.char_indices().rev().take_while(|(_, c)| {
        length += match c {
            '\n' | '"' | '\\' => 2,
            c if c.is_control() => 6,
            c => c.len_utf8(),
        };
        length <= MAX_SHOWN_STDERR
    });
    let start = kept.last().map_or(detail.len(), |(at, _)| at);
    &detail[start..]
}

/// A method name, cut for people.
pub(super) fn shortened(name: &str) -> Cow<'static, str> {
    const MAX_SHOWN_METHOD: usize = 64;
    /// The most frequent methods need no allocation.
    const FREQUENT_METHODS: [&str; 4] = ["tools/call", "resources/read", "prompts/get", "ping"];
    if let Some(usual) = FREQUENT_METHODS.iter().find(|usual| **usual == name) {
        return Cow::Borrowed(usual);
    }
    let cut = match name.len() > MAX_SHOWN_METHOD {
        true => name.char_indices().nth(MAX_SHOWN_METHOD),
        false => None,
    };
    let name = &name[..cut.map_or(name.len(), |(end, _)| end)];
    Cow::Owned(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_of_a_server_are_bounded_as_they_are_written() {
        for (words, kept) in [("short\nwords", 11), ("", 0)] {
            assert_eq!(tail_of(words).len(), kept);
        }
        for c in ['x', '\n', '\u{1}', 'é'] {
            let words = c.to_string().repeat(100_000);
            let kept = quoted(tail_of(&words)).len();
            assert!((2000..2100).contains(&kept), "{c:?}: {kept}");
        }
    }
}
