//! Whoever connects to a daemon without a hello, and many who say long lines at once.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use kennel_testkit::{Client, Scope};

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
