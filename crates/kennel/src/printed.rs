//! Text that a server prints on its stdout, where only messages belong. It reaches no app, but it is logged: shortened,
//! and a limited number of lines per minute.

use std::time::Instant;

use crate::daemon::Quota;

/// Maximum number of characters of a line that are logged.
const MAX_CHARACTERS: usize = 200;
/// Maximum number of lines that are logged within a minute.
const MAX_LINES: usize = 20;

/// Counts the text lines of one server.
#[derive(Debug)]
pub(crate) struct Printed {
    quota: Quota,
    is_first: bool,
    /// The next text is not logged.
    skips_next: bool,
}

/// The logged text of a line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TextLine {
    /// The beginning of the line.
    pub(crate) text: String,
    /// Number of lines before it that were not logged.
    skipped: usize,
    /// Whether it is the first one of this server.
    pub(crate) is_first: bool,
}

impl Default for Printed {
    fn default() -> Printed {
        Printed {
            quota: Quota::new(MAX_LINES),
            is_first: true,
            skips_next: false,
        }
    }
}

impl Printed {
    /// Does not log the next text: it may be the rest of a message, with anything in it.
    pub(crate) fn hide_next(&mut self) {
        self.skips_next = true;
    }

    /// The text to log for a line that the server wrote to stdout and that was dropped because it is no message. `None`
    /// if it is a message after all (a response without a request), is empty, or exceeds the limit.
    pub(crate) fn line(&mut self, line: &[u8], now: Instant) -> Option<TextLine> {
        let line = line.trim_ascii();
        let is_hidden = std::mem::take(&mut self.skips_next);
        if is_hidden || line.is_empty() || looks_like_message(line) {
            return None;
        }
        let skipped = self.quota.next(now)?;
        // A character has at most four bytes, so the rest of a long line is not read.
        let head = &line[..line.len().min(MAX_CHARACTERS * 4)];
        let text = String::from_utf8_lossy(head);
        let mut short: String = text.chars().take(MAX_CHARACTERS).collect();
        if short.len() < line.len() {
            short.push('…');
        }
        Some(TextLine {
            text: short,
            skipped,
            is_first: std::mem::take(&mut self.is_first),
        })
    }
}

impl TextLine {
    /// A note to log before the line, if lines were left out.
    pub(crate) fn left_out(&self) -> Option<String> {
        let skipped = self.skipped;
        (skipped > 0).then(|| format!("{skipped} more lines of text on stdout were not logged"))
    }
}

/// Whether a line is JSON-RPC, valid or not; such a line may contain private data and is not logged.
fn looks_like_message(line: &[u8]) -> bool {
    const NAME: &[u8] = b"\"jsonrpc\"";
    matches!(line[0], b'{' | b'[') && line.windows(NAME.len()).any(|part| part == NAME)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn text_is_logged_shortened_and_messages_are_not() {
        let now = Instant::now();
        let mut printed = Printed::default();
        let mut text = |line: &[u8]| printed.line(line, now).map(|line| line.text);
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
        assert_eq!(long.chars().count(), MAX_CHARACTERS + 1);
        assert!(text(b"not \xff UTF-8").unwrap().starts_with("not \u{fffd}"));
    }

    #[test]
    fn a_flood_is_logged_by_its_number_of_lines() {
        let start = Instant::now();
        let mut printed = Printed::default();
        let logged = (0..1000).filter(|_| printed.line(b"x", start).is_some());
        assert_eq!(logged.count(), MAX_LINES);
        let next = printed.line(b"x", start + MINUTE).unwrap();
        assert_eq!((next.skipped, next.is_first), (1000 - MAX_LINES, false));
        assert!(next.left_out().unwrap().starts_with("980 more lines"));
    }
}
