//! A server that is stopped (SIGSTOP) while a request is pending is reported once, and goes on when it is continued.

use std::time::{Duration, Instant};

use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;
use kennel_testkit::{Client, Scope, run, wait_for};
use serde_json::{Value, json};

use crate::stage::{kennel, listing, log, server_of, serves, shared, solo, state_of, the_daemon};

/// Longer than the first check takes, and shorter than the second.
const AFTER_THE_REPORT: Duration = Duration::from_secs(3);

fn pause(time: Duration) {
    kennel_sys::events::sleep(&[], &[], Some(time)).unwrap();
}

#[test]
fn a_stopped_server_of_a_session_of_its_own_is_reported_once_and_goes_on() {
    let scope = Scope::new("stopped-solo");
    let mut client = Client::begin(&mut solo(&scope));
    let server = server_of(&mut client);
    server.signal(Signal::STOP).unwrap();
    let asked = Instant::now();
    let id = client.send("echo", json!({"a": 1}));
    let said = wait_for("the session reports the stopped server", || {
        let said = client.stderr_so_far();
        (!said.is_empty()).then_some(said)
    });
    assert!(asked.elapsed() > Duration::from_secs(5), "{said}");
    let pid = server.pid();
    let report =
        format!("server is stopped (SIGSTOP, pid {pid}); continue it with: kill -CONT {pid}\n");
    assert!(said.ends_with(&report), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    pause(AFTER_THE_REPORT);
    assert_eq!(client.stderr_so_far(), "", "it is reported once");
    assert_eq!(state_of(&server), 'T', "nobody ends or continues it");
    server.signal(Signal::CONT).unwrap();
    assert_eq!(client.answer(id)["result"], json!({"a": 1}));
    assert_eq!(server_of(&mut client).pid(), pid);
    serves(&mut client);
}

#[test]
fn a_stopped_shared_server_is_logged_once_and_goes_on() {
    let scope = Scope::new("stopped-shared");
    let mut client = Client::begin(&mut shared(&scope));
    let mut other = Client::begin(&mut shared(&scope));
    let server = server_of(&mut client);
    server.signal(Signal::STOP).unwrap();
    let ids = [&mut client, &mut other].map(|it| it.send("echo", json!({"a": 1})));
    let pid = server.pid();
    let report =
        format!("server is stopped (SIGSTOP, pid {pid}); continue it with: kill -CONT {pid}");
    wait_for("the daemon's log reports the stopped server", || {
        log(&scope).contains(&report).then_some(())
    });
    pause(AFTER_THE_REPORT);
    assert_eq!(log(&scope).matches(&report).count(), 1, "{}", log(&scope));
    assert_eq!(state_of(&server), 'T', "nobody ends or continues it");
    server.signal(Signal::CONT).unwrap();
    for (client, id) in [&mut client, &mut other].into_iter().zip(ids) {
        assert_eq!(client.answer(id)["result"], json!({"a": 1}));
        assert_eq!(server_of(client).pid(), pid);
    }
}

#[test]
fn kennel_stop_ends_sessions_and_daemons_that_are_stopped_by_a_signal() {
    let scope = Scope::new("stopped-all");
    let mut of_daemon = Client::begin(&mut shared(&scope));
    let mut alone = Client::begin(&mut solo(&scope));
    serves(&mut of_daemon);
    serves(&mut alone);
    let shim = ProcessRef::open(alone.pid()).unwrap();
    let all = [the_daemon(&scope), shim];
    for process in &all {
        process.signal(Signal::STOP).unwrap();
        wait_for("it is stopped", || (state_of(process) == 'T').then_some(()));
    }
    let shown = listing(&scope);
    for process in &all {
        let is_it = |entry: &&Value| entry["stopped"]["pid"] == process.pid();
        assert!(shown.iter().any(|entry| is_it(&entry)), "{shown:?}");
    }
    let table = run(kennel(&scope).args(["ps", "--wide"])).stdout;
    for what in ["daemon is stopped (SIGSTOP", "session is stopped (SIGSTOP"] {
        assert!(table.contains(what), "{table}");
    }
    let doctor = run(kennel(&scope).args(["doctor"])).stdout;
    for what in ["the daemon of ", "the session of "] {
        assert!(doctor.contains(what), "{doctor}");
    }
    let start = Instant::now();
    let stop = run(kennel(&scope).args(["stop", "--all"]));
    assert_eq!(stop.code(), Some(0), "{}", stop.stderr);
    // It would wait for 60 s.
    assert!(start.elapsed() < Duration::from_secs(30));
    assert!(all.iter().all(|process| !process.is_alive()));
}
