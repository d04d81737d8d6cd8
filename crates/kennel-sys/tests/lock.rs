//! Rule 7: decide, then write. One holder, whatever happens to the file, its content or its descriptors.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use kennel_sys::lock::{self, Lock, LockError, Mode, Probe, Record};
use kennel_sys::runtime_dir::RuntimeDir;
use kennel_testkit::{Scope, bin, count, wait_for};
use rustix::io::FdFlags;

fn dir(scope: &Scope) -> RuntimeDir {
    RuntimeDir::ensure(scope.runtime_dir()).expect("a directory of ours")
}

fn exclusive(dir: &RuntimeDir) -> Result<Lock, LockError> {
    Lock::acquire(dir, "lock", Mode::Exclusive)
}

fn shared(dir: &RuntimeDir) -> Result<Lock, LockError> {
    Lock::acquire(dir, "lock", Mode::Shared)
}

fn content(dir: &RuntimeDir) -> Vec<u8> {
    dir.read_small("lock", 10_000)
        .expect("our own file")
        .expect("it is there")
}

#[test]
fn one_holds_it_and_the_other_is_told_at_once_by_whom() {
    let scope = Scope::new("one");
    let dir = dir(&scope);
    let held = exclusive(&dir).unwrap();
    held.write_record(&Record::of_this_process("notes").unwrap())
        .unwrap();
    assert!(held.is_at_its_path());
    let start = Instant::now();
    let error = exclusive(&dir).unwrap_err();
    assert!(
        start.elapsed() < Duration::from_secs(1),
        "{:?}",
        start.elapsed()
    );
    let LockError::Held {
        path,
        holder: Some(holder),
    } = &error
    else {
        panic!("{error}");
    };
    assert_eq!(path, &dir.path().join("lock"));
    assert_eq!(holder.process.pid(), std::process::id());
    assert_eq!(holder.name.as_deref(), Some("notes"));
    assert!(holder.since.is_some());
    let pid = std::process::id();
    let message = error.to_string();
    assert!(
        message.contains(&format!("/lock is held by pid {pid} (notes, for ")),
        "{message}"
    );
    held.release();
    exclusive(&dir).unwrap();
}

#[test]
fn shared_ones_share_and_exclude_the_exclusive() {
    let scope = Scope::new("shared");
    let dir = dir(&scope);
    let (one, two) = (shared(&dir).unwrap(), shared(&dir).unwrap());
    assert!(matches!(exclusive(&dir), Err(LockError::Held { .. })));
    drop(one);
    assert!(matches!(exclusive(&dir), Err(LockError::Held { .. })));
    assert!(lock::probe(&dir, "lock").is_held());
    drop(two);
    assert!(!lock::probe(&dir, "lock").is_held());
    let alone = exclusive(&dir).unwrap();
    assert!(matches!(shared(&dir), Err(LockError::Held { .. })));
    drop(alone);
}

#[test]
fn a_lock_file_is_closed_to_others_and_a_shared_lock_has_no_record() {
    let scope = Scope::new("file");
    let dir = dir(&scope);
    let lock = shared(&dir).unwrap();
    let mode = dir.path().join("lock").metadata().unwrap().mode();
    assert_eq!(mode & 0o777, 0o600);
    let record = Record::of_this_process("notes").unwrap();
    assert!(matches!(
        lock.write_record(&record),
        Err(LockError::Io { .. })
    ));
    assert!(matches!(lock.remove(&dir), Err(LockError::Io { .. })));
    assert_eq!(content(&dir), b"");
}

#[test]
fn a_record_is_there_while_the_lock_is_held_and_cleared_with_it() {
    let scope = Scope::new("record");
    let dir = dir(&scope);
    let lock = exclusive(&dir).unwrap();
    let long = Record::of_this_process(&"long ".repeat(30)).unwrap();
    let short = Record::of_this_process("short").unwrap();
    for record in [&long, &short, &long] {
        lock.write_record(record).unwrap();
        assert_eq!(content(&dir), record.to_string().as_bytes());
    }
    drop(lock);
    assert_eq!(content(&dir), b"", "cleared");
}

