//! One store, one writer, however it is spelled and whoever starts it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use kennel_testkit::{Client, Rng, Scope, count, run, wait_for};
use serde_json::json;

use crate::common::{add, lock_file, notes, pause, serving, texts};

const STARTERS: usize = 20;

#[test]
fn of_twenty_starters_one_serves_and_the_others_name_it() {
    let scope = Scope::new("starters");
    let db = scope.path("notes.db");
    one_serves((0..STARTERS).map(|_| notes(&scope, "serve", &db)));
}

#[test]
fn the_meeting_place_does_not_depend_on_the_environment() {
    // Rule 8, lesson 11: MCP clients pass on few variables, and not the same ones.
    let scope = Scope::new("starters-xdg");
    let db = scope.path("notes.db");
    let xdg = scope.path("xdg");
    fs::create_dir(&xdg).unwrap();
    one_serves((0..STARTERS).map(|number| {
        let mut serve = notes(&scope, "serve", &db);
        if number % 2 == 0 {
            serve.env("XDG_RUNTIME_DIR", &xdg).env("TMPDIR", &xdg);
        }
        serve
    }));
}

#[test]
fn a_store_is_the_same_however_it_is_spelled() {
    let scope = Scope::new("starters-spelled");
    fs::create_dir(scope.path("data")).unwrap();
    symlink(scope.path("data"), scope.path("link")).unwrap();
    symlink("data/notes.db", scope.path("alias.db")).unwrap();
    let spellings: [PathBuf; 5] = [
        scope.path("data/notes.db"),
        "data/notes.db".into(),
        "./data/../link/notes.db".into(),
        scope.path("link/notes.db"),
        // It leads to a database that does not exist yet.
        "alias.db".into(),
    ];
    one_serves((0..STARTERS).map(|number| {
        let mut serve = notes(&scope, "serve", &spellings[number % spellings.len()]);
        serve.current_dir(scope.dir());
        serve
    }));
}

#[test]
fn the_lock_file_is_intact_after_contended_starts() {
    // Rule 7, lesson 1: a loser must not touch what the winner wrote.
    let scope = Scope::new("contended");
    let db = scope.path("notes.db");
    let server = serving(&scope, &db);
    let lock = lock_file(&scope, &db);
    let written = fs::read(&lock).unwrap();
    assert!(!written.is_empty(), "the holder writes who it is");
    for _ in 0..count(1000) {
        let ended = run(&mut notes(&scope, "serve", &db));
        refused_by(server.pid(), ended);
        assert_eq!(fs::read(&lock).unwrap(), written);
    }
}

#[test]
fn a_start_killed_at_any_moment_does_not_keep_the_next_from_working() {
    let scope = Scope::new("killed-start");
    let db = scope.path("notes.db");
    let start = Instant::now();
    drop(serving(&scope, &db));
    let start_up = start.elapsed();
    scope.nothing_left_within("after the first", Duration::from_secs(5));
    let mut rng = Rng::seeded("killed-start");
    for round in 0..count(200) {
        let mut victim = Client::start(&mut notes(&scope, "serve", &db));
        // So that it goes on to its first note, if it is given the time.
        victim.ask_to_initialize();
        let arguments = json!({ "text": "from the victim" });
        victim.send(
            "tools/call",
            json!({ "name": "add_note", "arguments": arguments }),
        );
        pause(rng.duration_below(start_up + start_up / 2));
        victim.kill();
        let mut next = serving(&scope, &db);
        add(&mut next, &format!("round {round}"));
        next.close();
        assert!(next.wait().status.success());
    }
}

#[test]
fn coexisting_servers_share_a_store_from_its_first_note_on() {
    let scope = Scope::new("coexist");
    for round in 0..count(20) {
        let db = scope.path(format!("{round}/notes.db"));
        let begin = || Client::begin(notes(&scope, "serve", &db).arg("--coexist"));
        let mut servers = [begin(), begin()];
        // Both begin the database at the same moment.
        let first = |server: &mut Client| {
            let arguments = json!({ "text": "first" });
            server.send(
                "tools/call",
                json!({ "name": "add_note", "arguments": arguments }),
            )
        };
        let asked = servers.each_mut().map(first);
        for (server, id) in servers.iter_mut().zip(asked) {
            let answer = server.answer(id);
            assert_eq!(answer["result"]["isError"], false, "{answer}");
            add(server, "second");
        }
        for server in &mut servers {
            assert_eq!(texts(server).len(), 4);
        }
        // One that wants the store for itself is refused while they are there.
        let ended = run(&mut notes(&scope, "serve", &db));
        assert_eq!(ended.code(), Some(1), "{}", ended.stderr);
    }
}

mod needs_root {
    use super::*;

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn the_uids_own_meeting_place_does_not_depend_on_the_environment() {
        // As above, without KENNEL_RUNTIME_DIR, but in a /tmp of the test's own (lesson 42).
        let scope = Scope::new("starters-tmp");
        let tmp = scope.path("tmp");
        fs::create_dir_all(tmp.join("xdg")).unwrap();
        fs::copy(notes(&scope, "serve", "").get_program(), tmp.join("notes")).unwrap();
        one_serves((0..STARTERS).map(|number| {
            let mut shell = scope.command("unshare");
            let script = r#"mount --bind "$0" /tmp && exec /tmp/notes serve --db /tmp/notes.db"#;
            shell.args(["--mount", "sh", "-c", script]).arg(&tmp);
            shell.env_remove("KENNEL_RUNTIME_DIR").env_remove("TMPDIR");
            if number % 2 == 0 {
                shell
                    .env("XDG_RUNTIME_DIR", "/tmp/xdg")
                    .env("TMPDIR", "/tmp/xdg");
            }
            shell
        }));
        assert!(tmp.join("kennel-0").is_dir());
        assert!(tmp.join("xdg").read_dir().unwrap().next().is_none());
    }
}

/// Starts all at once; one of them must serve, and the others exit 1 and name it.
#[track_caller]
fn one_serves(starters: impl Iterator<Item = Command>) {
    let starters: Vec<Command> = starters.collect();
    let gate = Barrier::new(starters.len());
    let mut clients: Vec<Client> = std::thread::scope(|threads| {
        let threads: Vec<_> = starters
            .into_iter()
            .map(|mut starter| {
                let gate = &gate;
                threads.spawn(move || {
                    gate.wait();
                    Client::start(&mut starter)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    wait_for("all but one end", || {
        let serving = clients
            .iter_mut()
            .filter_map(|client| client.try_wait().is_none().then_some(()));
        (serving.count() <= 1).then_some(())
    });
    let winner = clients
        .iter_mut()
        .position(|client| client.try_wait().is_none());
    let mut winner = clients.swap_remove(winner.expect("one of them serves"));
    for loser in clients {
        refused_by(winner.pid(), loser.wait());
    }
    winner.initialize();
    add(&mut winner, "it works");
}

#[track_caller]
fn refused_by(pid: u32, ended: kennel_testkit::Ended) {
    assert_eq!(ended.code(), Some(1), "{}", ended.stderr);
    let named = ended
        .stderr
        .split(|c: char| !c.is_ascii_digit())
        .any(|word| word == pid.to_string());
    assert!(named, "the holder is {pid}: {}", ended.stderr);
}
