//! What the session says in its own name.

use std::borrow::Cow;

use crate::message::reply::INTERNAL_ERROR;
use crate::message::{error_reply, quoted};

use super::ending::Ending;
use super::in_flight::Awaited;

pub(super) use crate::message::reply::{
    cancelled, duplicate_id, long_id, long_initialize, long_server_id, malformed, malformed_answer,
    odd_id, pong, second_initialize, too_many,
};

/// Why requests were cut off: the server behind them ended, and another takes its place.
pub const SERVER_RESTARTED: &str = "server_restarted";

/// Why requests are refused: there is no server, and none to be expected.
pub const SERVER_UNAVAILABLE: &str = "server_unavailable";

/// To a request that was sent to an upstream that is lost, or was given up (`why`), and is not sent again.
pub(super) fn lost(
    request: &Awaited,
    reason: &str,
    why: Option<&str>,
    ending: Option<Ending>,
) -> Vec<u8> {
    let method = &request.method;
    let message = match (request.may_be_done(), why, request.repeats()) {
        (false, ..) => format!(
            "the server was lost before it heard {method}, which is too long to be kept: send it again"
        ),
        (true, Some(why), _) => format!("{method} has no answer: {why}; it may be done or not"),
        (true, None, 0) => format!(
            "the server was lost while {method} was under way: it may be done or not, and was not repeated"
        ),
        (true, None, times) => format!(
            "the server was lost whenever {method} was under way, {} times: it may be done or not",
            times + 1
        ),
    };
    let message = match ending {
        Some(ending) => format!("{message} (the server ended: {ending})"),
        None => message,
    };
    let fate = fate(request);
    let reason = quoted(reason);
    let ending = ending.map_or_else(String::new, |it| format!(",{}", it.data()));
    let detail = why.map_or_else(String::new, |why| format!(r#","detail":{}"#, quoted(why)));
    let data = format!(r#"{{"reason":{reason},{fate}{ending}{detail}}}"#);
    error_reply(&request.id, INTERNAL_ERROR, &message, Some(&data))
}

/// What can be said of what a request has done.
fn fate(request: &Awaited) -> String {
    let outcome = match request.may_be_done() {
        true => "unknown",
        false => "unsent",
    };
    let replayed = request.repeats() > 0;
    format!(r#""outcome":"{outcome}","replayed":{replayed}"#)
}

/// What every request is answered while no upstream can be had.
#[derive(Debug)]
pub(super) struct Refusal {
    message: String,
    reason: String,
    ending: String,
    /// In how many milliseconds a request may have a server started.
    pub(super) retry_after: Option<u64>,
}

impl Refusal {
    pub(super) fn new(why: &str, detail: &str, ending: Option<Ending>) -> Refusal {
        let reason = quoted(SERVER_UNAVAILABLE);
        let detail = match ending {
            // It had no last words.
            Some(ending) if detail.is_empty() => quoted(&ending.to_string()),
            _ => quoted(last_of(detail)),
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

    /// To a request that comes now.
    pub(super) fn reply(&self, id: &[u8]) -> Vec<u8> {
        self.say(id, r#""outcome":"unsent","replayed":false"#)
    }

    /// To one that waited; an earlier server may have had it.
    pub(super) fn reply_to(&self, request: &Awaited) -> Vec<u8> {
        self.say(&request.id, &fate(request))
    }

    fn say(&self, id: &[u8], fate: &str) -> Vec<u8> {
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
        let data = format!("{{{reason},{fate}{ending}{retry}}}");
        let message = format!("{message}{words}");
        error_reply(id, INTERNAL_ERROR, &message, Some(&data))
    }
}

/// The end of a server's last words: as much as is repeated in the answer to every request that waits.
fn last_of(detail: &str) -> &str {
    const ENOUGH: usize = 2048;
    let mut length = 0;
    let kept = detail.char_indices().rev().take_while(|(_, c)| {
        length += match c {
            '\n' | '"' | '\\' => 2,
            c if c.is_control() => 6,
            c => c.len_utf8(),
        };
        length <= ENOUGH
    });
    let start = kept.last().map_or(detail.len(), |(at, _)| at);
    &detail[start..]
}

/// As much of a method's name as a person wants to read.
pub(super) fn shortened(name: &str) -> Cow<'static, str> {
    const ENOUGH: usize = 64;
    /// Most requests are of these, and nothing is copied for them.
    const USUAL: [&str; 4] = ["tools/call", "resources/read", "prompts/get", "ping"];
    if let Some(usual) = USUAL.iter().find(|usual| **usual == name) {
        return Cow::Borrowed(usual);
    }
    let cut = match name.len() > ENOUGH {
        true => name.char_indices().nth(ENOUGH),
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
            assert_eq!(last_of(words).len(), kept);
        }
        for c in ['x', '\n', '\u{1}', 'é'] {
            let words = c.to_string().repeat(100_000);
            let kept = quoted(last_of(&words)).len();
            assert!((2000..2100).contains(&kept), "{c:?}: {kept}");
        }
    }
}
