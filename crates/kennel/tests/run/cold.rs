//! Many sessions that begin at once, over whatever an earlier daemon left: one daemon, and all are served (rule 1).

use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;
use kennel_testkit::{Client, DEADLINE, Scope, bin, count, wait_for};
use serde_json::json;

use crate::stage::{
    daemons, key_dir, serves, shared, shared_and_patient, shared_with, started_so_far, state_of,
    the_daemon,
};

const AT_ONCE: usize = 20;

/// Starts twenty sessions at once: each is served, and one daemon was started for all of them.
#[track_caller]
fn twenty_meet(scope: &Scope, started_before: usize) -> Vec<Client> {
    let mut clients: Vec<Client> = (0..AT_ONCE)
        .map(|_| Client::start(&mut shared(scope)))
        .collect();
    all_are_attached(&mut clients);
    the_daemon(scope);
    assert_eq!(started_so_far(scope), started_before + 1, "daemons started");
    clients
}

/// Each is served, and by the daemon: one that does without says so.
#[track_caller]
fn all_are_attached(clients: &mut [Client]) {
    for client in clients {
        client.initialize();
        serves(client);
        assert_eq!(client.stderr_so_far(), "");
    }
}

/// No session is left that would elect anew, only what the killed daemon wrote down.
fn kill_all(clients: Vec<Client>, daemon: &ProcessRef) {
    for mut client in clients {
        client.kill();
    }
    daemon.signal(Signal::KILL).unwrap();
    assert!(daemon.wait(Some(DEADLINE)).unwrap());
}

#[test]
fn rule_1_twenty_shims_at_once_from_cold_meet_at_one_daemon_and_all_are_served() {
    for _ in 0..count(50) {
        let scope = Scope::new("cold");
        twenty_meet(&scope, 0);
    }
}

#[test]
fn rule_1_twenty_shims_meet_over_the_stale_files_of_a_killed_daemon() {
    twenty_meet_over_and_over("stale", |_| {});
}

#[test]
fn rule_1_twenty_shims_meet_over_a_record_that_is_garbage() {
    twenty_meet_over_and_over("garbage", |scope| {
        let record = key_dir(scope).join("daemon.json");
        let garbage = [b"{\"identity\": 7".as_slice(), &[0xff; 90]].concat();
        std::fs::write(record, garbage).unwrap();
    });
}

fn twenty_meet_over_and_over(label: &str, between: impl Fn(&Scope)) {
    let scope = Scope::new(label);
    let mut clients = vec![Client::begin(&mut shared(&scope))];
    for round in 0..count(50) as usize {
        kill_all(clients, &the_daemon(&scope));
        between(&scope);
        clients = twenty_meet(&scope, round + 1);
    }
}

#[test]
fn rule_1_twenty_shims_meet_though_the_killed_daemon_is_still_a_zombie() {
    for _ in 0..count(50) {
        let scope = Scope::new("zombie");
        // It inherits the daemon, and reaps nobody.
        let mut app = scope.command(bin("tk-app"));
        let session = shared(&scope);
        // The environment of the other sessions: it is part of the key.
        app.args(["subreaper", "--"])
            .arg(session.get_program())
            .args(session.get_args())
            .env("TESTKIT_ROLL", scope.roll());
        let mut app = Client::start(&mut app);
        assert_eq!(app.line().as_deref(), Some("ready"));
        let (zombie, shim) = (the_daemon(&scope), the_shim(&scope));
        shim.signal(Signal::KILL).unwrap();
        zombie.signal(Signal::KILL).unwrap();
        assert!(zombie.wait(Some(DEADLINE)).unwrap());
        assert_eq!(state_of(&zombie), 'Z');
        twenty_meet(&scope, 1);
        assert_eq!(state_of(&zombie), 'Z');
    }
}

fn the_shim(scope: &Scope) -> ProcessRef {
    let is_shim = |process: &ProcessRef| {
        let line = std::fs::read(format!("/proc/{}/cmdline", process.pid())).unwrap_or_default();
        line.split(|&byte| byte == 0).nth(1) == Some(b"run")
    };
    scope.survivors().into_iter().find(is_shim).unwrap()
}

#[test]
fn rule_1_a_shim_killed_or_stopped_while_its_daemon_starts_leaves_one_daemon_to_all() {
    for signal in [Signal::KILL, Signal::STOP] {
        for _ in 0..count(10) {
            let scope = Scope::new("between");
            let former = Client::begin(&mut shared_and_patient(&scope));
            // What a killed daemon left to its warden is waited for by the next one: so its start takes a second, as long
            // as a server that does not end has for it.
            let server = ProcessRef::find(&scope.signed()[0]).unwrap().unwrap();
            server.signal(Signal::STOP).unwrap();
            kill_all(vec![former], &the_daemon(&scope));
            let patient = &["--start-timeout", "30s"];
            let mut spawner = Client::start(&mut shared_with(&scope, patient));
            let newborn = wait_for("its daemon", || daemons(&scope).pop());
            let shim = ProcessRef::open(spawner.pid()).unwrap();
            // Usually it is not ready yet.
            shim.signal(signal).unwrap();
            let mut others: Vec<Client> = (1..AT_ONCE)
                .map(|_| Client::start(&mut shared_with(&scope, patient)))
                .collect();
            all_are_attached(&mut others);
            assert_eq!(the_daemon(&scope).pid(), newborn.pid());
            assert_eq!(started_so_far(&scope), 2);
            if signal == Signal::KILL {
                continue;
            }
            // Stopped as it is, it keeps nobody from the next election.
            newborn.signal(Signal::KILL).unwrap();
            for client in &mut others {
                wait_for("it is served again", || {
                    let answer = client.request("echo", json!([1]));
                    (answer["result"] == json!([1])).then_some(())
                });
                assert_eq!(client.stderr_so_far(), "");
            }
            assert_eq!(started_so_far(&scope), 3);
            shim.signal(Signal::CONT).unwrap();
            spawner.initialize();
            serves(&mut spawner);
            the_daemon(&scope);
        }
    }
}
