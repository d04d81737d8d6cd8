//! The servers of Codex: `[mcp_servers.name]`.

use toml_edit::{Document, Item, TableLike, Value};

use super::entry::{Args, Entry, Layout, List, Start, Unreadable, Word};
use super::shapes::{BUILT_IN, NOT_TEXTS, REMOTE};
use super::splice::{end_of_line, line_start};

pub(super) fn entries(text: &str) -> Result<Vec<Entry>, Unreadable> {
    // Places are counted without the byte order mark.
    let mark = text.len() - text.trim_start_matches('\u{feff}').len();
    let body = &text[mark..];
    let document = Document::parse(body).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        Unreadable::at(text, at + mark, error.message())
    })?;
    let servers = document.get("mcp_servers").and_then(Item::as_table_like);
    let mut found = Vec::new();
    for (name, item) in servers.into_iter().flat_map(|servers| servers.iter()) {
        if let Some(table) = item.as_table_like() {
            found.push(entry(body, name, table));
        }
    }
    for entry in &mut found {
        shift(entry, mark);
    }
    Ok(found)
}

fn entry(text: &str, name: &str, table: &dyn TableLike) -> Entry {
    let env = table.get("env").and_then(Item::as_table_like);
    let mut names = Vec::new();
    for (name, _) in env.into_iter().flat_map(|env| env.iter()) {
        names.push(name.to_owned());
    }
    // Names of variables that are passed on.
    let passed = table.get("env_vars").and_then(Item::as_array);
    names.extend(
        passed
            .into_iter()
            .flatten()
            .filter_map(|name| Some(name.as_str()?.to_owned())),
    );
    let start = start(text, table);
    let at = match &start {
        Start::Apart { command, .. } => command.span.start,
        _ => 0,
    };
    let says = |key: &str, value: bool| {
        let item = table.get(key);
        item.and_then(|item| item.as_bool()) == Some(value)
    };
    Entry {
        name: name.to_owned(),
        path: vec!["mcp_servers".to_owned(), name.to_owned()],
        at,
        start,
        env: names,
        has_cwd: table.get("cwd").is_some(),
        is_disabled: says("disabled", true) || says("enabled", false),
    }
}

fn start(text: &str, table: &dyn TableLike) -> Start {
    if table.get("url").is_some() {
        return Start::None(REMOTE);
    }
    let Some(command) = table.get("command") else {
        return Start::None(BUILT_IN);
    };
    let Some(command) = command.as_value().and_then(word) else {
        return Start::None(NOT_TEXTS);
    };
    let inline = is_inline(text, &command);
    let args = match table.get("args") {
        Some(item) => {
            let Some(list) = item.as_value().and_then(list) else {
                return Start::None(NOT_TEXTS);
            };
            let removal = removal(text, &list);
            Args::Listed { list, removal }
        }
        None if inline => Args::Missing {
            at: command.span.end,
            lead: ", args = ".to_owned(),
        },
        None => {
            let line = line_start(text, command.span.start);
            let indent = text[line..].len() - text[line..].trim_start_matches([' ', '\t']).len();
            let rest = &text[command.span.end..];
            let behind = rest
                .find('\n')
                .map_or(rest.len(), |at| rest[..at].trim_end_matches('\r').len());
            Args::Missing {
                at: command.span.end + behind,
                lead: format!("{}{}args = ", end_of_line(text), &text[line..line + indent]),
            }
        }
    };
    Start::Apart { command, args }
}

/// Whether the command stands in a table of one line.
fn is_inline(text: &str, command: &Word) -> bool {
    let line = &text[line_start(text, command.span.start)..command.span.start];
    !["command", "\"command\"", "'command'"].iter().any(|key| {
        line.trim_start()
            .strip_prefix(key)
            .is_some_and(|rest| rest.trim() == "=")
    })
}

fn word(value: &Value) -> Option<Word> {
    Some(Word {
        value: value.as_str()?.to_owned(),
        span: value.span()?,
    })
}

fn list(value: &Value) -> Option<List> {
    let span = value.span()?;
    let words = value.as_array()?.iter().map(word).collect::<Option<_>>()?;
    Some(List {
        words,
        layout: Layout::Flow(span.start + 1..span.end - 1),
    })
}

/// The bytes that go if the member `args` goes.
fn removal(text: &str, list: &List) -> Option<std::ops::Range<usize>> {
    let Layout::Flow(inside) = &list.layout else {
        return None;
    };
    let (value, end) = (inside.start - 1, inside.end + 1);
    let before_value = text[..value].trim_end().strip_suffix('=')?.trim_end();
    let plain = |c: char| c.is_alphanumeric() || "_-.\"' \t".contains(c);
    let key = before_value.trim_end_matches(plain).len();
    let own = &before_value[key..];
    if !own.trim().trim_end_matches(['"', '\'']).ends_with("args") {
        return None;
    }
    match text[..key].chars().next_back() {
        // A line of its own; a comment behind it stays.
        None | Some('\n') => {
            let alone = text[end..]
                .lines()
                .next()
                .unwrap_or_default()
                .trim()
                .is_empty();
            let before = text[..key]
                .trim_end_matches('\n')
                .trim_end_matches('\r')
                .len();
            let one_line = text[..key].len() - before <= end_of_line(text).len();
            match alone && one_line && before > 0 {
                true => Some(before..end),
                false => Some(key..end),
            }
        }
        // In a table of one line.
        Some(',') => Some(key - 1..end),
        Some('{') => {
            let behind = &text[end..];
            let comma = behind.len() - behind.trim_start().len();
            let own = key + own.len() - own.trim_start().len();
            match behind[comma..].strip_prefix(',') {
                Some(rest) => {
                    let blank = rest.len() - rest.trim_start_matches([' ', '\t']).len();
                    Some(own..end + comma + 1 + blank)
                }
                None => Some(own..end),
            }
        }
        Some(_) => None,
    }
}

fn shift(entry: &mut Entry, by: usize) {
    let move_on = |span: &mut std::ops::Range<usize>| *span = span.start + by..span.end + by;
    entry.at += by;
    let Start::Apart { command, args } = &mut entry.start else {
        return;
    };
    move_on(&mut command.span);
    match args {
        Args::Missing { at, .. } => *at += by,
        Args::Listed { list, removal } => {
            list.words
                .iter_mut()
                .for_each(|word| move_on(&mut word.span));
            if let Layout::Flow(inside) = &mut list.layout {
                move_on(inside);
            }
            removal.iter_mut().for_each(move_on);
        }
    }
}
