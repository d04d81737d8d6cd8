//! An MCP server for many clients, of whom it knows nothing: it takes whoever speaks for one. Of the legacy era,
//! but it knows `subscriptions/listen` of the modern one.
//!
//! Tools of `tools/call`, each answering with one text:
//!
//! | tool | arguments | what it does |
//! |---|---|---|
//! | `work` | `tag`, `ms`, `steps`, `fail`, `hold` | answers `tag` after `ms`, or fails with it; so many steps of progress before |
//! | `read`, `put` | the same | the same, but annotated as read-only and as idempotent |
//! | `ask` | `method`, `tag` | asks the client this (`sampling/createMessage`, …) with `tag`, and answers what it is answered |
//! | `touch` | `uri` | says that the resource has changed |
//! | `log` | `level`, `tag` | says so in a log message |
//! | `change` | | says that the list of tools has changed |
//! | `seen` | | what it has been told so far |
//! | `leave` | `ms` | ends after so long, whoever is there |
//!
//! A call that is to `hold` for n is never answered by the first n who signed the roll; `resources/read` of `hold:n` is
//! not, either. A cancelled call is not answered. It signs the roll of `TESTKIT_ROLL` if there is one, and writes
//! to `TESTKIT_TALLY` what it does: the tool, or `resource`, and the tag or URI. With `TESTKIT_GROWS`, all but the first
//! who signed have one tool more.
#![expect(clippy::print_stdout, reason = "stdout is its protocol")]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::io::{BufRead, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use kennel_sys::process::ProcessRef;
use serde_json::{Value, json};

fn main() {
    let mut server = Server::default();
    if let Some(roll) = std::env::var_os("TESTKIT_ROLL") {
        let me = ProcessRef::me().expect("we are here");
        append(&roll, &me.identity().to_string());
        let signed = std::fs::read_to_string(roll).expect("the roll");
        server.generation = signed.lines().count() as u64;
    }
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let line = line.expect("stdin");
            let message = serde_json::from_str(&line).expect("a line of JSON-RPC");
            if sender.send(message).is_err() {
                return;
            }
        }
    });
    server.serve(&lines);
}

/// Appends one line in one write, because other processes append too.
fn append(path: &OsStr, line: &str) {
    let file = std::fs::File::options()
        .append(true)
        .create(true)
        .open(path);
    let written = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    written.expect("a file to write to");
}

#[derive(Default)]
struct Server {
    /// The messages to send, by time, and by order of creation within one moment.
    due: BTreeMap<(Instant, u64), Due>,
    counter: u64,
    /// Calls that wait for an answer of the client, by the id of our request.
    asked: HashMap<u64, Value>,
    /// When it ends.
    leaves: Option<Instant>,
    /// The number of signatures in the roll, including its own.
    generation: u64,
    /// The ids of open subscriptions (modern).
    listeners: Vec<Value>,
    seen: Seen,
}

struct Due {
    /// The call that it belongs to.
    id: Value,
    line: Value,
    /// Whether it is the last message for that call.
    is_last: bool,
}

/// The messages that it received.
#[derive(Default)]
struct Seen {
    initialize: u64,
    initialized: u64,
    lists: u64,
    calls: u64,
    cancelled: u64,
    /// Other notifications.
    others: u64,
    open: BTreeSet<String>,
    known: BTreeSet<String>,
    subscribed: Vec<String>,
    unsubscribed: Vec<String>,
    levels: Vec<String>,
    /// Broken rules: a cancellation of an unknown call, or a call twice.
    odd: Vec<String>,
}

impl Server {
    fn serve(&mut self, lines: &Receiver<Value>) {
        loop {
            let next = self.due.keys().next().map(|&(at, _)| at);
            let next = next.into_iter().chain(self.leaves).min();
            let patience = next.map_or(Duration::from_secs(3600), |at| {
                at.saturating_duration_since(Instant::now())
            });
            match lines.recv_timeout(patience) {
                Ok(message) => self.hear(&message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) if self.due.is_empty() => return,
                Err(RecvTimeoutError::Disconnected) => self.say_all(),
            }
            self.say_due();
            if self.leaves.is_some_and(|at| at <= Instant::now()) {
                return;
            }
        }
    }

