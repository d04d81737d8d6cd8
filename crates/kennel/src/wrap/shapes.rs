//! The JSON formats of configurations: where they have their servers, and what an entry looks like.

use std::ops::Range;

use jsonc_parser::ast::{Object, ObjectProp, Value};
use jsonc_parser::common::Ranged;

use super::entry::{Args, Entry, Layout, List, Start, Unreadable, Word};
use super::json::{self, get, members, span};

/// The reason for a server without a command.
pub(super) const REMOTE: &str = "is reached over the network: there is no process to start";
pub(super) const BUILT_IN: &str = "starts no command";
pub(super) const NOT_STRINGS: &str = "its command is not a string";

/// The members that contain servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Root {
    /// `mcpServers`, and those of Claude Code's `projects`.
    McpServers,
    /// `servers` (VS Code).
    Servers,
    /// `context_servers` (Zed).
    ContextServers,
    /// `mcp`, or `mcp.servers` (opencode).
    Mcp,
}

pub(super) const ROOTS: &[Root] = &[
    Root::McpServers,
    Root::Servers,
    Root::ContextServers,
    Root::Mcp,
];

/// The servers of a document.
pub(super) fn entries(text: &str, roots: &[Root]) -> Result<Vec<Entry>, Unreadable> {
    // An empty file is one that the app has not written to yet.
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let document = json::parse(text)?;
    let mut found = Vec::new();
    for root in roots {
        match root {
            Root::McpServers => {
                let key = "mcpServers";
                servers(text, &[key], get(&document, key), &mut found);
                for project in members(get(&document, "projects")) {
                    let scope = ["projects", project.name.as_str(), key];
                    servers(text, &scope, get(&project.value, key), &mut found);
                }
            }
            Root::Servers => servers(text, &["servers"], get(&document, "servers"), &mut found),
            Root::ContextServers => {
                let key = "context_servers";
                servers(text, &[key], get(&document, key), &mut found);
            }
            Root::Mcp => {
                let mcp = get(&document, "mcp");
                // A server could be called "servers", but then it has a command or an address.
                let newer = mcp.and_then(|mcp| get(mcp, "servers"));
                let newer = newer.filter(|servers| {
                    let is_text = |key| matches!(get(servers, key), Some(Value::StringLit(_)));
                    !["command", "url", "type"].into_iter().any(is_text)
                        && !matches!(get(servers, "command"), Some(Value::Array(_)))
                });
                let scope: &[&str] = match newer {
                    Some(_) => &["mcp", "servers"],
                    None => &["mcp"],
                };
                servers(text, scope, newer.or(mcp), &mut found);
            }
        }
    }
    Ok(found)
}

/// The servers in `object`, which the keys of `scope` lead to.
fn servers<'v>(text: &str, scope: &[&str], object: Option<&'v Value<'v>>, found: &mut Vec<Entry>) {
    for member in members(object) {
        if let Value::Object(object) = &member.value {
            found.push(entry(text, scope, member, object));
        }
    }
}

fn entry(text: &str, scope: &[&str], member: &ObjectProp<'_>, object: &Object<'_>) -> Entry {
    let name = member.name.as_str();
    let variables = ["env", "environment"]
        .into_iter()
        .flat_map(|key| members(get(&member.value, key)));
    let says = |key: &str, value: bool| {
        let switch = object.get_boolean(key);
        switch.is_some_and(|switch| switch.value == value)
    };
    let path = scope.iter().copied().chain([name]);
    Entry {
        name: name.to_owned(),
        path: path.map(str::to_owned).collect(),
        at: member.name.start(),
        start: start(text, object),
        env: variables
            .map(|member| member.name.as_str().to_owned())
            .collect(),
        has_cwd: object.get("cwd").is_some(),
        is_disabled: says("disabled", true) || says("enabled", false),
    }
}

fn start(text: &str, object: &Object<'_>) -> Start {
    if ["url", "serverUrl", "httpUrl"]
        .iter()
        .any(|key| object.get(key).is_some())
    {
        return Start::None(REMOTE);
    }
    let Some(command) = object.get("command") else {
        return Start::None(BUILT_IN);
    };
    match &command.value {
        Value::StringLit(_) => separate_args(text, object, command),
        Value::Array(_) => match list(&command.value) {
            Some(list) if !list.words.is_empty() => Start::SingleList(list),
            _ => Start::None(NOT_STRINGS),
        },
        // The older notation of Zed.
        Value::Object(inner) => match inner.get("path") {
            Some(path) => separate_args(text, inner, path),
            None => Start::None(NOT_STRINGS),
        },
        _ => Start::None(NOT_STRINGS),
    }
}

fn separate_args(text: &str, object: &Object<'_>, program: &ObjectProp<'_>) -> Start {
    let Some(command) = string_value(&program.value) else {
        return Start::None(NOT_STRINGS);
    };
    let args = match object.get("args") {
        Some(member) => match list(&member.value) {
            Some(list) => Args::Listed {
                list,
                removal: removal(text, object, member),
            },
            None => return Start::None(NOT_STRINGS),
        },
        None => Args::Missing {
            at: program.end(),
            lead: format!(",{}\"args\": ", space_before(text, object, program)),
        },
    };
    Start::Separate { command, args }
}

fn string_value(value: &Value<'_>) -> Option<Word> {
    let string = value.as_string_lit()?;
    Some(Word {
        value: string.value.clone().into_owned(),
        span: span(string),
    })
}

fn list(value: &Value<'_>) -> Option<List> {
    let array = value.as_array()?;
    Some(List {
        words: array
            .elements
            .iter()
            .map(string_value)
            .collect::<Option<_>>()?,
        layout: Layout::Flow(array.start() + 1..array.end() - 1),
    })
}

/// The white space before a member's key, to write another member in the same way.
fn space_before<'a>(text: &'a str, object: &Object<'_>, member: &ObjectProp<'_>) -> &'a str {
    let between = &text[object.start() + 1..member.start()];
    let blank = between.len() - between.trim_end_matches([' ', '\t', '\r', '\n']).len();
    let blank = &between[between.len() - blank..];
    // After a comment's end of line this loses nothing either.
    if blank.is_empty() { " " } else { blank }
}

/// The range that removes a member: with one comma beside it, if no comment is in between.
fn removal(text: &str, object: &Object<'_>, member: &ObjectProp<'_>) -> Option<Range<usize>> {
    let members = &object.properties;
    let at = members
        .iter()
        .position(|other| other.range == member.range)?;
    let own = span(member);
    let only_a_comma = |from: usize, to: usize| text[from..to].trim() == ",";
    if let Some(previous) = at.checked_sub(1).map(|at| &members[at]) {
        let from = previous.end();
        if only_a_comma(from, own.start) {
            return Some(from..own.end);
        }
    }
    match members.get(at + 1) {
        Some(next) if only_a_comma(own.end, next.start()) => Some(own.start..next.start()),
        Some(next) => {
            let comma = next_comma(&text[own.end..next.start()])?;
            Some(own.start..own.end + comma)
        }
        None if at == 0 => {
            // The only member: a comma after it must go, too.
            let comma = next_comma(&text[own.end..object.end() - 1]).unwrap_or(0);
            Some(own.start..own.end + comma)
        }
        // A comment stands between the comma before it and the last member: the comma would stand before the brace.
        None => None,
    }
}

/// The length up to the end of the next comma, if only white space is before it.
fn next_comma(text: &str) -> Option<usize> {
    let comma = text.len() - text.trim_start().len();
    text[comma..].starts_with(',').then_some(comma + 1)
}
