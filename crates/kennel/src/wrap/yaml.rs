//! The servers of Goose and Continue: YAML, as far as their files use it. A line at a time, and what is
//! written in another way is refused with its line: nothing here is guessed.

mod lines;
mod open;
mod scalars;

use std::collections::BTreeSet;

use super::entry::{Args, Entry, Layout, List, Start, Unreadable};
use super::shapes::{BUILT_IN, REMOTE};
use super::splice::end_of_line;
use lines::{Line, below, lines, top_of};
use scalars::{flow, scalar};

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
    if let Some(first) = lines.first()
        && first.words.starts_with(['{', '['])
        && !matches!(first.words, "{}" | "[]")
    {
        return Err(first.wrong(text, "write each key on a line of its own"));
    }
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
    let mut found = match kind {
        Kind::Extensions => extensions(text, block)?,
        Kind::McpServers => listed(text, block)?,
    };
    for entry in &mut found {
        entry.path = vec![kind.root().to_owned(), entry.name.clone()];
    }
    Ok(found)
}

fn extensions(text: &str, block: &[Line<'_>]) -> Result<Vec<Entry>, Unreadable> {
    let mut found = Vec::new();
    let top = top_of(text, block)?;
    refuse_second_keys(text, &top)?;
    for line in top {
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
        if first.words.starts_with('{') {
            return Err(first.wrong(text, "write each field on a line of its own"));
        }
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
        path: Vec::new(),
        at,
        start: Start::None(BUILT_IN),
        env: Vec::new(),
        has_cwd: false,
        is_disabled: false,
    };
    let (mut command, mut args, mut remote) = (None, None, false);
    let fields = top_of(text, lines)?;
    refuse_second_keys(text, &fields)?;
    for line in fields {
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
            "enabled" => entry.is_disabled |= value.trim() == "false",
            "disabled" => entry.is_disabled |= value.trim() == "true",
            _ => {}
        }
    }
    entry.start = match (command, args) {
        _ if remote => Start::None(REMOTE),
        (None, _) => Start::None(BUILT_IN),
        (Some((_, command)), Some((line, list))) => {
            let removal = removal(text, lines, line, &list);
            let args = Args::Listed { list, removal };
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

/// Of two keys of one name, some readers take the first, others the last.
fn refuse_second_keys(text: &str, lines: &[&Line<'_>]) -> Result<(), Unreadable> {
    let mut seen = BTreeSet::new();
    for line in lines {
        if let Some((key, _)) = line.key()
            && !seen.insert(key.trim_matches(['"', '\'']))
        {
            return Err(line.wrong(text, "a second one of this name"));
        }
    }
    Ok(())
}

/// The bytes that go if the member `args` goes.
fn removal(
    text: &str,
    fields: &[Line<'_>],
    line: &Line<'_>,
    list: &List,
) -> Option<std::ops::Range<usize>> {
    let end = match (&list.layout, list.words.last()) {
        (Layout::Flow(inside), _) => inside.end + 1,
        (Layout::Block { .. }, Some(last)) => last.span.end,
        (Layout::Block { .. }, None) => return None,
    };
    // What stands behind it on its line is a comment, and stays.
    let alone = text[end..]
        .lines()
        .next()
        .unwrap_or_default()
        .trim()
        .is_empty();
    let start = line.start - line.indent;
    if text[start..line.start].trim().is_empty() {
        let before = text[..start].strip_suffix('\n')?;
        let before = before.strip_suffix('\r').unwrap_or(before);
        return alone.then_some(before.len()..end);
    }
    // Behind the dash: the next field takes its place.
    let next = fields.iter().find(|field| field.start >= end)?;
    let between = text[end..next.start].trim().is_empty();
    (between && next.indent == line.indent).then_some(line.start..next.start)
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
    let variables = top_of(text, deeper)?;
    refuse_second_keys(text, &variables)?;
    for variable in variables {
        let Some((name, _)) = variable.key() else {
            return Err(variable.wrong(text, "expected a variable and its value"));
        };
        entry.env.push(name.trim_matches(['"', '\'']).to_owned());
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
        if let Some(next) = below(deeper, item.at, item.indent, false).first() {
            return Err(next.wrong(text, "write the text behind the dash on one line"));
        }
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