    fn hear(&mut self, message: &Value) {
        let params = &message["params"];
        match (message["method"].as_str(), &message["id"]) {
            (Some(method), Value::Null) => self.hear_notification(method, params),
            (Some(method), id) => self.hear_request(method, id, params),
            (None, id) => {
                let call = id.as_u64().and_then(|id| self.asked.remove(&id));
                match call {
                    Some(call) => {
                        let text = message.get("result").unwrap_or(&message["error"]);
                        self.finish(&call, &answer(&call, &text.to_string()));
                    }
                    None => self.seen.odd.push(format!("an answer to {id}")),
                }
            }
        }
    }

    fn hear_notification(&mut self, method: &str, params: &Value) {
        match method {
            "notifications/initialized" => self.seen.initialized += 1,
            "notifications/cancelled" => {
                let id = &params["requestId"];
                self.seen.cancelled += 1;
                self.due.retain(|_, due| due.id != *id);
                self.asked.retain(|_, call| call != id);
                self.listeners.retain(|listener| listener != id);
                self.seen.open.remove(&id.to_string());
                if !self.seen.known.contains(&id.to_string()) {
                    self.seen.odd.push(format!("a cancellation of {id}"));
                }
            }
            _ => self.seen.others += 1,
        }
    }

    fn hear_request(&mut self, method: &str, id: &Value, params: &Value) {
        self.seen.known.insert(id.to_string());
        if !self.seen.open.insert(id.to_string()) {
            self.seen.odd.push(format!("{id} twice"));
        }
        let wanted = params["notifications"].clone();
        let uri = || params["uri"].as_str().unwrap_or_default().to_owned();
        let result = match method {
            "initialize" => {
                self.seen.initialize += 1;
                json!({
                    "protocolVersion": params["protocolVersion"],
                    "capabilities": {"tools": {"listChanged": true}, "resources": {"subscribe": true}, "logging": {}},
                    "serverInfo": {"name": "tk-shared", "version": "0"},
                })
            }
            "tools/list" => {
                self.seen.lists += 1;
                let mut tools = json!([
                    {"name": "work", "inputSchema": {"type": "object"}},
                    {"name": "read", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": true}},
                    {"name": "put", "inputSchema": {"type": "object"}, "annotations": {"idempotentHint": true}},
                ]);
                if self.generation > 1 && std::env::var_os("TESTKIT_GROWS").is_some() {
                    let more = json!({"name": "more", "inputSchema": {"type": "object"}});
                    tools.as_array_mut().expect("a list").push(more);
                }
                json!({"tools": tools})
            }
            "resources/read" => {
                tally("resource", &uri());
                let hold = uri().strip_prefix("hold:").and_then(|it| it.parse().ok());
                if self.holds(hold) {
                    return;
                }
                json!({"contents": [{"uri": uri(), "text": "here"}]})
            }
            "subscriptions/listen" => {
                self.listeners.push(id.clone());
                let mut params = of_subscription(id);
                params["notifications"] = wanted;
                notify("notifications/subscriptions/acknowledged", &params);
                return;
            }
            "resources/subscribe" => {
                self.seen.subscribed.push(uri());
                json!({})
            }
            "resources/unsubscribe" => {
                self.seen.unsubscribed.push(uri());
                json!({})
            }
            "logging/setLevel" => {
                let level = params["level"].as_str().unwrap_or_default();
                self.seen.levels.push(level.to_owned());
                json!({})
            }
            "tools/call" => {
                // The request for the count does not change it.
                self.seen.calls += u64::from(params["name"] != "seen");
                return self.call(id, params);
            }
            _ => json!({}),
        };
        self.finish(id, &json!({"jsonrpc": "2.0", "id": id, "result": result}));
    }

    fn call(&mut self, id: &Value, params: &Value) {
        let arguments = &params["arguments"];
        let tag = arguments["tag"].as_str().unwrap_or_default();
        match params["name"].as_str() {
            Some(tool @ ("work" | "read" | "put")) => {
                tally(tool, tag);
                self.work(id, params);
            }
            Some("ask") => {
                self.counter += 1;
                self.asked.insert(self.counter, id.clone());
                say(&json!({
                    "jsonrpc": "2.0", "id": self.counter, "method": arguments["method"],
                    "params": {"tag": tag},
                }));
            }
            Some("touch") => {
                let updated = "notifications/resources/updated";
                if self.listeners.is_empty() {
                    notify(updated, &json!({"uri": arguments["uri"]}));
                }
                for listener in &self.listeners {
                    let mut params = of_subscription(listener);
                    params["uri"] = arguments["uri"].clone();
                    notify(updated, &params);
                }
                self.finish(id, &answer(id, "touched"));
            }
            Some("log") => {
                notify(
                    "notifications/message",
                    &json!({"level": arguments["level"], "data": tag}),
                );
                self.finish(id, &answer(id, "logged"));
            }
            Some("change") => {
                notify("notifications/tools/list_changed", &json!({}));
                self.finish(id, &answer(id, "changed"));
            }
            Some("leave") => {
                let time = Duration::from_millis(arguments["ms"].as_u64().unwrap_or(0));
                self.leaves = Some(Instant::now() + time);
                self.finish(id, &answer(id, "soon"));
            }
            Some("seen") => {
                let seen = json!({
                    "pid": std::process::id(),
                    "initialize": self.seen.initialize, "initialized": self.seen.initialized,
                    "lists": self.seen.lists, "calls": self.seen.calls,
                    "cancelled": self.seen.cancelled, "others": self.seen.others, "subscribed": self.seen.subscribed,
                    "unsubscribed": self.seen.unsubscribed, "levels": self.seen.levels,
                    "odd": self.seen.odd,
                });
                self.finish(id, &answer(id, &seen.to_string()));
            }
            _ => {
                let error = json!({"code": -32602, "message": "no such tool"});
                self.finish(id, &json!({"jsonrpc": "2.0", "id": id, "error": error}));
            }
        }
    }

    fn work(&mut self, id: &Value, params: &Value) {
        let arguments = &params["arguments"];
        let tag = &arguments["tag"];
        let number = |name: &str| arguments[name].as_u64().unwrap_or(0);
        let time = Duration::from_millis(number("ms"));
        let steps = u32::try_from(number("steps")).expect("few");
        let token = &params["_meta"]["progressToken"];
        let now = Instant::now();
        for step in 1..=steps {
            let line = json!({
                "jsonrpc": "2.0", "method": "notifications/progress",
                "params": {"progressToken": token, "progress": step, "message": tag},
            });
            self.plan(now + time * step / (steps + 1), id, line, false);
        }
        if self.holds(arguments["hold"].as_u64()) {
            return;
        }
        let line = match arguments["fail"].as_bool() {
            Some(true) => json!({
                "jsonrpc": "2.0", "id": id, "error": {"code": -32000, "message": tag},
            }),
            _ => answer(id, tag.as_str().unwrap_or_default()),
        };
        self.plan(now + time, id, line, true);
    }

    fn holds(&self, generations: Option<u64>) -> bool {
        generations.is_some_and(|generations| self.generation <= generations)
    }

    fn plan(&mut self, at: Instant, id: &Value, line: Value, is_last: bool) {
        self.counter += 1;
        let due = Due {
            id: id.clone(),
            line,
            is_last,
        };
        self.due.insert((at, self.counter), due);
    }

    fn say_due(&mut self) {
        let now = Instant::now();
        while let Some(entry) = self.due.first_entry()
            && entry.key().0 <= now
        {
            let due = entry.remove();
            self.say_one(&due);
        }
    }

    fn say_all(&mut self) {
        while let Some((_, due)) = self.due.pop_first() {
            self.say_one(&due);
        }
    }

    fn say_one(&mut self, due: &Due) {
        if due.is_last {
            self.finish(&due.id, &due.line);
        } else {
            say(&due.line);
        }
    }

    fn finish(&mut self, id: &Value, line: &Value) {
        self.seen.open.remove(&id.to_string());
        say(line);
    }
}

fn tally(what: &str, tag: &str) {
    if let Some(path) = std::env::var_os("TESTKIT_TALLY") {
        append(&path, &format!("{what} {tag}"));
    }
}

fn of_subscription(id: &Value) -> Value {
    json!({"_meta": {"io.modelcontextprotocol/subscriptionId": id}})
}

fn answer(id: &Value, text: &str) -> Value {
    let result = json!({"content": [{"type": "text", "text": text}]});
    json!({"jsonrpc": "2.0", "id": id, "result": result})
}

fn notify(method: &str, params: &Value) {
    say(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
}

fn say(line: &Value) {
    println!("{line}");
}
