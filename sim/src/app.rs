//! An app: it asks, cancels, answers what it is asked, and writes down all that it hears.

use serde_json::{Value, json};

use crate::books::{Answer, Tool};
use crate::kernel::{Heard, Kernel, Pid, PipeId};

/// How its session begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Era {
    /// With a handshake.
    Legacy,
    /// Every request says all.
    Modern,
}

pub(crate) struct App {
    pid: Pid,
    era: Era,
    stdin: PipeId,
    stdout: PipeId,
    next_id: i64,
    handshake: Handshake,
    /// What it wants, once it has shaken hands.
    wishes: Vec<(Tool, u64)>,
    pub(crate) closed: bool,
    /// How many results it got.
    pub(crate) results: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Handshake {
    None,
    Asked(i64),
    Done,
}

impl App {
    /// `stdin` and `stdout` are its shim's.
    pub(crate) fn new(pid: Pid, era: Era, stdin: PipeId, stdout: PipeId) -> App {
        App {
            pid,
            era,
            stdin,
            stdout,
            next_id: 0,
            handshake: Handshake::None,
            wishes: Vec::new(),
            closed: false,
            results: 0,
        }
    }

    pub(crate) fn is_ready(&self, kernel: &Kernel) -> bool {
        kernel.waiting(self.stdout) > 0
    }

    pub(crate) fn ask(&mut self, tool: Tool, millis: u64, kernel: &mut Kernel) {
        if self.closed {
            return;
        }
        let tool = match (self.era, tool) {
            (Era::Modern, Tool::Ask) => Tool::Pay,
            _ => tool,
        };
        match (self.era, self.handshake) {
            (Era::Modern, _) | (_, Handshake::Done) => self.request(tool, millis, kernel),
            (Era::Legacy, Handshake::Asked(_)) => self.wishes.push((tool, millis)),
            (Era::Legacy, Handshake::None) => {
                self.wishes.push((tool, millis));
                self.shake_hands(kernel);
            }
        }
    }

    pub(crate) fn cancel(&mut self, nth: usize, kernel: &mut Kernel) {
        let open: Vec<i64> = kernel.books.open(self.pid);
        let handshake = match self.handshake {
            Handshake::Asked(id) => Some(id),
            _ => None,
        };
        // A handshake is not cancelled.
        let open: Vec<i64> = open
            .into_iter()
            .filter(|id| Some(*id) != handshake)
            .collect();
        if self.closed || open.is_empty() {
            return;
        }
        let id = open[nth % open.len()];
        kernel.books.cancelled(self.pid, id);
        let line = json!({"jsonrpc": "2.0", "method": "notifications/cancelled",
            "params": {"requestId": id}});
        self.say(&line, kernel);
    }

    /// It will say no more, and still listens.
    pub(crate) fn close(&mut self, kernel: &mut Kernel) {
        if !self.closed {
            self.closed = true;
            kernel.close_write(self.stdin);
            kernel.say(self.pid, || "closes its side".to_owned());
        }
    }

    pub(crate) fn turn(&mut self, kernel: &mut Kernel) {
        let Heard::Line(line) = kernel.read(self.stdout) else {
            return;
        };
        let text = String::from_utf8_lossy(&line).into_owned();
        kernel.say(self.pid, || format!("hears {}", crate::shortened(&text)));
        let message: Value = match serde_json::from_slice(&line) {
            Ok(message) => message,
            Err(error) => return kernel.must(false, || format!("an app hears no JSON: {error}")),
        };
        let kept = match message["method"].as_str() {
            Some("notifications/progress") => {
                let params = &message["params"];
                let number = params["progressToken"].as_u64().unwrap_or(0);
                let progress = params["progress"].as_u64().unwrap_or(0);
                kernel.books.progress(self.pid, number, progress)
            }
            Some("elicitation/create") => self.is_asked(&message, kernel),
            Some(_) => Ok(()),
            None => self.is_answered(&message, kernel),
        };
        if let Err(broken) = kept {
            kernel.must(false, || broken);
        }
    }

    fn is_asked(&mut self, message: &Value, kernel: &mut Kernel) -> Result<(), String> {
        let about = message["params"]["message"].as_str().unwrap_or("0");
        let about = about.parse().unwrap_or(0);
        if !self.closed {
            let answer =
                json!({"jsonrpc": "2.0", "id": message["id"], "result": {"action": "accept"}});
            self.say(&answer, kernel);
        }
        kernel.books.question(self.pid, about)
    }

    fn is_answered(&mut self, message: &Value, kernel: &mut Kernel) -> Result<(), String> {
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
        if self.handshake == Handshake::Asked(id) {
            match answer {
                Answer::Done(_) => self.shook_hands(kernel),
                Answer::Refused { .. } => {
                    self.handshake = Handshake::None;
                    self.wishes.clear();
                }
            }
        }
        kernel.books.answered(self.pid, id, &answer)
    }

    fn shake_hands(&mut self, kernel: &mut Kernel) {
        let id = self.next_id(Tool::List, kernel).0;
        self.handshake = Handshake::Asked(id);
        let line = json!({"jsonrpc": "2.0", "id": id, "method": "initialize", "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {"elicitation": {}},
            "clientInfo": {"name": "app", "version": "1"},
        }});
        self.say(&line, kernel);
    }

    fn shook_hands(&mut self, kernel: &mut Kernel) {
        self.handshake = Handshake::Done;
        if self.closed {
            return;
        }
        self.say(
            &json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
            kernel,
        );
        for (tool, millis) in std::mem::take(&mut self.wishes) {
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
            Tool::Read | Tool::Pay | Tool::Ask | Tool::Crash => {
                let name = format!("{tool:?}").to_lowercase();
                let arguments = json!({"n": number, "ms": millis});
                (
                    "tools/call",
                    json!({"name": name, "arguments": arguments, "_meta": meta}),
                )
            }
        };
        self.say(
            &json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}),
            kernel,
        );
    }

    fn next_id(&mut self, tool: Tool, kernel: &mut Kernel) -> (i64, u64) {
        let id = self.next_id;
        self.next_id += 1;
        (id, kernel.books.asked(self.pid, id, tool))
    }

    fn say(&self, line: &Value, kernel: &mut Kernel) {
        let line = line.to_string();
        kernel.say(self.pid, || format!("says {}", crate::shortened(&line)));
        kernel.write(self.stdin, line.as_bytes());
    }
}
