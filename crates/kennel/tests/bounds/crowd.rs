//! Many connections at once, each with lines that would be modest for one.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use kennel_sys::process::ProcessRef;
use kennel_sys::{Signal, events};
use kennel_testkit::{Client, DEADLINE, Scope};
use rustix::process::{Resource, getrlimit};
use serde_json::{Value, json};

use crate::daemon::{connect, session_without_secrets};
use crate::stage::{is_modest, serves, the_daemon};

/// As many connections as fill more than is allowed if each holds a modest line, or fewer where the descriptors are few.
fn how_many() -> usize {
    let allowed = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(allowed / 3).map_or(320, |third| third.min(320))
}

/// A client without a hello, after its handshake.
struct Bare {
    stream: UnixStream,
    reader: BufReader<UnixStream>,
}

impl Bare {
    /// Clients with the same capabilities share a server.
    fn begin(scope: &Scope, capabilities: &Value) -> Bare {
        let stream = connect(scope);
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let reader = BufReader::new(stream.try_clone().unwrap());
        let mut bare = Bare { stream, reader };
        let params = json!({
            "protocolVersion": "2025-06-18", "capabilities": capabilities,
            "clientInfo": {"name": "testkit", "version": "0"},
        });
        bare.ask("initialize", &params);
        let initialized = b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n";
        bare.stream.write_all(initialized).unwrap();
        bare
    }

    fn ask(&mut self, method: &str, params: &Value) -> Value {
        let line = json!({"jsonrpc": "2.0", "id": method, "method": method, "params": params});
        self.stream
            .write_all(format!("{line}\n").as_bytes())
            .unwrap();
        let mut answer = String::new();
        self.reader.read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap()
    }

    fn echoes(&mut self, text: &str) {
        let echo = self.ask("echo", &json!([text]));
        assert!(echo["result"][0] == text, "{:.200}", echo.to_string());
    }

    fn server(&mut self) -> ProcessRef {
        let pid = self.ask("pid", &json!({}))["result"].as_u64().unwrap();
        ProcessRef::open(u32::try_from(pid).unwrap()).unwrap()
    }
}

/// Says these lines on all connections, so many times, or until the daemon takes no more.
fn flood(crowd: &[Bare], lines: &[u8], times: usize, mut meanwhile: impl FnMut()) {
    let mut written = vec![0; crowd.len()];
    for bare in crowd {
        bare.stream.set_nonblocking(true).unwrap();
    }
    for _ in 0..20 {
        let mut takes_more = false;
        for (bare, written) in crowd.iter().zip(&mut written) {
            while *written < times * lines.len()
                && let Ok(count) = (&bare.stream).write(&lines[*written % lines.len()..])
            {
                *written += count;
                takes_more = true;
            }
        }
        meanwhile();
        if !takes_more {
            break;
        }
        events::sleep(&[], &[], Some(Duration::from_millis(100))).unwrap();
    }
}

/// Many send lines like these to a server that does not read, while another one is used with modest lines.
fn lines_for_a_stopped_server_fill_no_memory(label: &str, lines: &[u8]) {
    let scope = Scope::new(label);
    let client = Client::begin(&mut session_without_secrets(&scope));
    let daemon = the_daemon(&scope);
    let mut other = Bare::begin(&scope, &json!({"sampling": {}}));
    let crowd: Vec<Bare> = (0..how_many())
        .map(|_| Bare::begin(&scope, &json!({})))
        .collect();
    let server = Bare::begin(&scope, &json!({})).server();
    assert_ne!(server.identity(), other.server().identity());
    server.signal(Signal::STOP).unwrap();
    let text = "x".repeat(100_000);
    flood(&crowd, lines, 1000, || other.echoes(&text));
    is_modest("the daemon", daemon.pid());
    server.signal(Signal::CONT).unwrap();
    drop((crowd, client));
}

fn notification(bytes: usize) -> Vec<u8> {
    let text = "x".repeat(bytes);
    format!("{{\"jsonrpc\":\"2.0\",\"method\":\"x\",\"params\":[\"{text}\"]}}\n").into_bytes()
}

#[test]
fn modest_lines_of_many_for_a_server_that_does_not_read_fill_no_memory() {
    lines_for_a_stopped_server_fill_no_memory("bounds-modest", &notification(250_000));
}

#[test]
fn tiny_lines_of_many_for_a_server_that_does_not_read_fill_no_memory() {
    let lines = b"{\"jsonrpc\":\"2.0\",\"method\":\"x\"}\n".repeat(2000);
    lines_for_a_stopped_server_fill_no_memory("bounds-tiny", &lines);
}

