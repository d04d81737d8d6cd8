//! A scripted tool server, which records the calls that it processes.

use std::collections::BTreeMap;
use std::time::Duration;

use kennel_core::hello::ABORT_BYTE;
use kennel_core::time::Moment;
use serde_json::{Value, json};

use crate::kernel::{Kernel, Pid, PipeId};
use crate::lines::{Inbox, Outbox};
use crate::part;

pub(crate) struct Server {
    pid: Pid,
    stdin: PipeId,
    stdout: PipeId,
    /// Lines to send later, and the requests that they belong to.
    later: Vec<(Moment, Value, Value)>,
    /// Its own requests in flight, with the id and number of the call that waits for the response.
    own_requests: BTreeMap<u64, (Value, u64)>,
    from: Inbox,
    to: Outbox,
    stdin_open: bool,
}

impl Server {
    pub(crate) fn new(pid: Pid, stdin: PipeId, stdout: PipeId) -> Server {
        Server {
            pid,
            stdin,
            stdout,
            later: Vec::new(),
            own_requests: BTreeMap::new(),
            from: Inbox::default(),
            to: Outbox::default(),
            stdin_open: true,
        }
    }

    pub(crate) fn is_ready(&self, kernel: &Kernel) -> bool {
        if !self.to.is_empty() {
            return self.to.may_flush(self.stdout, kernel);
        }
        let due = self.wake().is_some_and(|at| at <= kernel.now);
        due || self.from.has_line() || (self.stdin_open && kernel.readable(self.stdin))
    }

    pub(crate) fn wake(&self) -> Option<Moment> {
        self.later.iter().map(|(at, ..)| *at).min()
    }

    pub(crate) fn turn(&mut self, salt: u64, kernel: &mut Kernel) {
        // Like a server with a single thread: it writes all output before it does anything else.
        if !self.to.is_empty() {
            return self.to.flush_some(self.stdout, part(salt), kernel);
        }
        let due = |(at, ..): &(Moment, Value, Value)| *at <= kernel.now;
        if let Some(index) = self.later.iter().position(due) {
            let (_, _, line) = self.later.remove(index);
            return self.send(&line, kernel);
        }
        if !self.from.has_line() && self.stdin_open {
            self.stdin_open = self.from.read(self.stdin, part(salt), kernel);
            if !self.stdin_open {
                return self.input_ended(kernel);
            }
        }
        let Some(line) = self.from.next_line() else {
            return;
        };
        // An aborted line.
        if line.ends_with(&[ABORT_BYTE]) {
            return;
        }
        match serde_json::from_slice(&line) {
            Ok(message) => self.handle_line(&message, kernel),
            Err(error) => kernel.check(false, || {
                format!("a server reads a line that is not JSON: {error}")
            }),
        }
    }

    fn input_ended(&mut self, kernel: &mut Kernel) {
        // Some exit by themselves, the others are ended by their warden.
        if self.pid.is_multiple_of(2) {
            kernel.trace(self.pid, || "exits at the end of its input".to_owned());
            return kernel.end(self.pid);
        }
        // Its own requests get no response now: it finishes the calls without.
        for (request, number) in std::mem::take(&mut self.own_requests).into_values() {
            self.answer(&request, done(number), kernel);
        }
    }

    fn handle_line(&mut self, message: &Value, kernel: &mut Kernel) {
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
                    {"name": "long", "inputSchema": {}},
                    {"name": "ask", "inputSchema": {}},
                    {"name": "crash", "inputSchema": {}},
                ]});
                self.answer(&id, tools, kernel);
            }
            Some("tools/call") => self.call(id, params, kernel),
            Some("notifications/cancelled") => {
                let cancelled = &params["requestId"];
                self.later.retain(|(_, request, _)| request != cancelled);
                self.own_requests
                    .retain(|_, (request, _)| request != cancelled);
            }
            Some(_) if id.is_null() => {}
            Some(_) => self.answer(&id, json!({}), kernel),
            // A response to its request, or an error because no client can answer.
            None => {
                let call = id.as_u64().and_then(|id| self.own_requests.remove(&id));
                if let Some((request, number)) = call {
                    self.answer(&request, done(number), kernel);
                }
            }
        }
    }

    fn call(&mut self, id: Value, params: &Value, kernel: &mut Kernel) {
        let arguments = &params["arguments"];
        let number = arguments["n"].as_u64().unwrap_or(0);
        let takes = Duration::from_millis(arguments["ms"].as_u64().unwrap_or(0));
        kernel.trace(self.pid, || format!("begins {} {number}", params["name"]));
        if let Err(broken) = kernel.request_log.begun(number, self.pid) {
            kernel.check(false, || broken);
        }
        if params["name"] == "crash" {
            kernel.trace(self.pid, || "crashes".to_owned());
            return kernel.end(self.pid);
        }
        if params["name"] == "ask" {
            let own_id = 1 + self.own_requests.keys().last().copied().unwrap_or(0);
            self.own_requests.insert(own_id, (id, number));
            let ask = json!({"jsonrpc": "2.0", "id": own_id, "method": "elicitation/create",
                "params": {"message": number.to_string(), "requestedSchema": {}}});
            return self.send(&ask, kernel);
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

    fn answer(&mut self, id: &Value, result: Value, kernel: &mut Kernel) {
        self.send(
            &json!({"jsonrpc": "2.0", "id": id, "result": result}),
            kernel,
        );
    }

    fn send(&mut self, line: &Value, kernel: &mut Kernel) {
        let line = line.to_string();
        kernel.trace(self.pid, || format!("writes {}", crate::shortened(&line)));
        self.to.push(line.as_bytes(), kernel);
        self.to.flush(self.stdout, kernel);
    }
}

fn done(number: u64) -> Value {
    json!({"resultType": "complete", "content": [], "structuredContent": {"n": number}})
}
