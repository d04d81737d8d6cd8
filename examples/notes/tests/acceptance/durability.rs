//! Rule 5: nothing acknowledged is lost, whatever is killed and when.

use std::collections::HashSet;
use std::time::Duration;

use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;
use kennel_testkit::{Client, Rng, Scope, count};
use serde_json::json;

use crate::common::{notes, pause, serving, texts};

#[test]
fn an_acknowledged_note_survives_a_kill_at_any_moment() {
    let scope = Scope::new("durability");
    let db = scope.path("data/notes.db");
    let mut rng = Rng::seeded("durability");
    let mut acknowledged = HashSet::new();
    for round in 0..count(50) {
        let mut server = serving(&scope, &db);
        let process = ProcessRef::open(server.pid()).unwrap();
        let moment = rng.duration_below(Duration::from_millis(40));
        let (begin, begins) = std::sync::mpsc::channel();
        let killer = std::thread::spawn(move || {
            begins.recv().unwrap();
            pause(moment);
            process.signal(Signal::KILL).unwrap();
        });
        // In every other round not before a note is acknowledged: on a busy machine none may be within the moment.
        if round % 2 == 0 {
            begin.send(()).unwrap();
        }
        for number in 0.. {
            let text = format!("round {round}, note {number}");
            match server.try_call("add_note", json!({ "text": text })) {
                Some(_) => acknowledged.insert(text),
                None => break,
            };
            if round % 2 == 1 && number == 0 {
                begin.send(()).unwrap();
            }
        }
        drop(begin);
        killer.join().unwrap();
        server.kill();
    }
    let found: HashSet<String> = texts(&mut serving(&scope, &db)).into_iter().collect();
    let lost: Vec<_> = acknowledged.difference(&found).collect();
    assert!(lost.is_empty(), "acknowledged, and lost: {lost:?}");
    assert!(!acknowledged.is_empty(), "not one note in all rounds");
}

#[test]
fn a_note_that_finds_no_room_is_an_error_and_never_acknowledged() {
    let scope = Scope::new("no-room");
    let db = scope.path("notes.db");
    let program = notes(&scope, "serve", &db).get_program().to_owned();
    let mut shell = scope.command("sh");
    // In blocks of 512 bytes: a file of this server ends at 128 KiB, as on a full disk.
    let script = r#"trap '' XFSZ; ulimit -f 256; exec "$0" serve --db "$1""#;
    let mut server = Client::begin(shell.args(["-c", script]).arg(program).arg(&db));
    let added = (0..200)
        .map(|_| server.call("add_note", json!({ "text": "x".repeat(1000) })))
        .filter(|result| result["isError"] == false);
    let acknowledged = added.count();
    server.kill();
    assert!(
        (1..200).contains(&acknowledged),
        "{acknowledged} of 200 notes in 128 KiB"
    );
    assert_eq!(texts(&mut serving(&scope, &db)).len(), acknowledged);
}

#[test]
fn sigterm_in_the_middle_of_the_work_takes_back_no_answer() {
    let scope = Scope::new("sigterm");
    let db = scope.path("notes.db");
    let mut server = serving(&scope, &db);
    let calls: Vec<u64> = (0..200)
        .map(|number| {
            let arguments = json!({ "text": format!("note {number}") });
            server.send(
                "tools/call",
                json!({ "name": "add_note", "arguments": arguments }),
            )
        })
        .collect();
    server.answer(calls[0]);
    let process = ProcessRef::open(server.pid()).unwrap();
    process.signal(Signal::TERM).unwrap();
    let ended = server.wait();
    assert_eq!((ended.code(), ended.stderr.as_str()), (Some(0), ""));
    let answered = 1 + ended.stdout.lines().count();
    assert!(texts(&mut serving(&scope, &db)).len() >= answered);
}
