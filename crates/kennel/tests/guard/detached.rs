//! `--detach`: back when the server listens, and from then on in `ps`, `logs` and `stop` like the others.

use std::fs::File;
use std::process::Stdio;

use kennel_testkit::{DEADLINE, Scope, bin};

use crate::stage::{
    Guarded, LOCALHOST, Visitor, ends_with, free_port, guard, json_of, kennel, kill, listens,
    listing, owner,
};

#[test]
fn it_returns_when_the_server_listens_and_says_where() {
    let scope = Scope::new("detached");
    let (stdout, stderr) = ends_with(
        0,
        &mut guard(
            &scope,
            &["--detach", "--json", "--name", "thing"],
            &["late=300", "127.0.0.1:0", "127.0.0.1:0"],
        ),
    );
    assert_eq!(stderr, "");
    let facts = json_of(&stdout);
    assert_eq!(facts["status"], "started");
    assert_eq!(facts["ready"], true);
    assert_eq!(facts["name"], "thing");
    let ports = facts["ports"].as_array().unwrap();
    assert!(!ports.is_empty());
    let port = u16::try_from(ports[0].as_u64().unwrap()).unwrap();
    let server = Visitor::to(LOCALHOST, port).server();
    assert_eq!(facts["pid"], server.pid());

    let shown = &listing(&scope)[0];
    assert_eq!(shown["name"], "thing");
    assert_eq!(shown["key"], facts["key"]);
    assert_eq!(shown["mode"], "guard");
    assert_eq!(shown["servers"][0]["pid"], server.pid());
    let (people, _) = ends_with(0, kennel(&scope).arg("ps"));
    assert!(
        people.contains("thing") && people.contains("without an owner"),
        "{people}"
    );

    let (log, _) = ends_with(0, kennel(&scope).args(["logs", "thing"]));
    assert!(log.contains(&format!("listening {port}")), "{log}");

    let (stopped, _) = ends_with(0, kennel(&scope).args(["stop", "thing"]));
    assert!(stopped.starts_with("stopped thing (guard-"), "{stopped}");
    assert!(!listens(port));
    assert!(listing(&scope).is_empty());
    // What it said last can still be read.
    let (log, _) = ends_with(0, kennel(&scope).args(["logs", "thing"]));
    assert!(log.contains("the server was ended by signal 15"), "{log}");
    scope.nothing_left_within("stopped", DEADLINE);
}

#[test]
fn facts_that_cannot_be_written_are_a_failure_and_the_server_goes_on() {
    let scope = Scope::new("detached-full");
    let port = free_port();
    let (number, address) = (port.to_string(), format!("127.0.0.1:{port}"));
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let fails = |options: &[&str]| {
        let mut command = guard(&scope, options, &[&address]);
        let command = command.stdout(full()).stderr(Stdio::piped());
        let ended = command.spawn().unwrap().wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(1), "{options:?}: {said}");
        assert!(said.contains("kennel: cannot write to stdout"), "{said}");
        assert!(said.contains("the server goes on"), "{said}");
        assert!(listens(port));
    };
    fails(&["--detach", "--json", "--port", &number]);
    let entries = listing(&scope);
    assert_eq!(entries.len(), 1, "{entries:?}");
    // Already running: the same.
    fails(&["--detach", "--json", "--port", &number]);
    fails(&["--port", &number]);
    assert_eq!(listing(&scope)[0]["key"], entries[0]["key"]);
    ends_with(0, kennel(&scope).args(["stop", "--all"]));
    scope.nothing_left_within("stopped", DEADLINE);
}

#[test]
fn it_goes_with_its_owner_and_the_log_says_why() {
    let scope = Scope::new("detached-owner");
    let mut owner = owner(&scope);
    let options = ["--detach", "--json", "--owner-pid", &owner.id().to_string()];
    let facts = json_of(&ends_with(0, &mut guard(&scope, &options, &["127.0.0.1:0"])).0);
    assert_eq!(facts["owner"], owner.id());
    kill(&mut owner);
    scope.nothing_left_within("the owner is gone", DEADLINE);
    let key = facts["key"].as_str().unwrap();
    let (log, _) = ends_with(0, kennel(&scope).args(["logs", key]));
    assert!(log.contains("the owner is gone"), "{log}");
    assert!(
        log.contains("owner gone and no client attached for"),
        "{log}"
    );
}

