//! The result of `kennel guard`, as text or JSON: printed on stdout and stderr, or sent through a pipe to the process
//! that waits for a detached server.

use std::fs::File;
use std::io::Write;

use kennel_sys::escape;
use kennel_sys::stdio::Output;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::port::{Holder, HolderKind};
use crate::exit_code::PORT_IN_USE;
use crate::listing::Entry;
use crate::ps::now;
use crate::ps::words::{counted, duration};
use crate::stderr;

/// The result of a command: its exit code, and its text for each stream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Answer {
    pub(super) code: u8,
    pub(super) out: Option<String>,
    pub(super) err: Option<String>,
}

/// The receiver of the result.
#[derive(Debug)]
pub(super) enum AnswerTo {
    /// To stdout and stderr of this process.
    Stdio,
    /// The pipe to the process that waits until a detached server listens; `None` once the result was sent.
    Pipe(Option<File>),
}

/// How a start succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    Started { ready: bool, replaced: Option<u32> },
    AlreadyRunning,
}

impl AnswerTo {
    /// Sends the result. Only the first call has an effect. Returns the exit code of a command that ends with it.
    pub(super) fn tell(&mut self, answer: &Answer) -> u8 {
        match self {
            AnswerTo::Stdio => answer.print(),
            AnswerTo::Pipe(pipe) => {
                if let Some(mut pipe) = pipe.take() {
                    let text = serde_json::to_string(answer).expect("strings and numbers");
                    // The waiting process may have exited or be stopped: the pipe has room for any result.
                    let _ = kennel_sys::stdio::set_nonblocking(&pipe);
                    let _ = writeln!(pipe, "{text}");
                }
                answer.code
            }
        }
    }

    /// Whether a process waits for the server to listen.
    pub(super) fn is_awaited(&self) -> bool {
        matches!(self, AnswerTo::Pipe(Some(_)))
    }
}

impl Answer {
    pub(super) fn failed(code: u8, words: impl Into<String>) -> Answer {
        Answer {
            code,
            out: None,
            err: Some(words.into()),
        }
    }

    /// Prints the result without blocking: a guard that is blocked in a write does not watch its server. Returns the
    /// exit code of a command that ends with it; if the result cannot be written, success becomes failure.
    pub(super) fn print(&self) -> u8 {
        let mut code = self.code;
        if let Some(out) = &self.out
            && !Output::stdout().write_all_or_drop(format!("{out}\n").as_bytes())
        {
            let goes_on = match code {
                0 => "; the server goes on: `kennel ps` shows it",
                _ => "",
            };
            crate::fail(&format!(
                "cannot write to stdout: it is full, or has no reader{goes_on}"
            ));
            code = code.max(1);
        }
        if let Some(err) = &self.err {
            stderr::print(&format!("kennel: {err}"));
        }
        code
    }

    /// The result for a running server.
    pub(super) fn running(entry: &Entry, status: Status, json: bool) -> Answer {
        let guarded = entry.guarded.as_ref();
        let ports = guarded.map_or(&[][..], |guarded| &guarded.ports[..]);
        let guard = entry.process().map(|process| process.pid());
        let server = entry.servers.first().map(|server| server.state.pid);
        let connections = guarded.map_or(0, |guarded| guarded.connections);
        let (word, ready, replaced) = match status {
            Status::Started { ready, replaced } => ("started", ready, replaced),
            Status::AlreadyRunning => ("already running", !ports.is_empty(), None),
        };
        let out = if json {
            let facts = json!({
                "status": word,
                "ready": ready,
                "name": entry.name,
                "key": entry.key,
                "pid": server,
                "guard_pid": guard,
                "ports": ports,
                "command": entry.command,
                "cwd": entry.cwd,
                "since": entry.since,
                "owner": entry.owner,
                "owner_alive": guarded.and_then(|guarded| guarded.owner_alive),
                "connections": connections,
                "replaced": replaced,
            });
            escape::json(&facts.to_string())
        } else {
            let pid = server.map_or_else(|| "?".to_owned(), |pid| pid.to_string());
            let mut line = format!("{word}: {} ({}), pid {pid}", entry.name, entry.key);
            line += &on_ports(ports);
            if let Status::AlreadyRunning = status {
                line += &format!(", for {}", age(entry.since));
                line += &match connections {
                    0 => String::new(),
                    open => format!(", {}", counted(open, "connection")),
                };
            }
            if let Some(replaced) = replaced {
                line += &format!(", in place of pid {replaced}");
            }
            escape::printable(&line)
        };
        Answer {
            code: 0,
            out: Some(out),
            err: None,
        }
    }

    /// The result for a port in use by another process.
    pub(super) fn held(holder: &Holder, json: bool) -> Answer {
        let port = holder.port;
        let (words, facts) = match &holder.who {
            HolderKind::Foreign(holder) => {
                let pid = holder.process.as_ref().map(|process| process.pid());
                let age = holder.process.as_ref().and_then(|process| process.age());
                let facts = json!({
                    "guarded": false,
                    "pid": pid,
                    "uid": holder.uid,
                    "command": holder.command(),
                    "age_seconds": age.map(|age| age.as_secs()),
                });
                let words = format!(
                    "port {port} is held by {holder}, which kennel does not guard and leaves alone; \
                     inspect it with `ss -ltnp 'sport = :{port}'`, and stop it or use another port"
                );
                (words, facts)
            }
            HolderKind::Guarded { entry, record } => {
                let pid = entry.servers.first().map(|server| server.state.pid);
                let facts = json!({
                    "guarded": true,
                    "pid": pid,
                    "name": entry.name,
                    "key": entry.key,
                    "command": entry.command.join(" "),
                    "age_seconds": now().saturating_sub(entry.since),
                    "owner_alive": record.owner_alive(),
                });
                let name = &entry.name;
                let key = &entry.key;
                let leaving = match record.owner_alive() {
                    Some(false) => {
                        format!(
                            "; its owner is gone, so it ends {} ms after its last connection",
                            record.grace_ms
                        )
                    }
                    _ => String::new(),
                };
                let words = format!(
                    "port {port} is held by {name} ({key}, pid {}: {}, for {}), which kennel guards{leaving}; \
                     `kennel ps` shows it, `kennel stop {key}` ends it",
                    pid.map_or_else(|| "?".to_owned(), |pid| pid.to_string()),
                    entry.command.join(" "),
                    age(entry.since),
                );
                (words, facts)
            }
        };
        let out = json!({"status": "refused", "port": port, "holder": facts});
        Answer {
            code: PORT_IN_USE,
            out: json.then(|| escape::json(&out.to_string())),
            err: Some(words),
        }
    }
}

pub(super) fn on_ports(ports: &[u16]) -> String {
    let list: Vec<String> = ports.iter().map(u16::to_string).collect();
    match ports {
        [] => String::new(),
        [port] => format!(", port {port}"),
        _ => format!(", ports {}", list.join(", ")),
    }
}

fn age(since: u64) -> String {
    duration(now().saturating_sub(since))
}
