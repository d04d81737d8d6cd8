//! More is said than read, by a server or to an app: all who read get all of it, and memory is bounded.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kennel_sys::process::ProcessRef;
use kennel_sys::{Signal, events};
use kennel_testkit::{Client, Scope, wait_for};
use serde_json::{Value, json};

use crate::stage::{is_modest, serves, session, the_daemon};

const LINES: usize = 60;
const BYTES: usize = 2 << 20;

/// An app that has done its handshake, and reads as fast as a test wants.
struct App {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl App {
    fn start(scope: &Scope, share: &str) -> App {
        App::start_as(session(scope, share))
    }

    fn start_as(mut command: Command) -> App {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = piped.stderr(Stdio::null()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let params = json!({
            "protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": {"name": "testkit", "version": "0"},
        });
        let request = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
        let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        let ping = json!({"jsonrpc": "2.0", "id": 2, "method": "echo"});
        for line in [request, initialized, ping] {
            stdin.write_all(format!("{line}\n").as_bytes()).unwrap();
        }
        let mut line = String::new();
        while !line.contains(r#""id":2"#) {
            line.clear();
            assert_ne!(stdout.read_line(&mut line).unwrap(), 0, "it ended");
        }
        App {
            child,
            stdin,
            stdout,
        }
    }

    /// Reads the whole flood, with a pause after each line.
    fn reads_all(mut self, pause: Duration) {
        for number in 0..LINES {
            let mut line = String::with_capacity(BYTES + 200);
            assert_ne!(self.stdout.read_line(&mut line).unwrap(), 0, "it ended");
            let begun = format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/flood","params":{{"line":{number},"#
            );
            let start = &line[..line.len().min(200)];
            assert!(line.starts_with(&begun), "line {number}: {start}");
            assert!(line.len() > BYTES);
            events::sleep(&[], &[], Some(pause)).unwrap();
        }
    }
}

/// Ends apps if the test fails, so that nobody reads on for ever.
struct EndOnPanic(Vec<ProcessRef>);

impl EndOnPanic {
    fn of<'a>(apps: impl IntoIterator<Item = &'a App>) -> EndOnPanic {
        let process = |app: &App| ProcessRef::open(app.child.id()).unwrap();
        EndOnPanic(apps.into_iter().map(process).collect())
    }
}

impl Drop for EndOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for process in &self.0 {
                let _ = process.signal(Signal::KILL);
            }
        }
    }
}