#[test]
fn lesson_31_it_survives_whoever_started_it() {
    let scope = Scope::new("survives");
    let port = free_port();
    // A session of its own that is ended as a whole, as a terminal or an editor ends it.
    let line = format!(
        "{} guard --detach --port {port} -- {} 127.0.0.1:{port}; kill -9 0",
        env!("CARGO_BIN_EXE_kennel"),
        bin("tk-ports").display()
    );
    let status = scope
        .command("setsid")
        .args(["--wait", "sh", "-c", &line])
        .status()
        .unwrap();
    assert!(!status.success());
    assert!(Visitor::to(LOCALHOST, port).server().is_alive());
}

#[test]
fn started_from_inside_a_guarded_server_it_survives_that_one() {
    let scope = Scope::new("nested");
    let port = free_port();
    // Of another file than the outer one, as after Kennel was installed again.
    let copy = scope.path("kennel");
    std::fs::copy(env!("CARGO_BIN_EXE_kennel"), &copy).unwrap();
    let inner = format!(
        "{} guard --detach --port {port} -- {} 127.0.0.1:{port}",
        copy.display(),
        bin("tk-ports").display()
    );
    // The variable is scrubbed on the way to a server: it is told again where to meet.
    let line = format!(
        "KENNEL_RUNTIME_DIR={} {inner}; exit 5",
        scope.runtime_dir().display()
    );
    let mut outer = kennel(&scope);
    outer.args(["guard", "--stop-after", "100ms", "--", "sh", "-c", &line]);
    ends_with(5, &mut outer);
    assert!(Visitor::to(LOCALHOST, port).server().is_alive());
    assert_eq!(listing(&scope).len(), 1, "the inner one, and not the outer");
    ends_with(0, kennel(&scope).args(["stop", "tk-ports"]));
    assert!(!listens(port));
}

#[test]
fn the_words_of_one_in_the_foreground_are_where_it_was_started() {
    let scope = Scope::new("foreground");
    let _guarded = Guarded::start(&scope, &["--name", "here"]);
    let (_, stderr) = ends_with(1, kennel(&scope).args(["logs", "here"]));
    assert!(stderr.contains("runs in the foreground"), "{stderr}");
}

#[test]
fn a_server_that_does_not_come_to_listen_is_told_with_its_last_words() {
    let scope = Scope::new("dies");
    let mut command = kennel(&scope);
    command.args([
        "guard",
        "--detach",
        "--",
        "sh",
        "-c",
        "echo 'no such module' >&2; exit 6",
    ]);
    let (stdout, stderr) = ends_with(6, &mut command);
    assert_eq!(stdout, "");
    assert!(
        stderr.contains("did not start to listen") && stderr.contains("no such module"),
        "{stderr}"
    );
    let (_, stderr) = ends_with(
        127,
        kennel(&scope).args(["guard", "--detach", "--", "no-such-command"]),
    );
    assert!(
        stderr.contains("no-such-command: command not found"),
        "{stderr}"
    );
    scope.nothing_left_within("it died", DEADLINE);
}

#[test]
fn one_that_takes_too_long_is_left_to_itself_and_said_so() {
    let scope = Scope::new("too-long");
    let port = free_port();
    let (named, address) = (port.to_string(), format!("127.0.0.1:{port}"));
    let options = [
        "--detach",
        "--json",
        "--ready-timeout",
        "200ms",
        "--port",
        &named,
    ];
    let (stdout, stderr) = ends_with(1, &mut guard(&scope, &options, &["late=1500", &address]));
    let facts = json_of(&stdout);
    assert_eq!(facts["ready"], false);
    assert!(
        stderr.contains(&format!("does not listen on port {port} after 200ms")),
        "{stderr}"
    );
    // One that comes meanwhile sees the one that will listen.
    let again = guard(
        &scope,
        &["--detach", "--json", "--port", &named],
        &["late=1500", &address],
    );
    let facts = json_of(&ends_with(0, &mut { again }).0);
    assert_eq!(facts["status"], "already running");
    assert!(Visitor::to(LOCALHOST, port).server().is_alive());
}