#[test]
fn a_record_is_never_seen_empty_while_it_is_rewritten() {
    let scope = Scope::new("rewritten");
    let dir = dir(&scope);
    let lock = exclusive(&dir).unwrap();
    let names = ["a".repeat(150), "b".to_owned()];
    let records = names.map(|name| Record::of_this_process(&name).unwrap());
    lock.write_record(&records[0]).unwrap();
    std::thread::scope(|threads| {
        let writer = threads.spawn(|| {
            for round in 0..count(20_000) as usize {
                lock.write_record(&records[round % 2]).unwrap();
            }
        });
        while !writer.is_finished() {
            assert!(!content(&dir).is_empty());
        }
    });
}

#[test]
fn lesson_1_a_loser_leaves_the_content_alone() {
    let scope = Scope::new("loser");
    let dir = dir(&scope);
    let held = exclusive(&dir).unwrap();
    held.write_record(&Record::of_this_process("notes").unwrap())
        .unwrap();
    let before = content(&dir);
    let losers = 8;
    std::thread::scope(|threads| {
        for _ in 0..losers {
            threads.spawn(|| {
                for round in 0..count(1_000).div_ceil(losers) {
                    let lost = if round % 2 == 0 {
                        exclusive(&dir)
                    } else {
                        shared(&dir)
                    };
                    let error = lost.expect_err("it is held");
                    let pid = std::process::id();
                    assert!(
                        error.to_string().contains(&format!("pid {pid} (notes")),
                        "{error}"
                    );
                    assert_eq!(content(&dir), before);
                }
            });
        }
    });
    assert_eq!(content(&dir), before);
}

#[test]
fn lesson_1_a_winner_leaves_the_content_until_it_writes() {
    let scope = Scope::new("winner");
    let dir = dir(&scope);
    for old in ["4711\n", "garbage", "{\"pid\": 4711}"] {
        std::fs::write(dir.path().join("lock"), old).unwrap();
        let lock = shared(&dir).unwrap();
        assert_eq!(content(&dir), old.as_bytes());
        drop(lock);
        assert_eq!(content(&dir), old.as_bytes());
        let lock = exclusive(&dir).unwrap();
        assert_eq!(content(&dir), old.as_bytes());
        drop(lock);
    }
}

