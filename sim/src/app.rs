//! An app: sends requests, cancels them, answers server requests, and records the responses.

use serde_json::{Value, json};

use crate::kernel::{Kernel, Pid, PipeId};
use crate::lines::{Inbox, Outbox};
use crate::request_log::{Answer, Tool};
use crate::{part, shortened};

/// Bytes of text in a long call.
const LONG: usize = 1500;

/// The protocol era of an app.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Era {
    /// The session begins with `initialize`.
    Legacy,
    /// There is no handshake.
    Modern,
}

pub(crate) struct App {
    pid: Pid,
    era: Era,
    stdin: PipeId,
    stdout: PipeId,
    next_id: i64,
    handshake: Handshake,
    /// Requests that wait for the handshake.
    waiting_requests: Vec<(Tool, u64)>,
    from: Inbox,
    to: Outbox,
    pub(crate) closed: bool,
    /// Number of results received.
    pub(crate) results: u64,
    /// Number of malformed lines written, less those that were answered.
    unanswered_malformed: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Handshake {
    None,
    Sent(i64),
    Done,
}

impl App {
    /// `stdin` and `stdout` are those of its shim.
    pub(crate) fn new(pid: Pid, era: Era, stdin: PipeId, stdout: PipeId) -> App {
        App {
            pid,
            era,
            stdin,
            stdout,
            next_id: 0,
            handshake: Handshake::None,
            waiting_requests: Vec::new(),
            from: Inbox::default(),
            to: Outbox::default(),
            closed: false,
            results: 0,
            unanswered_malformed: 0,
        }
    }

    pub(crate) fn is_ready(&self, kernel: &Kernel) -> bool {
        self.from.has_line() || kernel.waiting(self.stdout) > 0 || self.may_write(kernel)
    }

    fn may_write(&self, kernel: &Kernel) -> bool {
        self.to.may_flush(self.stdin, kernel)
    }

    /// Sends a request, after the handshake if its era has one.
    pub(crate) fn call(&mut self, tool: Tool, millis: u64, kernel: &mut Kernel) {
        if self.closed {
            return;
        }
        let tool = match (self.era, tool) {
            (Era::Modern, Tool::Ask) => Tool::Pay,
            _ => tool,
        };
        match (self.era, self.handshake) {
            (Era::Modern, _) | (_, Handshake::Done) => self.request(tool, millis, kernel),
            (Era::Legacy, Handshake::Sent(_)) => self.waiting_requests.push((tool, millis)),
            (Era::Legacy, Handshake::None) => {
                self.waiting_requests.push((tool, millis));
                self.send_initialize(kernel);
            }
        }
    }

    pub(crate) fn cancel(&mut self, nth: usize, kernel: &mut Kernel) {
        let open: Vec<i64> = kernel.request_log.open(self.pid);
        let handshake = match self.handshake {
            Handshake::Sent(id) => Some(id),
            _ => None,
        };
        // A handshake is never cancelled.
        let open: Vec<i64> = open
            .into_iter()
            .filter(|id| Some(*id) != handshake)
            .collect();
        if self.closed || open.is_empty() {
            return;
        }
        let id = open[nth % open.len()];
        kernel.request_log.cancelled(self.pid, id);
        let line = json!({"jsonrpc": "2.0", "method": "notifications/cancelled",
            "params": {"requestId": id}});
        self.send(&line, kernel);
    }

