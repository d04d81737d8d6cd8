//! The servers of Goose and Continue: YAML, as far as their files use it. A line at a time, and what is
//! written in another way is refused with its line: nothing here is guessed.

use std::ops::Range;

use super::entry::{Args, Entry, Layout, List, Start, Unreadable, Word};
use super::shapes::{BUILT_IN, REMOTE};
use super::splice::end_of_line;

/// How a file keeps its servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `extensions:`, each under its name (Goose).
    Extensions,
    /// `mcpServers:`, a list of entries with a name (Continue).
    McpServers,
}

impl Kind {
    fn root(self) -> &'static str {
        match self {
            Kind::Extensions => "extensions",
            Kind::McpServers => "mcpServers",
        }
    }
}

pub(super) fn entries(text: &str, kind: Kind) -> Result<Vec<Entry>, Unreadable> {
    let lines = lines(text)?;
    let is_root = |line: &&Line<'_>| {
        line.indent == 0 && line.key().is_some_and(|(key, _)| key == kind.root())
    };
    let mut roots = lines.iter().filter(is_root);
    let Some(root) = roots.next() else {
        return Ok(Vec::new());
    };
    if let Some(second) = roots.next() {
        return Err(second.wrong(text, "a second one of this name"));
    }
    match root.key().map(|(_, value)| value) {
        Some("") => {}
        Some("{}" | "[]" | "null" | "~") => return Ok(Vec::new()),
        _ => return Err(root.wrong(text, "write each server on lines of its own")),
    }
    let block = below(&lines, root.at, 0, kind == Kind::McpServers);
    match kind {
        Kind::Extensions => extensions(text, block),
        Kind::McpServers => listed(text, block),
    }
}