#[test]
fn lesson_7_a_lingering_grandchild_that_inherited_the_lock_does_not_keep_it() {
    let scope = Scope::new("inherited");
    let dir = dir(&scope);
    let lock = exclusive(&dir).unwrap();
    rustix::io::fcntl_setfd(lock.as_fd(), FdFlags::empty()).unwrap();
    let mut parent = scope
        .command("sh")
        .args(["-c", "sleep 1000 & echo $!"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let grandchild = read_line(&mut parent);
    parent.wait().unwrap();
    let fds = std::fs::read_dir(format!("/proc/{grandchild}/fd")).unwrap();
    let inherited = fds.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    assert_eq!(
        inherited.filter(|to| to == lock.path()).count(),
        1,
        "it has the lock open"
    );
    assert!(lock::probe(&dir, "lock").is_held());
    lock.release();
    assert!(!lock::probe(&dir, "lock").is_held());
    let again = exclusive(&dir).unwrap();
    assert!(std::path::Path::new(&format!("/proc/{grandchild}")).exists());
    drop(again);
}

/// Takes the lock in another thread, and lets `free` free it as soon as that one has opened the file.
fn contested(dir: &RuntimeDir, free: impl FnOnce(Lock)) -> Result<Lock, LockError> {
    let held = exclusive(dir).expect("it is free");
    std::thread::scope(|threads| {
        let other = threads.spawn(|| exclusive(dir));
        wait_for("the other to open the file", || {
            (open_count(&held) > 1 || other.is_finished()).then_some(())
        });
        free(held);
        other.join().expect("no panic")
    })
}

#[test]
fn lesson_6_a_lock_whose_file_was_removed_is_not_won() {
    let scope = Scope::new("removed");
    let dir = dir(&scope);
    for _ in 0..count(500) {
        match contested(&dir, |held| held.remove(&dir).unwrap()) {
            Ok(won) => {
                let path = dir.path().join("lock");
                let at_path = path.metadata().expect("a winner's file is there").ino();
                let locked = rustix::fs::fstat(won.as_fd()).unwrap().st_ino;
                assert_eq!(locked, at_path, "won a file that is not there any more");
                assert!(won.is_at_its_path());
            }
            Err(LockError::Held { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn one_who_comes_again_is_told_at_once_and_wins_when_it_is_free() {
    let scope = Scope::new("again");
    let dir = dir(&scope);
    let held = Lock::acquire(&dir, "lock", Mode::Exclusive).unwrap();
    assert!(
        Lock::try_acquire(&dir, "lock", Mode::Exclusive)
            .unwrap()
            .is_none()
    );
    held.release();
    let won = Lock::try_acquire(&dir, "lock", Mode::Exclusive).unwrap();
    let won = won.expect("nobody holds it");
    // Its file was replaced: what it holds is nobody's lock any more, and the new one is free.
    std::fs::remove_file(dir.path().join("lock")).unwrap();
    let next = Lock::try_acquire(&dir, "lock", Mode::Exclusive).unwrap();
    assert!(next.is_some_and(|next| next.is_at_its_path()));
    assert!(!won.is_at_its_path());
}

#[test]
fn contention_that_passes_at_once_is_none() {
    let scope = Scope::new("doubt");
    let dir = dir(&scope);
    let rounds = count(200) as usize;
    let won = (0..rounds).filter(|_| contested(&dir, Lock::release).is_ok());
    // On a busy machine one or the other is kept waiting for too long.
    assert!(won.count() > rounds / 2);
}

/// How many descriptors of this process lead to the lock's file.
fn open_count(lock: &Lock) -> usize {
    let fds = std::fs::read_dir("/proc/self/fd").expect("our own descriptors");
    fds.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok())
        .filter(|to| to == lock.path())
        .count()
}

fn contenders(scope: &Scope, dir: &RuntimeDir, options: &[&str]) {
    let rounds = count(2_000).to_string();
    let contenders: Vec<Child> = (0..4)
        .map(|_| {
            scope
                .command(bin("tk-lock"))
                .arg("contend")
                .arg(dir.path())
                .args(["lock", &rounds])
                .args(options)
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("a contender")
        })
        .collect();
    for contender in contenders {
        let output = contender.wait_with_output().expect("it ends");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
    }
}

#[test]
fn of_many_processes_one_is_inside() {
    let scope = Scope::new("contend");
    contenders(&scope, &dir(&scope), &[]);
}

#[test]
fn lesson_6_of_many_processes_one_is_inside_though_each_removes_the_file() {
    let scope = Scope::new("remove");
    contenders(&scope, &dir(&scope), &["--remove"]);
}

#[test]
fn a_lock_in_a_directory_that_was_moved_is_not_won() {
    let scope = Scope::new("moved");
    let dir = dir(&scope);
    let held = exclusive(&dir).unwrap();
    std::fs::rename(dir.path(), scope.path("moved")).unwrap();
    assert!(!held.is_at_its_path());
    drop(held);
    let error = exclusive(&dir).unwrap_err();
    assert!(matches!(error, LockError::Io { .. }), "{error}");
    let there = RuntimeDir::ensure(scope.runtime_dir()).unwrap();
    exclusive(&there).unwrap();
}

#[test]
fn a_lock_is_removed_only_by_its_holder_and_only_its_own_file() {
    let scope = Scope::new("remove-own");
    let dir = dir(&scope);
    let path = dir.path().join("lock");
    exclusive(&dir).unwrap().remove(&dir).unwrap();
    assert!(!path.exists());
    let lock = exclusive(&dir).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "another's").unwrap();
    assert!(matches!(lock.remove(&dir), Err(LockError::Io { .. })));
    assert_eq!(std::fs::read(&path).unwrap(), b"another's");
}

#[test]
fn lesson_12_what_cannot_be_opened_is_an_error_and_not_contention() {
    let scope = Scope::new("io");
    let dir = dir(&scope);
    symlink(scope.path("elsewhere"), dir.path().join("lock")).unwrap();
    dir.subdir("sub").unwrap();
    for name in ["lock", "sub", "../lock"] {
        let error = Lock::acquire(&dir, name, Mode::Exclusive).unwrap_err();
        assert!(matches!(error, LockError::Io { .. }), "{error}");
    }
    assert!(!scope.path("elsewhere").exists(), "created through a link");
    let gone = RuntimeDir::ensure(scope.path("gone")).unwrap();
    std::fs::remove_dir(gone.path()).unwrap();
    let error = exclusive(&gone).unwrap_err();
    assert!(matches!(error, LockError::Io { .. }), "{error}");
}

#[test]
fn an_unreadable_lock_is_held_as_far_as_can_be_told() {
    let scope = Scope::new("closed");
    let dir = dir(&scope);
    symlink(scope.path("elsewhere"), dir.path().join("link")).unwrap();
    symlink("/dev/null", dir.path().join("device")).unwrap();
    dir.subdir("sub").unwrap();
    let mut unreadable = vec!["link", "device", "sub"];
    drop(Lock::acquire(&dir, "lock", Mode::Exclusive).unwrap());
    if rustix::process::geteuid().as_raw() != 0 {
        let shut = std::fs::Permissions::from_mode(0o000);
        std::fs::set_permissions(dir.path().join("lock"), shut).unwrap();
        unreadable.push("lock");
    }
    for name in unreadable {
        assert!(
            matches!(lock::probe(&dir, name), Probe::Held { by: None }),
            "{name}"
        );
        let path = dir.path().join(name);
        assert!(
            matches!(lock::probe_path(&path), Probe::Held { by: None }),
            "{name}"
        );
        assert!(
            matches!(lock::legacy::probe(&path), Probe::Held { by: None }),
            "{name}"
        );
    }
    assert!(
        lock::probe_path(dir.path().join("lock/below")).is_held(),
        "not a directory"
    );
    let line = lock::probe(&dir, "link")
        .holder_text(&dir.path().join("link"))
        .unwrap();
    assert!(line.contains("pid unknown; to find it: "), "{line}");
}

#[test]
fn probing_neither_disturbs_nor_takes() {
    let scope = Scope::new("probing");
    let dir = dir(&scope);
    let record = Record::of_this_process("notes").unwrap();
    std::thread::scope(|threads| {
        let acquiring = threads.spawn(|| {
            for _ in 0..count(500) {
                let held = exclusive(&dir).expect("a look is no holder");
                held.write_record(&record).unwrap();
                assert!(lock::probe(&dir, "lock").is_held());
                drop(held);
            }
        });
        while !acquiring.is_finished() {
            lock::probe(&dir, "lock");
        }
    });
    assert!(matches!(lock::probe(&dir, "lock"), Probe::Free));
}

#[test]
fn lesson_8_closing_another_descriptor_of_the_file_frees_nothing() {
    let scope = Scope::new("close");
    let dir = dir(&scope);
    let held = exclusive(&dir).unwrap();
    drop(File::open(held.path()).unwrap());
    assert!(lock::probe(&dir, "lock").is_held());
    drop(held);
}

fn read_line(child: &mut Child) -> String {
    use std::io::{BufRead, BufReader};
    let mut line = String::new();
    let stdout = child.stdout.take().expect("a pipe");
    BufReader::new(stdout).read_line(&mut line).expect("a line");
    line.trim_end().to_owned()
}
