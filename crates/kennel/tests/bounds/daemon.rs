//! Whoever connects to a daemon without a hello, and many who say long lines at once.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;

use kennel_testkit::{Client, Scope};
use serde_json::{Value, json};

use crate::stage::{FAR_TOO_LONG, MAX_LINE, is_modest, say_long, serves, session, the_daemon};

pub(crate) fn connect(scope: &Scope) -> UnixStream {
    let entries = |dir: PathBuf| {
        let entries = std::fs::read_dir(dir).unwrap();
        entries.map(|entry| entry.unwrap().path())
    };
    let mut files = entries(scope.runtime_dir().join("daemons")).flat_map(entries);
    let socket = files.find(|path| path.extension().is_some_and(|it| it == "sock"));
    UnixStream::connect(socket.expect("a socket")).unwrap()
}

#[test]
fn a_client_without_a_hello_fills_no_memory() {
    let scope = Scope::new("bounds-bare");
    let mut client = Client::begin(&mut session(&scope, "always"));
    let daemon = the_daemon(&scope);
    let mut bare = connect(&scope);
    // It may be refused in the middle of it.
    let _ = say_long(&mut bare, 1, FAR_TOO_LONG, false);
    let mut answer = String::new();
    let _ = BufReader::new(&bare).read_line(&mut answer);
    assert!(
        answer.is_empty() || answer.contains("line_too_long"),
        "{answer}"
    );
    serves(&mut client);
    is_modest("the daemon", daemon.pid());
}

#[test]
fn many_who_say_long_lines_at_once_fill_no_memory() {
    let scope = Scope::new("bounds-many");
    let mut client = Client::begin(&mut session(&scope, "always"));
    let daemon = the_daemon(&scope);
    let many: Vec<_> = (0..20)
        .map(|_| {
            let mut bare = connect(&scope);
            std::thread::spawn(move || {
                // None of them ends its line: together they are twenty times too much.
                let begun = br#"{"jsonrpc":"2.0","id":1,"method":"x","params":{"text":""#;
                let _ = bare.write_all(begun);
                for _ in 0..(MAX_LINE >> 20) - 1 {
                    let _ = bare.write_all(&vec![b'x'; 1 << 20]);
                }
                bare
            })
        })
        .collect();
    let many: Vec<UnixStream> = many.into_iter().map(|it| it.join().unwrap()).collect();
    serves(&mut client);
    is_modest("the daemon", daemon.pid());
    drop(many);
}

/// A session whose daemon serves clients without a hello: no credential is in its environment.
pub(crate) fn session_without_secrets(scope: &Scope) -> Command {
    let mut command = session(scope, "always");
    command.env_remove("SECRET_CANARY_TOKEN");
    command
}

/// Connections that have said the beginning of a line, and say no more.
fn half_lines(scope: &Scope, count: usize, before: &str) -> Vec<UnixStream> {
    let half = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":{{"text":"{}"#,
        "x".repeat(200_000)
    );
    let connections = (0..count).map(|_| {
        let mut bare = connect(scope);
        // It may be disconnected in the middle of it.
        let _ = bare.write_all(format!("{before}{half}").as_bytes());
        bare
    });
    connections.collect()
}

#[test]
fn many_connections_without_a_hello_and_with_half_lines_fill_no_memory() {
    let scope = Scope::new("bounds-half");
    let mut client = Client::begin(&mut session_without_secrets(&scope));
    let daemon = the_daemon(&scope);
    // Before their first line, and behind it.
    let ping = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n";
    for before in ["", ping] {
        let many = half_lines(&scope, 300, before);
        serves(&mut client);
        // Another one is let in, and shares.
        let mut other = Client::begin(&mut session_without_secrets(&scope));
        serves(&mut other);
        assert_eq!(
            other.request("pid", json!({}))["result"],
            client.request("pid", json!({}))["result"]
        );
        is_modest("the daemon", daemon.pid());
        drop(many);
    }
}

#[test]
fn of_many_connections_that_say_nothing_the_first_are_turned_away() {
    let scope = Scope::new("bounds-silent");
    let mut client = Client::begin(&mut session(&scope, "always"));
    let mut many: Vec<UnixStream> = (0..300).map(|_| connect(&scope)).collect();
    let mut words = String::new();
    (&many[0]).read_to_string(&mut words).unwrap();
    assert!(words.contains("!lost"), "{words}");
    assert!(words.contains("have not sent their first line"), "{words}");
    serves(&mut client);
    // The last one is still listened to.
    let last = many.last_mut().unwrap();
    last.write_all(b"!ping\n").unwrap();
    let mut answer = String::new();
    BufReader::new(last).read_line(&mut answer).unwrap();
    assert_eq!(answer, "!pong\n");
}

#[test]
fn a_long_line_that_is_malformed_or_a_batch_is_refused_under_its_id() {
    let scope = Scope::new("bounds-odd");
    let mut client = Client::begin(&mut session_without_secrets(&scope));
    let daemon = the_daemon(&scope);
    let long = "x".repeat(6 << 20);
    for line in [
        format!(r#"{{"jsonrpc":"2.0","id":7,"method":"echo","params":[NaN,"{long}"]}}"#),
        format!(r#"{{"jsonrpc":"2.0","method":"echo","params":["{long}"],"id":7,"x":NaN}}"#),
        format!(r#"[{{"jsonrpc":"2.0","id":7,"method":"echo","params":["{long}"]}}]"#),
    ] {
        let mut bare = connect(&scope);
        // Long enough for a busy machine: one that is not answered is found out.
        let patience = std::time::Duration::from_secs(60);
        bare.set_read_timeout(Some(patience)).unwrap();
        let ping = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}";
        bare.write_all(format!("{ping}\n{line}\n").as_bytes())
            .unwrap();
        let mut answers = BufReader::new(&bare).lines().map(Result::unwrap);
        assert!(answers.next().unwrap().contains("result"));
        let refused: Value = serde_json::from_str(&answers.next().unwrap()).unwrap();
        assert_eq!(refused["id"], 7, "{refused}");
        assert_eq!(refused["error"]["data"]["reason"], "line_too_long");
        assert_eq!(refused["error"]["data"]["limit"], 4 << 20, "{refused}");
        serves(&mut client);
    }
    is_modest("the daemon", daemon.pid());
}
