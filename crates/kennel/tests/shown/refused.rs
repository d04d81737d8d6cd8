//! A directory in the runtime directory that is refused hides nothing but what is in it.

use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt};
use std::path::PathBuf;

use kennel_testkit::{Scope, run, wait_for};

use crate::stage::{kennel, server_of, session, shared};

/// One of each kind that is refused, below `daemons/` and `guards/`.
fn plant(scope: &Scope) -> Vec<PathBuf> {
    let daemons = scope.runtime_dir().join("daemons");
    let guards = scope.runtime_dir().join("guards");
    let make = |path: &PathBuf, mode| {
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(mode).create(path).unwrap();
    };
    make(&guards, 0o700);
    let loose = daemons.join("0000aaaabbbbcccc");
    let guard = guards.join("77");
    for path in [&loose, &guard] {
        make(path, 0o755);
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    }
    let (file, link) = (daemons.join("a-file"), daemons.join("a-link"));
    std::fs::write(&file, "").unwrap();
    std::os::unix::fs::symlink("/", &link).unwrap();
    vec![loose, guard, file, link]
}

#[test]
fn a_directory_that_is_refused_is_named_and_everything_else_is_listed() {
    let scope = Scope::new("refused");
    let (mut one, mut other) = (shared(&scope), session(&scope, &["--share", "never"]));
    for client in [&mut one, &mut other] {
        server_of(client);
    }
    let planted = plant(&scope);
    let names_all = |words: &[&str], said: &str| {
        for path in &planted {
            let path = path.to_str().unwrap();
            assert!(said.contains(path), "{words:?} {path}: {said}");
        }
    };
    wait_for("both are listed", || {
        let words = ["ps", "--json"];
        let listed = run(kennel(&scope).args(words));
        assert_eq!(listed.code(), Some(0), "{}", listed.stderr);
        names_all(&words, &listed.stderr);
        let entries: Vec<serde_json::Value> = serde_json::from_str(&listed.stdout).unwrap();
        (entries.len() == 2).then_some(())
    });
    for words in [
        &["ps"][..],
        &["logs", "tk-server"],
        &["reap"],
        &["stop", "nobody-is-called-so"],
    ] {
        let told = run(kennel(&scope).args(words));
        names_all(words, &told.stderr);
        let expected = if words[0] == "stop" { 3 } else { 0 };
        assert_eq!(told.code(), Some(expected), "{words:?}: {}", told.stderr);
    }
    let doctor = run(kennel(&scope).args(["doctor", "--json"]));
    let report: serde_json::Value = serde_json::from_str(&doctor.stdout).unwrap();
    names_all(&["doctor"], &report["findings"].to_string());
    assert!(!doctor.stdout.contains("cannot be used"), "{report}");
    let stopped = run(kennel(&scope).args(["stop", "--all"]));
    assert_eq!(stopped.code(), Some(0), "{}", stopped.stderr);
    for mut client in [one, other] {
        client.close();
        client.wait();
    }
    let purged = run(kennel(&scope).args(["purge", "--yes"]));
    assert_eq!(purged.code(), Some(0), "{}", purged.stderr);
    names_all(&["purge"], &purged.stderr);
    for path in &planted {
        assert!(path.symlink_metadata().is_ok(), "not Kennel's");
    }
}
