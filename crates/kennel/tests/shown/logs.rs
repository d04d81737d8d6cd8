//! `kennel logs`.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use kennel_sys::runtime_dir::RuntimeDir;
use kennel_testkit::{Client, Scope, bin, run, wait_for};
use serde_json::json;

use crate::stage::{kennel, listing, lose_server, says, server_of, session, shared};

fn key(scope: &Scope) -> String {
    let entries = wait_for("it is listed", || {
        let entries = listing(scope);
        (!entries.is_empty()).then_some(entries)
    });
    entries[0]["key"].as_str().unwrap().to_owned()
}

#[test]
fn what_happened_and_what_the_server_said_is_one_timeline() {
    let scope = Scope::new("logs");
    let mut client = shared(&scope);
    let server = server_of(&mut client);
    client.request("say", json!({"stderr": "a complaint"}));
    wait_for("it is in the log", || {
        says(&scope, &["logs", "tk-server"])
            .contains("a complaint")
            .then_some(())
    });
    lose_server(&mut client);
    let said = says(&scope, &["logs", "tk-server"]);
    let at = |words: &str| {
        said.find(words)
            .unwrap_or_else(|| panic!("{words}: {said}"))
    };
    let started = at(&format!(" kennel  server {server} runs"));
    let complained = at(" server  a complaint");
    let lost = at(" kennel  a server is lost");
    // That it runs is told by its warden: it may have said something before.
    assert!(started < lost && complained < lost, "{said}");
    let stamps: Vec<&str> = said.lines().map(|line| &line[..24]).collect();
    assert!(stamps.is_sorted(), "{said}");
}

/// Writes the log of a daemon with this key, and its record if there is one.
fn plant(scope: &Scope, key: &str, record: Option<&serde_json::Value>) {
    let user = RuntimeDir::ensure(scope.runtime_dir()).unwrap();
    let dir = user.subdir("daemons").unwrap().subdir(key).unwrap();
    let line = format!("2030-01-01T00:00:00.000Z said by {key}\n");
    dir.write_whole("log", line.as_bytes()).unwrap();
    if let Some(record) = record {
        let text = serde_json::to_vec(record).unwrap();
        dir.write_whole("daemon.json", &text).unwrap();
    }
}

#[test]
fn a_whole_name_comes_before_the_first_letters_of_the_key_of_another() {
    let scope = Scope::new("logs-name");
    std::os::unix::fs::symlink(bin("tk-server"), scope.path("abcd1")).unwrap();
    let mut command = kennel(&scope);
    command
        .args(["run", "--share", "always", "--linger", "0s"])
        .args(["--stop-after", "50ms,50ms", "--"])
        .arg(scope.path("abcd1"))
        .env("TESTKIT_ROLL", scope.roll());
    let mut client = Client::begin(&mut command);
    let server = server_of(&mut client);
    let record = wait_for("it is known by its name", || {
        let daemon = scope.runtime_dir().join("daemons").join(key(&scope));
        let text = std::fs::read(daemon.join("daemon.json")).ok()?;
        let record: serde_json::Value = serde_json::from_slice(&text).ok()?;
        (record["name"] == "abcd1").then_some(record)
    });
    let mut other = record;
    other["name"] = json!("other");
    other["since"] = json!(other["since"].as_u64().unwrap() + 1000);
    plant(&scope, "abcd1fffffffffff", Some(&other));

    let its = format!("server {server} runs");
    let said = says(&scope, &["logs", "abcd1"]);
    assert!(said.contains(&its) && !said.contains("said by"), "{said}");
    let said = says(&scope, &["logs", "abcd1f"]);
    assert!(said.contains("said by abcd1fffffffffff"), "{said}");
    // Of one that has ended, too.
    client.close();
    client.wait();
    wait_for("daemon and all are gone", || {
        scope.survivors().is_empty().then_some(())
    });
    let said = says(&scope, &["logs", "abcd1"]);
    assert!(said.contains(&its) && !said.contains("said by"), "{said}");
}

