//! A peer in another pid namespace than the daemon: whether its process can be seen or not, it is not served.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use kennel_testkit::{Client, DEADLINE, Scope, wait_for};

use crate::stage::{key_dir, logs, serves, shared_with};

mod needs_root {
    use super::*;

    /// `unshare` with a session in a pid namespace of its own: its daemon is there too, and sees nobody outside.
    fn inside(scope: &Scope, off: &str, options: &[&str]) -> Client {
        let session = shared_with(scope, options);
        let mut command = scope.command("unshare");
        command
            .args(["--pid", "--fork", "--kill-child", "--mount-proc", "--"])
            .args(["sh", "-c", "\"$@\"; sleep 1000", "sh"])
            .arg(session.get_program())
            .args(session.get_args())
            .env("TESTKIT_ROLL", scope.roll())
            .env("KENNEL_FEATURES_OFF", off);
        Client::begin(&mut command)
    }

    /// A connection from outside, which says this line and no more.
    fn caller(scope: &Scope, line: &str) -> UnixStream {
        let socket = socket_of(scope);
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        (&stream).write_all(line.as_bytes()).unwrap();
        stream
    }

    /// Whatever the daemon can see of it.
    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn a_bare_client_of_another_pid_namespace_is_not_served() {
        for (label, off) in [("seen", ""), ("unseen", "peer-pidfd")] {
            let scope = Scope::new(label);
            let mut session = inside(&scope, off, &["--linger", "1h"]);
            serves(&mut session);
            let caller = caller(&scope, ECHO);
            let answer: serde_json::Value = serde_json::from_str(&line_of(&caller)).unwrap();
            assert_eq!(answer["id"], 1);
            let why = answer["error"]["message"].as_str().unwrap();
            assert!(why.contains("not served here"), "{why}");
            assert_eq!(line_of(&caller), "");
            logs(&scope, "a client without a hello is not served here");
            serves(&mut session);
        }
    }
}

const ECHO: &str = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"echo\",\"params\":[1]}\n";

fn socket_of(scope: &Scope) -> PathBuf {
    wait_for("a socket", || {
        let entries = std::fs::read_dir(key_dir(scope)).ok()?;
        let mut paths = entries.map(|entry| entry.unwrap().path());
        paths.find(|path| path.extension().is_some_and(|end| end == "sock"))
    })
}

fn line_of(stream: &UnixStream) -> String {
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line
}