    /// Writes a long line that begins like a call but is malformed.
    pub(crate) fn write_malformed(&mut self, kernel: &mut Kernel) {
        if !self.closed && self.handshake == Handshake::Done {
            self.unanswered_malformed += 1;
            let text = "x".repeat(LONG);
            let line = format!(r#"{{"jsonrpc":"2.0","method":"tools/call","params":{{"{text}]"#);
            kernel.trace(self.pid, || "writes a malformed line".to_owned());
            self.to.push(line.as_bytes(), kernel);
        }
    }

    /// Closes its side; it still reads.
    pub(crate) fn close(&mut self, kernel: &mut Kernel) {
        if !self.closed {
            self.closed = true;
            self.close_when_flushed(kernel);
            kernel.trace(self.pid, || "closes its side".to_owned());
        }
    }

    fn close_when_flushed(&self, kernel: &mut Kernel) {
        if self.closed && self.to.is_empty() {
            kernel.close_write(self.stdin);
        }
    }

    pub(crate) fn turn(&mut self, salt: u64, kernel: &mut Kernel) {
        let may_read = self.from.has_line() || kernel.waiting(self.stdout) > 0;
        if self.may_write(kernel) && (!may_read || salt.is_multiple_of(2)) {
            self.to.flush_some(self.stdin, part(salt), kernel);
            return self.close_when_flushed(kernel);
        }
        if !self.from.has_line() {
            self.from.read(self.stdout, part(salt), kernel);
        }
        if let Some(line) = self.from.next_line() {
            self.handle_line(&line, kernel);
        }
    }

    fn handle_line(&mut self, line: &[u8], kernel: &mut Kernel) {
        let text = String::from_utf8_lossy(line).into_owned();
        kernel.trace(self.pid, || format!("reads {}", shortened(&text)));
        let message: Value = match serde_json::from_slice(line) {
            Ok(message) => message,
            Err(error) => {
                return kernel.check(false, || {
                    format!("an app reads a line that is not JSON: {error}")
                });
            }
        };
        let kept = match message["method"].as_str() {
            Some("notifications/progress") => {
                let params = &message["params"];
                let number = params["progressToken"].as_u64().unwrap_or(0);
                let progress = params["progress"].as_u64().unwrap_or(0);
                kernel.request_log.progress(self.pid, number, progress)
            }
            Some("elicitation/create") => self.answer_server_request(&message, kernel),
            Some(_) => Ok(()),
            None => self.record_response(&message, kernel),
        };
        if let Err(broken) = kept {
            kernel.check(false, || broken);
        }
    }

    fn answer_server_request(
        &mut self,
        message: &Value,
        kernel: &mut Kernel,
    ) -> Result<(), String> {
        let about = message["params"]["message"].as_str().unwrap_or("0");
        let about = about.parse().unwrap_or(0);
        if !self.closed {
            let answer =
                json!({"jsonrpc": "2.0", "id": message["id"], "result": {"action": "accept"}});
            self.send(&answer, kernel);
        }
        kernel.request_log.server_request(self.pid, about)
    }

    fn record_response(&mut self, message: &Value, kernel: &mut Kernel) -> Result<(), String> {
        if message["id"].is_null() && self.unanswered_malformed > 0 {
            self.unanswered_malformed -= 1;
            return Ok(());
        }
        let id = message["id"].as_i64().unwrap_or(-1);
        let answer = match &message["error"] {
            Value::Null => {
                self.results += 1;
                Answer::Done(message["result"]["structuredContent"]["n"].as_u64())
            }
            error => Answer::Refused {
                outcome: error["data"]["outcome"]
                    .as_str()
                    .map_or_else(|| error.to_string(), str::to_owned),
            },
        };
        if self.handshake == Handshake::Sent(id) {
            match answer {
                Answer::Done(_) => self.handle_initialized(kernel),
                Answer::Refused { .. } => {
                    self.handshake = Handshake::None;
                    self.waiting_requests.clear();
                }
            }
        }
        kernel.request_log.answered(self.pid, id, &answer)
    }

    fn send_initialize(&mut self, kernel: &mut Kernel) {
        let id = self.next_id(Tool::List, kernel).0;
        self.handshake = Handshake::Sent(id);
        let line = json!({"jsonrpc": "2.0", "id": id, "method": "initialize", "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {"elicitation": {}},
            "clientInfo": {"name": "app", "version": "1"},
        }});
        self.send(&line, kernel);
    }

    fn handle_initialized(&mut self, kernel: &mut Kernel) {
        self.handshake = Handshake::Done;
        if self.closed {
            return;
        }
        self.send(
            &json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
            kernel,
        );
        for (tool, millis) in std::mem::take(&mut self.waiting_requests) {
            self.request(tool, millis, kernel);
        }
    }

    fn request(&mut self, tool: Tool, millis: u64, kernel: &mut Kernel) {
        let (id, number) = self.next_id(tool, kernel);
        let mut meta = json!({"progressToken": number});
        if self.era == Era::Modern {
            meta["io.modelcontextprotocol/protocolVersion"] = "2026-07-28".into();
            meta["io.modelcontextprotocol/clientCapabilities"] = json!({});
        }
        let (method, params) = match tool {
            Tool::List => {
                meta.as_object_mut()
                    .map(|meta| meta.remove("progressToken"));
                ("tools/list", json!({"_meta": meta}))
            }
            Tool::Read | Tool::Pay | Tool::Long | Tool::Ask | Tool::Crash => {
                let name = format!("{tool:?}").to_lowercase();
                let mut arguments = json!({"n": number, "ms": millis});
                if tool == Tool::Long {
                    arguments["text"] = "x".repeat(LONG).into();
                }
                (
                    "tools/call",
                    json!({"name": name, "arguments": arguments, "_meta": meta}),
                )
            }
        };
        self.send(
            &json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}),
            kernel,
        );
    }

    fn next_id(&mut self, tool: Tool, kernel: &mut Kernel) -> (i64, u64) {
        let id = self.next_id;
        self.next_id += 1;
        (id, kernel.request_log.sent(self.pid, id, tool))
    }

    fn send(&mut self, line: &Value, kernel: &mut Kernel) {
        let line = line.to_string();
        kernel.trace(self.pid, || format!("writes {}", shortened(&line)));
        self.to.push(line.as_bytes(), kernel);
    }
}
