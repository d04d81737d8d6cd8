//! `notes uninstall`: refused while anybody has the store open, thorough when nobody has.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use kennel_testkit::{Client, Ended, Scope, run, tool};

use crate::common::{OldHolder, add, lock_file, notes, serving, status, tree, write_a_note};

#[test]
fn it_removes_the_store_and_nothing_else() {
    let scope = Scope::new("uninstall");
    let db = scope.path("data/notes.db");
    write_a_note(&scope, &db);
    // What a kill left behind, a lock of an older release, and files that only look alike.
    for left in [
        "notes.db-wal",
        "notes.db-shm",
        "notes.db-journal",
        "notes.db.lock",
    ] {
        fs::write(scope.path("data").join(left), "").unwrap();
    }
    let siblings = ["notes.db.bak", "notes.db-wal2", "xnotes.db", "diary.txt"];
    for sibling in siblings {
        fs::write(scope.path("data").join(sibling), "mine").unwrap();
    }
    let lock = lock_file(&scope, &db);

    let ended = uninstall(&scope, &db);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    for group in [
        "database:",
        "runtime:",
        "legacy lock:",
        "notes.db-wal",
        lock.to_str().unwrap(),
    ] {
        assert!(ended.stdout.contains(group), "{group}: {}", ended.stdout);
    }
    let mut kept = siblings.map(|name| scope.path("data").join(name)).to_vec();
    kept.sort();
    assert_eq!(tree(&scope.path("data")), kept);
    assert!(!lock.exists());

    let again = uninstall(&scope, &db);
    assert_eq!(again.code(), Some(3), "{}", again.stderr);
    // And a new store can begin where the old one was.
    write_a_note(&scope, &db);
}

#[test]
fn the_runtime_subdirectory_goes_only_if_empty_and_its_parent_never() {
    let scope = Scope::new("uninstall-dirs");
    let db = scope.path("notes.db");
    for stranger in [false, true] {
        write_a_note(&scope, &db);
        let lock = lock_file(&scope, &db);
        let subdirectory = lock.parent().unwrap().to_path_buf();
        assert_ne!(
            subdirectory,
            scope.runtime_dir(),
            "guards have a directory of their own"
        );
        let other = subdirectory.join("of-another-store.lock");
        if stranger {
            fs::write(&other, "mine").unwrap();
        }
        assert_eq!(uninstall(&scope, &db).code(), Some(0));
        assert!(!lock.exists());
        assert_eq!(subdirectory.exists(), stranger);
        assert_eq!(other.exists(), stranger);
        assert!(scope.runtime_dir().exists());
    }
}

#[test]
fn it_is_refused_while_a_server_has_the_store_open() {
    let scope = Scope::new("uninstall-held");
    let db = scope.path("notes.db");
    let mut server = serving(&scope, &db);
    add(&mut server, "something worth keeping");
    refused_naming(&scope, &db, server.pid());

    // Whatever the lock file says, the flock is the authority (lesson 2), and the kernel knows
    // whose it is.
    let lock = lock_file(&scope, &db);
    for record in ["", "garbage \u{7f}\n", "1\n", "{\"pid\": 1}"] {
        fs::write(&lock, record).unwrap();
        refused_naming(&scope, &db, server.pid());
    }
    server.close();
    assert!(server.wait().status.success());
    assert_eq!(uninstall(&scope, &db).code(), Some(0));
}

#[test]
fn it_is_refused_while_coexisting_servers_have_the_store_open() {
    let scope = Scope::new("uninstall-coexist");
    let db = scope.path("notes.db");
    let begin = || Client::begin(notes(&scope, "serve", &db).arg("--coexist"));
    let (mut one, mut two) = (begin(), begin());
    add(&mut one, "something worth keeping");
    let ended = refused(&scope, &db);
    assert!(
        names(&ended, one.pid()) || names(&ended, two.pid()),
        "{}",
        ended.stderr
    );
    one.close();
    assert!(one.wait().status.success());
    refused_naming(&scope, &db, two.pid());
    two.close();
    assert!(two.wait().status.success());
    assert_eq!(uninstall(&scope, &db).code(), Some(0));
}

#[test]
fn it_is_refused_while_an_old_server_holds_the_legacy_lock() {
    let scope = Scope::new("uninstall-legacy");
    let db = scope.path("notes.db");
    write_a_note(&scope, &db);
    let beside = scope.path("notes.db.lock");
    fs::write(&beside, "garbage, as far as we know").unwrap();
    let old = OldHolder::of(&scope, &beside);
    let ended = refused_naming(&scope, &db, old.pid());
    assert!(
        ended.stderr.contains(beside.to_str().unwrap()),
        "{}",
        ended.stderr
    );
    old.end();

    let elsewhere = scope.path("elsewhere.lock");
    fs::write(&elsewhere, "").unwrap();
    let old = OldHolder::of(&scope, &elsewhere);
    let mut command = notes(&scope, "uninstall", &db);
    command.arg("--yes").arg("--legacy-lock").arg(&elsewhere);
    let ended = run(&mut command);
    assert_eq!(ended.code(), Some(2), "{}", ended.stderr);
    assert!(names(&ended, old.pid()), "{}", ended.stderr);
    old.end();
    assert_eq!(run(&mut command).code(), Some(0));
    assert!(!elsewhere.exists());
}