impl Drop for App {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn log(scope: &Scope) -> String {
    let daemons = scope.runtime_dir().join("daemons");
    let mut dirs = std::fs::read_dir(daemons).unwrap();
    let dir = dirs.next().unwrap().unwrap().path();
    std::fs::read_to_string(dir.join("log")).unwrap()
}

/// The server floods all; returns what the one heard who asked for it.
fn flood(client: &mut Client) {
    let id = client.send("flood", json!({"lines": LINES, "bytes": BYTES}));
    let mut heard = 0;
    loop {
        let line = client.line().unwrap();
        if line.len() > BYTES {
            heard += 1;
            continue;
        }
        let answer: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(answer["id"], id, "{answer}");
        assert_eq!(answer["result"], "flooded", "{answer}");
        break;
    }
    assert_eq!(heard, LINES);
}

#[test]
fn clients_that_read_slowly_get_all_that_a_server_says_at_once() {
    let scope = Scope::new("bounds-slow");
    let mut client = Client::begin(&mut session(&scope, "always"));
    let daemon = the_daemon(&scope);
    let slow: Vec<App> = (0..4).map(|_| App::start(&scope, "always")).collect();
    let ends = EndOnPanic::of(&slow);
    std::thread::scope(|threads| {
        let _ends = ends;
        for (number, app) in slow.into_iter().enumerate() {
            threads.spawn(move || app.reads_all(Duration::from_millis(5 + 5 * number as u64)));
        }
        flood(&mut client);
    });
    serves(&mut client);
    is_modest("the daemon", daemon.pid());
    let log = log(&scope);
    assert!(!log.contains("does not read"), "{log}");
}

#[test]
fn of_several_clients_only_the_one_that_does_not_read_is_dropped() {
    let scope = Scope::new("bounds-stalled");
    let mut client = Client::begin(&mut session(&scope, "always"));
    let daemon = the_daemon(&scope);
    let reader = App::start(&scope, "always");
    let stalled = App::start(&scope, "always");
    let ends = EndOnPanic::of([&reader]);
    std::thread::scope(|threads| {
        let _ends = ends;
        threads.spawn(move || reader.reads_all(Duration::from_millis(5)));
        flood(&mut client);
    });
    serves(&mut client);
    is_modest("the daemon", daemon.pid());
    let dropped = wait_for("one is dropped", || {
        let count = log(&scope).matches("does not read").count();
        (count > 0).then_some(count)
    });
    assert_eq!(dropped, 1, "{}", log(&scope));
    drop(stalled);
}

#[test]
fn a_batch_for_many_clients_that_do_not_read_is_in_memory_once() {
    const CLIENTS: usize = 20;
    let scope = Scope::new("bounds-batch");
    let mut client = Client::begin(&mut session(&scope, "always"));
    let daemon = the_daemon(&scope);
    let stalled: Vec<App> = (0..CLIENTS).map(|_| App::start(&scope, "always")).collect();
    // Short messages in one line: copied for each client, they take more than the daemon may have.
    let flood = json!({"lines": 65, "bytes": 60_000, "batch": true});
    let answer = client.request("flood", flood);
    assert_eq!(answer["result"], "flooded", "{answer}");
    serves(&mut client);
    is_modest("the daemon", daemon.pid());
    drop(stalled);
}

/// The daemon has a list that is long, and many ask for it and do not read.
#[test]
fn a_long_list_for_many_clients_that_do_not_read_fills_no_memory() {
    const CLIENTS: usize = 20;
    const LIST: usize = 4_000_000;
    let scope = Scope::new("bounds-lists");
    let start = || {
        let mut command = session(&scope, "always");
        command.env("TESTKIT_LIST", LIST.to_string());
        App::start_as(command)
    };
    let request = json!({"jsonrpc": "2.0", "id": 3, "method": "tools/list"});
    let request = format!("{request}\n");
    let mut first = start();
    first.stdin.write_all(request.as_bytes()).unwrap();
    let mut line = String::new();
    first.stdout.read_line(&mut line).unwrap();
    assert!(line.len() > LIST, "{line}");
    let daemon = the_daemon(&scope);
    let mut stalled: Vec<App> = (0..CLIENTS).map(|_| start()).collect();
    for app in &mut stalled {
        app.stdin.write_all(request.as_bytes()).unwrap();
    }
    first.stdin.write_all(request.as_bytes()).unwrap();
    line.clear();
    first.stdout.read_line(&mut line).unwrap();
    assert!(line.len() > LIST, "{line}");
    is_modest("the daemon", daemon.pid());
    drop(stalled);
}

/// The daemon has the list, and answers each of them itself.
#[test]
fn short_requests_for_a_long_list_fill_no_memory_and_all_are_answered() {
    const COUNT: usize = 100;
    let scope = Scope::new("bounds-list");
    let mut command = session(&scope, "always");
    command.env("TESTKIT_LIST", (1 << 20).to_string());
    let mut app = App::start_as(command);
    let daemon = the_daemon(&scope);
    let request = |id: usize| {
        let line = json!({"jsonrpc": "2.0", "id": id, "method": "tools/list"});
        format!("{line}\n")
    };
    let answered = |count: usize, app: &mut App| {
        let mut line = String::new();
        for _ in 0..count {
            line.clear();
            app.stdout.read_line(&mut line).unwrap();
            assert!(line.len() > 1 << 20, "{line}");
        }
    };
    app.stdin.write_all(request(3).as_bytes()).unwrap();
    answered(1, &mut app);
    let all: String = (4..4 + COUNT).map(request).collect();
    app.stdin.write_all(all.as_bytes()).unwrap();
    answered(COUNT, &mut app);
    is_modest("the daemon", daemon.pid());
}

/// Each line but the first is refused by the shim itself: its id is another request's.
#[test]
fn an_app_that_asks_and_does_not_read_fills_no_memory_and_gets_every_answer() {
    const COUNT: usize = 100_000;
    const PART: usize = 100;
    let scope = Scope::new("bounds-unread");
    let id = "i".repeat(1000);
    let request = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":\"{id}\",\"method\":\"slow\",\"params\":{{\"ms\":600000}}}}\n"
    );
    let part = request.repeat(PART);
    for share in ["never", "always"] {
        let mut app = App::start(&scope, share);
        app.stdin.write_all(request.as_bytes()).unwrap();
        let ends = EndOnPanic::of([&app]);
        let written = AtomicUsize::new(0);
        let (stdin, stdout) = (&mut app.stdin, &mut app.stdout);
        std::thread::scope(|threads| {
            let _ends = ends;
            threads.spawn(|| {
                for _ in 0..COUNT / PART {
                    stdin.write_all(part.as_bytes()).unwrap();
                    written.fetch_add(PART, Ordering::Relaxed);
                }
            });
            // Until the shim takes no more; without a bound it takes all.
            wait_for("the shim takes no more", || {
                let before = written.load(Ordering::Relaxed);
                events::sleep(&[], &[], Some(Duration::from_millis(500))).unwrap();
                let after = written.load(Ordering::Relaxed);
                (after > 0 && before == after).then_some(())
            });
            let mut line = String::new();
            for number in 0..COUNT {
                line.clear();
                stdout.read_line(&mut line).unwrap();
                assert!(line.contains("-32600"), "{number}: {line}");
            }
        });
        is_modest("the shim", app.child.id());
    }
}
