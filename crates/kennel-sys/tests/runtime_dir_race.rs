//! Rule 9 against the clock: another user swaps the directory between every look and every use.

use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;

use kennel_sys::runtime_dir::{DirError, RuntimeDir};
use kennel_testkit::{Client, Scope, count, wait_for};
use rustix::fs::{CWD, RenameFlags, renameat_with};

const STRANGER: u32 = 65534;

#[test]
#[ignore = "needs root: cargo xtask test"]
fn needs_root_rule_9_nothing_is_made_in_a_directory_that_was_swapped() {
    let scope = Scope::new("swapped");
    let make = |name: &str, mode| {
        let path = scope.path(name);
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        path
    };
    std::fs::set_permissions(scope.dir(), PermissionsExt::from_mode(0o755)).unwrap();
    // As bad as it can get: everyone may rename what is ours.
    let shared = make("shared", 0o777);
    let private = make("private", 0o700);
    let theirs = make("shared/theirs", 0o700);
    chown(&theirs, Some(STRANGER), Some(STRANGER)).unwrap();
    symlink(&private, shared.join("link")).unwrap();
    let run = shared.join("run");
    RuntimeDir::ensure(&run).unwrap();

    let program = scope.path("stranger");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut stranger = scope.command(&program);
    stranger
        .args(["--exact", "a_swapper", "--ignored", "--nocapture"])
        .env("TESTKIT_SHARED", &shared)
        .uid(STRANGER)
        .gid(STRANGER);
    let mut stranger = Client::start(&mut stranger);
    wait_for("it swaps", || {
        let line = stranger.line().expect("it swaps");
        line.contains("swapping").then_some(())
    });

    // Refused, or made where we looked: both are well.
    let make = || -> Result<(), DirError> {
        let dir = RuntimeDir::ensure(&run)?.subdir("daemons")?;
        dir.write_whole("record", b"ours")
    };
    let (wanted, mut made, mut refused) = (count(10_000), 0, 0);
    wait_for("it was there often enough, and was not", || {
        for _ in 0..100 {
            match make() {
                Ok(()) => made += 1,
                Err(_) => refused += 1,
            }
        }
        is_empty(&private);
        (made >= wanted && refused >= wanted / 10).then_some(())
    });
    assert_eq!(stranger.try_wait(), None);
    stranger.kill();
    is_empty(&private);
    for name in ["theirs", "link", "run"] {
        let path = shared.join(name);
        let owner = std::os::unix::fs::MetadataExt::uid(&path.symlink_metadata().unwrap());
        if owner == STRANGER {
            is_empty(&path);
        }
    }
}

#[track_caller]
fn is_empty(dir: &Path) {
    let entries = std::fs::read_dir(dir).expect("a directory");
    assert_eq!(entries.count(), 0, "{dir:?}");
}

/// Our directory, a link to another one of ours, and a directory of the stranger's take turns under one name.
#[test]
#[ignore = "a part of another test: somebody who may rename what is ours"]
fn a_swapper() {
    let shared = std::env::var_os("TESTKIT_SHARED").expect("started by another test");
    std::env::set_current_dir(shared).unwrap();
    println!("swapping");
    for other in ["link", "link", "theirs", "theirs"].into_iter().cycle() {
        renameat_with(CWD, "run", CWD, other, RenameFlags::EXCHANGE).unwrap();
    }
}
