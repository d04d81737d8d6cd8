//! What a session leaves on disk: nothing outside the runtime directory until there is something
//! worth keeping.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use kennel_testkit::{Scope, run};
use serde_json::json;

use crate::common::{add, notes, serving, tree};

#[test]
fn a_handshake_and_reads_create_no_file_outside_the_runtime_directory() {
    let scope = Scope::new("footprint");
    let before = outside_runtime(&scope);
    let db = scope.path("data/deep/notes.db");
    let mut server = serving(&scope, &db);
    server.request("tools/list", json!({}));
    server.call("list_notes", json!({}));
    server.call("search_notes", json!({ "query": "x" }));
    server.call("get_note", json!({ "id": 1 }));
    assert_eq!(outside_runtime(&scope), before);
    server.close();
    assert!(server.wait().status.success());
    assert_eq!(outside_runtime(&scope), before);
}

#[test]
fn the_database_appears_with_the_first_note_and_for_this_user_only() {
    let scope = Scope::new("first-note");
    let db = scope.path("data/deep/notes.db");
    let mut server = serving(&scope, &db);
    add(&mut server, "something worth keeping");
    assert_eq!(mode(&scope.path("data")), 0o700);
    assert_eq!(mode(&scope.path("data/deep")), 0o700);
    assert_eq!(mode(&db), 0o600);
    server.close();
    assert!(server.wait().status.success());
    // A clean end folds SQLite's journal into the database.
    assert_eq!(tree(&scope.path("data/deep")), [db]);
}

#[test]
fn status_creates_nothing_at_all() {
    let scope = Scope::new("status");
    let db = scope.path("data/notes.db");
    let before = tree(scope.dir());
    let ended = run(&mut notes(&scope, "status", &db));
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(ended.stdout.contains("free"), "{}", ended.stdout);
    assert_eq!(tree(scope.dir()), before);
}

#[test]
fn status_lists_the_files_and_names_who_has_the_store_open() {
    let scope = Scope::new("status-held");
    let db = scope.path("notes.db");
    let mut server = serving(&scope, &db);
    add(&mut server, "something worth keeping");
    let before = tree(scope.dir());
    let ended = run(&mut notes(&scope, "status", &db));
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    for shown in [
        "notes.db  ",
        "notes.db-wal  ",
        "notes.db-shm  ",
        "bytes",
        &server.pid().to_string(),
    ] {
        assert!(ended.stdout.contains(shown), "{shown}: {}", ended.stdout);
    }
    let json = crate::common::status(&scope, &db);
    assert_eq!(json["free"], false);
    assert_eq!(json["held"][0]["pid"], server.pid());
    assert_eq!(json["files"]["database"].as_array().unwrap().len(), 3);
    assert_eq!(tree(scope.dir()), before);
}

fn outside_runtime(scope: &Scope) -> Vec<PathBuf> {
    let mut paths = tree(scope.dir());
    paths.retain(|path| !path.starts_with(scope.runtime_dir()));
    paths
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}
