//! Slow is not stuck (lesson 28): a daemon that has much to do, or waits for a slow server, is left alone. Many connections
//! do not keep it from its clients.

use std::os::unix::net::UnixStream;
use std::panic::AssertUnwindSafe;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use kennel_testkit::{Client, Scope};
use serde_json::{Value, json};

use crate::stage::{key_dir, log, server_of, serves, shared, the_daemon};

/// How long the server hears nothing.
const LONG: u64 = 20_000;
/// The longest time for ten short requests.
const SHORT: Duration = Duration::from_secs(5);

/// A process for every core that does nothing but use it.
fn hogs(scope: &Scope) -> Vec<Child> {
    let hog = || {
        let mut shell = scope.command("sh");
        shell.args(["-c", "while :; do :; done"]);
        shell.stdin(Stdio::null()).spawn().unwrap()
    };
    let cores = available_parallelism().unwrap().get();
    (0..cores).map(|_| hog()).collect()
}

fn generation(scope: &Scope) -> Value {
    let record = std::fs::read(key_dir(scope).join("daemon.json")).unwrap();
    serde_json::from_slice::<Value>(&record).unwrap()["generation"].clone()
}

#[test]
fn rule_3_a_busy_daemon_is_never_taken_for_stuck() {
    let scope = Scope::new("busy");
    let mut client = Client::begin(&mut shared(&scope));
    let mut other = Client::begin(&mut shared(&scope));
    let (daemon, generation_before) = (the_daemon(&scope), generation(&scope));
    let servers = [server_of(&mut client), server_of(&mut other)];
    let mut hogs = hogs(&scope);

    // The server hears nothing for long, and a long line is under way to it: neither moves, nor does the daemon.
    let slow = client.send("slow", json!({"ms": LONG}));
    let text = "x".repeat(32 << 20);
    let long = client.send("echo", json!({ "text": text }));
    serves(&mut other);
    let mut newcomer = Client::begin(&mut shared(&scope));
    serves(&mut newcomer);

    let answer = client.answer(slow);
    assert_eq!(answer["result"], "slow", "{answer}\n{}", log(&scope));
    let answer = client.answer(long);
    assert_eq!(
        answer["result"]["text"].as_str().map(str::len),
        Some(text.len()),
        "{:.300}\n{}",
        answer.to_string(),
        log(&scope)
    );
    for client in [&mut client, &mut other, &mut newcomer] {
        serves(client);
    }
    assert_eq!(the_daemon(&scope).pid(), daemon.pid());
    assert_eq!(generation(&scope), generation_before);
    assert!(
        servers.iter().all(|server| server.is_alive()),
        "nothing is killed"
    );
    for hog in &mut hogs {
        hog.kill().unwrap();
        hog.wait().unwrap();
    }
}

#[test]
fn a_client_is_served_while_others_connect_without_end() {
    let scope = Scope::new("storm-of-connections");
    let mut client = Client::begin(&mut shared(&scope));
    serves(&mut client);
    let place = key_dir(&scope);
    let mut files = std::fs::read_dir(&place)
        .unwrap()
        .map(|it| it.unwrap().path());
    let socket = files.find(|path| path.extension().is_some_and(|end| end == "sock"));
    let socket = socket.unwrap();
    let enough = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                while !enough.load(Ordering::Relaxed) {
                    let _ = UnixStream::connect(&socket);
                }
            });
        }
        let start = Instant::now();
        let served = std::panic::catch_unwind(AssertUnwindSafe(|| {
            for _ in 0..10 {
                serves(&mut client);
            }
        }));
        enough.store(true, Ordering::Relaxed);
        served.unwrap();
        // A daemon that accepts as long as somebody connects serves nobody until it is out of descriptors: 11 s or more
        // with 20,000 of them.
        assert!(start.elapsed() < SHORT, "{:?}", start.elapsed());
    });
}