fn extensions(text: &str, block: &[Line<'_>]) -> Result<Vec<Entry>, Unreadable> {
    let mut found = Vec::new();
    for line in top_of(text, block)? {
        let Some((name, value)) = line.key() else {
            return Err(line.wrong(text, "expected the name of an extension"));
        };
        if !value.is_empty() {
            return Err(line.wrong(text, "write the extension on lines of its own"));
        }
        let fields = below(block, line.at, line.indent, false);
        found.push(entry(text, name.to_owned(), line.start, fields)?);
    }
    Ok(found)
}

fn listed(text: &str, block: &[Line<'_>]) -> Result<Vec<Entry>, Unreadable> {
    let mut found = Vec::new();
    for line in top_of(text, block)? {
        let Some(first) = line.item() else {
            return Err(line.wrong(text, "expected a dash and a server"));
        };
        // The first field stands behind the dash, the others below it.
        let mut fields = vec![first];
        fields.extend_from_slice(below(block, line.at, line.indent, false));
        let name = fields.iter().find_map(|field| match field.key() {
            Some(("name", value)) => Some(value.trim_matches(['"', '\'']).to_owned()),
            _ => None,
        });
        found.push(entry(
            text,
            name.unwrap_or_else(|| "?".to_owned()),
            line.start,
            &fields,
        )?);
    }
    Ok(found)
}

fn entry(text: &str, name: String, at: usize, lines: &[Line<'_>]) -> Result<Entry, Unreadable> {
    let mut entry = Entry {
        name,
        at,
        start: Start::None(BUILT_IN),
        env: Vec::new(),
        secrets: Vec::new(),
        has_cwd: false,
    };
    let (mut command, mut args, mut remote) = (None, None, false);
    for line in top_of(text, lines)? {
        let Some((key, value)) = line.key() else {
            // A list may stand as far out as its key.
            if line.item().is_some() {
                continue;
            }
            return Err(line.wrong(text, "expected a key and a value"));
        };
        let deeper = below(lines, line.at, line.indent, true);
        match key {
            "<<" => return Err(line.wrong(text, "merges another entry; write it out")),
            "cmd" | "command" => {
                if let Some(next) = deeper.first() {
                    return Err(next.wrong(text, "write the command on one line"));
                }
                command = Some((line, scalar(text, line.value_span(text))?));
            }
            "args" => args = Some((line, sequence(text, line, value, deeper)?)),
            "env" | "envs" => variables(text, line, value, deeper, &mut entry)?,
            "env_keys" => {
                let names = sequence(text, line, value, deeper)?;
                entry
                    .env
                    .extend(names.words.into_iter().map(|word| word.value));
            }
            "url" | "uri" => remote = true,
            "cwd" => entry.has_cwd = true,
            _ => {}
        }
    }
    entry.start = match (command, args) {
        _ if remote => Start::None(REMOTE),
        (None, _) => Start::None(BUILT_IN),
        (Some((_, command)), Some((line, list))) => {
            let member = line.alone(text);
            let args = Args::Listed { list, member };
            Start::Apart { command, args }
        }
        (Some((line, command)), None) => {
            let args = Args::Missing {
                at: line.end,
                lead: format!("{}{}args: ", end_of_line(text), " ".repeat(line.indent)),
            };
            Start::Apart { command, args }
        }
    };
    Ok(entry)
}

fn variables(
    text: &str,
    line: &Line<'_>,
    value: &str,
    deeper: &[Line<'_>],
    entry: &mut Entry,
) -> Result<(), Unreadable> {
    if !matches!(value, "" | "{}" | "null" | "~") {
        return Err(line.wrong(text, "write each variable on a line of its own"));
    }
    for variable in top_of(text, deeper)? {
        let Some((name, _)) = variable.key() else {
            return Err(variable.wrong(text, "expected a variable and its value"));
        };
        entry.env.push(name.trim_matches(['"', '\'']).to_owned());
        entry.secrets.push(variable.value_span(text));
    }
    Ok(())
}

fn sequence(
    text: &str,
    line: &Line<'_>,
    value: &str,
    deeper: &[Line<'_>],
) -> Result<List, Unreadable> {
    if value.starts_with('[') {
        return flow(text, line.value_span(text));
    }
    let items = top_of(text, deeper)?;
    if !value.is_empty() || items.is_empty() {
        return Err(line.wrong(text, "expected a list"));
    }
    let mut words = Vec::new();
    for item in &items {
        let Some(inner) = item.item() else {
            return Err(item.wrong(text, "expected a dash and a text"));
        };
        words.push(scalar(text, inner.start..inner.end)?);
    }
    let after_key = line.value_span(text).start;
    Ok(List {
        words,
        layout: Layout::Block {
            indent: items[0].indent,
            after_key: text[..after_key].trim_end().len(),
        },
    })
}

/// `[a, "b"]` on one line.
fn flow(text: &str, span: Range<usize>) -> Result<List, Unreadable> {
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
fn scalar(text: &str, span: Range<usize>) -> Result<Word, Unreadable> {
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
fn quoted_length(raw: &str, quote: char) -> Option<usize> {
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

/// A line with something on it: no comment, not blank.
#[derive(Debug, Clone)]
struct Line<'a> {
    /// Its place among such lines.
    at: usize,
    indent: usize,
    /// Where its words begin and end, without white space.
    start: usize,
    end: usize,
    words: &'a str,
}

impl<'a> Line<'a> {
    /// `key: value`, the value without a comment behind it.
    fn key(&self) -> Option<(&'a str, &'a str)> {
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
            let next = self.words[at + 1..].chars().next();
            self.words[at..].starts_with(':') && matches!(next, None | Some(' ' | '\t'))
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
    fn value_span(&self, text: &str) -> Range<usize> {
        let from = self
            .colon()
            .map_or(self.end, |colon| self.start + colon + 1);
        let blank = text[from..self.end].len() - text[from..self.end].trim_start().len();
        from + blank..self.end
    }

    /// What stands behind its dash.
    fn item(&self) -> Option<Line<'a>> {
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

    /// What goes if the line goes, with the end of the line before it.
    fn alone(&self, text: &str) -> Option<Range<usize>> {
        let start = self.start - self.indent;
        let before = text[..start].strip_suffix('\n')?;
        let before = before.strip_suffix('\r').unwrap_or(before);
        self.words.ends_with(']').then_some(before.len()..self.end)
    }

    fn wrong(&self, text: &str, what: &str) -> Unreadable {
        Unreadable::at(text, self.start, what)
    }
}

fn lines(text: &str) -> Result<Vec<Line<'_>>, Unreadable> {
    let mut lines: Vec<Line<'_>> = Vec::new();
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
        lines.push(Line {
            at: lines.len(),
            indent,
            start: start + mark + indent,
            end: start + mark + indent + words.len(),
            words,
        });
    }
    Ok(lines)
}

/// The lines that belong to the one at place `at`: those further in, and a list as far out as it is.
fn below<'l, 'a>(lines: &'l [Line<'a>], at: usize, indent: usize, list: bool) -> &'l [Line<'a>] {
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
fn top_of<'l, 'a>(text: &str, block: &'l [Line<'a>]) -> Result<Vec<&'l Line<'a>>, Unreadable> {
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
