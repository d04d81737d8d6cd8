//! A session that is confined: it shares with nobody outside its confinement, and says why it is dedicated.

use std::process::Command;

use kennel_testkit::{Client, Scope, wait_for};

use crate::stage::{daemons, listing, server_of, serves, shared};

/// A shared session behind another command.
fn behind(scope: &Scope, before: &[&str]) -> Command {
    let session = shared(scope);
    let mut command = scope.command(before[0]);
    command
        .args(&before[1..])
        .arg(session.get_program())
        .args(session.get_args())
        .env("TESTKIT_ROLL", scope.roll());
    command
}

#[test]
fn a_session_under_no_new_privs_is_dedicated_and_ps_says_why() {
    let scope = Scope::new("no-new-privs");
    let mut free = Client::begin(&mut shared(&scope));
    serves(&mut free);
    let mut confined = Client::begin(&mut behind(&scope, &["setpriv", "--no-new-privs"]));
    serves(&mut confined);
    assert_eq!(confined.stderr_so_far(), "", "a quiet run says nothing");
    let server = server_of(&mut confined);
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    assert!(status.contains("NoNewPrivs:\t1"), "{status}");
    let why = wait_for("its reason is listed", || {
        let all = listing(&scope);
        all.iter()
            .find_map(|it| Some(it["why"].as_str()?.to_owned()))
    });
    assert!(why.contains("seccomp or NoNewPrivs"), "{why}");
    assert_eq!(daemons(&scope).len(), 1);
}

mod needs_root {
    use super::*;

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn a_session_in_another_time_namespace_shares_with_those_in_it() {
        let scope = Scope::new("time");
        let mut free = Client::begin(&mut shared(&scope));
        let others = server_of(&mut free);
        // Two sessions in one namespace: the second enters the first one's.
        let ahead = ["unshare", "--time", "--fork", "--boottime", "86400"];
        let mut one = Client::begin(&mut behind(&scope, &ahead));
        let server = server_of(&mut one);
        assert_ne!(server.pid(), others.pid());
        let target = server.pid().to_string();
        let mut two = Client::begin(&mut behind(&scope, &["nsenter", "--time", "-t", &target]));
        assert_eq!(server_of(&mut two).pid(), server.pid());
        assert_eq!(daemons(&scope).len(), 2);
        assert!(listing(&scope).iter().all(|it| it["why"].is_null()));
    }
}
