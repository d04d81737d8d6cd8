//! Lesson 9, legacy locks: new ones share, and exclude only the old.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Output, Stdio};

use kennel_sys::lock::{LockError, Mode, Probe, Record, legacy};
use kennel_sys::runtime_dir::RuntimeDir;
use kennel_testkit::{Scope, bin};

/// Starts `tk-lock`, which holds the lock until its stdin ends.
fn start(scope: &Scope, how: &str, path: &Path) -> Child {
    let mut child = scope
        .command(bin("tk-lock"))
        .arg(how)
        .arg(path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("another process");
    let mut said = String::new();
    let stdout = child.stdout.as_mut().expect("a pipe");
    BufReader::new(stdout).read_line(&mut said).expect("a line");
    assert_eq!(said, "held\n", "{how}");
    child
}

fn refused(scope: &Scope, how: &str, path: &Path) -> Output {
    let output = scope
        .command(bin("tk-lock"))
        .arg(how)
        .arg(path)
        .stdin(Stdio::null())
        .output()
        .expect("another process");
    assert_eq!(output.status.code(), Some(1), "{how}: {output:?}");
    output
}

fn end(mut child: Child) {
    child.kill().expect("our own child");
    child.wait().expect("our own child");
}

#[test]
fn a_missing_legacy_lock_is_skipped_and_not_created() {
    let scope = Scope::new("missing");
    for path in [
        scope.path("old.pid"),
        scope.path("no such directory/old.pid"),
    ] {
        assert!(legacy::hold(&path).unwrap().is_none());
        assert!(legacy::seize(&path).unwrap().is_none());
        assert!(matches!(legacy::probe(&path), Probe::Free));
        assert!(!path.exists());
    }
    assert!(!scope.path("no such directory").exists());
}

#[test]
fn an_old_server_keeps_new_ones_out_and_is_named_with_its_path() {
    let scope = Scope::new("old");
    let path = scope.path("old.pid");
    let old = start(&scope, "old", &path);
    // What an old server writes is never taken for a holder.
    std::fs::write(&path, "1\n").unwrap();
    for refusal in [legacy::hold(&path), legacy::seize(&path)] {
        let error = refusal.unwrap_err();
        let LockError::Held {
            path: at,
            holder: Some(holder),
        } = &error
        else {
            panic!("{error}");
        };
        assert_eq!((at, holder.process.pid()), (&path, old.id()));
        let message = error.to_string();
        let wanted = format!("{} is held by pid {}", path.display(), old.id());
        assert!(message.contains(&wanted), "{message}");
    }
    let Probe::Held { by: Some(holder) } = legacy::probe(&path) else {
        panic!("it is held");
    };
    assert_eq!(holder.process.pid(), old.id());
    let output = refused(&scope, "legacy", &path);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains(&format!("pid {}", old.id())), "{stderr}");
    end(old);
    assert!(legacy::hold(&path).unwrap().is_some());
}

#[test]
fn new_ones_coexist_and_an_old_one_started_later_is_kept_out() {
    let scope = Scope::new("coexist");
    let path = scope.path("old.pid");
    std::fs::write(&path, "4711\n").unwrap();
    let (one, two) = (
        start(&scope, "legacy", &path),
        start(&scope, "legacy", &path),
    );
    let here = legacy::hold(&path).unwrap().unwrap();
    assert_eq!(here.mode(), Mode::Shared);
    refused(&scope, "old", &path);
    assert!(matches!(legacy::seize(&path), Err(LockError::Held { .. })));
    end(one);
    end(two);
    refused(&scope, "old", &path);
    drop(here);
    let old = start(&scope, "old", &path);
    end(old);
}

#[test]
fn what_seizes_it_keeps_everybody_out() {
    let scope = Scope::new("seize");
    let path = scope.path("old.pid");
    std::fs::write(&path, "").unwrap();
    let seized = legacy::seize(&path).unwrap().unwrap();
    refused(&scope, "old", &path);
    refused(&scope, "legacy", &path);
    drop(seized);
    end(start(&scope, "legacy", &path));
}

#[test]
fn a_legacy_file_is_never_written_truncated_or_removed() {
    let scope = Scope::new("untouched");
    let dir = RuntimeDir::ensure(scope.runtime_dir()).unwrap();
    let path = dir.path().join("old.pid");
    std::fs::write(&path, "4711\n").unwrap();
    let untouched = || assert_eq!(std::fs::read(&path).unwrap(), b"4711\n");
    let record = Record::of_this_process("notes").unwrap();
    for take in [legacy::hold, legacy::seize] {
        let lock = take(&path).unwrap().unwrap();
        assert!(lock.write_record(&record).is_err());
        untouched();
        assert!(lock.remove(&dir).is_err());
        untouched();
        drop(take(&path).unwrap());
        untouched();
    }
}

#[test]
fn a_legacy_lock_that_cannot_be_written_is_held_all_the_same() {
    let scope = Scope::new("read-only");
    let path = scope.path("old.pid");
    std::fs::write(&path, "4711\n").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444)).unwrap();
    let held = legacy::hold(&path).unwrap().unwrap();
    assert!(legacy::probe(&path).is_held());
    drop(held);
    assert!(legacy::seize(&path).unwrap().is_some());
}

#[test]
fn lesson_15_a_foreign_file_is_opened_only_if_it_is_a_plain_one() {
    let scope = Scope::new("foreign");
    let (link, pipe) = (scope.path("link"), scope.path("pipe"));
    let (real, huge) = (scope.path("real"), scope.path("huge"));
    std::fs::write(&real, "").unwrap();
    symlink(&real, &link).unwrap();
    let made = scope.command("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    for path in [&link, &pipe, scope.dir(), Path::new("/dev/null")] {
        let error = legacy::hold(path).unwrap_err();
        assert!(matches!(error, LockError::Io { .. }), "{error}");
        assert!(matches!(legacy::probe(path), Probe::Held { by: None }));
    }
    let file = std::fs::File::create(&huge).unwrap();
    file.set_len(1 << 40).unwrap();
    let old = start(&scope, "old", &huge);
    let error = legacy::hold(&huge).unwrap_err();
    assert!(
        error.to_string().contains(&format!("pid {}", old.id())),
        "{error}"
    );
    end(old);
    assert!(legacy::hold(&huge).unwrap().is_some());
}