#[test]
fn one_who_inherited_the_lock_is_found_as_well() {
    let scope = Scope::new("uninstall-heir");
    let db = scope.path("notes.db");
    write_a_note(&scope, &db);
    let legacy = scope.path("notes.db.lock");
    fs::write(&legacy, "").unwrap();
    for place in [legacy, lock_file(&scope, &db)] {
        let heir = OldHolder::heir_of(&scope, &place);
        refused_naming(&scope, &db, heir.pid());
        heir.end();
    }
    assert_eq!(uninstall(&scope, &db).code(), Some(0));
}

#[test]
fn a_lock_that_cannot_be_looked_at_counts_as_held() {
    let scope = Scope::new("uninstall-unreadable");
    let db = scope.path("notes.db");
    write_a_note(&scope, &db);
    // Unreadable for root too.
    let legacy = scope.path("notes.db.lock");
    fs::create_dir(&legacy).unwrap();
    let ended = refused(&scope, &db);
    line_that_finds(&ended, &legacy);
    let shown = status(&scope, &db);
    assert_eq!(
        (&shown["free"], &shown["held"][0]["pid"]),
        (&false.into(), &().into())
    );
    assert!(
        shown["held"][0]["message"]
            .as_str()
            .unwrap()
            .contains("pid unknown"),
        "{shown}"
    );
}

#[test]
fn without_a_terminal_and_without_yes_nothing_is_touched() {
    let scope = Scope::new("uninstall-ask");
    let db = scope.path("notes.db");
    write_a_note(&scope, &db);
    let before = tree(scope.dir());
    let ended = run(&mut notes(&scope, "uninstall", &db));
    assert_eq!(ended.code(), Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("--yes"), "{}", ended.stderr);
    assert_eq!(tree(scope.dir()), before);
}

#[test]
fn on_a_terminal_it_asks_and_only_a_yes_counts() {
    let scope = Scope::new("uninstall-tty");
    let db = scope.path("notes.db");
    write_a_note(&scope, &db);
    for (answer, code) in [("n\n", 2), ("\n", 2), ("y\n", 0)] {
        let Some(mut person) = on_a_terminal(&scope, &db) else {
            return;
        };
        person.say(answer);
        let ended = person.wait();
        assert_eq!(ended.code(), Some(code), "{answer:?}: {}", ended.stdout);
        assert_eq!(db.exists(), code != 0, "{answer:?}");
    }
}

#[test]
fn lesson_13_a_server_may_start_during_the_question_and_its_store_is_safe() {
    let scope = Scope::new("uninstall-late");
    let db = scope.path("notes.db");
    write_a_note(&scope, &db);
    let Some(mut person) = on_a_terminal(&scope, &db) else {
        return;
    };
    let inventory = std::iter::from_fn(|| person.line());
    let shown = inventory.map(|line| line.contains("legacy lock:"));
    assert!(shown.into_iter().any(|last| last), "the inventory ends");

    let mut server = serving(&scope, &db);
    person.say("y\n");
    let ended = person.wait();
    assert_eq!(ended.code(), Some(2), "{}", ended.stdout);
    assert!(ended.stdout.contains("corrupt"), "{}", ended.stdout);
    assert!(
        ended.stdout.contains(&server.pid().to_string()),
        "{}",
        ended.stdout
    );
    add(&mut server, "still here");
}

#[test]
fn a_store_named_by_a_link_is_removed_where_it_really_is() {
    let scope = Scope::new("uninstall-link");
    let db = scope.path("data/notes.db");
    write_a_note(&scope, &db);
    let link = scope.path("link.db");
    symlink(&db, &link).unwrap();
    // What is not a regular file was not made by notes, whatever it is called.
    let precious = scope.path("precious");
    fs::write(&precious, "mine").unwrap();
    symlink(&precious, scope.path("data/notes.db-wal")).unwrap();
    fs::create_dir(scope.path("data/notes.db-journal")).unwrap();

    let ended = uninstall(&scope, &link);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(
        ended.stdout.contains(db.to_str().unwrap()),
        "{}",
        ended.stdout
    );
    assert!(!db.exists());
    assert!(link.is_symlink());
    assert!(scope.path("data/notes.db-wal").is_symlink());
    assert!(scope.path("data/notes.db-journal").is_dir());
    assert_eq!(fs::read(&precious).unwrap(), b"mine");
}

