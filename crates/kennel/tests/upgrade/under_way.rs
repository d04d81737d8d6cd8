//! What is under way in the very moment of an upgrade: half a line here, half a line there.

use std::io::{BufRead, BufReader, Write};

use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;
use kennel_testkit::{Client, Scope, wait_for};
use serde_json::{Value, json};

use crate::stage::{
    build, daemon_when, log, seen, server_of, session, shared, text, this, visit, visit_as,
    visit_like, works,
};

const NEWER: &str = "99.1.0";
const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"test","version":"0"}}}"#;
const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

fn call(id: &str, tag: &str) -> String {
    let params = json!({"name": "work", "arguments": {"tag": tag}});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).to_string()
}

/// A client by hand, whose handshake is done: it reads only when it is told to.
struct ByHand(BufReader<std::os::unix::net::UnixStream>);

impl ByHand {
    fn begin(scope: &Scope) -> ByHand {
        let mut client = ByHand(BufReader::new(visit_as(scope, "0.0.1", &this())));
        assert!(client.line().starts_with("!hello "));
        client.say(&format!("{INITIALIZE}\n{INITIALIZED}\n"));
        assert_eq!(client.message()["id"], "i");
        client
    }

    fn say(&mut self, words: &str) {
        self.0.get_mut().write_all(words.as_bytes()).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line
    }

    fn message(&mut self) -> Value {
        serde_json::from_str(&self.line()).unwrap()
    }
}

#[test]
fn what_a_client_has_not_read_and_what_it_has_half_said_goes_along() {
    let scope = Scope::new("half-said");
    let mut watching = session(&scope, &this());
    let (mut deaf, mut halting) = (ByHand::begin(&scope), ByHand::begin(&scope));
    let long = "x".repeat(3 << 20);
    deaf.say(&format!(
        "{}\n{}\n",
        call("long", &long),
        call("short", "y")
    ));
    let half = call("half", "z");
    let (first, second) = half.split_at(half.len() / 2);
    halting.say(&format!("{}\n{first}", call("whole", "w")));
    assert_eq!(text(&halting.message()), "w");
    wait_for("all has been asked", || {
        (seen(&mut watching)["calls"].as_u64() >= Some(3)).then_some(())
    });
    let _newer = visit(&scope, &build(&scope, NEWER));
    daemon_when(&scope, NEWER);

    halting.say(&format!("{second}\n"));
    assert_eq!(text(&halting.message()), "z");
    assert!(text(&deaf.message()) == long);
    assert_eq!(text(&deaf.message()), "y");
}

/// All that is held would be in memory several times at once.
#[test]
fn an_upgrade_waits_until_long_lines_are_read() {
    let scope = Scope::new("long-unread");
    let mut watching = session(&scope, &this());
    let mut deaf = ByHand::begin(&scope);
    let long = "x".repeat(7 << 20);
    deaf.say(&format!("{}\n", call("long", &long)));
    wait_for("it has been asked", || {
        (seen(&mut watching)["calls"].as_u64() >= Some(1)).then_some(())
    });
    let _newer = visit(&scope, &build(&scope, NEWER));
    // Longer than an upgrade waits for calls in flight; others are served meanwhile.
    let pause = std::time::Duration::from_millis(100);
    for _ in 0..50 {
        seen(&mut watching);
        kennel_sys::events::sleep(&[], &[], Some(pause)).unwrap();
    }
    assert!(!log(&scope).contains("goes on as"), "{}", log(&scope));
    assert!(text(&deaf.message()) == long);
    daemon_when(&scope, NEWER);
    seen(&mut watching);
}

#[test]
fn what_a_server_has_not_read_goes_along() {
    let scope = Scope::new("unread");
    let mut client = session(&scope, &this());
    let pid = server_of(&mut client);
    let server = ProcessRef::open(u32::try_from(pid).unwrap()).unwrap();
    server.signal(Signal::STOP).unwrap();
    let long = "x".repeat(700_000);
    let calls = [works(&mut client, &long, 0), works(&mut client, "after", 0)];
    let mut other = Client::start(&mut shared(&scope, &this()));
    let shaking = other.ask_to_initialize();
    assert_eq!(other.answer(shaking)["id"], shaking, "from memory");
    let _newer = visit(&scope, &build(&scope, NEWER));
    daemon_when(&scope, NEWER);
    server.signal(Signal::CONT).unwrap();
    assert!(text(&client.answer(calls[0])) == long);
    assert_eq!(text(&client.answer(calls[1])), "after");
    assert_eq!(server_of(&mut client), pid);
}

#[test]
fn what_a_server_has_half_said_goes_along() {
    let scope = Scope::new("half-answer");
    let script = r#"read line; printf '{"jsonrpc":"2.0","id":1,"res'
        until [ -e go ]; do sleep 0.05; done; printf 'ult":{"whole":true}}\n'; cat >/dev/null"#;
    let mut run = scope.command(this());
    run.args(["run", "--share", "always", "--env-key", "HOME", "--cwd"])
        .arg(scope.dir())
        .args(["--", "sh", "-c", script]);
    let mut client = Client::start(&mut run);
    let id = client.send("tools/list", json!({}));
    wait_for("the server runs", || {
        crate::stage::log(&scope).contains("runs for").then_some(())
    });
    let _newer = visit_like(&scope, &run, NEWER, &build(&scope, NEWER));
    daemon_when(&scope, NEWER);
    std::fs::write(scope.path("go"), "").unwrap();
    assert_eq!(client.answer(id)["result"], json!({"whole": true}));
}

/// No moment is quiet as long as it is open: it is not waited for, and the answer still finds its way.
#[test]
fn a_question_of_the_servers_that_is_open_goes_along() {
    let scope = Scope::new("question");
    let mut client = session(&scope, &this());
    let pid = server_of(&mut client);
    let arguments = json!({"method": "sampling/createMessage", "tag": "t"});
    let id = client.send("tools/call", json!({"name": "ask", "arguments": arguments}));
    let question: Value = serde_json::from_str(&client.line().unwrap()).unwrap();
    assert_eq!(question["method"], "sampling/createMessage");
    let _newer = visit(&scope, &build(&scope, NEWER));
    daemon_when(&scope, NEWER);
    let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": {"said": 7}});
    client.say(&format!("{answer}\n"));
    assert_eq!(text(&client.answer(id)), r#"{"said":7}"#);
    assert_eq!(server_of(&mut client), pid);
}
