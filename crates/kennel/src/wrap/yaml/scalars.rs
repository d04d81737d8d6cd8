//! Texts of YAML: bare, in single or in double quotes, alone or in a list on one line.

use std::ops::Range;

use super::super::entry::{Layout, List, Unreadable, Word};

/// `[a, "b"]` on one line.
pub(super) fn flow(text: &str, span: Range<usize>) -> Result<List, Unreadable> {
    let mut words = Vec::new();
    let mut at = span.start + 1;
    let skip = |at: usize| at + text[at..span.end].len() - text[at..span.end].trim_start().len();
    loop {
        at = skip(at);
        let rest = &text[at..span.end];
        if let Some(behind) = rest.strip_prefix(']').map(str::trim) {
            if !behind.is_empty() && !behind.starts_with('#') {
                return Err(Unreadable::at(text, at, "something behind the list"));
            }
            let layout = Layout::Flow(span.start + 1..at);
            return Ok(List { words, layout });
        }
        let length = match rest.chars().next() {
            Some(quote @ ('"' | '\'')) => quoted_length(rest, quote),
            _ => rest
                .find([',', ']'])
                .map(|end| rest[..end].trim_end().len()),
        };
        let Some(length) = length else {
            return Err(Unreadable::at(
                text,
                at,
                "write the list on one line, or a line for each word",
            ));
        };
        words.push(scalar(text, at..at + length)?);
        at = skip(at + length);
        if text[at..span.end].starts_with(',') {
            at += 1;
        } else if !text[at..span.end].starts_with(']') {
            return Err(Unreadable::at(text, at, "expected a comma or ]"));
        }
    }
}

/// A text that stands alone in `span`, but for a comment behind it.
pub(super) fn scalar(text: &str, span: Range<usize>) -> Result<Word, Unreadable> {
    let raw = &text[span.clone()];
    let wrong = |what: &str| Err(Unreadable::at(text, span.start, what));
    let (length, value) = match raw.chars().next() {
        None => return wrong("expected a text"),
        Some(quote @ ('"' | '\'')) => {
            let Some(length) = quoted_length(raw, quote) else {
                return wrong("a text without its end");
            };
            let behind = raw[length..].trim();
            if !behind.is_empty() && !behind.starts_with('#') {
                return wrong("something behind the text");
            }
            let inside = &raw[1..length - 1];
            let value = match quote {
                '\'' => inside.replace("''", "'"),
                _ => match serde_json::from_str(&raw[..length]) {
                    Ok(value) => value,
                    Err(_) => return wrong("a text with an escape that is not understood"),
                },
            };
            (length, value)
        }
        Some('&' | '*' | '!' | '|' | '>' | '%' | '@' | '`' | '[' | '{' | '?' | ',' | '#') => {
            return wrong("write it as a plain text");
        }
        Some(_) => {
            let end = raw.find(" #").unwrap_or(raw.len());
            let plain = raw[..end].trim_end();
            if plain.contains(": ") || plain.ends_with(':') {
                return wrong("a colon in a plain text; put it in quotes");
            }
            (plain.len(), plain.to_owned())
        }
    };
    Ok(Word {
        value,
        span: span.start..span.start + length,
    })
}

/// How long a quoted text is, with its quotes.
pub(super) fn quoted_length(raw: &str, quote: char) -> Option<usize> {
    let mut chars = raw.char_indices().skip(1).peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' if quote == '"' => drop(chars.next()),
            c if c == quote => {
                let doubled = quote == '\'' && chars.peek().is_some_and(|(_, next)| *next == '\'');
                if !doubled {
                    return Some(at + 1);
                }
                chars.next();
            }
            _ => {}
        }
    }
    None
}
