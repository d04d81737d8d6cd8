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
fn once_the_owner_is_gone_the_guard_looks_now_and_then_and_no_more() {
    let scope = Scope::new("sweep");
    let mut owner = owner(&scope);
    let mut guarded = Guarded::start(&scope, &["--owner-pid", &owner.id().to_string()]);
    let visitors: Vec<Visitor> = (0..200).map(|_| guarded.connect()).collect();
    kill(&mut owner);
    guarded.stays_for(Duration::from_secs(1));
    let pid = guarded.child.id();
    let sleeps = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.unwrap().trim().parse::<u32>().unwrap()
    };
    let before = sleeps();
    pause(Duration::from_secs(3));
    let slept = sleeps() - before;
    // Twice a second, and a little that the asking itself takes. Fewer on a machine that is busy.
    assert!(slept <= 20, "{slept} times in three seconds");
    drop(visitors);
    assert_eq!(guarded.ends(), Some(0));
}
