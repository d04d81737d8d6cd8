//! Rule 10: while the owner lives, nothing wakes the guard; and afterwards, watching is cheap.

use std::time::Duration;

use kennel_testkit::{Scope, full, wait_for};

use crate::stage::{Guarded, Visitor, kill, owner, pause};

/// How often each thread of a process has gone to sleep or was put off.
fn switches(pid: u32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut all: Vec<String> = tasks
        .map(|task| {
            let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
            let lines = status
                .lines()
                .filter(|line| line.contains("ctxt_switches") || line.starts_with("Pid:"));
            lines.collect::<Vec<_>>().join(" ")
        })
        .collect();
    all.sort();
    all
}

fn children(pid: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    text.split_whitespace()
        .map(|pid| pid.parse().unwrap())
        .collect()
}

#[test]
fn rule_10_nothing_wakes_the_guard_while_the_owner_lives() {
    let scope = Scope::new("quiet");
    let owner = owner(&scope);
    let guarded = Guarded::start(&scope, &["--owner-pid", &owner.id().to_string()]);
    let visitors: Vec<Visitor> = (0..20).map(|_| guarded.connect()).collect();
    let who = [&[guarded.child.id()][..], &children(guarded.child.id())].concat();
    assert_eq!(who.len(), 2, "the guard and its warden");
    let look = || who.iter().map(|&pid| switches(pid)).collect::<Vec<_>>();
    let mut before = look();
    wait_for("they have come to rest", || {
        pause(Duration::from_millis(300));
        let now = look();
        std::mem::replace(&mut before, now.clone())
            .eq(&now)
            .then_some(())
    });
    pause(Duration::from_secs(if full() { 60 } else { 3 }));
    assert_eq!(look(), before, "they woke for nothing");
    drop((visitors, owner));
}

#[test]
fn watching_a_thousand_connections_takes_next_to_no_time() {
    kennel_sys::limits::raise_descriptors();
    let scope = Scope::new("sweep");
    let mut owner = owner(&scope);
    let mut guarded = Guarded::start(&scope, &["--owner-pid", &owner.id().to_string()]);
    let visitors: Vec<Visitor> = (0..1000).map(|_| guarded.connect()).collect();
    kill(&mut owner);
    // The first look is over, with all that is done but once.
    guarded.stays_for(Duration::from_secs(1));
    let pid = guarded.child.id();
    let (before, sleeps) = (worked(pid), slept(pid));
    pause(Duration::from_secs(5));
    let (worked, slept) = (worked(pid) - before, slept(pid) - sleeps);
    assert!(slept > 0, "it looks at them");
    assert!(
        worked < Duration::from_millis(500),
        "{worked:?} of work in five seconds, in {slept} turns"
    );
    drop(visitors);
    assert_eq!(guarded.ends(), Some(0));
}

/// How long a process of one thread has been on a processor: other work on the machine does not count.
fn worked(pid: u32) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap();
    Duration::from_nanos(text.split_whitespace().next().unwrap().parse().unwrap())
}

fn slept(pid: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mut lines = status.lines();
    let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.unwrap().trim().parse().unwrap()
}
