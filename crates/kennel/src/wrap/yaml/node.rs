//! A YAML document as a tree of values with their places in the text, from the events of `saphyr-parser`.

use std::ops::Range;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Span, StrInput};

use super::super::entry::Unreadable;

/// How deeply values may be nested.
const MAX_DEPTH: usize = 100;

/// A value.
#[derive(Debug)]
pub(super) struct Node {
    /// Its position. The end of a block list or map may include what follows.
    pub(super) span: Range<usize>,
    /// Whether it has an anchor or a tag.
    pub(super) is_marked: bool,
    pub(super) value: Value,
}

#[derive(Debug)]
pub(super) enum Value {
    Text {
        value: String,
        style: ScalarStyle,
    },
    List {
        items: Vec<Node>,
        is_flow: bool,
    },
    Map {
        members: Vec<Member>,
        is_flow: bool,
    },
    /// A reference to an anchor (`*anchor`).
    Alias,
}

/// A key with its value.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) key: Node,
    pub(super) value: Node,
}

impl Node {
    /// The text of a scalar.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text { value, .. } => Some(value),
            _ => None,
        }
    }

    /// Whether it is this text, without quotes.
    pub(super) fn is_plain(&self, text: &str) -> bool {
        matches!(&self.value, Value::Text { value, style: ScalarStyle::Plain } if value == text)
    }

    /// Whether nothing is written there.
    pub(super) fn is_missing(&self) -> bool {
        self.span.is_empty() && !self.is_marked
    }

    /// Whether it is empty or null: nothing, `null`, `~`, `{}` or `[]`.
    pub(super) fn is_empty(&self) -> bool {
        match &self.value {
            _ if self.is_marked => false,
            Value::List { items, .. } => items.is_empty(),
            Value::Map { members, .. } => members.is_empty(),
            Value::Text { .. } => self.is_missing() || self.is_plain("null") || self.is_plain("~"),
            Value::Alias => false,
        }
    }
}

/// Reads the only document of `text`; `None` if there is none.
pub(super) fn parse(text: &str) -> Result<Option<Node>, Unreadable> {
    let start = text.len() - text.trim_start_matches('\u{feff}').len();
    let mut reader = Reader {
        text,
        offsets: offsets(text, start),
        parser: Parser::new_from_str(&text[start..]),
    };
    let mut document = None;
    loop {
        match reader.next()? {
            (Event::StreamEnd, _) => return Ok(document),
            (Event::DocumentStart(_), span) if document.is_some() => {
                return Err(reader.refuse(&span.start, "a second document"));
            }
            (Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd, _) => {}
            (event, span) => document = Some(reader.node(event, span, 0)?),
        }
    }
}

struct Reader<'t> {
    text: &'t str,
    /// Position of each character: the parser counts characters.
    offsets: Vec<usize>,
    parser: Parser<'t, StrInput<'t>>,
}

fn offsets(text: &str, start: usize) -> Vec<usize> {
    let chars = text[start..].char_indices().map(|(at, _)| start + at);
    chars.chain([text.len()]).collect()
}

impl<'t> Reader<'t> {
    fn next(&mut self) -> Result<(Event<'t>, Span), Unreadable> {
        match self.parser.next_event() {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => Err(self.scan_error(&error)),
            None => Err(Unreadable::at(self.text, self.text.len(), "no end")),
        }
    }

    fn scan_error(&self, error: &ScanError) -> Unreadable {
        self.refuse(error.marker(), error.info())
    }

    fn refuse(&self, at: &Marker, what: &str) -> Unreadable {
        Unreadable::at(self.text, self.offset(at), what)
    }

    fn offset(&self, at: &Marker) -> usize {
        let at = self.offsets.get(at.index());
        at.copied().unwrap_or(self.text.len())
    }

    /// The value that begins with this event.
    fn node(&mut self, event: Event<'t>, span: Span, depth: usize) -> Result<Node, Unreadable> {
        if depth == MAX_DEPTH {
            return Err(self.refuse(&span.start, "nested too deeply"));
        }
        let start = self.offset(&span.start);
        let is_flow = self.text[start..].starts_with(['[', '{']);
        let mut end = self.offset(&span.end);
        let (anchor, has_tag, value) = match event {
            Event::Scalar(value, style, anchor, tag) => {
                // The parser's end may be behind a comment.
                end = start + quoted_length(&self.text[start..end]).unwrap_or(end - start);
                self.check_quoted(start..end, style)?;
                let value = value.into_owned();
                (anchor, tag.is_some(), Value::Text { value, style })
            }
            Event::SequenceStart(anchor, tag) => {
                let mut items = Vec::new();
                loop {
                    match self.next()? {
                        (Event::SequenceEnd, span) => {
                            // Its end may be behind a comment.
                            end = self.offset(&span.start) + usize::from(is_flow);
                            break;
                        }
                        (event, span) => items.push(self.node(event, span, depth + 1)?),
                    }
                }
                (anchor, tag.is_some(), Value::List { items, is_flow })
            }
            Event::MappingStart(anchor, tag) => {
                let mut members = Vec::new();
                loop {
                    let (event, span) = self.next()?;
                    if event == Event::MappingEnd {
                        end = self.offset(&span.start) + usize::from(is_flow);
                        break;
                    }
                    let key = self.node(event, span, depth + 1)?;
                    let (event, span) = self.next()?;
                    let value = self.node(event, span, depth + 1)?;
                    members.push(Member { key, value });
                }
                (anchor, tag.is_some(), Value::Map { members, is_flow })
            }
            _ => (0, false, Value::Alias),
        };
        Ok(Node {
            span: start..end,
            is_marked: anchor > 0 || has_tag,
            value,
        })
    }

    /// Refuses a quoted text of several lines: to a reader that goes line by line, one of them can look like a key.
    fn check_quoted(&self, span: Range<usize>, style: ScalarStyle) -> Result<(), Unreadable> {
        let is_quoted = matches!(style, ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted);
        if is_quoted && self.text[span.clone()].contains('\n') {
            let what = "a quoted string that does not end on its line";
            return Err(Unreadable::at(self.text, span.start, what));
        }
        Ok(())
    }
}

/// How long a quoted text is, with its quotes; `None` if `raw` does not begin with a quote.
fn quoted_length(raw: &str) -> Option<usize> {
    let quote = raw.bytes().next().filter(|it| b"'\"".contains(it))?;
    let mut rest = raw.bytes().enumerate().skip(1).peekable();
    while let Some((at, byte)) = rest.next() {
        if byte == b'\\' && quote == b'"' {
            rest.next();
        } else if byte == quote
            && rest
                .next_if(|&(_, next)| quote == b'\'' && next == quote)
                .is_none()
        {
            return Some(at + 1);
        }
    }
    None
}