#[test]
fn what_is_too_large_to_be_a_lock_is_no_legacy_lock() {
    let scope = Scope::new("uninstall-large");
    let db = scope.path("notes.db");
    write_a_note(&scope, &db);
    let novel = scope.path("novel.txt");
    fs::write(&novel, "word ".repeat(10_000)).unwrap();
    let mut command = notes(&scope, "uninstall", &db);
    let ended = run(command.arg("--yes").arg("--legacy-lock").arg(&novel));
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(!db.exists());
    assert!(novel.exists());
}

mod needs_root {
    use std::process::Stdio;

    use kennel_testkit::{on_each_kernel_alone, with_pid};

    use super::*;

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn a_reused_pid_does_not_fool_it() {
        on_each_kernel_alone(|| {
            let scope = Scope::new("uninstall-reused");
            let db = scope.path("notes.db");
            let mut server = serving(&scope, &db);
            add(&mut server, "something worth keeping");
            let lock = lock_file(&scope, &db);
            let pid = server.pid();
            server.kill();
            let mut stranger = with_pid(pid, || {
                let mut sleep = scope.command("sleep");
                sleep.arg("1000").stdin(Stdio::null()).spawn().unwrap()
            });

            // The record names a pid that lives. The store is free all the same...
            assert_eq!(status(&scope, &db)["free"], true);
            // ...and if somebody holds it, then it is not that process.
            let holder = OldHolder::of(&scope, &lock);
            let ended = refused_naming(&scope, &db, holder.pid());
            assert!(!names(&ended, pid), "{}", ended.stderr);
            holder.end();

            assert_eq!(uninstall(&scope, &db).code(), Some(0));
            assert!(
                stranger.try_wait().unwrap().is_none(),
                "a stranger was harmed"
            );
            stranger.kill().unwrap();
            stranger.wait().unwrap();
        });
    }

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn a_holder_that_cannot_be_seen_comes_with_the_line_that_finds_it() {
        let scope = Scope::new("uninstall-unseen");
        let db = scope.path("notes.db");
        let mut server = serving(&scope, &db);
        add(&mut server, "something worth keeping");
        let lock = lock_file(&scope, &db);
        // From inside a container that shares the files, but not the processes.
        let program = notes(&scope, "uninstall", &db).get_program().to_owned();
        let mut inside = scope.command("unshare");
        inside
            .args(["--pid", "--fork", "--mount-proc"])
            .arg(program);
        let ended = run(inside.args(["uninstall", "--yes", "--db"]).arg(&db));
        assert_eq!(ended.code(), Some(2), "{}", ended.stderr);
        assert!(ended.stderr.contains("corrupt"), "{}", ended.stderr);
        assert!(db.exists());

        let line = line_that_finds(&ended, &lock);
        let found = run(scope.command("sh").args(["-c", &line]));
        let said = format!("{}{}", found.stdout, found.stderr);
        assert!(said.contains(&server.pid().to_string()), "{line}: {said}");
    }
}

#[track_caller]
fn uninstall(scope: &Scope, db: &Path) -> Ended {
    run(notes(scope, "uninstall", db).arg("--yes"))
}

/// Uninstall with a person before it, where `script` can be had to make a terminal.
#[track_caller]
fn on_a_terminal(scope: &Scope, db: &Path) -> Option<Client> {
    let script = tool("script")?;
    let uninstall = notes(scope, "uninstall", db);
    let program = uninstall.get_program().display();
    let line = format!("'{program}' uninstall --db '{}'", db.display());
    let mut terminal = scope.command(script);
    terminal.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    Some(Client::start(&mut terminal))
}

/// Uninstall is refused, touches nothing, and says why.
#[track_caller]
fn refused(scope: &Scope, db: &Path) -> Ended {
    let before = tree(scope.dir());
    let ended = uninstall(scope, db);
    assert_eq!(ended.code(), Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("corrupt"), "{}", ended.stderr);
    assert_eq!(tree(scope.dir()), before);
    ended
}

#[track_caller]
fn refused_naming(scope: &Scope, db: &Path, pid: u32) -> Ended {
    let ended = refused(scope, db);
    assert!(names(&ended, pid), "the holder is {pid}: {}", ended.stderr);
    ended
}

/// The line to paste where the holder has no name.
#[track_caller]
fn line_that_finds(ended: &Ended, lock: &Path) -> String {
    assert!(ended.stderr.contains("pid unknown"), "{}", ended.stderr);
    let lines = ["lsof ", "fuser "].map(|program| {
        let start = ended.stderr.find(program)?;
        ended.stderr[start..].lines().next()
    });
    let line = lines.into_iter().flatten().next();
    let line = line.unwrap_or_else(|| panic!("no line to paste: {}", ended.stderr));
    assert!(line.contains(lock.to_str().unwrap()), "{line}");
    line.to_owned()
}

fn names(ended: &Ended, pid: u32) -> bool {
    let mut numbers = ended.stderr.split(|c: char| !c.is_ascii_digit());
    numbers.any(|number| number == pid.to_string())
}
