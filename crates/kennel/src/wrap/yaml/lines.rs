//! Lines of YAML, and what belongs to which by how far in it stands.

use std::ops::Range;

use super::super::entry::Unreadable;
use super::open::Open;
use super::scalars::quoted_length;

/// A line with something on it: no comment, not blank.
#[derive(Debug, Clone)]
pub(super) struct Line<'a> {
    /// Its place among such lines.
    pub(super) at: usize,
    pub(super) indent: usize,
    /// Where its words begin and end, without white space.
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) words: &'a str,
}

impl<'a> Line<'a> {
    /// `key: value`, the value without a comment behind it.
    pub(super) fn key(&self) -> Option<(&'a str, &'a str)> {
        let colon = self.colon()?;
        let key = self.words[..colon].trim_end().trim_matches(['"', '\'']);
        let value = self.words[colon + 1..].trim_start();
        let value = match value.chars().next() {
            Some('#') => "",
            Some('"' | '\'') => value,
            _ => value.split(" #").next().unwrap_or_default().trim_end(),
        };
        Some((key, value))
    }

    /// Where the colon behind its key is, among its words.
    fn colon(&self) -> Option<usize> {
        let ends_key = |at: usize| {
            let behind = self.words[at..].strip_prefix(':');
            behind.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t']))
        };
        match self.words.chars().next()? {
            quote @ ('"' | '\'') => {
                let at = quoted_length(self.words, quote)?;
                (at < self.words.len() && ends_key(at)).then_some(at)
            }
            '-' if self.item().is_some() || self.words == "-" => None,
            _ => self
                .words
                .match_indices(':')
                .map(|(at, _)| at)
                .find(|&at| ends_key(at)),
        }
    }

    /// Where the value of its key stands, a comment behind it included.
    pub(super) fn value_span(&self, text: &str) -> Range<usize> {
        let from = self
            .colon()
            .map_or(self.end, |colon| self.start + colon + 1);
        let blank = text[from..self.end].len() - text[from..self.end].trim_start().len();
        from + blank..self.end
    }

    /// What stands behind its dash.
    pub(super) fn item(&self) -> Option<Line<'a>> {
        let rest = self.words.strip_prefix('-')?;
        let inner = rest.trim_start_matches(' ');
        if inner.len() == rest.len() || inner.is_empty() {
            return None;
        }
        let skipped = self.words.len() - inner.len();
        Some(Line {
            at: self.at,
            indent: self.indent + skipped,
            start: self.start + skipped,
            end: self.end,
            words: inner,
        })
    }

    pub(super) fn wrong(&self, text: &str, what: &str) -> Unreadable {
        Unreadable::at(text, self.start, what)
    }
}

pub(super) fn lines(text: &str) -> Result<Vec<Line<'_>>, Unreadable> {
    let mut lines: Vec<Line<'_>> = Vec::new();
    let mut open = Open::default();
    let mut offset = 0;
    for whole in text.split_inclusive('\n') {
        let start = offset;
        offset += whole.len();
        let mark =
            usize::from(start == 0) * (whole.len() - whole.trim_start_matches('\u{feff}').len());
        let line = &whole[mark..];
        let words = line.trim_start_matches(' ');
        let indent = line.len() - words.len();
        let words = words.trim_end();
        if words.is_empty() || words.starts_with('#') {
            continue;
        }
        if words.starts_with('\t') || (indent == 0 && words == "---" && !lines.is_empty()) {
            return Err(Unreadable::at(
                text,
                start + mark + indent,
                "a tab before the text, or a second document",
            ));
        }
        if words == "---" || words.starts_with('%') {
            continue;
        }
        if indent == 0 && words.starts_with("--- ") {
            let what = "write the document below its `---`";
            return Err(Unreadable::at(text, start + mark, what));
        }
        let line = Line {
            at: lines.len(),
            indent,
            start: start + mark + indent,
            end: start + mark + indent + words.len(),
            words,
        };
        open.read(text, &line)?;
        lines.push(line);
    }
    Ok(lines)
}

/// The lines that belong to the one at place `at`: those further in, and a list as far out as it is.
pub(super) fn below<'l, 'a>(
    lines: &'l [Line<'a>],
    at: usize,
    indent: usize,
    list: bool,
) -> &'l [Line<'a>] {
    let Some(from) = lines
        .iter()
        .position(|line| line.at == at)
        .map(|own| own + 1)
    else {
        return &[];
    };
    let inside = |line: &Line<'_>| {
        line.indent > indent || (list && line.indent == indent && line.words.starts_with("- "))
    };
    let count = lines[from..].iter().take_while(|line| inside(line)).count();
    &lines[from..from + count]
}

/// The lines that are furthest out: what the block is made of.
pub(super) fn top_of<'l, 'a>(
    text: &str,
    block: &'l [Line<'a>],
) -> Result<Vec<&'l Line<'a>>, Unreadable> {
    let Some(first) = block.first() else {
        return Ok(Vec::new());
    };
    if let Some(stray) = block.iter().find(|line| line.indent < first.indent) {
        return Err(stray.wrong(text, "not as far in as the lines before it"));
    }
    Ok(block
        .iter()
        .filter(|line| line.indent == first.indent)
        .collect())
}
