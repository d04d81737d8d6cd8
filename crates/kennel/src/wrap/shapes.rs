//! Where a configuration keeps its servers, and what an entry looks like: JSON.

use super::entry::{Args, Entry, Layout, List, Start, Unreadable, Word};
use super::json::{self, Member, Node, Value};

/// Nothing to put Kennel before.
pub(super) const REMOTE: &str = "is reached over the network: there is no process to start";
pub(super) const BUILT_IN: &str = "starts no command";
pub(super) const NOT_TEXTS: &str = "its command is not written as texts";

/// Which members hold servers.
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
    // An empty file is one that an app has not written to yet.
    if text.trim_start_matches('\u{feff}').trim().is_empty() {
        return Ok(Vec::new());
    }
    let document = json::parse(text)?;
    let mut found = Vec::new();
    for root in roots {
        match root {
            Root::McpServers => {
                let key = "mcpServers";
                servers(text, &[key], document.get(key), &mut found);
                for project in document.get("projects").map_or(&[][..], Node::members) {
                    let scope = ["projects", &project.key, key];
                    servers(text, &scope, project.node.get(key), &mut found);
                }
            }
            Root::Servers => servers(text, &["servers"], document.get("servers"), &mut found),
            Root::ContextServers => {
                let key = "context_servers";
                servers(text, &[key], document.get(key), &mut found);
            }
            Root::Mcp => {
                let mcp = document.get("mcp");
                // A server could be called "servers", but then it has a command or an address.
                let newer = mcp.and_then(|mcp| mcp.get("servers")).filter(|servers| {
                    ["command", "url", "type"].iter().all(|key| servers.get(key).is_none_or(|node| node.text().is_none()))
                        && !matches!(servers.get("command"), Some(node) if matches!(node.value, Value::List(_)))
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
fn servers(text: &str, scope: &[&str], object: Option<&Node>, found: &mut Vec<Entry>) {
    let members = object.map_or(&[][..], Node::members);
    for (at, member) in members.iter().enumerate() {
        let is_last_of_its_name = members[at + 1..]
            .iter()
            .all(|later| later.key != member.key);
        if matches!(member.node.value, Value::Object(_)) && is_last_of_its_name {
            found.push(entry(text, scope, member));
        }
    }
}

fn entry(text: &str, scope: &[&str], member: &Member) -> Entry {
    let node = &member.node;
    let variables = ["env", "environment"]
        .into_iter()
        .filter_map(|key| node.get(key));
    let variables: Vec<&Member> = variables.flat_map(Node::members).collect();
    let says = |key: &str, word: &str| {
        let node = node.get(key);
        node.is_some_and(|node| &text[node.span.clone()] == word)
    };
    let path = scope.iter().copied().chain([member.key.as_str()]);
    Entry {
        name: member.key.clone(),
        path: path.map(str::to_owned).collect(),
        at: member.key_span.start,
        start: start(text, node),
        env: variables.iter().map(|member| member.key.clone()).collect(),
        has_cwd: node.get("cwd").is_some(),
        is_disabled: says("disabled", "true") || says("enabled", "false"),
    }
}

fn start(text: &str, node: &Node) -> Start {
    if ["url", "serverUrl", "httpUrl"]
        .iter()
        .any(|key| node.get(key).is_some())
    {
        return Start::None(REMOTE);
    }
    let Some(command) = node.member("command") else {
        return Start::None(BUILT_IN);
    };
    match &command.node.value {
        Value::Text(_) => apart(text, node, command),
        Value::List(_) => match list(&command.node) {
            Some(list) if !list.words.is_empty() => Start::Together(list),
            _ => Start::None(NOT_TEXTS),
        },
        // Zed's older way.
        Value::Object(_) => match command.node.member("path") {
            Some(path) if path.node.text().is_some() => apart(text, &command.node, path),
            _ => Start::None(NOT_TEXTS),
        },
        Value::Plain => Start::None(NOT_TEXTS),
    }
}

fn apart(text: &str, object: &Node, program: &Member) -> Start {
    let Some(command) = word(&program.node) else {
        return Start::None(NOT_TEXTS);
    };
    let args = match object.member("args") {
        Some(member) => match list(&member.node) {
            Some(list) => Args::Listed {
                list,
                removal: removal(text, object, member),
            },
            None => return Start::None(NOT_TEXTS),
        },
        None => Args::Missing {
            at: program.node.span.end,
            lead: format!(",{}\"args\": ", before(text, object, program)),
        },
    };
    Start::Apart { command, args }
}

fn word(node: &Node) -> Option<Word> {
    Some(Word {
        value: node.text()?.to_owned(),
        span: node.span.clone(),
    })
}

fn list(node: &Node) -> Option<List> {
    let Value::List(nodes) = &node.value else {
        return None;
    };
    Some(List {
        words: nodes.iter().map(word).collect::<Option<_>>()?,
        layout: Layout::Flow(node.span.start + 1..node.span.end - 1),
    })
}

/// The white space before a member's key, so that another one can be written like it.
fn before<'a>(text: &'a str, object: &Node, member: &Member) -> &'a str {
    let between = &text[object.span.start + 1..member.key_span.start];
    let blank = between.len() - between.trim_end_matches([' ', '\t', '\r', '\n']).len();
    let blank = &between[between.len() - blank..];
    // Behind a comment's end of line nothing of it is lost either.
    if blank.is_empty() { " " } else { blank }
}

/// The bytes that go if a member goes: with one comma beside it, if no comment stands between.
fn removal(text: &str, object: &Node, member: &Member) -> Option<std::ops::Range<usize>> {
    let members = object.members();
    let at = members
        .iter()
        .position(|other| other.key_span == member.key_span)?;
    let own = member.key_span.start..member.node.span.end;
    let only_a_comma = |from: usize, to: usize| text[from..to].trim() == ",";
    if let Some(previous) = at.checked_sub(1).map(|at| &members[at]) {
        let from = previous.node.span.end;
        if only_a_comma(from, own.start) {
            return Some(from..own.end);
        }
    }
    match members.get(at + 1) {
        Some(next) if only_a_comma(own.end, next.key_span.start) => {
            Some(own.start..next.key_span.start)
        }
        Some(next) => {
            let comma = comma_behind(&text[own.end..next.key_span.start])?;
            Some(own.start..own.end + comma)
        }
        None if at == 0 => {
            // It is the only one: a comma behind it would stand alone.
            let comma = comma_behind(&text[own.end..object.span.end - 1]).unwrap_or(0);
            Some(own.start..own.end + comma)
        }
        // A comment is between the comma before it and the last member: the comma would stand before the brace.
        None => None,
    }
}

/// How far it is to behind the comma, if nothing but white space is before it.
fn comma_behind(text: &str) -> Option<usize> {
    let comma = text.len() - text.trim_start().len();
    text[comma..].starts_with(',').then_some(comma + 1)
}
