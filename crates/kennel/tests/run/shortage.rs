//! A daemon that can open no more files: whoever comes has a server all the same.

use std::time::{Duration, Instant};

use kennel_sys::process::ProcessRef;
use kennel_testkit::{Client, Scope};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::json;

use crate::stage::{serves, shared, the_daemon};

/// A session that no server which is there can serve: it is of another class than those before.
fn begin_another(scope: &Scope, number: u64) -> Client {
    let mut client = Client::start(&mut shared(scope));
    let id = client.send(
        "initialize",
        json!({
            "protocolVersion": "2025-06-18",
            "capabilities": {"experimental": {number.to_string(): {}}},
            "clientInfo": {"name": "testkit", "version": "0"},
        }),
    );
    let answer = client.answer(id);
    assert!(answer["result"].is_object(), "{number} more: {answer}");
    client.say("{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n");
    client
}

/// It may open as many files as it has open, and so many more.
fn limit(daemon: &ProcessRef, more: u64) {
    let open = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap();
    let limit = Rlimit {
        current: Some(open.count() as u64 + more),
        maximum: Some(1024),
    };
    let pid = Pid::from_raw(i32::try_from(daemon.pid()).unwrap());
    prlimit(pid, Resource::Nofile, limit).unwrap();
}

#[test]
fn a_daemon_that_lacks_the_descriptors_for_a_server_ends_no_session() {
    let scope = Scope::new("shortage");
    let mut first = Client::begin(&mut shared(&scope));
    let daemon = the_daemon(&scope);
    // From too few for a server's pipes to enough for all of it.
    for more in 6..14 {
        limit(&daemon, more);
        let mut another = begin_another(&scope, more);
        serves(&mut another);
        drop(another);
    }
    serves(&mut first);
    assert!(daemon.is_alive(), "it serves those it has");
}

/// Its highest descriptor may have a number that is greater by so many.
fn limit_highest(daemon: &ProcessRef, more: u64) {
    let open = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap();
    let numbers = open.map(|it| it.unwrap().file_name().to_str().unwrap().parse::<u64>());
    let limit = Rlimit {
        current: Some(numbers.map(Result::unwrap).max().unwrap() + 1 + more),
        maximum: Some(1024),
    };
    let pid = Pid::from_raw(i32::try_from(daemon.pid()).unwrap());
    prlimit(pid, Resource::Nofile, limit).unwrap();
}

#[test]
fn a_session_is_told_at_once_that_a_daemon_is_out_of_descriptors() {
    let scope = Scope::new("shortage-told");
    let mut first = Client::begin(&mut shared(&scope));
    let daemon = the_daemon(&scope);
    // At the door itself, and with what a client needs behind it.
    for more in [0, 8] {
        limit_highest(&daemon, more);
        let begin = |_| {
            let start = Instant::now();
            let mut client = Client::begin(&mut shared(&scope));
            serves(&mut client);
            // A session waits 20 s for a daemon that does not answer.
            let took = start.elapsed();
            assert!(took < Duration::from_secs(15), "{took:?}");
            client
        };
        let crowd: Vec<Client> = (0..2 * more + 2).map(begin).collect();
        serves(&mut first);
        assert!(daemon.is_alive(), "it serves those it has");
        let ended = crowd.into_iter().map(|mut client| {
            client.close();
            client.wait().stderr
        });
        let said: String = ended.collect();
        assert!(said.contains("it cannot take another client"), "{said}");
        assert!(said.contains("open files"), "{said}");
        assert!(!said.contains("ending"), "{said}");
    }
}
