//! The servers of Goose and Continue: YAML, as far as their files use it. What is written in another way is refused with
//! its line.

mod node;

use std::collections::BTreeSet;
use std::ops::Range;

use saphyr_parser::ScalarStyle;

use super::entry::{Args, Entry, Layout, List, Start, Unreadable, Word, check_size};
use super::shapes::{BUILT_IN, REMOTE};
use super::splice::end_of_line;
use node::{Member, Node, Value};

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

/// Maximum size of a file, in bytes.
const MAX_SIZE: usize = 2 << 20;

pub(super) fn entries(text: &str, kind: Kind) -> Result<Vec<Entry>, Unreadable> {
    check_size(text, MAX_SIZE)?;
    let Some(document) = node::parse(text)? else {
        return Ok(Vec::new());
    };
    let members = match &document.value {
        _ if document.is_empty() => return Ok(Vec::new()),
        Value::Map { is_flow: true, .. } | Value::List { is_flow: true, .. } => {
            return Err(unsupported(
                text,
                &document,
                "write each key on a separate line",
            ));
        }
        Value::Map { members, .. } => members,
        _ => return Ok(Vec::new()),
    };
    let mut roots = members
        .iter()
        .filter(|member| member.key.text() == Some(kind.root()));
    let Some(root) = roots.next() else {
        return Ok(Vec::new());
    };
    if let Some(second) = roots.next() {
        return Err(unsupported(text, &second.key, SECOND));
    }
    if root.value.is_empty() {
        return Ok(Vec::new());
    }
    let mut found = match (kind, &root.value.value) {
        (
            Kind::Extensions,
            Value::Map {
                members,
                is_flow: false,
            },
        ) => extensions(text, members)?,
        (
            Kind::McpServers,
            Value::List {
                items,
                is_flow: false,
            },
        ) => listed(text, items)?,
        _ => {
            return Err(unsupported(
                text,
                &root.key,
                "write each server on separate lines",
            ));
        }
    };
    for entry in &mut found {
        entry.path = vec![kind.root().to_owned(), entry.name.clone()];
    }
    Ok(found)
}

/// If a key occurs twice, some readers take the first value, others the last.
const SECOND: &str = "this name occurs twice";

fn extensions(text: &str, members: &[Member]) -> Result<Vec<Entry>, Unreadable> {
    refuse_second_keys(text, members)?;
    let mut found = Vec::new();
    for Member { key, value } in members {
        let fields = match &value.value {
            _ if value.is_missing() => &[][..],
            Value::Map {
                members,
                is_flow: false,
            } if !value.is_marked => members,
            _ => {
                return Err(unsupported(
                    text,
                    key,
                    "write the extension on separate lines",
                ));
            }
        };
        let name = key.text().unwrap_or_default().to_owned();
        found.push(entry(text, name, key.span.start, fields)?);
    }
    Ok(found)
}

fn listed(text: &str, items: &[Node]) -> Result<Vec<Entry>, Unreadable> {
    let mut found = Vec::new();
    for item in items {
        let Value::Map {
            members,
            is_flow: false,
        } = &item.value
        else {
            return Err(unsupported(
                text,
                item,
                "write each field of a server on a separate line",
            ));
        };
        let name = members
            .iter()
            .find(|member| member.key.text() == Some("name"));
        let name = name.and_then(|member| member.value.text()).unwrap_or("?");
        found.push(entry(text, name.to_owned(), item.span.start, members)?);
    }
    Ok(found)
}

fn entry(text: &str, name: String, at: usize, fields: &[Member]) -> Result<Entry, Unreadable> {
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
    refuse_second_keys(text, fields)?;
    for field in fields {
        let Member { key, value } = field;
        match key.text().unwrap_or_default() {
            "<<" => return Err(unsupported(text, key, "merges another entry; write it out")),
            "cmd" | "command" => command = Some((field, string_on_line(text, value)?)),
            "args" => args = Some((field, list(text, field)?)),
            "env" | "envs" => entry.env.extend(variables(text, field)?),
            "env_keys" => {
                let names = list(text, field)?.words.into_iter();
                entry.env.extend(names.map(|word| word.value));
            }
            "url" | "uri" => remote = true,
            "cwd" => entry.has_cwd = true,
            "enabled" => entry.is_disabled |= value.is_plain("false"),
            "disabled" => entry.is_disabled |= value.is_plain("true"),
            _ => {}
        }
    }
    entry.start = match (command, args) {
        _ if remote => Start::None(REMOTE),
        (None, _) => Start::None(BUILT_IN),
        (Some((_, command)), Some((field, list))) => {
            let removal = removal(text, fields, &field.key, &list);
            let args = Args::Listed { list, removal };
            Start::Separate { command, args }
        }
        (Some((field, command)), None) => {
            let indent = column(text, field.key.span.start);
            let args = Args::Missing {
                at: command.span.end + rest_of_line(text, command.span.end).trim_end().len(),
                lead: format!("{}{}args: ", end_of_line(text), " ".repeat(indent)),
            };
            Start::Separate { command, args }
        }
    };
    Ok(entry)
}