#[test]
fn what_it_says_does_not_fill_the_disk_and_a_long_line_is_no_trouble() {
    let scope = Scope::new("chatty");
    let line = format!(
        "head -c 3000000 /dev/zero | tr '\\0' x; yes chatter | head -n 200000; exec {} 127.0.0.1:0",
        bin("tk-ports").display()
    );
    let mut command = kennel(&scope);
    ends_with(
        0,
        command.args([
            "guard", "--detach", "--name", "chatty", "--", "sh", "-c", &line,
        ]),
    );
    let guards = std::fs::read_dir(scope.runtime_dir().join("guards")).unwrap();
    let dir = guards.map(|entry| entry.unwrap().path()).next().unwrap();
    let size = |name: &str| dir.join(name).metadata().map_or(0, |meta| meta.len());
    // All that it said was read when its port is there.
    let (log, _) = ends_with(0, kennel(&scope).args(["logs", "chatty"]));
    let lines = log.lines().filter(|line| line.contains("chatter")).count();
    assert!((1..=1000).contains(&lines), "{lines}");
    assert!(size("log") <= 1 << 20 && size("log.1") <= 1 << 20);
}

/// A detached server is on record, or it does not run: with every number of free pages, from none to enough for all records.
#[test]
#[ignore = "needs root: cargo xtask test"]
fn needs_root_a_detached_server_that_cannot_be_recorded_does_not_run() {
    let mut outcomes = std::collections::BTreeSet::new();
    for pages in 0..8 {
        let scope = Scope::new("full-directory");
        std::fs::create_dir(scope.runtime_dir()).unwrap();
        let script = format!(
            "set -e; cd {run}; mount -t tmpfs -o size=256k,mode=700 kennel-test {run}; cd {run}
            {kennel} ps > /dev/null
            head -c 300000 /dev/zero > filler 2> /dev/null || true
            truncate -s -$(({pages} * 4096)) filler
            set +e
            {kennel} guard --detach --json --name thing -- {server} 127.0.0.1:0
            echo \"rc $?\"
            {kennel} ps --json
            {kennel} stop thing; echo \"stopped $?\"",
            run = scope.runtime_dir().display(),
            kennel = env!("CARGO_BIN_EXE_kennel"),
            server = bin("tk-ports").display(),
        );
        let mut command = scope.command("unshare");
        command.args(["--mount", "--propagation", "private", "bash", "-c", &script]);
        let (stdout, stderr) = ends_with(0, &mut command);
        let shown = stdout.lines().find(|line| line.starts_with('['));
        let shown = json_of(shown.unwrap_or_else(|| panic!("{stdout}{stderr}")));
        let started = stdout.contains("rc 0");
        outcomes.insert(started);
        if started {
            assert_eq!(shown[0]["name"], "thing", "{pages} pages: {shown}");
            assert!(
                shown[0]["servers"][0]["pid"].is_u64(),
                "{pages} pages: {shown}"
            );
            assert!(stdout.contains("stopped 0"), "{pages} pages: {stdout}");
        } else {
            assert_eq!(shown, json_of("[]"), "{pages} pages: {stderr}");
            assert!(stdout.contains("rc 1"), "{pages} pages: {stdout}");
            assert!(
                stderr.contains("No space left on device"),
                "{pages} pages: {stderr}"
            );
        }
        scope.nothing_left_within("stopped, or never started", DEADLINE);
    }
    assert_eq!(outcomes.len(), 2, "the pages range from too few to enough");
}
