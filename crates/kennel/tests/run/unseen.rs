//! A peer whose process cannot be seen, for it lives in another pid namespace: it is believed as long as it speaks,
//! or somebody is provably alive.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use kennel_testkit::{Client, DEADLINE, Scope, wait_for};

use crate::stage::{logs, meeting_place, serves, shared_with, the_daemon};

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

    #[test]
    fn a_silent_peer_of_another_pid_namespace_falls_to_the_backstop() {
        let scope = Scope::new("unseen");
        let options = ["--linger", "1h", "--max-idle", "1s"];
        let mut session = inside(&scope, "peer-pidfd", &options);
        serves(&mut session);
        let daemon = the_daemon(&scope);
        let unseen = caller(&scope, ECHO);
        assert_eq!(line_of(&unseen), ANSWER);
        pause(Duration::from_secs(2));
        assert!(daemon.is_alive(), "somebody is provably alive");
        // Nobody is left but one that may be there or not, and says nothing.
        session.close();
        assert!(daemon.wait(Some(DEADLINE)).unwrap());
        logs(&scope, "no client provably alive");
        assert_eq!(line_of(&unseen), "", "it is told by the end");
    }

    #[test]
    fn a_silent_peer_of_another_pid_namespace_that_can_be_seen_stays() {
        if !kennel_sys::kernel::features().peer_pidfd {
            return;
        }
        let scope = Scope::new("seen");
        let options = ["--linger", "1h", "--max-idle", "1s"];
        let mut session = inside(&scope, "", &options);
        serves(&mut session);
        let daemon = the_daemon(&scope);
        let seen = caller(&scope, ECHO);
        assert_eq!(line_of(&seen), ANSWER);
        session.close();
        logs(&scope, "left: ");
        pause(Duration::from_secs(3));
        assert!(daemon.is_alive(), "rule 3");
        (&seen).write_all(ECHO.as_bytes()).unwrap();
        assert_eq!(line_of(&seen), ANSWER);
    }
}

const ECHO: &str = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"echo\",\"params\":[1]}\n";
const ANSWER: &str = "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":[1]}\n";

fn socket_of(scope: &Scope) -> PathBuf {
    wait_for("a socket", || {
        let entries = std::fs::read_dir(meeting_place(scope)).ok()?;
        let mut paths = entries.map(|entry| entry.unwrap().path());
        paths.find(|path| path.extension().is_some_and(|end| end == "sock"))
    })
}

fn line_of(stream: &UnixStream) -> String {
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line
}

fn pause(time: Duration) {
    kennel_sys::events::sleep(&[], &[], Some(time)).unwrap();
}
