//! State directories and legacy locks: held for the server's life, and named to whoever wants them.

use std::os::fd::AsFd;

use kennel_testkit::{Scope, wait_for};
use rustix::fs::FlockOperation;

use crate::stage::{Guarded, ends_with, guard, kill, listing, owner};

#[test]
fn state_is_held_for_the_servers_life_however_it_is_spelled() {
    let scope = Scope::new("state");
    let dir = scope.path("state");
    std::fs::create_dir(&dir).unwrap();
    std::os::unix::fs::symlink(&dir, scope.path("link")).unwrap();
    let (dir, link) = (dir.to_str().unwrap().to_owned(), scope.path("link"));
    let mut owner = owner(&scope);
    let options = ["--state", &dir, "--owner-pid", &owner.id().to_string()];
    let mut guarded = Guarded::start(&scope, &options);
    for spelling in [&dir[..], link.to_str().unwrap()] {
        let (_, stderr) = ends_with(
            1,
            &mut guard(&scope, &["--state", spelling], &["127.0.0.1:0"]),
        );
        let named = format!("pid {} (tk-ports", guarded.child.id());
        assert!(
            stderr.contains("is in use") && stderr.contains(&named),
            "{stderr}"
        );
    }
    // The library sees the same lock: a server that guards itself is refused, too.
    let held = kennel_guard_probe(&scope, &dir);
    assert!(held.contains("is held by"), "{held}");
    kill(&mut owner);
    guarded.ends();
    let mut next = Guarded::start(&scope, &["--state", &dir]);
    assert!(next.child.try_wait().unwrap().is_none());
}

/// What a guarded server that wants `store` is told.
fn kennel_guard_probe(scope: &Scope, store: &str) -> String {
    let mut command = scope.command(kennel_testkit::bin("tk-guarded"));
    let ended = kennel_testkit::run(command.arg(format!("store={store}")).arg("parent=off"));
    ended.stdout
}

#[test]
fn a_legacy_lock_is_held_beside_new_ones_and_keeps_old_ones_out() {
    let scope = Scope::new("legacy");
    let path = scope.path("old.lock");
    let legacy = path.to_str().unwrap();
    // Missing: skipped, and not created.
    let first = Guarded::start(&scope, &["--legacy-lock", legacy]);
    assert!(!path.exists());
    drop(first);
    std::fs::write(&path, "4711\n").unwrap();
    let old = std::fs::File::open(&path).unwrap();
    let lock = |operation| rustix::fs::flock(old.as_fd(), operation);
    let exclusive = FlockOperation::NonBlockingLockExclusive;
    lock(exclusive).unwrap();
    let (_, stderr) = ends_with(
        1,
        &mut guard(&scope, &["--legacy-lock", legacy], &["127.0.0.1:0"]),
    );
    assert!(
        stderr.contains("an earlier release of the server runs"),
        "{stderr}"
    );
    assert!(
        stderr.contains(&format!("pid {}", std::process::id())),
        "{stderr}"
    );
    lock(FlockOperation::Unlock).unwrap();
    let one = Guarded::start(&scope, &["--legacy-lock", legacy]);
    let other = Guarded::start(&scope, &["--legacy-lock", legacy]);
    assert!(lock(exclusive).is_err(), "an old one is kept out");
    drop(one);
    assert!(lock(exclusive).is_err(), "still");
    drop(other);
    wait_for("the lock to be free", || lock(exclusive).ok());
    assert_eq!(
        std::fs::read_to_string(&path).unwrap(),
        "4711\n",
        "never written"
    );
}

#[test]
fn the_runtime_directory_is_held_so_that_cleaners_leave_it_alone() {
    let scope = Scope::new("held-dir");
    let guarded = Guarded::start(&scope, &[]);
    // Long after everything that happens at the start.
    wait_for("it to be listed as serving", || {
        let shown = listing(&scope);
        shown[0]["servers"][0]["pid"].is_number().then_some(())
    });
    let dir = std::fs::File::open(scope.runtime_dir()).unwrap();
    let exclusive = || rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive);
    assert!(exclusive().is_err(), "as long as the guard lives");
    drop(guarded);
    wait_for("the directory to be free", || exclusive().ok());
}
