//! What was on its way and never arrived is no risk: it is sent, whatever it is.

use kennel_sys::Signal;
use kennel_testkit::{Scope, wait_for};
use serde_json::json;

use crate::stage::{App, Victim, Way, is_unknown, kill, servers, session, tally, text};

/// How each thread of a process fares.
fn threads(pid: u32) -> impl Iterator<Item = char> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.map(|task| {
        let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
        let (_, rest) = stat.rsplit_once(") ").unwrap();
        rest.chars().next().unwrap()
    })
}

/// More calls than pipes hold, to a server that does not read.
fn flood(way: Way) {
    const CALLS: usize = 40;
    let scope = Scope::new("unsent");
    let mut app = App::legacy(session(&scope, way, "app", &["--replay", "none"]));
    app.seen();
    for server in servers(&scope) {
        server.signal(Signal::STOP).unwrap();
        wait_for("all its threads have stopped", || {
            threads(server.pid())
                .all(|state| state == 'T')
                .then_some(())
        });
    }
    let padding = "x".repeat(16 * 1024);
    let calls: Vec<u64> = (0..CALLS)
        .map(|call| {
            app.call(
                "work",
                &json!({"tag": call.to_string(), "padding": padding}),
            )
        })
        .collect();
    kill(&scope, Victim::Server);
    let mut unknown = 0;
    for (call, id) in calls.iter().enumerate() {
        let answer = app.answer(*id);
        match answer.get("error") {
            Some(_) => {
                is_unknown(&answer);
                unknown += 1;
            }
            None => assert_eq!(text(&answer), call.to_string()),
        }
    }
    let ran = tally(&scope);
    assert!(ran.values().all(|times| *times == 1), "rule 5: {ran:?}");
    assert_eq!(ran.len() + unknown, CALLS);
    assert!(unknown < CALLS, "those that never arrived were sent");
    eprintln!("{way:?}: {unknown} of {CALLS} may have arrived");
    app.seen();
    app.was_answered_each_once();
}

#[test]
fn rule_5_what_a_solo_server_never_heard_is_sent_to_the_next() {
    flood(Way::Solo);
}

#[test]
fn rule_5_what_a_shared_server_never_heard_is_sent_to_the_next() {
    flood(Way::Shared);
}
