//! The state of servers: removed only if a person approved its path, and only if it is plainly state.

use std::path::Path;

use kennel_testkit::{Scope, run};

use crate::{everything, full, guarded, kennel, stops};

#[test]
fn state_that_was_declared_goes_with_everything_else_and_what_was_not_stays() {
    let scope = Scope::new("purge-state");
    let declared = full(scope.path("data/thing"));
    let undeclared = full(scope.path("data/other"));
    std::os::unix::fs::symlink(&undeclared, declared.join("link")).unwrap();
    let link = scope.path("data/link");
    std::os::unix::fs::symlink(&declared, &link).unwrap();
    let guard = guarded(&scope, "thing", &link);

    // While it runs, it can be looked at, and no more.
    let dry = kennel(&scope, &["purge", "--dry-run"]);
    assert_eq!(dry.code(), Some(0), "{}", dry.stderr);
    for words in ["--state", "data/thing", "in use by thing (pid "] {
        assert!(dry.stdout.contains(words), "{words}: {}", dry.stdout);
    }
    let told = kennel(&scope, &["purge", "--dry-run", "--json"]).stdout;
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert!(told["in_use"].as_str().unwrap().contains("thing"), "{told}");
    for words in [&["purge", "--yes"][..], &["purge", "thing", "--yes"]] {
        assert_eq!(kennel(&scope, words).code(), Some(2));
    }
    assert!(declared.join("below/data").exists());

    stops(guard);
    let ended = kennel(&scope, &with_state(&["purge", "--yes"], &declared));
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(!declared.exists() && !scope.runtime_dir().exists());
    assert!(undeclared.join("below/data").exists(), "behind a link");
    assert!(link.symlink_metadata().is_ok(), "nobody declared the link");
}

/// The words of a purge that also names the state at `path`.
fn with_state<'a>(words: &[&'a str], path: &'a Path) -> Vec<&'a str> {
    let path = path.to_str().unwrap();
    [words, &["--with-state", path]].concat()
}

#[test]
fn yes_alone_keeps_what_a_planted_note_calls_a_servers_state() {
    let scope = Scope::new("purge-planted");
    let (victim, real) = (full(scope.path("data/mine")), full(scope.path("data/real")));
    stops(guarded(&scope, "thing", &real));
    stops(guarded(&scope, "other", &victim));
    // Whoever wrote it: the note is all that says so.
    for words in [&["purge", "--yes"][..], &["purge", "thing", "--yes"]] {
        let told = kennel(&scope, &["purge", "--dry-run"]).stdout;
        assert!(told.contains("data/mine"), "{told}");
        let ended = kennel(&scope, &[words, &["--json"]].concat());
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
        assert!(
            ended.stderr.contains("--with-state PATH"),
            "{}",
            ended.stderr
        );
        let told: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
        assert!(told["kept"].to_string().contains("data/real"), "{told}");
        assert!(!told["items"].to_string().contains("data/real"), "{told}");
        assert!(victim.join("below/data").exists() && real.join("below/data").exists());
        stops(guarded(&scope, "thing", &real));
        stops(guarded(&scope, "other", &victim));
    }
    // Neither does a path that is not exactly one of them, nor what holds or is in one.
    for wrong in ["data", "data/real/below", "data/none"] {
        let wrong = scope.path(wrong);
        let ended = kennel(&scope, &with_state(&["purge", "--yes"], &wrong));
        assert_eq!(ended.code(), Some(2), "{}", ended.stderr);
        assert!(ended.stderr.contains("--dry-run"), "{}", ended.stderr);
    }
    let ended = kennel(&scope, &with_state(&["purge", "--yes"], &real));
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(!real.exists() && victim.join("below/data").exists());
    assert!(
        !scope.runtime_dir().exists(),
        "all that is kennel's is gone"
    );
}

#[test]
fn the_state_of_one_server_goes_and_that_of_another_stays() {
    let scope = Scope::new("purge-state");
    let (one, other) = (full(scope.path("data/one")), full(scope.path("data/other")));
    for (name, state) in [("one", &one), ("other", &other)] {
        stops(guarded(&scope, name, state));
    }
    let ended = kennel(&scope, &with_state(&["purge", "one", "--yes"], &one));
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(!one.exists() && other.join("below/data").exists());
    assert_eq!(kennel(&scope, &["purge", "one", "--yes"]).code(), Some(3));

    // Held by one who is in no record, it stays as well.
    let mut stores = everything(scope.runtime_dir().join("stores")).into_iter();
    let lock = stores.find(|path| path.ends_with("lock")).unwrap();
    let file = std::fs::File::open(&lock).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let words = with_state(&["purge", "other", "--yes"], &other);
    assert_eq!(kennel(&scope, &words).code(), Some(2));
    assert!(other.join("below/data").exists());
    drop(file);
    assert_eq!(kennel(&scope, &words).code(), Some(0));
    assert!(!other.exists());
}