#[test]
fn the_first_letters_of_several_keys_show_no_log_and_the_keys_are_listed() {
    let scope = Scope::new("logs-several");
    let keys = ["beef000000000000", "beef111111111111"];
    for key in keys {
        plant(&scope, key, None);
    }
    let ended = run(kennel(&scope).args(["logs", "beef"]));
    assert_eq!(ended.code(), Some(2), "{}", ended.stderr);
    assert_eq!(ended.stdout, "");
    for key in keys {
        assert!(ended.stderr.contains(key), "{}", ended.stderr);
    }
    for (word, key) in [("beef0", keys[0]), (keys[1], keys[1])] {
        let said = says(&scope, &["logs", word]);
        assert!(said.contains(&format!("said by {key}")), "{said}");
    }
}

#[test]
fn since_leaves_out_what_is_older() {
    let scope = Scope::new("logs-since");
    let _client = shared(&scope);
    let key = key(&scope);
    let path = scope.runtime_dir().join("daemons").join(&key).join("log");
    let old = "2020-01-01T00:00:00.000Z of old\n";
    let log = std::fs::read_to_string(&path).unwrap();
    std::fs::write(path.with_extension("1"), old).unwrap();
    let all = says(&scope, &["logs", &key]);
    assert!(all.contains("of old"), "{all}");
    let late = says(&scope, &["logs", &key, "--since", "10m"]);
    assert!(!late.contains("of old"), "{late}");
    let first = log.lines().next().unwrap();
    assert!(late.contains(&first[..24]), "{late}");
    let none = says(&scope, &["logs", &key, "--since", "0"]);
    assert_eq!(none, "");
    let wrong = run(kennel(&scope).args(["logs", &key, "--since", "soon"]));
    assert_eq!(wrong.code(), Some(2));
    assert!(
        wrong.stderr.contains("10m") || wrong.stderr.contains("5m"),
        "{}",
        wrong.stderr
    );
}

#[test]
fn whoever_follows_hears_what_is_said_later_in_another_file_too() {
    let scope = Scope::new("logs-follow");
    let mut client = shared(&scope);
    let key = key(&scope);
    let mut follower = Client::start(kennel(&scope).args(["logs", &key, "-f"]));
    let long = "x".repeat(8 * 1024);
    for round in 0..300 {
        let words = format!("complaint {round} {long}");
        client.request("say", json!({"stderr": words}));
    }
    let place = scope.runtime_dir().join("daemons").join(&key);
    wait_for("it has begun anew", || {
        place.join("log.1").exists().then_some(())
    });
    for round in 0..300 {
        let wanted = format!(" server  complaint {round} ");
        while !follower.line().unwrap().contains(&wanted) {}
    }
    follower.kill();
}

#[test]
fn a_session_on_its_own_has_no_log_and_is_told_where_its_words_are() {
    let scope = Scope::new("logs-solo");
    let _client = session(&scope, &["--share", "never"]);
    wait_for("it is listed", || {
        (!listing(&scope).is_empty()).then_some(())
    });
    let ended = run(kennel(&scope).args(["logs", "tk-server"]));
    assert_eq!(ended.code(), Some(1));
    assert!(ended.stderr.contains("goes to its app"), "{}", ended.stderr);
    assert_eq!(run(kennel(&scope).args(["logs", "nobody"])).code(), Some(3));
}

#[test]
fn a_log_that_cannot_be_read_is_named_with_the_reason() {
    let scope = Scope::new("logs-unreadable");
    let _client = shared(&scope);
    let key = key(&scope);
    let path = scope.runtime_dir().join("daemons").join(&key).join("log");
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("elsewhere", &path).unwrap();
    for words in [&["logs", &key][..], &["logs", &key, "-f"]] {
        let ended = run(kennel(&scope).args(words));
        assert_eq!(ended.code(), Some(1), "{}", ended.stdout);
        let named = format!("cannot open {}: a symbolic link", path.display());
        assert!(ended.stderr.contains(&named), "{}", ended.stderr);
    }
}

#[test]
fn whoever_follows_a_silent_log_ends_with_its_reader() {
    let scope = Scope::new("logs-unread");
    let _client = shared(&scope);
    let key = key(&scope);
    // Nobody writes to the log of a daemon that has ended.
    says(&scope, &["stop", &key]);
    let lines = says(&scope, &["logs", &key]).lines().count();
    let mut follower = kennel(&scope)
        .args(["logs", &key, "-f"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut reader = BufReader::new(follower.stdout.take().unwrap());
    for _ in 0..lines {
        reader.read_line(&mut String::new()).unwrap();
    }
    drop(reader);
    let ended = wait_for("it ends", || follower.try_wait().unwrap());
    assert_eq!(ended.code(), Some(0));
}
