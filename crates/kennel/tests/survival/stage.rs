//! What the tests stand on: sessions in front of a server that writes down what it does, and their deaths.

use std::collections::BTreeMap;
use std::process::Command;

use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;
use kennel_testkit::{Client, Scope, bin, wait_for};
use serde_json::{Value, json};

/// What stands behind a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    Solo,
    Shared,
}

/// Who is killed with -9.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Victim {
    Server,
    Daemon,
    Both,
}

/// Every way to lose a server.
pub(crate) const LOSSES: [(Way, Victim); 4] = [
    (Way::Solo, Victim::Server),
    (Way::Shared, Victim::Server),
    (Way::Shared, Victim::Daemon),
    (Way::Shared, Victim::Both),
];

/// An app with a session, and all it ever heard.
pub(crate) struct App {
    pub(crate) client: Client,
    pub(crate) heard: Vec<Value>,
    asked: Vec<u64>,
}

/// `kennel run` before the server for many. Of solo sessions, each has a roll of its own.
pub(crate) fn session(scope: &Scope, way: Way, name: &str, options: &[&str]) -> Command {
    let mut command = scope.command(env!("CARGO_BIN_EXE_kennel"));
    let (share, roll) = match way {
        Way::Solo => ("never", scope.path(format!("roll-{name}"))),
        Way::Shared => ("always", scope.roll()),
    };
    command
        .args(["run", "--share", share, "--stop-after", "50ms,50ms"])
        // On a busy machine a daemon takes its time, and nobody is to be told so.
        .args(["--start-timeout", "60s"])
        .args(options)
        .arg("--")
        .arg(bin("tk-shared"))
        .env("TESTKIT_ROLL", roll)
        .env("TESTKIT_TALLY", scope.path("tally"));
    command
}

impl App {
    /// Of the legacy era: after its handshake.
    pub(crate) fn legacy(mut command: Command) -> App {
        App {
            client: Client::begin(&mut command),
            heard: Vec::new(),
            asked: Vec::new(),
        }
    }

    /// Of the modern era, which has none.
    pub(crate) fn modern(mut command: Command) -> App {
        App {
            client: Client::start(&mut command),
            heard: Vec::new(),
            asked: Vec::new(),
        }
    }

    pub(crate) fn send(&mut self, method: &str, params: Value) -> u64 {
        let id = self.client.send(method, params);
        self.asked.push(id);
        id
    }

    pub(crate) fn call(&mut self, tool: &str, arguments: &Value) -> u64 {
        self.send("tools/call", json!({"name": tool, "arguments": arguments}))
    }

    /// Says a call but for its end; returns its id and what is left to say.
    pub(crate) fn begin_call(&mut self, tool: &str, tag: &str, padding: usize) -> (u64, String) {
        let id = 1_000_000 + self.asked.len() as u64;
        self.asked.push(id);
        let padding = "x".repeat(padding);
        let arguments = json!({"tag": tag, "padding": padding});
        let params = json!({"name": tool, "arguments": arguments});
        let begun =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{params}"#);
        let (begun, rest) = begun.split_at(begun.rfind(&padding).unwrap() + padding.len());
        self.client.say(begun);
        (id, format!("{rest}}}\n"))
    }

    /// The answer to a request; what comes before it is kept.
    #[track_caller]
    pub(crate) fn answer(&mut self, id: u64) -> Value {
        let is_it = |line: &Value| line["id"] == id && line.get("method").is_none();
        loop {
            if let Some(known) = self.heard.iter().find(|line| is_it(line)) {
                return known.clone();
            }
            self.listen();
        }
    }

