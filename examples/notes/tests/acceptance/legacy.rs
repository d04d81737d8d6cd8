//! The lock of older releases: new servers share it, and old ones and new ones keep each other out
//! (lesson 9).

use std::fs;

use kennel_testkit::{Client, Scope, run};

use crate::common::{OldHolder, notes, serving};

#[test]
fn a_store_that_an_old_server_holds_is_refused_with_path_and_holder() {
    let scope = Scope::new("legacy-held");
    let db = scope.path("notes.db");
    for (legacy, flag) in [
        (scope.path("notes.db.lock"), false),
        (scope.path("old.lock"), true),
    ] {
        fs::write(&legacy, "").unwrap();
        let old = OldHolder::of(&scope, &legacy);
        let mut serve = notes(&scope, "serve", &db);
        if flag {
            serve.arg("--legacy-lock").arg(&legacy);
        }
        let ended = run(&mut serve);
        assert_eq!(ended.code(), Some(1), "{}", ended.stderr);
        for named in [legacy.to_str().unwrap(), &old.pid().to_string()] {
            assert!(ended.stderr.contains(named), "{named}: {}", ended.stderr);
        }
        old.end();
        assert!(run(&mut serve).status.success());
        fs::remove_file(&legacy).unwrap();
    }
}

#[test]
fn a_missing_legacy_lock_is_not_created() {
    let scope = Scope::new("legacy-missing");
    let legacy = scope.path("old/notes.lock");
    let mut serve = notes(&scope, "serve", scope.path("notes.db"));
    let server = Client::begin(serve.arg("--legacy-lock").arg(&legacy));
    assert!(!scope.path("old").exists());
    assert!(!scope.path("notes.db.lock").exists());
    drop(server);
}

#[test]
fn new_servers_coexist_on_a_legacy_lock() {
    let scope = Scope::new("legacy-shared");
    let legacy = scope.path("all-stores.lock");
    fs::write(&legacy, "4711\n").unwrap();
    let mut servers: Vec<Client> = ["one.db", "two.db"]
        .into_iter()
        .map(|db| {
            let mut serve = notes(&scope, "serve", scope.path(db));
            Client::begin(serve.arg("--legacy-lock").arg(&legacy))
        })
        .collect();
    for server in &mut servers {
        server.call("list_notes", serde_json::json!({}));
    }
    // Rule 7: it is another program's file, and stays what it was.
    assert_eq!(fs::read(&legacy).unwrap(), b"4711\n");
}

#[test]
fn an_old_server_that_comes_later_is_kept_out() {
    let scope = Scope::new("legacy-later");
    let legacy = scope.path("notes.db.lock");
    fs::write(&legacy, "").unwrap();
    let mut server = serving(&scope, scope.path("notes.db"));
    let old_server = || {
        run(scope
            .command("flock")
            .arg("--nonblock")
            .arg(&legacy)
            .arg("true"))
    };
    assert!(!old_server().status.success());
    server.close();
    assert!(server.wait().status.success());
    assert!(old_server().status.success());
}