#[test]
fn a_state_behind_a_directory_that_became_a_link_is_kept_and_so_is_its_note() {
    let scope = Scope::new("purge-link");
    let state = full(scope.path("data/thing"));
    stops(guarded(&scope, "thing", &state));
    let moved = scope.path("moved");
    std::fs::rename(scope.path("data"), &moved).unwrap();
    std::os::unix::fs::symlink(&moved, scope.path("data")).unwrap();
    let words = with_state(&["purge", "--yes"], &state);
    let refused = kennel(&scope, &words);
    assert_ne!(refused.code(), Some(0), "{}", refused.stdout);
    assert!(
        refused.stderr.contains("was replaced by a link"),
        "{}",
        refused.stderr
    );
    assert!(moved.join("thing/below/data").exists());

    // It is still known as the state of the server.
    std::fs::remove_file(scope.path("data")).unwrap();
    std::fs::rename(&moved, scope.path("data")).unwrap();
    let removed = kennel(&scope, &words);
    assert_eq!(removed.code(), Some(0), "{}", removed.stderr);
    assert!(!state.exists() && !scope.runtime_dir().exists());
}

/// Writes down that the only store there is is the state of a server, as an earlier build did for any directory.
fn declare_as_before(scope: &Scope, state: &Path) {
    use std::os::unix::ffi::OsStrExt;
    let stores = everything(scope.runtime_dir().join("stores"));
    let own = stores.iter().find(|path| path.is_dir()).unwrap();
    let note = [b"thing\0", state.as_os_str().as_bytes()].concat();
    std::fs::write(own.join("declared"), note).unwrap();
}

/// A guard with this state that starts its server in `here`, until it is on record; what it said on stderr.
fn guard_says(scope: &Scope, here: &Path, state: &str) -> String {
    let mut command = scope.command(env!("CARGO_BIN_EXE_kennel"));
    command
        .args(["guard", "--name", "thing", "--state", state, "--", "true"])
        .current_dir(here);
    run(&mut command).stderr
}

#[test]
fn a_home_or_a_work_tree_is_no_servers_state_whatever_was_declared() {
    let scope = Scope::new("purge-state");
    let work = full(scope.path("work"));
    std::fs::create_dir(work.join(".git")).unwrap();
    let inside = full(scope.path("plain"));
    let home = full(scope.path("home"));
    for (here, state, dir, reason) in [
        (&work, ".", &work, "work"),
        (&home, "../work", &work, "it has .git"),
        (&inside, ".", &inside, "working directory"),
        (&work, "../home", &home, "a home"),
        (&work, "..", &scope.dir().to_owned(), "a home"),
    ] {
        let said = guard_says(&scope, here, state);
        assert!(said.contains(reason), "{state}: {said}");
        assert!(
            said.contains("give a directory that contains nothing else"),
            "{said}"
        );
        let before = everything(dir.clone());
        if state == "." && dir == &inside {
            // Elsewhere it is plain state; it was not declared, and so it stays.
            assert_eq!(kennel(&scope, &["purge", "--yes"]).code(), Some(0));
            assert_eq!(everything(dir.clone()), before);
            continue;
        }
        declare_as_before(&scope, dir);
        let ended = kennel(&scope, &["purge", "--yes"]);
        assert!(
            ended.stderr.contains("and is kept"),
            "{state}: {}",
            ended.stderr
        );
        assert!(dir.join("below/data").exists() || dir == scope.dir());
        assert!(work.join(".git").exists() && home.join("below/data").exists());
    }
}

#[test]
fn a_state_in_or_around_that_of_a_server_that_runs_stays_and_its_holder_is_named() {
    for (purged, running) in [("data", "data/b"), ("data/b", "data")] {
        let scope = Scope::new("purge-around");
        let (outer, inner) = (full(scope.path("data")), full(scope.path("data/b")));
        stops(guarded(&scope, "alpha", &scope.path(purged)));
        let beta = guarded(&scope, "beta", &scope.path(running));
        let state = scope.path(purged);
        let words = with_state(&["purge", "alpha", "--yes", "--json"], &state);
        // Its declaration may be missing; its lock is not.
        for declared in [true, false] {
            if !declared {
                let stores = everything(scope.runtime_dir().join("stores"));
                let key = kennel_guard::store_key(&scope.path(running));
                let note = stores
                    .iter()
                    .find(|path| path.ends_with(format!("{key}/declared")));
                std::fs::remove_file(note.unwrap()).unwrap();
            }
            let ended = kennel(&scope, &words);
            assert_eq!(ended.code(), Some(2), "{purged}: {}", ended.stderr);
            let holder = format!("pid {}", beta.id());
            assert!(ended.stderr.contains(&holder), "{}", ended.stderr);
            let told: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
            assert_eq!(told["removed"], false);
            for dir in [&outer, &inner] {
                assert!(dir.join("below/data").exists(), "{purged}");
            }
        }
        stops(beta);
        let ended = kennel(&scope, &words);
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
        assert!(!state.exists());
    }
}

#[test]
fn a_state_whose_path_is_not_utf_8_is_told_to_programs_too() {
    use std::os::unix::ffi::OsStrExt;
    let scope = Scope::new("purge-odd");
    let odd = scope
        .path("data")
        .join(std::ffi::OsStr::from_bytes(b"odd\xff"));
    stops(guarded(&scope, "thing", &full(odd.clone())));
    for words in [
        &["purge", "--json", "--dry-run"][..],
        &["purge", "--json", "--yes"],
    ] {
        let ended = kennel(&scope, words);
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
        let told: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
        assert!(told.to_string().contains("data/odd\u{fffd}"), "{told}");
    }
    assert!(odd.exists());
}
