//! Idle processes sleep (rule 10): nothing wakes them but what happens.

use std::time::Duration;

use kennel_testkit::{Client, Scope, full, wait_for};

use crate::stage::{logs, serves, shared, shared_with, solo, the_daemon, warden_of};

/// How often each thread of a process has gone to sleep or was put off, by its id.
fn switches(pid: u32) -> Vec<(String, String)> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut switches: Vec<_> = tasks
        .map(|task| task.unwrap())
        .map(|task| {
            let status = std::fs::read_to_string(task.path().join("status")).unwrap();
            let counts: Vec<&str> = status
                .lines()
                .filter(|line| line.contains("voluntary_ctxt_switches"))
                .collect();
            (task.file_name().into_string().unwrap(), counts.join(" "))
        })
        .collect();
    switches.sort();
    switches
}

/// None of them runs, not for a moment.
#[track_caller]
fn sleep_well(who: &[(&str, u32)]) {
    let look = || -> Vec<_> {
        let of = |&(name, pid): &(&str, u32)| (name.to_owned(), switches(pid));
        who.iter().map(of).collect()
    };
    // What was just done has its aftermath: records are written, a thread ends.
    let mut before = look();
    wait_for("they have come to rest", || {
        // What was asked is written down for `kennel ps` within a second, once.
        pause(Duration::from_secs(2));
        let now = look();
        std::mem::replace(&mut before, now.clone())
            .eq(&now)
            .then_some(())
    });
    pause(Duration::from_secs(if full() { 60 } else { 3 }));
    assert_eq!(look(), before, "they woke for nothing");
}

fn pause(time: Duration) {
    kennel_sys::events::sleep(&[], &[], Some(time)).unwrap();
}

#[test]
fn rule_10_an_idle_session_with_a_server_of_its_own_sleeps() {
    let scope = Scope::new("idle-solo");
    let mut client = Client::begin(&mut solo(&scope));
    serves(&mut client);
    let (shim, warden) = (client.pid(), warden_of(client.pid()).pid());
    sleep_well(&[("shim", shim), ("warden", warden)]);
    serves(&mut client);
}

#[test]
fn rule_10_an_idle_session_through_a_daemon_sleeps_and_so_does_the_daemon() {
    let scope = Scope::new("idle-shared");
    let mut client = Client::begin(&mut shared(&scope));
    serves(&mut client);
    let daemon = the_daemon(&scope).pid();
    sleep_well(&[
        ("shim", client.pid()),
        ("daemon", daemon),
        ("warden", warden_of(daemon).pid()),
    ]);
    serves(&mut client);
}

#[test]
fn rule_10_sessions_and_daemon_sleep_after_a_slow_answer() {
    let scope = Scope::new("idle-slow");
    let mut clients = [solo(&scope), shared(&scope)].map(|mut command| Client::begin(&mut command));
    // Long enough for the timer that looks for a stopped server: it is turned off by the answer.
    let ids = clients
        .each_mut()
        .map(|client| client.send("slow", serde_json::json!({"ms": 5_000})));
    for (client, id) in clients.iter_mut().zip(ids) {
        assert_eq!(client.answer(id)["result"], "slow");
    }
    sleep_well(&[
        ("shim", clients[0].pid()),
        ("shim of a shared server", clients[1].pid()),
        ("daemon", the_daemon(&scope).pid()),
    ]);
    clients.iter_mut().for_each(serves);
}

#[test]
fn rule_10_a_daemon_that_lingers_sleeps() {
    let scope = Scope::new("idle-lingering");
    let mut client = Client::begin(&mut shared_with(&scope, &["--linger", "1h"]));
    serves(&mut client);
    client.close();
    assert_eq!(client.wait().code(), Some(0));
    logs(&scope, "left: ");
    let daemon = the_daemon(&scope).pid();
    sleep_well(&[("daemon", daemon), ("warden", warden_of(daemon).pid())]);
    serves(&mut Client::begin(&mut shared(&scope)));
}
