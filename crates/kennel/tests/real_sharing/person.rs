//! A client with a person behind it: it answers what the server asks with its own name, and remembers
//! everything that was said to it.

use std::process::Command;
use std::time::Instant;

use kennel_testkit::{Client, DEADLINE};
use serde_json::{Value, json};

/// Shakes hands in the usual way.
pub(crate) const LEGACY: &str = "2025-11-25";
/// Has no handshake.
pub(crate) const MODERN: &str = "2026-07-28";

pub(crate) struct Person {
    pub(crate) client: Client,
    name: String,
    roots: Value,
    /// What the server asked it, in order.
    pub(crate) asked: Vec<Value>,
    /// What it was told.
    pub(crate) told: Vec<Value>,
    /// Answers that nobody has waited for yet.
    answers: Vec<Value>,
}

/// Everything a client can do.
pub(crate) fn able() -> Value {
    json!({
        "roots": {"listChanged": true}, "sampling": {}, "elicitation": {"form": {}, "url": {}},
        "tasks": {"list": {}, "cancel": {}, "requests": {
            "sampling": {"createMessage": {}}, "elicitation": {"create": {}},
        }},
    })
}

impl Person {
    /// One that has said nothing yet.
    #[track_caller]
    pub(crate) fn new(name: &str, command: &mut Command) -> Person {
        Person {
            client: Client::start(command),
            name: name.to_owned(),
            roots: json!([{"uri": "file:///the/project", "name": "the project"}]),
            asked: Vec::new(),
            told: Vec::new(),
            answers: Vec::new(),
        }
    }

    /// With a handshake behind it.
    #[track_caller]
    pub(crate) fn legacy(name: &str, command: &mut Command, capabilities: &Value) -> Person {
        let mut person = Person::new(name, command);
        person.shake_hands(LEGACY, capabilities);
        person
    }

    pub(crate) fn with_roots(mut self, uri: &str) -> Person {
        self.roots = json!([{"uri": uri}]);
        self
    }

    #[track_caller]
    pub(crate) fn shake_hands(&mut self, version: &str, capabilities: &Value) -> Value {
        let answer = self.request(
            "initialize",
            json!({
                "protocolVersion": version, "capabilities": capabilities,
                "clientInfo": {"name": "testkit", "version": "0"},
            }),
        );
        assert!(answer["result"].is_object(), "{answer}");
        self.client
            .say("{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n");
        answer["result"].clone()
    }

    #[track_caller]
    pub(crate) fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.client.send(method, params);
        self.answer(&json!(id))
    }

    /// A request that says all itself.
    #[track_caller]
    pub(crate) fn modern_request(&mut self, method: &str, params: Value) -> Value {
        let id = self.client.send(method, enveloped(params));
        self.answer(&json!(id))
    }

    /// Calls a tool, without waiting.
    pub(crate) fn begin_call(&mut self, tool: &str, arguments: Value) -> Value {
        let params = json!({"name": tool, "arguments": arguments});
        json!(self.client.send("tools/call", params))
    }

    #[track_caller]
    pub(crate) fn call(&mut self, tool: &str, arguments: Value) -> String {
        let id = self.begin_call(tool, arguments);
        self.result_of(&id)
    }

    /// The text a call was answered with.
    #[track_caller]
    pub(crate) fn result_of(&mut self, id: &Value) -> String {
        let answer = self.answer(id);
        let content = answer["result"]["content"].as_array();
        let content = content.unwrap_or_else(|| panic!("{answer}"));
        let texts = content.iter().filter_map(|it| it["text"].as_str());
        texts.collect::<Vec<_>>().join("\n")
    }

    /// The tools it is shown, as they are described.
    #[track_caller]
    pub(crate) fn tools(&mut self) -> Vec<Value> {
        let answer = self.request("tools/list", json!({}));
        let tools = answer["result"]["tools"].as_array();
        tools.unwrap_or_else(|| panic!("{answer}")).clone()
    }

    /// Listens until this request is answered.
    #[track_caller]
    pub(crate) fn answer(&mut self, id: &Value) -> Value {
        self.listen_until(&format!("the answer to {id}"), |heard| {
            let at = heard.answers.iter().position(|it| it["id"] == *id)?;
            Some(heard.answers.remove(at))
        })
    }

    /// Listens until it was told something like this.
    #[track_caller]
    pub(crate) fn is_told(&mut self, what: impl Fn(&Value) -> bool) {
        self.listen_until("to be told", |heard| {
            heard.told.iter().any(&what).then_some(())
        });
    }

    /// Listens until it was asked for this.
    #[track_caller]
    pub(crate) fn is_asked(&mut self, method: &str) {
        self.listen_until(&format!("to be asked for {method}"), |heard| {
            let mut asked = heard.asked.iter();
            asked.any(|it| it["method"] == method).then_some(())
        });
    }

    #[track_caller]
    fn listen_until<T>(&mut self, label: &str, look: impl Fn(&mut Person) -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            assert!(begun.elapsed() < DEADLINE, "still waiting: {label}");
            self.listen();
        }
    }

    /// Hears one message, and does what follows from it.
    #[track_caller]
    fn listen(&mut self) {
        let line = self.client.line();
        let line = line.unwrap_or_else(|| panic!("{}", self.client.stderr_so_far()));
        let message: Value = serde_json::from_str(&line).unwrap();
        match (&message["method"], message.get("id")) {
            (Value::Null, _) => self.answers.push(message),
            (_, None) => self.told.push(message),
            (method, Some(id)) => {
                let result = self.opinion(method.as_str().unwrap());
                let answer = json!({"jsonrpc": "2.0", "id": id, "result": result});
                self.client.say(&format!("{answer}\n"));
                self.asked.push(message);
            }
        }
    }

    fn opinion(&self, method: &str) -> Value {
        let name = &self.name;
        match method {
            "roots/list" => json!({"roots": self.roots}),
            "sampling/createMessage" => json!({
                "role": "assistant", "model": name, "content": {"type": "text", "text": name},
            }),
            "elicitation/create" => json!({"action": "accept", "content": {"name": name}}),
            _ => panic!("{name} was asked for {method}"),
        }
    }
}

/// With what a request of the modern era says of its client.
pub(crate) fn enveloped(mut params: Value) -> Value {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "testkit", "version": "0"},
    });
    params
}
