//! Several commands that write configurations at the same time.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use kennel_sys::lock::{Lock, Mode, Record};
use kennel_sys::runtime_dir::RuntimeDir;
use kennel_testkit::count;

use crate::stage::Person;

const FILE: &str = "project/mcp.json";

/// The lock that a command holds while it writes.
fn lock(person: &Person) -> Lock {
    let dir = person.file("home/.local/state/kennel");
    std::fs::create_dir_all(dir.parent().unwrap()).unwrap();
    let dir = RuntimeDir::ensure(dir).unwrap();
    let lock = Lock::acquire(&dir, "wrap.lock", Mode::Exclusive).unwrap();
    let record = Record::of_this_process("another command").unwrap();
    lock.write_record(&record).unwrap();
    lock
}

fn start(person: &Person, word: &str) -> Child {
    let mut command = person.command();
    let command = command.args([word, "--yes", "--file", "mcp.json"]);
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(Stdio::piped()).spawn().unwrap()
}

/// A configuration with a server, and one that somebody put behind Kennel by hand.
fn text(person: &Person) -> String {
    let kennel = person.program.display();
    format!(
        r#"{{"mcpServers":{{"b":{{ "command":"foo"}},"mine":{{"command":"{kennel}","args":["run","--","mine"]}}}}}}"#
    )
}

#[test]
fn unwrap_waits_for_another_command_and_looks_again_when_it_has_ended() {
    let person = Person::new();
    let text = text(&person);
    person.write(FILE, &text);
    let wrap = start(&person, "wrap").wait_with_output().unwrap();
    assert!(wrap.status.success(), "{wrap:?}");
    let wrapped = person.read(FILE);
    assert_ne!(wrapped, text);

    let held = lock(&person);
    let mut unwrap = start(&person, "unwrap");
    let mut stdout = BufReader::new(unwrap.stdout.take().unwrap());
    stdout.read_line(&mut String::new()).unwrap();
    // It has looked. What it wants to change changes.
    let edited = wrapped.replace("foo", "bar");
    person.write(FILE, &edited);
    held.release();
    let ended = unwrap.wait_with_output().unwrap();
    let stderr = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("changed in the meantime"), "{stderr}");
    assert_eq!(person.read(FILE), edited);
    assert_eq!(person.kept().len(), 2, "the backup and the record");
}

#[test]
fn a_command_that_does_not_end_is_named_and_nothing_is_written() {
    let person = Person::new();
    let text = text(&person);
    person.write(FILE, &text);
    let held = lock(&person);
    let dry = person.kennel(&["wrap", "--dry-run", "--file", "mcp.json"]);
    assert_eq!(dry.code(), Some(0), "it only looks: {}", dry.stderr);
    let ended = person.kennel(&["wrap", "--yes", "--file", "mcp.json"]);
    assert_eq!(ended.code(), Some(1), "{}", ended.stderr);
    let holder = format!("pid {} (another command", std::process::id());
    assert!(ended.stderr.contains(&holder), "{}", ended.stderr);
    assert_eq!(person.read(FILE), text);
    assert!(person.kept().is_empty());
    held.release();
    for word in ["wrap", "unwrap"] {
        let ended = person.kennel(&[word, "--yes", "--file", "mcp.json"]);
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    }
    assert_eq!(person.read(FILE), text);
    let state = person.file("home/.local/state/kennel");
    assert!(!state.exists(), "the last one removes the lock, too");
}

#[test]
fn whatever_wrap_and_unwrap_do_at_once_the_next_unwrap_gives_back_every_byte() {
    let person = Person::new();
    let text = text(&person);
    for _ in 0..count(200) {
        person.write(FILE, &text);
        let wrap = start(&person, "wrap").wait_with_output().unwrap();
        assert!(wrap.status.success(), "{wrap:?}");
        for one in [start(&person, "unwrap"), start(&person, "wrap")] {
            one.wait_with_output().unwrap();
        }
        let now = person.read(FILE);
        let ended = person.kennel(&["unwrap", "--yes", "--file", "mcp.json"]);
        if now != text {
            assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
            assert_eq!(person.read(FILE), text, "it was: {now}");
        }
        assert!(person.kept().is_empty(), "{:?}", person.kept());
    }
}