fn refuse_second_keys(text: &str, members: &[Member]) -> Result<(), Unreadable> {
    let mut seen = BTreeSet::new();
    for Member { key, .. } in members {
        let has_colon = rest_of_line(text, key.span.end)
            .trim_start()
            .starts_with(':');
        let Some(name) = key.text().filter(|_| has_colon && !key.is_marked) else {
            return Err(unsupported(text, key, "expected a key and a value"));
        };
        if !seen.insert(name) {
            return Err(unsupported(text, key, SECOND));
        }
    }
    Ok(())
}

/// The bytes that go if the member `args` goes.
fn removal(text: &str, fields: &[Member], key: &Node, list: &List) -> Option<Range<usize>> {
    let end = match (&list.layout, list.words.last()) {
        (Layout::Flow(inside), _) => inside.end + 1,
        (Layout::Block { .. }, Some(last)) => last.span.end,
        (Layout::Block { .. }, None) => return None,
    };
    // What stands behind it on its line is a comment, and stays.
    let alone = rest_of_line(text, end).trim().is_empty();
    let start = key.span.start - column(text, key.span.start);
    if text[start..key.span.start].trim().is_empty() {
        let before = text[..start].strip_suffix('\n')?;
        let before = before.strip_suffix('\r').unwrap_or(before);
        return alone.then_some(before.len()..end);
    }
    // Behind the dash: the next field takes its place.
    let next = fields.iter().find(|field| field.key.span.start >= end)?;
    let next = next.key.span.start;
    text[end..next]
        .trim()
        .is_empty()
        .then_some(key.span.start..next)
}

/// The names of the variables.
fn variables(text: &str, field: &Member) -> Result<Vec<String>, Unreadable> {
    match &field.value.value {
        _ if field.value.is_empty() => Ok(Vec::new()),
        Value::Map {
            members,
            is_flow: false,
        } if !field.value.is_marked => {
            refuse_second_keys(text, members)?;
            let names = members.iter().filter_map(|member| member.key.text());
            Ok(names.map(str::to_owned).collect())
        }
        _ => Err(unsupported(
            text,
            &field.key,
            "write each variable on a separate line",
        )),
    }
}

fn list(text: &str, Member { key, value }: &Member) -> Result<List, Unreadable> {
    let Value::List { items, is_flow } = &value.value else {
        return Err(unsupported(text, key, "expected a list"));
    };
    let layout = match (is_flow, items.first()) {
        _ if value.is_marked => return Err(unsupported(text, key, "expected a list")),
        (true, _) if text[value.span.clone()].contains('\n') => {
            let what = "write the list on one line, or each word on a separate line";
            return Err(unsupported(text, value, what));
        }
        (true, _) => Layout::Flow(value.span.start + 1..value.span.end - 1),
        (false, first) => {
            let first = first.map_or(value.span.start, |first| first.span.start);
            let dash = text[..first].trim_end_matches(' ').len().saturating_sub(1);
            if !text[dash..].starts_with("- ") {
                return Err(Unreadable::at(text, first, "expected a dash and a string"));
            }
            Layout::Block {
                indent: column(text, dash),
                after_key: key.span.end
                    + rest_of_line(text, key.span.end).find(':').unwrap_or(0)
                    + 1,
            }
        }
    };
    let words = items
        .iter()
        .map(|item| string_on_line(text, item))
        .collect::<Result<_, _>>()?;
    Ok(List { words, layout })
}

/// A text on one line.
fn string_on_line(text: &str, node: &Node) -> Result<Word, Unreadable> {
    use ScalarStyle::{DoubleQuoted, Plain, SingleQuoted};
    let raw = &text[node.span.clone()];
    let (value, style) = match &node.value {
        Value::Text { value, style } if !node.is_marked => (value, style),
        _ => return Err(unsupported(text, node, "write it as a plain string")),
    };
    if !matches!(style, Plain | SingleQuoted | DoubleQuoted) {
        return Err(unsupported(text, node, "write it as a plain string"));
    }
    if node.is_missing() {
        return Err(unsupported(text, node, "expected a text"));
    }
    if let Some(line) = raw.find('\n') {
        let at = node.span.end - raw[line..].trim_start().len();
        return Err(Unreadable::at(text, at, "write the string on one line"));
    }
    Ok(Word {
        value: value.clone(),
        span: node.span.clone(),
    })
}

fn unsupported(text: &str, node: &Node, what: &str) -> Unreadable {
    Unreadable::at(text, node.span.start, what)
}

fn rest_of_line(text: &str, at: usize) -> &str {
    text[at..].lines().next().unwrap_or_default()
}

/// Bytes between the beginning of the line and this place.
fn column(text: &str, at: usize) -> usize {
    at - text[..at].rfind('\n').map_or(0, |newline| newline + 1)
}
