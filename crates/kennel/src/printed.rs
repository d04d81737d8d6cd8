//! Text that a server prints on its stdout, where only messages belong: it reaches no app, but must not vanish without
//! trace. It is told shortened, and so many lines a minute.

use std::time::{Duration, Instant};

/// Characters of a line that are told.
const LONGEST: usize = 200;
/// Lines that are told within [`SPAN`].
const LINES: usize = 20;
const SPAN: Duration = Duration::from_secs(60);

/// The lines that one server printed.
#[derive(Debug, Default)]
pub(crate) struct Printed {
    begun: Option<Instant>,
    told: usize,
    untold: usize,
    ever: bool,
}

/// A line to be told.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Telling {
    /// Its beginning.
    pub(crate) text: String,
    /// How many lines before it were not told.
    pub(crate) untold: usize,
    /// Whether it is the first of this server.
    pub(crate) is_first: bool,
}

impl Printed {
    /// What to tell of a line that the server wrote to stdout and that was dropped as no message; `None` if it is one
    /// after all (an answer that nobody waits for), is empty, or comes after too many others.
    pub(crate) fn line(&mut self, line: &[u8], now: Instant) -> Option<Telling> {
        let line = line.trim_ascii();
        if line.is_empty() || is_meant_as_message(line) {
            return None;
        }
        let is_over = |begun: Instant| now.saturating_duration_since(begun) >= SPAN;
        if self.begun.is_none_or(is_over) {
            self.begun = Some(now);
            self.told = 0;
        }
        if self.told == LINES {
            self.untold += 1;
            return None;
        }
        self.told += 1;
        // Of a long line no more is looked at than is told: a character has four bytes at most.
        let head = &line[..line.len().min(LONGEST * 4)];
        let text = String::from_utf8_lossy(head);
        let mut short: String = text.chars().take(LONGEST).collect();
        if short.len() < line.len() {
            short.push('…');
        }
        Some(Telling {
            text: short,
            untold: std::mem::take(&mut self.untold),
            is_first: !std::mem::replace(&mut self.ever, true),
        })
    }
}

impl Telling {
    /// Words that go before the line, where lines were left out.
    pub(crate) fn left_out(&self) -> Option<String> {
        let untold = self.untold;
        (untold > 0).then(|| format!("{untold} more lines of text on stdout were not logged"))
    }
}

/// What speaks JSON-RPC, well or badly, is between the server and its app.
fn is_meant_as_message(line: &[u8]) -> bool {
    const NAME: &[u8] = b"\"jsonrpc\"";
    matches!(line[0], b'{' | b'[') && line.windows(NAME.len()).any(|part| part == NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_told_shortened_and_messages_are_not() {
        let now = Instant::now();
        let mut printed = Printed::default();
        let mut text = |line: &[u8]| printed.line(line, now).map(|telling| telling.text);
        assert_eq!(text(b"Server ready\r").as_deref(), Some("Server ready"));
        assert_eq!(text(b"{\"level\": 30}").as_deref(), Some("{\"level\": 30}"));
        assert_eq!(text(b" "), None);
        assert_eq!(
            text(b"{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":\"secret\"}"),
            None
        );
        assert_eq!(
            text(b"{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":\"sec"),
            None
        );
        let long = text("€".repeat(1 << 20).as_bytes()).unwrap();
        assert_eq!(long.chars().count(), LONGEST + 1);
        assert!(text(b"not \xff UTF-8").unwrap().starts_with("not \u{fffd}"));
    }

    #[test]
    fn a_flood_is_told_by_its_number() {
        let begun = Instant::now();
        let mut printed = Printed::default();
        let told = (0..1000).filter(|_| printed.line(b"x", begun).is_some());
        assert_eq!(told.count(), LINES);
        let next = printed.line(b"x", begun + SPAN).unwrap();
        assert_eq!((next.untold, next.is_first), (1000 - LINES, false));
        assert!(next.left_out().unwrap().starts_with("980 more lines"));
    }
}
