//! The cleaner of temporary files that most machines run every night.

use std::ffi::OsString;
use std::path::Path;

use kennel_testkit::{Client, Scope, run, tool, wait_for};

use crate::stage::{key_dir, listing, logs, server_of, serves, shared, solo, the_daemon};

/// What `systemd-tmpfiles --clean` would do tonight to everything in `dir`, were it old enough.
fn clean(scope: &Scope, systemd_tmpfiles: &Path, dir: &Path) {
    let fragment = scope.path("clean.conf");
    // An age of 0: all of it is old enough.
    std::fs::write(&fragment, format!("d {} - - - 0\n", dir.display())).unwrap();
    let mut command = scope.command(systemd_tmpfiles);
    let ended = run(command.arg("--clean").arg(&fragment));
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
}

#[test]
fn a_cleaner_of_temporary_files_leaves_a_living_daemon_and_session_alone() {
    let Some(systemd_tmpfiles) = tool("systemd-tmpfiles") else {
        return;
    };
    let scope = Scope::new("cleaner");
    let abandoned = scope.path("abandoned/daemons/cafe");
    std::fs::create_dir_all(&abandoned).unwrap();
    std::fs::write(abandoned.join("daemon.json"), "{}").unwrap();
    let mut client = Client::begin(&mut shared(&scope));
    let (daemon, server) = (the_daemon(&scope), server_of(&mut client));
    let files = |scope: &Scope| {
        let entries = std::fs::read_dir(key_dir(scope)).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name());
        // What is being written has a name of its own until it is whole.
        let whole = |name: &OsString| !name.as_encoded_bytes().starts_with(b".");
        let mut names: Vec<OsString> = names.filter(whole).collect();
        names.sort();
        names
    };
    wait_for("its state is written", || {
        let written = listing(&scope)[0]["servers"].as_array().map(Vec::len) == Some(1);
        written.then_some(())
    });
    let before = files(&scope);

    clean(&scope, &systemd_tmpfiles, scope.dir());
    assert!(!scope.path("abandoned").exists(), "it cleans");
    assert_eq!(files(&scope), before);
    serves(&mut client);
    assert_eq!(server_of(&mut client).pid(), server.pid());

    // Nobody is there but the daemon and the server it keeps for the next one.
    client.close();
    client.wait();
    logs(&scope, "left: ");
    clean(&scope, &systemd_tmpfiles, scope.dir());
    let mut newcomer = Client::begin(&mut shared(&scope));
    serves(&mut newcomer);
    assert_eq!(the_daemon(&scope).pid(), daemon.pid());
}

#[test]
fn a_cleaner_of_temporary_files_leaves_a_session_of_its_own_on_record() {
    let Some(systemd_tmpfiles) = tool("systemd-tmpfiles") else {
        return;
    };
    let scope = Scope::new("cleaner-solo");
    let mut client = Client::begin(&mut solo(&scope));
    serves(&mut client);
    wait_for("it is on record", || {
        (listing(&scope).len() == 1).then_some(())
    });
    clean(&scope, &systemd_tmpfiles, scope.dir());
    assert_eq!(listing(&scope).len(), 1);
    serves(&mut client);
    client.close();
    client.wait();
    // Nobody is left in it: it may go.
    clean(&scope, &systemd_tmpfiles, scope.dir());
    assert!(!scope.runtime_dir().exists());
}
