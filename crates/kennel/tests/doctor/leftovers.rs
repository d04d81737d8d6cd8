//! What is left of Kennel's own servers after everybody was killed at once.

use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;
use kennel_testkit::{Client, bin, wait_for};
use serde_json::Value;

use crate::stage::Ward;

#[test]
fn what_a_killed_session_and_a_killed_warden_left_is_found_and_ended() {
    let ward = Ward::new();
    let roll = ward.scope.roll();
    let mut command = ward.command(env!("CARGO_BIN_EXE_kennel"));
    command.args(["run", "--"]).arg(bin("tk-stubborn"));
    command.arg(&roll).args(["family", "1"]);
    let mut shim = Client::start(&mut command);
    wait_for("two processes of the server", || {
        (ward.scope.signed().len() == 2).then_some(())
    });
    let everyone: Vec<ProcessRef> = ward
        .scope
        .signed()
        .iter()
        .filter_map(|identity| ProcessRef::find(identity).unwrap())
        .collect();
    assert!(ward.findings("leftovers").is_empty());

    let pid = shim.pid();
    let wardens = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let warden = ProcessRef::open(wardens.trim().parse().unwrap()).unwrap();
    // The warden cannot act on the death of its shim any more, nor the shim on that of its warden.
    warden.signal(Signal::STOP).unwrap();
    shim.kill();
    warden.signal(Signal::KILL).unwrap();
    warden.wait(None).unwrap();
    let left = wait_for("the detached one is left", || {
        let left: Vec<&ProcessRef> = everyone
            .iter()
            .filter(|process| process.is_alive())
            .collect();
        (left.len() == 1).then(|| left[0].pid())
    });

    let found = ward.findings("leftovers");
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0]["pid"], left);
    assert_eq!(found[0]["fix"], "kennel reap");
    assert_eq!(
        ward.findings("records").len(),
        1,
        "the session's own record"
    );
    let dry = ward.kennel(&["reap", "--dry-run", "--json"]);
    let dry: Value = serde_json::from_str(&dry.stdout).unwrap();
    assert_eq!(
        (&dry["leftovers"], &dry["records"]),
        (&Value::from(1), &Value::from(1))
    );
    assert!(everyone.iter().any(ProcessRef::is_alive));

    let ended = ward.kennel(&["reap"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let words = "ended 1 of kennel's own and 0 orphans, ";
    assert!(ended.stdout.contains(words), "{}", ended.stdout);
    assert!(everyone.iter().all(|process| !process.is_alive()));
    assert!(ward.findings("leftovers").is_empty() && ward.findings("records").is_empty());
}

/// Three processes that are left of a server after its session and its warden were killed, and that exit on SIGTERM.
fn three_left(ward: &Ward) -> Vec<ProcessRef> {
    let mut command = ward.command(env!("CARGO_BIN_EXE_kennel"));
    let line = "for each in 1 2 3; do setsid sleep 1000 </dev/null >/dev/null 2>&1 & done; cat";
    command.args(["run", "--", "sh", "-c", line]);
    let mut shim = Client::start(&mut command);
    let sleeping = || {
        let all = ward.scope.survivors().into_iter();
        let is_sleep = |process: &ProcessRef| {
            let words = process.command_line().unwrap_or_default();
            words.first().is_some_and(|word| word == "sleep")
        };
        all.filter(is_sleep).collect::<Vec<_>>()
    };
    let left = wait_for("three detached processes", || {
        let left = sleeping();
        (left.len() == 3).then_some(left)
    });
    let pid = shim.pid();
    let wardens = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let warden = ProcessRef::open(wardens.trim().parse().unwrap()).unwrap();
    warden.signal(Signal::STOP).unwrap();
    shim.kill();
    warden.signal(Signal::KILL).unwrap();
    warden.wait(None).unwrap();
    wait_for("the server itself is gone", || {
        (ward.scope.survivors().len() == 3).then_some(())
    });
    left
}

#[test]
fn leftovers_that_exit_on_sigterm_are_counted_as_ended() {
    let ward = Ward::new();
    let left = three_left(&ward);
    let ended = ward.kennel(&["reap"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(left.iter().all(|process| !process.is_alive()));
    let words = "ended 3 of kennel's own and 0 orphans, ";
    assert!(ended.stdout.contains(words), "{}", ended.stdout);

    let left = three_left(&ward);
    let ended = ward.kennel(&["reap", "--json"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let done: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert!(left.iter().all(|process| !process.is_alive()));
    assert_eq!(done["leftovers"], 3, "{done}");
}
