//! How these tests start `notes`, and what they look at.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use kennel_testkit::{Client, Scope, bin, run};
use serde_json::{Value, json};

/// `notes` with a verb, on a store.
pub(crate) fn notes(scope: &Scope, verb: &str, db: impl AsRef<Path>) -> Command {
    let mut command = scope.command(bin("notes"));
    command.arg(verb).arg("--db").arg(db.as_ref());
    command
}

/// A server on this store, past its handshake.
#[track_caller]
pub(crate) fn serving(scope: &Scope, db: impl AsRef<Path>) -> Client {
    Client::begin(&mut notes(scope, "serve", db))
}

/// Makes the store exist, with one note in it, and leaves nobody holding it.
#[track_caller]
pub(crate) fn write_a_note(scope: &Scope, db: impl AsRef<Path>) {
    let mut server = serving(scope, db);
    add(&mut server, "something worth keeping");
    server.close();
    assert!(server.wait().status.success());
}

/// Adds a note and returns its number.
#[track_caller]
pub(crate) fn add(server: &mut Client, text: &str) -> i64 {
    let result = server.call("add_note", json!({ "text": text }));
    result["structuredContent"]["id"]
        .as_i64()
        .unwrap_or_else(|| panic!("add_note returns a number: {result}"))
}

/// The texts of all notes, newest first.
#[track_caller]
pub(crate) fn texts(server: &mut Client) -> Vec<String> {
    let result = server.call("list_notes", json!({ "limit": 1_000_000 }));
    let notes = result["structuredContent"]["notes"].as_array();
    notes
        .unwrap_or_else(|| panic!("list_notes returns notes: {result}"))
        .iter()
        .map(|note| note["text"].as_str().expect("a note has a text").to_owned())
        .collect()
}

/// What `notes status --json` says.
#[track_caller]
pub(crate) fn status(scope: &Scope, db: impl AsRef<Path>) -> Value {
    let ended = run(notes(scope, "status", db).arg("--json"));
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    serde_json::from_str(&ended.stdout).expect("status prints one JSON object")
}

/// The store's lock file in the runtime directory, as `status` lists it.
#[track_caller]
pub(crate) fn lock_file(scope: &Scope, db: impl AsRef<Path>) -> PathBuf {
    let status = status(scope, db);
    let path = status["files"]["runtime"][0]["path"].as_str();
    PathBuf::from(path.unwrap_or_else(|| panic!("there is a lock file: {status}")))
}

/// Every path below `dir`, sorted.
pub(crate) fn tree(dir: &Path) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    let mut open = vec![dir.to_path_buf()];
    while let Some(dir) = open.pop() {
        for entry in dir.read_dir().expect("the test's own directory") {
            let path = entry.expect("the test's own directory").path();
            if path.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
                open.push(path.clone());
            }
            paths.push(path);
        }
    }
    paths.sort();
    paths
}

/// Lets a random while pass: not to wait for something, but to interrupt it.
pub(crate) fn pause(while_: Duration) {
    #[expect(
        clippy::disallowed_methods,
        reason = "a kill at a random moment needs a random moment"
    )]
    std::thread::sleep(while_);
}

/// Something else than `notes` that holds an exclusive flock, as an old release did.
pub(crate) struct OldHolder(Client);

impl OldHolder {
    /// One process that takes the lock and keeps it.
    #[track_caller]
    pub(crate) fn of(scope: &Scope, file: &Path) -> OldHolder {
        OldHolder::running(
            scope,
            r#"exec flock --no-fork "$0" sh -c 'echo locked; exec sleep 1000'"#,
            file,
        )
    }

    /// One that keeps a lock which a helper took, who has ended: the kernel's list names the helper.
    #[track_caller]
    pub(crate) fn heir_of(scope: &Scope, file: &Path) -> OldHolder {
        OldHolder::running(
            scope,
            r#"exec 9<>"$0"; flock 9; echo locked; exec sleep 1000"#,
            file,
        )
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// Ends it, and with it its lock.
    pub(crate) fn end(mut self) {
        self.0.kill();
    }

    #[track_caller]
    fn running(scope: &Scope, script: &str, file: &Path) -> OldHolder {
        let mut shell = scope.command("sh");
        let mut client = Client::start(shell.args(["-c", script]).arg(file));
        assert_eq!(client.line().as_deref(), Some("locked"));
        OldHolder(client)
    }
}
