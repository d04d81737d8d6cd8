//! What is under way in the very moment of an upgrade: half a line here, half a line there.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;
use kennel_testkit::{Client, Scope, bin, wait_for};
use serde_json::{Value, json};

use crate::stage::{
    build, daemon_when, hello_like, log, logs, seen, server_of, session, shared, socket, text,
    this, visit, visit_as, visit_like, works,
};

const NEWER: &str = "99.1.0";
const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"test","version":"0"}}}"#;
const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

fn call(id: &str, tag: &str) -> String {
    let params = json!({"name": "work", "arguments": {"tag": tag}});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).to_string()
}

/// A client by hand, whose handshake is done: it reads only when it is told to.
struct ByHand(BufReader<UnixStream>);

impl ByHand {
    fn begin(scope: &Scope) -> ByHand {
        let mut client = ByHand(BufReader::new(visit_as(scope, "0.0.1", &this())));
        client.shake_hands();
        client
    }

    fn shake_hands(&mut self) {
        assert!(self.line().starts_with("!hello "));
        self.say(&format!("{INITIALIZE}\n{INITIALIZED}\n"));
        assert_eq!(self.message()["id"], "i");
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
    upgrade_waits(&scope, &mut watching, || {
        assert!(text(&deaf.message()) == long);
    });
}

/// A control character takes one byte in memory, and six in the state.
#[test]
fn an_upgrade_waits_while_its_state_would_be_long_though_little_is_held() {
    let scope = Scope::new("long-state");
    let mut watching = session(&scope, &this());
    let mut run = shared(&scope, &this());
    run.env("CONTROL_CHARACTERS", "\u{1}".repeat(600_000));
    let visits: Vec<_> = (0..2)
        .map(|_| {
            let client = visit_like(&scope, &run, "0.0.1", &this());
            let mut client = BufReader::new(client);
            let mut hello = String::new();
            client.read_line(&mut hello).unwrap();
            assert!(hello.starts_with("!hello "), "{hello}");
            client
        })
        .collect();
    upgrade_waits(&scope, &mut watching, || drop(visits));
}

/// Asks for an upgrade, which does not happen before `release`.
fn upgrade_waits(scope: &Scope, watching: &mut Client, release: impl FnOnce()) {
    let _newer = visit(scope, &build(scope, NEWER));
    // Longer than an upgrade waits for calls in flight; others are served meanwhile.
    let pause = std::time::Duration::from_millis(100);
    for _ in 0..50 {
        seen(watching);
        kennel_sys::events::sleep(&[], &[], Some(pause)).unwrap();
    }
    assert!(!log(scope).contains("goes on as"), "{}", log(scope));
    release();
    daemon_when(scope, NEWER);
    seen(watching);
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

/// A server that writes an answer that is too long, with its id last, and after that an ordinary one.
const TOO_LONG: &str = r#"read line; printf '{"jsonrpc":"2.0","result":{"x":"'; head -c 3000000 /dev/zero | tr '\0' x
    until [ -e go ]; do sleep 0.05; done; printf 'SECRET-4711"},"id":1}\n'
    read line; printf '{"jsonrpc":"2.0","id":2,"result":{}}\n'; cat >/dev/null"#;

#[test]
fn a_line_that_is_skipped_because_it_is_too_long_is_skipped_to_its_end() {
    let scope = Scope::new("too-long");
    let mut run = scope.command(this());
    run.args(["run", "--share", "always", "--env-key", "HOME", "--cwd"])
        .arg(scope.dir())
        .args(["--max-line", "1M", "--", "sh", "-c", TOO_LONG]);
    let mut client = Client::start(&mut run);
    let first = client.send("tools/list", json!({}));
    logs(&scope, "runs for");
    // A request that is too long, and half said. No other client has a use for that server.
    let mut asking = visit_like(&scope, &run, "0.0.1", &this());
    let half = format!(r#"{{"params":{{"x":"{}"#, "x".repeat(3 << 20));
    asking.write_all(half.as_bytes()).unwrap();
    let _newer = visit_like(&scope, &run, NEWER, &build(&scope, NEWER));
    daemon_when(&scope, NEWER);
    std::fs::write(scope.path("go"), "").unwrap();
    let answer = client.answer(first);
    assert_eq!(
        answer["error"]["data"]["reason"], "line_too_long",
        "{answer}"
    );
    let next = client.send("tools/list", json!({}));
    assert_eq!(client.answer(next)["result"], json!({}));
    assert!(!log(&scope).contains("SECRET"), "{}", log(&scope));

    let rest = concat!(
        r#""},"jsonrpc":"2.0","id":"late","method":"tools/list"}"#,
        "\n"
    );
    asking.write_all(rest.as_bytes()).unwrap();
    let mut asking = ByHand(BufReader::new(asking));
    assert!(asking.line().starts_with("!hello "));
    let refusal = asking.message();
    assert_eq!(refusal["id"], "late", "{refusal}");
    assert_eq!(refusal["error"]["data"]["reason"], "line_too_long");
}

/// The check on arrival counts: a confined process may give its connection to a process that is less confined.
#[test]
fn a_client_that_was_confined_when_it_connected_is_not_served_by_the_newer_build_either() {
    let scope = Scope::new("arrival");
    let mut watching = session(&scope, &this());
    seen(&mut watching);
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let umask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    let mut visitor = scope.command("sh");
    visitor
        .args(["-c", r#"umask 0137; exec "$@""#, "sh"])
        .arg(bin("tk-visitor"))
        .arg(socket(&scope))
        .args(["announce", &format!("umask={}", umask.unwrap().trim())])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut visitor = visitor.spawn().unwrap();
    let mut said = BufReader::new(visitor.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert_eq!(line, "connected\n");
    // It has been looked at when a later client is answered.
    drop(ByHand::begin(&scope));
    let mut stdin = visitor.stdin.take().unwrap();
    stdin.write_all(b"\n").unwrap();
    line.clear();
    said.read_line(&mut line).unwrap();
    assert_eq!(line, "changed\n");
    let run = shared(&scope, &this());
    let _newer = visit(&scope, &build(&scope, NEWER));
    daemon_when(&scope, NEWER);

    let hello = hello_like(&run, "0.0.1", &this()).line();
    stdin.write_all(&[&hello[..], b"\nx\n"].concat()).unwrap();
    drop(stdin);
    let mut answer = String::new();
    for _ in 0..2 {
        said.read_line(&mut answer).unwrap();
    }
    visitor.kill().unwrap();
    visitor.wait().unwrap();
    let is_sent_away = answer.contains("\n!solo ");
    assert!(
        is_sent_away && answer.contains("its confinement differs from this daemon's"),
        "{answer}"
    );
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
