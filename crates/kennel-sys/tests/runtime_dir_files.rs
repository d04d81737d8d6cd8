//! Files of a runtime directory.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::atomic::{AtomicBool, Ordering};

use kennel_sys::runtime_dir::{Access, DirError, RuntimeDir};
use kennel_testkit::{Scope, count};
use rustix::fs::FlockOperation;

fn dir(scope: &Scope) -> RuntimeDir {
    RuntimeDir::ensure(scope.runtime_dir()).expect("a directory of ours")
}

#[test]
fn a_file_is_read_back_as_it_was_written_and_only_ours_to_read() {
    let scope = Scope::new("whole");
    let dir = dir(&scope);
    dir.write_whole("record", b"one").unwrap();
    dir.write_whole("record", b"two").unwrap();
    assert_eq!(dir.read_small("record", 3).unwrap().unwrap(), b"two");
    let mode = dir.path().join("record").metadata().unwrap().permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    assert_eq!(dir.entries().unwrap(), ["record"]);
    assert!(dir.unlink("record").unwrap());
    assert!(dir.entries().unwrap().is_empty());
}

#[test]
fn lesson_4_a_file_appears_complete() {
    let scope = Scope::new("complete");
    let dir = dir(&scope);
    let done = AtomicBool::new(false);
    let contents = [vec![b'a'; 100_000], vec![b'b'; 10]];
    dir.write_whole("record", &contents[0]).unwrap();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for round in 0..count(2_000) as usize {
                dir.write_whole("record", &contents[round % 2]).unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
        while !done.load(Ordering::Relaxed) {
            let seen = dir.read_small("record", 100_000).unwrap().unwrap();
            assert!(contents.contains(&seen), "{} bytes", seen.len());
        }
    });
    assert_eq!(dir.entries().unwrap(), ["record"]);
}

#[test]
fn a_hard_link_to_a_file_elsewhere_is_neither_read_nor_written() {
    let scope = Scope::new("hard-link");
    let dir = dir(&scope);
    let elsewhere = scope.path("elsewhere");
    std::fs::write(&elsewhere, "theirs").unwrap();
    std::fs::set_permissions(&elsewhere, PermissionsExt::from_mode(0o400)).unwrap();
    std::fs::hard_link(&elsewhere, dir.path().join("record")).unwrap();
    assert!(dir.read_small("record", 100).is_err());
    for access in [Access::Read, Access::ReadWrite, Access::Create] {
        let error = dir.open_file("record", access).unwrap_err();
        assert!(error.to_string().contains("record"), "{error}");
    }
    let mode = elsewhere.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o400, "made writable through a link");
    // What is replaced as a whole is ours again, and the other file is as it was.
    dir.write_whole("record", b"ours").unwrap();
    assert_eq!(dir.read_small("record", 100).unwrap().unwrap(), b"ours");
    assert_eq!(std::fs::read_to_string(&elsewhere).unwrap(), "theirs");
}

#[test]
fn lesson_15_a_file_that_is_too_large_or_a_link_or_no_file_is_not_read() {
    let scope = Scope::new("foreign-file");
    let dir = dir(&scope);
    dir.write_whole("large", &[0; 11]).unwrap();
    std::fs::write(scope.path("secret"), "secret").unwrap();
    symlink(scope.path("secret"), dir.path().join("link")).unwrap();
    dir.subdir("sub").unwrap();
    let made = scope
        .command("mkfifo")
        .arg(dir.path().join("pipe"))
        .status()
        .unwrap();
    assert!(made.success());
    for name in ["large", "link", "sub", "pipe"] {
        let error = dir.read_small(name, 10).unwrap_err();
        assert!(matches!(error, DirError::Io { .. }), "{name}: {error}");
        let path = dir.path().join(name);
        assert!(
            error.to_string().contains(path.to_str().unwrap()),
            "{error}"
        );
    }
    for access in [Access::ReadWrite, Access::Create, Access::CreateNew] {
        assert!(dir.open_file("link", access).is_err(), "{access:?}");
    }
    assert_eq!(std::fs::read(scope.path("secret")).unwrap(), b"secret");
}

#[test]
fn no_access_truncates() {
    let scope = Scope::new("access");
    let dir = dir(&scope);
    assert!(
        dir.open_file("file", Access::ReadWrite).is_err(),
        "it is missing"
    );
    let mut file = dir.open_file("file", Access::CreateNew).unwrap();
    file.write_all(b"content").unwrap();
    assert!(
        dir.open_file("file", Access::CreateNew).is_err(),
        "it is there"
    );
    for access in [Access::Read, Access::ReadWrite, Access::Create] {
        let mut content = String::new();
        let mut file = dir.open_file("file", access).unwrap();
        file.read_to_string(&mut content).unwrap();
        assert_eq!(content, "content", "{access:?}");
    }
}

#[test]
fn a_file_whose_maker_died_before_granting_itself_access_is_usable() {
    let scope = Scope::new("granted");
    let dir = dir(&scope);
    dir.write_whole("lock", b"content").unwrap();
    let shut = std::fs::Permissions::from_mode(0o000);
    std::fs::set_permissions(dir.path().join("lock"), shut).unwrap();
    let mut content = String::new();
    let mut file = dir.open_file("lock", Access::Create).unwrap();
    file.read_to_string(&mut content).unwrap();
    assert_eq!(content, "content");
}

#[test]
fn a_subdirectory_goes_only_if_nothing_is_in_it() {
    let scope = Scope::new("rmdir");
    let dir = dir(&scope);
    let sub = dir.subdir("sub").unwrap();
    sub.write_whole("file", b"").unwrap();
    assert!(!dir.remove_subdir_if_empty("sub").unwrap());
    sub.unlink("file").unwrap();
    assert!(dir.remove_subdir_if_empty("sub").unwrap());
    assert!(!dir.remove_subdir_if_empty("sub").unwrap(), "already gone");
    dir.write_whole("file", b"").unwrap();
    assert!(dir.remove_subdir_if_empty("file").is_err(), "no directory");
}

#[test]
fn no_name_leads_out_of_the_directory() {
    let scope = Scope::new("names");
    let dir = dir(&scope);
    for name in ["", ".", "..", "../x", "a/b", "/etc/passwd"] {
        assert!(dir.open_file(name, Access::Create).is_err(), "{name:?}");
        assert!(dir.write_whole(name, b"").is_err(), "{name:?}");
        assert!(dir.read_small(name, 10).is_err(), "{name:?}");
        assert!(dir.unlink(name).is_err(), "{name:?}");
        assert!(dir.remove_subdir_if_empty(name).is_err(), "{name:?}");
        assert!(dir.socket_path(name).is_err(), "{name:?}");
    }
    assert!(dir.entries().unwrap().is_empty());
}

#[test]
fn a_held_directory_is_left_alone_by_a_cleaner() {
    let scope = Scope::new("hold");
    let dir = dir(&scope);
    // What a cleaner does before it enters a directory.
    let cleaner = File::open(dir.path()).unwrap();
    let enter = || rustix::fs::flock(&cleaner, FlockOperation::NonBlockingLockExclusive);
    let (one, two) = (dir.hold().unwrap(), dir.hold().unwrap());
    assert!(enter().is_err());
    drop(one);
    assert!(enter().is_err(), "the other still holds it");
    drop(two);
    enter().unwrap();
    let error = dir.hold().unwrap_err();
    assert!(
        matches!(error, DirError::Io { what: "hold", .. }),
        "{error}"
    );
}