/// None of them is answered: the server is busy with the first.
#[test]
fn requests_in_flight_of_many_fill_no_memory() {
    let scope = Scope::new("bounds-calls");
    let client = Client::begin(&mut session_without_secrets(&scope));
    let daemon = the_daemon(&scope);
    let mut other = Bare::begin(&scope, &json!({"sampling": {}}));
    let crowd: Vec<Bare> = (0..30).map(|_| Bare::begin(&scope, &json!({}))).collect();
    let server = Bare::begin(&scope, &json!({})).server();
    let requests: String = (0..9000)
        .map(|id| format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"slow\",\"params\":{{\"ms\":600000}}}}\n"))
        .collect();
    flood(&crowd, requests.as_bytes(), 1, || {
        assert!(other.ask("echo", &json!([1]))["result"].is_array());
    });
    is_modest("the daemon", daemon.pid());
    server.signal(Signal::KILL).unwrap();
    drop((crowd, client));
}

#[test]
fn buffers_of_many_that_are_idle_are_given_back() {
    let scope = Scope::new("bounds-buffers");
    let client = Client::begin(&mut session_without_secrets(&scope));
    let daemon = the_daemon(&scope);
    let line = notification(120_000);
    let crowd: Vec<Bare> = (0..how_many())
        .map(|_| {
            let mut bare = Bare::begin(&scope, &json!({}));
            bare.stream.write_all(&line).unwrap();
            bare.ask("echo", &json!([1]));
            bare
        })
        .collect();
    is_modest("the daemon", daemon.pid());
    drop((crowd, client));
}

#[test]
fn a_modest_line_passes_beside_many_that_do_not_end() {
    let scope = Scope::new("bounds-unended");
    let client = Client::begin(&mut session_without_secrets(&scope));
    let daemon = the_daemon(&scope);
    let mut other = Bare::begin(&scope, &json!({}));
    let crowd: Vec<Bare> = (0..how_many())
        .map(|_| Bare::begin(&scope, &json!({})))
        .collect();
    let half = &notification(250_000)[..240_000];
    let text = "x".repeat(100_000);
    flood(&crowd, half, 1, || other.echoes(&text));
    is_modest("the daemon", daemon.pid());
    drop((crowd, client));
}

/// As long as it may be, of a million names: each takes many times its length when it is read.
#[test]
fn hellos_of_many_words_fill_no_memory() {
    let scope = Scope::new("bounds-hellos");
    let mut client = Client::begin(&mut session_without_secrets(&scope));
    let daemon = the_daemon(&scope);
    let names = vec!["\"a\""; 900_000].join(",");
    let hello = format!(
        "!hello {{\"version\":\"0\",\"protocol\":1,\"pid\":1,\"identity\":\"\",\"session\":\"s\",\"env\":[],\
         \"spec\":{{\"command\":[{names}],\"cwd\":\"/\",\"ladder\":[1,1]}}}}\n"
    );
    let crowd: Vec<UnixStream> = (0..25)
        .map(|_| {
            let mut stream = connect(&scope);
            // It may have been turned away before it said all.
            let _ = stream.write_all(hello.as_bytes());
            stream
        })
        .collect();
    for stream in &crowd {
        let mut answer = Vec::new();
        let _ = (&mut &*stream).read_to_end(&mut answer);
    }
    is_modest("the daemon", daemon.pid());
    serves(&mut client);
    drop((crowd, client));
}

/// They are refused by Kennel itself: no server is held up by them.
#[test]
fn who_does_not_read_kennels_own_errors_is_disconnected_when_others_need_the_memory() {
    let scope = Scope::new("bounds-own-errors");
    let client = Client::begin(&mut session_without_secrets(&scope));
    let daemon = the_daemon(&scope);
    let mut other = Bare::begin(&scope, &json!({"sampling": {}}));
    let crowd: Vec<Bare> = (0..how_many().min(200))
        .map(|_| Bare::begin(&scope, &json!({})))
        .collect();
    let member = |id: usize| {
        format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"x\",\"params\":{{\"bytes\":0}}}}")
    };
    let members: Vec<String> = (0..6_500).map(member).collect();
    let batch = format!("[{}]\n", members.join(","));
    flood(&crowd, batch.as_bytes(), 1, || {});
    let text = "x".repeat(1_000_000);
    kennel_testkit::wait_for("a long line passes", || {
        let echo = other.ask("echo", &json!([text]));
        (echo["result"][0] == text.as_str()).then_some(())
    });
    is_modest("the daemon", daemon.pid());
    drop((crowd, client));
}
