//! What was on its way and never arrived is no risk: it is sent, whatever it is.

use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;
use kennel_testkit::{Scope, wait_for};
use serde_json::json;

use crate::stage::{App, Victim, Way, have_begun, is_unknown, kill, servers, session, tally, text};

/// How each thread of a process fares.
fn threads(pid: u32) -> impl Iterator<Item = char> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.map(|task| {
        let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
        let (_, rest) = stat.rsplit_once(") ").unwrap();
        rest.chars().next().unwrap()
    })
}

/// Stops the server: it reads nothing any more.
fn stop(scope: &Scope) -> ProcessRef {
    let server = servers(scope).pop().unwrap();
    server.signal(Signal::STOP).unwrap();
    wait_for("all its threads have stopped", || {
        threads(server.pid())
            .all(|state| state == 'T')
            .then_some(())
    });
    server
}

/// How much a process has not read of what was said to it.
fn unread(process: &ProcessRef) -> u64 {
    let stdin = std::fs::File::open(format!("/proc/{}/fd/0", process.pid())).unwrap();
    rustix::io::ioctl_fionread(stdin).unwrap()
}

/// More calls than pipes hold, to a server that does not read.
fn flood(way: Way) {
    const CALLS: usize = 40;
    let scope = Scope::new("unsent");
    let mut app = App::legacy(session(&scope, way, "app", &["--replay", "none"]));
    app.seen();
    stop(&scope);
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

/// What of a line lies unread in a server's pipe, and is not said or never will be, says nothing of what it heard before.
#[test]
fn rule_5_a_line_that_is_under_way_hides_no_call_that_was_heard() {
    const LONG: usize = 300_000;
    for is_good in [true, false] {
        let scope = Scope::new("half");
        let mut app = App::legacy(session(&scope, Way::Solo, "app", &["--replay", "none"]));
        let heard = app.call("work", &json!({"tag": "heard", "hold": 1}));
        have_begun(&scope, 1);
        let server = stop(&scope);
        let (half, rest) = app.begin_call("work", "half", LONG);
        wait_for("its beginning is on its way", || {
            (unread(&server) > 50_000).then_some(())
        });
        if !is_good {
            // In the middle of a string: the session answers it, for its id can be read.
            app.client.say("\n");
            assert_eq!(app.answer(half)["error"]["code"], -32700);
        }
        kill(&scope, Victim::Server);
        is_unknown(&app.answer(heard));
        if is_good {
            app.client.say(&rest);
            assert_eq!(text(&app.answer(half)), "half");
        }
        app.seen();
        let ran = tally(&scope);
        assert!(ran.values().all(|times| *times == 1), "rule 5: {ran:?}");
        assert_eq!(ran.len(), if is_good { 2 } else { 1 }, "{ran:?}");
        app.was_answered_each_once();
    }
}
