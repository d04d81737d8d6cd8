//! The servers in the configuration of Codex: `[mcp_servers.name]`.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::entry::{Args, Entry, Layout, List, Start, Unreadable, Word, check_size};
use super::shapes::{BUILT_IN, NOT_STRINGS, REMOTE};
use super::splice::{end_of_line, line_start, quoted};

/// Maximum size of a file, in bytes.
const MAX_SIZE: usize = 2 << 20;

pub(super) fn entries(text: &str) -> Result<Vec<Entry>, Unreadable> {
    check_size(text, MAX_SIZE)?;
    let document = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        Unreadable::at(text, at, error.message())
    })?;
    let mut found = Vec::new();
    let servers = document.get_ref().get("mcp_servers");
    for (name, item) in table(servers) {
        let Some(fields) = item.get_ref().as_table() else {
            continue;
        };
        let is_inline = |item: &Spanned<DeValue<'_>>| text[item.span()].starts_with('{');
        let place = match (is_inline(item), servers.is_some_and(is_inline)) {
            (true, _) => Place::Inline { prefix: None },
            (false, true) => Place::Inline {
                prefix: Some(name.get_ref()),
            },
            (false, false) => Place::Lines,
        };
        found.push(entry(text, name.get_ref(), fields, place));
    }
    Ok(found)
}

/// How the members of a server are written.
#[derive(Debug, Clone, Copy)]
enum Place<'t> {
    /// Each on a line: below a header, or with a dotted key (`mcp_servers.a.command`).
    Lines,
    /// In an inline table, with the server's name before a dot if the table is that of all servers.
    Inline { prefix: Option<&'t str> },
}

/// The keys and values of a table; empty if the value is not a table.
fn table<'t>(
    item: Option<&'t Spanned<DeValue<'t>>>,
) -> impl Iterator<
    Item = (
        &'t Spanned<std::borrow::Cow<'t, str>>,
        &'t Spanned<DeValue<'t>>,
    ),
> {
    let table = item.and_then(|item| item.get_ref().as_table());
    table.into_iter().flatten()
}

fn entry(text: &str, name: &str, fields: &DeTable<'_>, place: Place<'_>) -> Entry {
    let variables = table(fields.get("env"));
    let mut names: Vec<String> = variables
        .map(|(name, _)| name.get_ref().to_string())
        .collect();
    // Names of variables that are passed on.
    let passed = fields
        .get("env_vars")
        .and_then(|item| item.get_ref().as_array());
    let passed = passed.into_iter().flat_map(|array| array.iter());
    names.extend(passed.filter_map(|name| Some(name.get_ref().as_str()?.to_owned())));
    let start = start(text, fields, place);
    let at = match &start {
        Start::Separate { command, .. } => command.span.start,
        _ => 0,
    };
    let says = |key: &str, value: bool| {
        let item = fields.get(key);
        item.and_then(|item| item.get_ref().as_bool()) == Some(value)
    };
    Entry {
        name: name.to_owned(),
        path: vec!["mcp_servers".to_owned(), name.to_owned()],
        at,
        start,
        env: names,
        has_cwd: fields.get("cwd").is_some(),
        is_disabled: says("disabled", true) || says("enabled", false),
    }
}

fn start(text: &str, fields: &DeTable<'_>, place: Place<'_>) -> Start {
    if fields.get("url").is_some() {
        return Start::None(REMOTE);
    }
    let Some((key, command)) = fields.get_key_value("command") else {
        return Start::None(BUILT_IN);
    };
    let Some(command) = string_value(command) else {
        return Start::None(NOT_STRINGS);
    };
    let args = match fields.get_key_value("args") {
        Some((key, item)) => {
            let Some(list) = list(item) else {
                return Start::None(NOT_STRINGS);
            };
            let removal = removal(text, key.span().start, item.span().end, place);
            Args::Listed { list, removal }
        }
        None => missing(text, key.span().start, command.span.end, place),
    };
    Start::Separate { command, args }
}

/// The position for a member `args`, after the command whose key and value are here.
fn missing(text: &str, key: usize, end: usize, place: Place<'_>) -> Args {
    match place {
        Place::Inline { prefix } => {
            let prefix = prefix.map_or(String::new(), |name| quoted(name) + ".");
            Args::Missing {
                at: end,
                lead: format!(", {prefix}args = "),
            }
        }
        Place::Lines => {
            // The indentation, and the keys before the last dot.
            let before_key = &text[line_start(text, key)..key];
            let rest = &text[end..];
            let behind = rest
                .find('\n')
                .map_or(rest.len(), |at| rest[..at].trim_end_matches('\r').len());
            Args::Missing {
                at: end + behind,
                lead: format!("{}{before_key}args = ", end_of_line(text)),
            }
        }
    }
}

fn string_value(value: &Spanned<DeValue<'_>>) -> Option<Word> {
    Some(Word {
        value: value.get_ref().as_str()?.to_owned(),
        span: value.span(),
    })
}

fn list(value: &Spanned<DeValue<'_>>) -> Option<List> {
    let span = value.span();
    let words = value
        .get_ref()
        .as_array()?
        .iter()
        .map(string_value)
        .collect::<Option<_>>()?;
    Some(List {
        words,
        layout: Layout::Flow(span.start + 1..span.end - 1),
    })
}

/// The range that removes the member `args`, whose key begins and whose value ends here.
fn removal(text: &str, key: usize, end: usize, place: Place<'_>) -> Option<Range<usize>> {
    match place {
        Place::Lines => Some(line_of_member(text, line_start(text, key), end)),
        Place::Inline { prefix } => inline_member(text, before_prefix(text, key, prefix)?, end),
    }
}

/// The line of a member without other members; a comment after it stays.
fn line_of_member(text: &str, start: usize, end: usize) -> Range<usize> {
    let rest = text[end..].lines().next().unwrap_or_default();
    let alone = rest.trim().is_empty();
    let before = text[..start]
        .trim_end_matches('\n')
        .trim_end_matches('\r')
        .len();
    let one_line = start - before <= end_of_line(text).len();
    match alone && one_line && before > 0 {
        true => before..end,
        false => start..end,
    }
}

/// The beginning of a key in an inline table, with the server's name before it.
fn before_prefix(text: &str, key: usize, prefix: Option<&str>) -> Option<usize> {
    let Some(name) = prefix else {
        return Some(key);
    };
    let before = text[..key].trim_end().strip_suffix('.')?.trim_end();
    let mut notations = [quoted(name), format!("'{name}'"), name.to_owned()].into_iter();
    notations.find_map(|name| Some(before.strip_suffix(name.as_str())?.len()))
}

/// The range that removes a member of an inline table, with one comma beside it.
fn inline_member(text: &str, start: usize, end: usize) -> Option<Range<usize>> {
    let before = text[..start].trim_end_matches([' ', '\t']);
    match before.chars().next_back() {
        Some(',') => Some(before.len() - 1..end),
        Some('{') => {
            let behind = &text[end..];
            let comma = behind.len() - behind.trim_start().len();
            match behind[comma..].strip_prefix(',') {
                Some(rest) => {
                    let blank = rest.len() - rest.trim_start_matches([' ', '\t']).len();
                    Some(start..end + comma + 1 + blank)
                }
                None => Some(start..end),
            }
        }
        _ => None,
    }
}
