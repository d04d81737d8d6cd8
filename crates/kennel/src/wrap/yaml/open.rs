//! What a line of YAML leaves open for the lines below it: a quoted text, a flow collection, a block scalar.

use super::super::entry::Unreadable;
use super::lines::Line;
use super::scalars::quoted_length;

/// What the lines so far leave open.
#[derive(Debug, Default)]
pub(super) struct Open {
    /// The indent of the key or dash whose block scalar (`|`, `>`) this is: the lines further in are its text.
    block_scalar: Option<usize>,
    /// How many `[` and `{` have no end yet.
    flow_depth: usize,
    /// The indent of the key or dash whose flow collection is open.
    flow_indent: usize,
}

impl Open {
    /// Reads the next line. Refuses a quoted text that does not end on its line, and a line of a flow collection that is
    /// not further in than the key of the collection: each of them can look like a key of the file.
    pub(super) fn read(&mut self, text: &str, line: &Line<'_>) -> Result<(), Unreadable> {
        if self.block_scalar.is_some_and(|indent| line.indent > indent) {
            return Ok(());
        }
        self.block_scalar = None;
        if self.flow_depth > 0 && line.indent <= self.flow_indent {
            let what = "a list or map over several lines; write it on one line";
            return Err(line.wrong(text, what));
        }
        let words = line.words;
        // Where the key, dash or text begins to which the next value belongs.
        let mut node_at = 0;
        // A quote or bracket opens only where a value may begin.
        let mut begins = true;
        let mut at = 0;
        while let Some(c) = words[at..].chars().next() {
            let rest = &words[at..];
            let behind = &rest[c.len_utf8()..];
            let is_apart = behind.is_empty() || behind.starts_with([' ', '\t']);
            let in_flow = self.flow_depth > 0;
            match c {
                ' ' | '\t' => at += 1,
                '#' if words[..at].ends_with([' ', '\t']) => break,
                quote @ ('"' | '\'') if begins => {
                    let Some(length) = quoted_length(rest, quote) else {
                        let what = "a quoted text that does not end on its line";
                        return Err(Unreadable::at(text, line.start + at, what));
                    };
                    at += length;
                    begins = false;
                    // In a flow collection, no space has to follow.
                    if self.flow_depth > 0 && words[at..].starts_with(':') {
                        at += 1;
                        begins = true;
                    }
                }
                '[' | '{' if begins || in_flow => {
                    if !in_flow {
                        self.flow_indent = line.indent + node_at;
                    }
                    self.flow_depth += 1;
                    begins = true;
                    at += 1;
                }
                ']' | '}' if in_flow => {
                    self.flow_depth -= 1;
                    begins = false;
                    at += 1;
                }
                ',' if in_flow => {
                    begins = true;
                    at += 1;
                }
                ':' if is_apart => {
                    begins = true;
                    at += 1;
                }
                '-' | '?' if begins && is_apart && !in_flow => {
                    at += 1;
                    let blank = words[at..].len() - words[at..].trim_start().len();
                    // A block scalar right behind the dash belongs to the dash.
                    if !words[at + blank..].starts_with(['|', '>']) {
                        node_at = at + blank;
                    }
                    at += blank;
                }
                // A tag or an anchor stands before its value.
                '!' | '&' if begins => {
                    let end = rest.find([' ', '\t', ',', ']', '}']);
                    at += end.unwrap_or(rest.len());
                }
                '|' | '>' if begins && !in_flow && is_block_scalar(behind) => {
                    self.block_scalar = Some(line.indent + node_at);
                    break;
                }
                _ => {
                    begins = false;
                    at += c.len_utf8();
                }
            }
        }
        Ok(())
    }
}

/// Whether nothing but its indicators and a comment is behind the `|` or `>` of a block scalar.
fn is_block_scalar(behind: &str) -> bool {
    let rest = behind.trim_start_matches(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-'));
    rest.is_empty()
        || (rest.starts_with([' ', '\t'])
            && matches!(rest.trim_start().chars().next(), None | Some('#')))
}
