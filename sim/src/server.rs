//! A tool server, as scripted as can be: it does what it is asked, and writes down that it did.

use std::collections::BTreeMap;
use std::time::Duration;

use kennel_core::time::Moment;
use serde_json::{Value, json};

use crate::kernel::{Heard, Kernel, Pid, PipeId};

pub(crate) struct Server {
    pid: Pid,
    stdin: PipeId,
    stdout: PipeId,
    /// What it will say, and to which request that belongs.
    later: Vec<(Moment, Value, Value)>,
    /// What it asked, and which call waits for the answer.
    asked: BTreeMap<u64, (Value, u64)>,
    stdin_open: bool,
}

impl Server {
    pub(crate) fn new(pid: Pid, stdin: PipeId, stdout: PipeId) -> Server {
        Server {
            pid,
            stdin,
            stdout,
            later: Vec::new(),
            asked: BTreeMap::new(),
            stdin_open: true,
        }
    }

    pub(crate) fn is_ready(&self, kernel: &Kernel) -> bool {
        let due = self.wake().is_some_and(|at| at <= kernel.now);
        due || (self.stdin_open && kernel.readable(self.stdin))
    }

    pub(crate) fn wake(&self) -> Option<Moment> {
        self.later.iter().map(|(at, ..)| *at).min()
    }

    pub(crate) fn turn(&mut self, kernel: &mut Kernel) {
        let due = |(at, ..): &(Moment, Value, Value)| *at <= kernel.now;
        if let Some(place) = self.later.iter().position(due) {
            let (_, _, line) = self.later.remove(place);
            self.say(&line, kernel);
        } else if self.stdin_open {
            match kernel.read(self.stdin) {
                Heard::Line(line) => match serde_json::from_slice(&line) {
                    Ok(message) => self.hear(&message, kernel),
                    Err(error) => kernel.must(false, || format!("a server hears no JSON: {error}")),
                },
                Heard::Nothing => {}
                Heard::End => {
                    self.stdin_open = false;
                    // Some end by themselves, the others are for their warden to end.
                    if self.pid.is_multiple_of(2) {
                        kernel.say(self.pid, || "ends with its input".to_owned());
                        return kernel.end(self.pid);
                    }
                    // Nobody will answer what they asked: they do without.
                    for (request, number) in std::mem::take(&mut self.asked).into_values() {
                        self.answer(&request, done(number), kernel);
                    }
                }
            }
        }
    }

    fn hear(&mut self, message: &Value, kernel: &mut Kernel) {
        let (id, params) = (message["id"].clone(), &message["params"]);
        match message["method"].as_str() {
            Some("initialize") => {
                let result = json!({
                    "protocolVersion": params["protocolVersion"],
                    "capabilities": {"tools": {"listChanged": true}},
                    "serverInfo": {"name": "scripted", "version": "1"},
                });
                self.answer(&id, result, kernel);
            }
            Some("tools/list") => {
                let tools = json!({"resultType": "complete", "tools": [
                    {"name": "read", "inputSchema": {}, "annotations": {"readOnlyHint": true}},
                    {"name": "pay", "inputSchema": {}},
                    {"name": "ask", "inputSchema": {}},
                    {"name": "crash", "inputSchema": {}},
                ]});
                self.answer(&id, tools, kernel);
            }
            Some("tools/call") => self.call(id, params, kernel),
            Some("notifications/cancelled") => {
                let gone = &params["requestId"];
                self.later.retain(|(_, request, _)| request != gone);
                self.asked.retain(|_, (request, _)| request != gone);
            }
            Some(_) if id.is_null() => {}
            Some(_) => self.answer(&id, json!({}), kernel),
            // What it asked is answered, or it is told that nobody can be.
            None => {
                let asked = id.as_u64().and_then(|id| self.asked.remove(&id));
                if let Some((request, number)) = asked {
                    self.answer(&request, done(number), kernel);
                }
            }
        }
    }

    fn call(&mut self, id: Value, params: &Value, kernel: &mut Kernel) {
        let arguments = &params["arguments"];
        let number = arguments["n"].as_u64().unwrap_or(0);
        let takes = Duration::from_millis(arguments["ms"].as_u64().unwrap_or(0));
        kernel.say(self.pid, || format!("begins {} {number}", params["name"]));
        if let Err(broken) = kernel.books.begun(number, self.pid) {
            kernel.must(false, || broken);
        }
        if params["name"] == "crash" {
            kernel.say(self.pid, || "crashes".to_owned());
            return kernel.end(self.pid);
        }
        if params["name"] == "ask" {
            let question = 1 + self.asked.keys().last().copied().unwrap_or(0);
            self.asked.insert(question, (id, number));
            let ask = json!({"jsonrpc": "2.0", "id": question, "method": "elicitation/create",
                "params": {"message": number.to_string(), "requestedSchema": {}}});
            return self.say(&ask, kernel);
        }
        let token = &params["_meta"]["progressToken"];
        for part in 1..=3u32 {
            let progress = json!({"jsonrpc": "2.0", "method": "notifications/progress",
                "params": {"progressToken": token, "progress": part}});
            if !token.is_null() {
                let at = kernel.now + takes * part / 4;
                self.later.push((at, id.clone(), progress));
            }
        }
        let answer = json!({"jsonrpc": "2.0", "id": id, "result": done(number)});
        self.later.push((kernel.now + takes, id, answer));
        self.later.sort_by_key(|(at, ..)| *at);
    }

    fn answer(&self, id: &Value, result: Value, kernel: &mut Kernel) {
        self.say(
            &json!({"jsonrpc": "2.0", "id": id, "result": result}),
            kernel,
        );
    }

    fn say(&self, line: &Value, kernel: &mut Kernel) {
        let line = line.to_string();
        kernel.say(self.pid, || format!("says {}", crate::shortened(&line)));
        kernel.write(self.stdout, line.as_bytes());
    }
}

fn done(number: u64) -> Value {
    json!({"resultType": "complete", "content": [], "structuredContent": {"n": number}})
}
