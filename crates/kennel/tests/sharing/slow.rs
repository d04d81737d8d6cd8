//! One that reads nothing: the others do not notice, the daemon does not grow, and when it reads again it works.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use kennel_sys::process::ProcessRef;
use kennel_testkit::{Client, Scope, full, wait_for};
use serde_json::{Value, json};

use crate::stage::{log, seen, servers, session, shared};

/// What a daemon may be in memory with a client that does not read: the most that is kept for it, twice, for a
/// buffer may be doubled just then, and the daemon itself.
const BOUND: u64 = 300 << 20;

/// An app that reads when it wants to.
struct Sleeper {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Sleeper {
    /// Its handshake is done; from here on it reads nothing.
    fn start(scope: &Scope) -> Sleeper {
        let mut child = shared(scope)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut sleeper = Sleeper {
            child,
            stdin,
            stdout,
        };
        let params = json!({
            "protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": {"name": "testkit", "version": "0"},
        });
        sleeper.ask(1, "initialize", params);
        sleeper.answer(1);
        let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        writeln!(sleeper.stdin, "{initialized}").unwrap();
        sleeper
    }

    fn ask(&mut self, id: u64, method: &str, params: Value) {
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        writeln!(self.stdin, "{request}").unwrap();
    }

    /// Reads until it comes.
    fn answer(&mut self, id: u64) -> Value {
        loop {
            let mut line = String::new();
            assert_ne!(self.stdout.read_line(&mut line).unwrap(), 0, "it ended");
            let message: Value = serde_json::from_str(&line).unwrap();
            if message["id"] == id {
                return message;
            }
        }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        // One that has ended is what was wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Calls that nine clients made in a while.
fn work(clients: &mut [Client], time: Duration) -> Vec<u32> {
    let end = Instant::now() + time;
    std::thread::scope(|threads| {
        let working: Vec<_> = clients
            .iter_mut()
            .map(|client| {
                threads.spawn(move || {
                    let mut calls = 0;
                    while Instant::now() < end {
                        let tag = json!({"tag": "x"});
                        client.call("work", tag);
                        calls += 1;
                    }
                    calls
                })
            })
            .collect();
        working.into_iter().map(|it| it.join().unwrap()).collect()
    })
}

/// Has the server say so many bytes to all, the sleeper too.
fn tell_all(client: &mut Client, bytes: usize) {
    client.call("log", json!({"level": "error", "tag": "x".repeat(bytes)}));
}

fn resident(process: &ProcessRef) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{}/statm", process.pid())).unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

fn daemon(scope: &Scope) -> ProcessRef {
    let is_daemon = |process: &ProcessRef| {
        let words = std::fs::read(format!("/proc/{}/cmdline", process.pid())).unwrap_or_default();
        let mut words = words.split(|&byte| byte == 0).skip(1);
        words.next() == Some(b"daemon")
    };
    let mut daemons = scope.survivors().into_iter().filter(is_daemon);
    let daemon = daemons.next().unwrap();
    assert!(daemons.next().is_none(), "one daemon");
    daemon
}

#[test]
fn while_one_reads_nothing_nine_others_work_on_and_the_daemon_does_not_grow() {
    let scope = Scope::new("sleeper");
    let mut nine: Vec<Client> = (0..9).map(|_| session(&scope)).collect();
    let daemon = daemon(&scope);
    let window = Duration::from_millis(if full() { 6_000 } else { 400 });
    let total = |calls: Vec<u32>| calls.iter().sum::<u32>();
    let (mut with, mut without) = (Vec::new(), Vec::new());
    let mut most = 0;
    // In turns, so that whatever else this machine does is in both.
    for _ in 0..5 {
        without.push(total(work(&mut nine, window)));
        let mut sleeper = Sleeper::start(&scope);
        // More than all pipes hold on the way, and less than it is dropped for.
        for _ in 0..6 {
            tell_all(&mut nine[0], 1 << 20);
        }
        // The others have heard it all before they are measured.
        for client in &mut nine {
            seen(client);
        }
        let served = work(&mut nine, 2 * window);
        assert!(served.iter().all(|&calls| calls > 0), "{served:?}");
        with.push(total(served) / 2);
        most = most.max(resident(&daemon));
        // It slept through all of it, and is there when it wakes up.
        sleeper.ask(2, "tools/list", json!({}));
        sleeper.answer(2);
    }
    assert!(most < BOUND, "{most} bytes");
    assert_eq!(servers(&scope).len(), 1);
    with.sort_unstable();
    without.sort_unstable();
    println!("calls in a window: {with:?} with a sleeper, {without:?} without");
}

#[test]
fn one_that_lets_a_flood_wait_is_dropped_with_a_reason_and_works_again_when_it_reads() {
    let scope = Scope::new("flooded");
    let mut other = session(&scope);
    let daemon = daemon(&scope);
    let mut sleeper = Sleeper::start(&scope);
    // Past what is kept for one that does not read; until it is dropped, for that takes a while, too.
    let mut most = 0;
    wait_for("it is dropped", || {
        tell_all(&mut other, 1 << 20);
        most = most.max(resident(&daemon));
        log(&scope).contains("does not read").then_some(())
    });
    assert!(most < BOUND, "{most} bytes");
    wait_for("the room is given back", || {
        (resident(&daemon) < 48 << 20).then_some(())
    });
    seen(&mut other);
    // The app wakes up: it hears the flood as far as it was sent, and its session is on another connection.
    sleeper.ask(
        2,
        "tools/call",
        json!({"name": "work", "arguments": {"tag": "awake"}}),
    );
    let answer = sleeper.answer(2);
    assert!(answer.to_string().contains("awake"), "{answer}");
    assert_eq!(servers(&scope).len(), 1);
    assert_eq!(seen(&mut other)["initialize"], 1);
}
