//! One that reads nothing: the others do not notice, the daemon does not grow, and when it reads again it works.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kennel_sys::process::ProcessRef;
use kennel_testkit::{Client, Scope, bin, full, wait_for};
use serde_json::{Value, json};

use crate::stage::{kennel, listing, log, seen, servers, session, shared};

/// What a daemon may be in memory with a client that does not read: the most that is kept for it, twice, for a
/// buffer may be doubled just then, and the daemon itself.
const BOUND: u64 = 300 << 20;

/// An app that reads when it wants to.
struct Sleeper {
    child: Child,
    /// `None` while somebody else writes.
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Sleeper {
    /// Its handshake is done; from here on it reads nothing.
    fn start(scope: &Scope) -> Sleeper {
        Sleeper::start_with(&mut shared(scope))
    }

    fn start_with(command: &mut Command) -> Sleeper {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
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
        writeln!(sleeper.stdin.as_ref().unwrap(), "{initialized}").unwrap();
        sleeper
    }

    fn ask(&mut self, id: u64, method: &str, params: Value) {
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        writeln!(self.stdin.as_ref().unwrap(), "{request}").unwrap();
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

/// Requests that one writes before it reads the first answer, and how long each is.
const UNREAD: u64 = 96;
const LONG: usize = 128 << 10;

/// All of them at once, from a thread of its own: an app that writes more than is taken has to wait.
fn write_without_reading(sleeper: &mut Sleeper) -> JoinHandle<ChildStdin> {
    let mut stdin = sleeper.stdin.take().unwrap();
    std::thread::spawn(move || {
        for id in 2..2 + UNREAD {
            let arguments = json!({"tag": format!("{id}:{}", "x".repeat(LONG))});
            let params = json!({"name": "work", "arguments": arguments});
            let request =
                json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
            writeln!(stdin, "{request}").unwrap();
        }
        // Whoever closes its input is on its way out.
        stdin
    })
}

/// Each has its own answer, in the order they were asked.
fn read_all(sleeper: &mut Sleeper) {
    for id in 2..2 + UNREAD {
        let answer = sleeper.answer(id);
        let text = answer["result"]["content"][0]["text"].as_str();
        let text = text.unwrap_or_else(|| panic!("{id}: {answer}"));
        assert!(text.starts_with(&format!("{id}:")) && text.len() > LONG);
    }
}

#[test]
fn one_that_writes_much_and_reads_nothing_waits_alone_and_is_answered_when_it_reads() {
    let scope = Scope::new("writes-only");
    let mut nine: Vec<Client> = (0..9).map(|_| session(&scope)).collect();
    let daemon = daemon(&scope);
    let mut sleeper = Sleeper::start(&scope);
    let writing = write_without_reading(&mut sleeper);
    for _ in 0..5 {
        let served = work(&mut nine, Duration::from_millis(100));
        assert!(served.iter().all(|&calls| calls > 0), "{served:?}");
        assert!(resident(&daemon) < BOUND);
    }
    read_all(&mut sleeper);
    writing.join().unwrap();
    for client in &mut nine {
        seen(client);
    }
    assert_eq!(servers(&scope).len(), 1);
}

#[test]
fn one_that_is_dropped_with_much_unread_has_an_answer_to_every_request_when_it_reads() {
    let scope = Scope::new("writes-and-dropped");
    let mut other = session(&scope);
    let mut sleeper = Sleeper::start(&scope);
    let writing = write_without_reading(&mut sleeper);
    wait_for("it is dropped", || {
        tell_all(&mut other, 1 << 20);
        log(&scope).contains("does not read").then_some(())
    });
    // The outcome of some is not known (rule 5), but each has one answer (rule 4).
    let mut answered = std::collections::BTreeSet::new();
    while answered.len() < UNREAD as usize {
        let mut line = String::new();
        assert_ne!(sleeper.stdout.read_line(&mut line).unwrap(), 0, "it ended");
        let message: Value = serde_json::from_str(&line).unwrap();
        if let Some(id) = message["id"].as_u64() {
            assert!(answered.insert(id), "{id} twice");
        }
    }
    writing.join().unwrap();
    seen(&mut other);
}

#[test]
fn where_calls_take_turns_more_than_is_taken_at_once_goes_on_as_it_is_answered() {
    let scope = Scope::new("much-in-turn");
    let config = scope.path("home").join(".config/kennel");
    std::fs::create_dir_all(&config).unwrap();
    let entry = "[[server]]\nmatch = \"tk-shared\"\nshare = \"in-turn\"\n";
    std::fs::write(config.join("servers.toml"), entry).unwrap();
    let mut client = Sleeper::start_with(kennel(&scope).args(["run", "--"]).arg(bin("tk-shared")));
    assert_eq!(listing(&scope)[0]["mode"], "shared");
    let writing = write_without_reading(&mut client);
    read_all(&mut client);
    writing.join().unwrap();
}