    #[track_caller]
    pub(crate) fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, params);
        self.answer(id)
    }

    /// What the server has been told so far.
    #[track_caller]
    pub(crate) fn seen(&mut self) -> Value {
        let id = self.call("seen", &json!({}));
        let answer = self.answer(id);
        let seen: Value = serde_json::from_str(&text(&answer)).unwrap();
        assert_eq!(seen["odd"], json!([]), "nothing odd was said to it");
        seen
    }

    /// Waits until it is told something.
    #[track_caller]
    pub(crate) fn is_told(&mut self, what: impl Fn(&Value) -> bool) {
        while !self.heard.iter().any(&what) {
            self.listen();
        }
    }

    /// The notifications it heard, by method.
    pub(crate) fn told(&self, method: &str) -> Vec<&Value> {
        let told = |line: &&Value| line["method"] == format!("notifications/{method}");
        self.heard.iter().filter(told).collect()
    }

    #[track_caller]
    fn listen(&mut self) {
        let line = self.client.line().expect("the session lives");
        self.heard.push(serde_json::from_str(&line).unwrap());
    }

    /// Ends it, and checks that every request was answered once (rule 4).
    #[track_caller]
    pub(crate) fn was_answered_each_once(mut self) {
        self.client.close();
        let ended = self.client.wait();
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
        assert_eq!(ended.stderr, "", "a quiet run says nothing");
        let rest = ended.stdout.lines();
        let rest = rest.map(|line| serde_json::from_str(line).unwrap());
        self.heard.extend(rest);
        let mut answers: BTreeMap<u64, usize> = BTreeMap::new();
        for line in self.heard.iter().filter(|line| line.get("id").is_some()) {
            *answers.entry(line["id"].as_u64().unwrap()).or_default() += 1;
        }
        let expected: BTreeMap<u64, usize> = self.asked.iter().map(|id| (*id, 1)).collect();
        assert_eq!(answers, expected, "rule 4");
    }
}

/// The text a tool answers with.
#[track_caller]
pub(crate) fn text(answer: &Value) -> String {
    let text = &answer["result"]["content"][0]["text"];
    text.as_str().unwrap_or_else(|| panic!("{answer}")).into()
}

/// The error says that the outcome is unknown, and how the server ended: these tests kill it, or its daemon.
#[track_caller]
pub(crate) fn is_unknown(answer: &Value) {
    assert_eq!(answer["error"]["code"], -32603, "{answer}");
    let mut data = answer["error"]["data"].clone();
    let signal = data.as_object_mut().and_then(|data| data.remove("signal"));
    assert!(signal.is_none_or(|signal| signal == "SIGKILL"), "{answer}");
    let expected = json!({"reason": "server_restarted", "outcome": "unknown", "replayed": false});
    assert_eq!(data, expected, "{answer}");
}

/// What servers have done: how often each.
pub(crate) fn tally(scope: &Scope) -> BTreeMap<String, usize> {
    let text = std::fs::read_to_string(scope.path("tally")).unwrap_or_default();
    let mut tally = BTreeMap::new();
    for line in text.lines() {
        *tally.entry(line.to_owned()).or_default() += 1;
    }
    tally
}

/// Waits until servers have begun so many things.
#[track_caller]
pub(crate) fn have_begun(scope: &Scope, count: usize) {
    wait_for(&format!("{count} things are under way"), || {
        (tally(scope).values().sum::<usize>() >= count).then_some(())
    });
}

pub(crate) fn servers(scope: &Scope) -> Vec<ProcessRef> {
    let is_server = |process: &ProcessRef| {
        let name = std::fs::read_to_string(format!("/proc/{}/comm", process.pid()));
        name.is_ok_and(|name| name == "tk-shared\n")
    };
    scope.survivors().into_iter().filter(is_server).collect()
}

pub(crate) fn daemons(scope: &Scope) -> Vec<ProcessRef> {
    let is_daemon = |process: &ProcessRef| {
        let line = std::fs::read(format!("/proc/{}/cmdline", process.pid())).unwrap_or_default();
        line.split(|&byte| byte == 0).nth(1) == Some(b"daemon")
    };
    scope.survivors().into_iter().filter(is_daemon).collect()
}

pub(crate) fn kill(scope: &Scope, victim: Victim) {
    let mut victims = Vec::new();
    if victim != Victim::Server {
        victims.extend(daemons(scope));
    }
    if victim != Victim::Daemon {
        victims.extend(servers(scope));
    }
    assert!(!victims.is_empty(), "somebody to kill");
    for process in victims {
        process.signal(Signal::KILL).unwrap();
    }
}

/// As every request of the modern era has it.
pub(crate) fn enveloped(params: Value) -> Value {
    let mut params = params;
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2026-07-28");
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
    params
}
