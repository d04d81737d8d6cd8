//! The owner: a process outside, whose end is the server's end too.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use kennel_testkit::{Client, Scope, run, wait_for};
use serde_json::json;

use crate::common::notes;

const VARIABLE: &str = "NOTES_OWNER_PID";

#[test]
fn a_bad_owner_flag_is_refused_and_says_what_is_wrong() {
    let scope = Scope::new("owner-flag");
    let db = scope.path("notes.db");
    for bad in [
        "0",
        "-1",
        "",
        "abc",
        "1.5",
        "99999999999999999999",
        "4294967296",
    ] {
        let ended = run(notes(&scope, "serve", &db).arg("--owner-pid").arg(bad));
        assert_eq!(ended.code(), Some(2), "{bad:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(bad), "{bad:?}: {}", ended.stderr);
        assert_eq!(ended.stdout, "");
    }
}

#[test]
fn a_server_cannot_be_its_own_owner() {
    let scope = Scope::new("owner-self");
    let program = notes(&scope, "serve", "notes.db").get_program().to_owned();
    let mut shell = scope.command("sh");
    shell
        .args(["-c", r#"exec "$0" serve --db notes.db --owner-pid $$"#])
        .arg(&program)
        .current_dir(scope.dir());
    let ended = run(&mut shell);
    assert_eq!(ended.code(), Some(2), "{}", ended.stderr);
}

#[test]
fn a_bad_owner_variable_is_warned_about_and_ignored() {
    let scope = Scope::new("owner-variable");
    for bad in ["0", "-1", "", "abc", "1.5", "99999999999999999999"] {
        let mut server =
            Client::begin(notes(&scope, "serve", scope.path("notes.db")).env(VARIABLE, bad));
        assert_serves(&mut server);
        server.close();
        let ended = server.wait();
        assert!(ended.status.success(), "{bad:?}: {}", ended.stderr);
        assert!(
            ended.stderr.starts_with("notes: warning: "),
            "{bad:?}: {}",
            ended.stderr
        );
        assert!(ended.stderr.contains(VARIABLE), "{bad:?}: {}", ended.stderr);
    }
}

#[test]
fn a_server_whose_owner_is_gone_ends_after_the_grace_though_stdin_stays_open() {
    let scope = Scope::new("owner-gone");
    let mut owner = Owner::alive(&scope);
    let by_flag = with_flag(&scope, "flag.db", owner.pid());
    let by_variable = with_variable(&scope, "variable.db", owner.pid());
    let killed = Instant::now();
    owner.kill();
    for server in [by_flag, by_variable] {
        let ended = server.wait();
        assert_eq!((ended.code(), ended.stderr.as_str()), (Some(0), ""));
        assert!(
            killed.elapsed() > Duration::from_secs(4),
            "a grace of 5 s was promised"
        );
    }
}

#[test]
fn an_owner_that_nobody_reaped_is_gone() {
    let scope = Scope::new("owner-zombie");
    let mut owner = Owner::alive(&scope);
    let server = with_flag(&scope, "notes.db", owner.pid());
    owner.kill_and_leave_as_zombie();
    assert!(server.wait().status.success());
}

#[test]
fn rule_3_a_session_outlives_the_owner_and_ends_with_its_stdin() {
    let scope = Scope::new("owner-session");
    let mut owner = Owner::alive(&scope);
    let mut connected = with_flag(&scope, "notes.db", owner.pid());
    connected.initialize();
    let yardstick = with_flag(&scope, "yardstick.db", owner.pid());
    owner.kill();
    assert!(yardstick.wait().status.success());
    assert_serves(&mut connected);
    connected.close();
    assert!(connected.wait().status.success());
}

#[test]
fn a_server_stays_while_its_owner_lives_and_only_that_one_counts() {
    let scope = Scope::new("owner-alive");
    let mut gone = Owner::alive(&scope);
    let mut flagged = Owner::alive(&scope);
    let flag_over_variable = |db: &str| {
        let mut serve = notes(&scope, "serve", scope.path(db));
        serve.arg("--owner-pid").arg(flagged.pid().to_string());
        Client::start(serve.env(VARIABLE, gone.pid().to_string()))
    };
    let mut stays = flag_over_variable("stays.db");
    let ends_later = flag_over_variable("ends-later.db");
    let mut unowned = Client::start(&mut notes(&scope, "serve", scope.path("none.db")));
    // For an ordinary user this one may not be signalled, which does not make it dead.
    let mut of_init = with_flag(&scope, "init.db", 1);
    let yardstick = with_variable(&scope, "yardstick.db", gone.pid());

    gone.kill();
    assert!(yardstick.wait().status.success());
    stays.initialize();
    assert_serves(&mut stays);

    flagged.kill();
    assert!(ends_later.wait().status.success());
    for server in [&mut unowned, &mut of_init] {
        server.initialize();
        assert_serves(server);
    }
}

/// A server with an owner, and nobody connected yet.
#[track_caller]
fn with_flag(scope: &Scope, db: &str, owner: u32) -> Client {
    let mut serve = notes(scope, "serve", scope.path(db));
    Client::start(serve.arg("--owner-pid").arg(owner.to_string()))
}

#[track_caller]
fn with_variable(scope: &Scope, db: &str, owner: u32) -> Client {
    let mut serve = notes(scope, "serve", scope.path(db));
    Client::start(serve.env(VARIABLE, owner.to_string()))
}

#[track_caller]
fn assert_serves(server: &mut Client) {
    assert_eq!(server.call("list_notes", json!({}))["isError"], false);
}

/// A process that does nothing but live.
struct Owner(Child);

impl Owner {
    fn alive(scope: &Scope) -> Owner {
        let mut sleep = scope.command("sleep");
        Owner(sleep.arg("1000").stdin(Stdio::null()).spawn().unwrap())
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    fn kill_and_leave_as_zombie(&mut self) {
        self.0.kill().unwrap();
        wait_for("the owner is a zombie", || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
            stat.contains(") Z ").then_some(())
        });
    }
}
