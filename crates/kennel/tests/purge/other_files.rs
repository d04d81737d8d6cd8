//! Files in Kennel's directories that are not Kennel's: they stay, and are named.

use kennel_sys::lock::{Lock, Mode};

use super::*;

/// A directory of backups with one backup, and what is not Kennel's.
fn backups(dir: &Path) -> Vec<PathBuf> {
    std::fs::create_dir_all(dir.join("0123456789abcdef.json.d")).unwrap();
    let unrelated = [
        "letters",
        "notes.json",
        "mine.backup",
        "0123456789abcdeg.json",
        "0123456789ABCDEF.json",
        "0123456789abcdef.json.old",
        "0123456789abcdef.new",
        "0123456789abcdef.x.new",
    ];
    for name in unrelated.iter().chain(&["0123456789abcdef.backup"]) {
        std::fs::write(dir.join(name), "dear").unwrap();
    }
    let mut left: Vec<PathBuf> = unrelated.iter().map(|name| dir.join(name)).collect();
    left.push(dir.join("0123456789abcdef.json.d"));
    left.sort();
    left
}

#[test]
fn only_files_that_wrap_wrote_are_removed_and_the_others_are_named() {
    let scope = Scope::new("purge-wrap");
    let dir = scope.path("home/.local/state/kennel/wrap");
    let mut left = backups(&dir);
    std::fs::write(dir.join("fedcba9876543210.4711.new"), "half").unwrap();
    std::os::unix::fs::symlink(scope.path("dear"), dir.join("0000000000000000.json")).unwrap();
    std::fs::write(scope.path("dear"), "dear").unwrap();
    left.push(dir.join("0000000000000000.json"));
    left.sort();
    let ended = kennel(&scope, &["purge", "--yes"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert_eq!(everything(dir.clone()), left);
    for path in &left {
        let named = path.display().to_string();
        assert!(ended.stderr.contains(&named), "{named}: {}", ended.stderr);
    }
    assert!(scope.path("dear").exists());
}

#[test]
fn the_lock_that_a_killed_wrap_left_is_removed_and_a_held_one_keeps_the_backups() {
    use std::os::unix::fs::DirBuilderExt;
    let scope = Scope::new("purge-wrap");
    let dir = scope.path("home/.local/state/kennel");
    let private = || {
        let mut private = std::fs::DirBuilder::new();
        let private = private.recursive(true).mode(0o700);
        private.create(dir.join("wrap")).unwrap();
        RuntimeDir::open(&dir).unwrap().unwrap()
    };
    let backup = dir.join("wrap/0123456789abcdef.backup");
    let lock = Lock::acquire(&private(), "wrap.lock", Mode::Exclusive).unwrap();
    std::fs::write(&backup, "{}").unwrap();
    let ended = kennel(&scope, &["purge", "--yes"]);
    assert_eq!(ended.code(), Some(1), "{}", ended.stderr);
    let holder = format!("pid {}", std::process::id());
    assert!(ended.stderr.contains(&holder), "{}", ended.stderr);
    assert!(backup.exists());
    lock.release();
    let ended = kennel(&scope, &["purge", "--yes"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(!dir.exists());

    private();
    std::fs::write(dir.join("wrap.lock"), "").unwrap();
    let ended = kennel(&scope, &["purge", "--yes"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(!dir.exists());
}

#[test]
fn a_link_in_the_place_of_kennels_directories_leads_nowhere() {
    for link in ["home/.local/state/kennel/wrap", "home/.local/state/kennel"] {
        let scope = Scope::new("purge-wrap");
        let link = scope.path(link);
        let foreign = scope.path("foreign");
        backups(&foreign);
        backups(&foreign.join("wrap"));
        let before = everything(foreign.clone());
        std::fs::create_dir_all(link.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(&foreign, &link).unwrap();
        let ended = kennel(&scope, &["purge", "--yes"]);
        assert!(ended.stderr.contains("is a link"), "{}", ended.stderr);
        assert_eq!(everything(foreign), before);
        assert!(link.symlink_metadata().is_ok());
        // Nor do `wrap` and `unwrap` remove anything there.
        kennel(&scope, &["unwrap", "--yes"]);
        assert!(before.iter().all(|path| path.exists()));
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn needs_root_the_home_of_another_user_is_left_alone_by_root() {
    let scope = Scope::new("purge-wrap");
    let dir = scope.path("home/.local/state/kennel/wrap");
    backups(&dir);
    std::os::unix::fs::chown(scope.path("home"), Some(65534), Some(65534)).unwrap();
    let before = everything(dir.clone());
    let ended = kennel(&scope, &["purge", "--yes"]);
    assert!(
        ended.stderr.contains("belongs to uid 65534"),
        "{}",
        ended.stderr
    );
    assert_eq!(everything(dir), before);
}

#[test]
fn what_others_put_into_kennels_directories_stays_and_is_named() {
    let scope = Scope::new("purge");
    ends(&scope, session(&scope, "always", "a"));
    let key = scope
        .runtime_dir()
        .join("daemons")
        .join(keys(&scope).remove(0));
    let dir = full(key.join("mine"));
    let link = key.join("link");
    std::os::unix::fs::symlink(scope.path("home"), &link).unwrap();
    let ended = kennel(&scope, &["purge", "--yes"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(dir.join("below/data").exists() && link.symlink_metadata().is_ok());
    for path in [&dir, &link] {
        let named = format!("{} is not a file of kennel", path.display());
        assert!(ended.stderr.contains(&named), "{}", ended.stderr);
    }
    assert_eq!(everything(key.clone()).len(), 4, "nothing else is left");
}

/// Writes files into the runtime directory, with the directories that they are in.
fn plant(scope: &Scope, names: &[&str]) -> Vec<PathBuf> {
    let user = RuntimeDir::ensure(scope.runtime_dir()).unwrap();
    let planted = names.iter().map(|name| {
        let mut parts: Vec<&str> = name.split('/').collect();
        let file = parts.pop().unwrap();
        let mut dir = user.subdir(parts.remove(0)).unwrap();
        for part in parts {
            dir = dir.subdir(part).unwrap();
        }
        dir.write_whole(file, b"dear").unwrap();
        dir.path().join(file)
    });
    planted.collect()
}

#[test]
fn a_directory_of_the_user_with_names_like_kennels_stays_and_is_named() {
    let scope = Scope::new("purge-foreign");
    let names = [
        "trees/oak.jpg",
        "stores/berlin/ledger.xlsx",
        "stores/berlin/lock",
        "daemons/mydaemon/main.c",
        "daemons/mydaemon/log",
        "eras/jurassic",
    ];
    plant(&scope, &names);
    let user = RuntimeDir::ensure(scope.runtime_dir()).unwrap();
    user.subdir("guards").unwrap().subdir("dogs").unwrap();
    let before = everything(scope.runtime_dir());
    for words in [
        &["purge", "--yes"][..],
        &["purge", "--dry-run"],
        &["purge", "mydaemon", "--yes"],
    ] {
        let ended = kennel(&scope, words);
        assert_eq!(ended.code(), Some(3), "{words:?}: {}", ended.stdout);
        assert_eq!(ended.stdout, "", "nothing goes");
        assert_eq!(everything(scope.runtime_dir()), before);
    }
    let ended = kennel(&scope, &["purge", "--yes"]);
    for name in [
        "trees/oak.jpg",
        "stores/berlin",
        "daemons/mydaemon",
        "eras/jurassic",
        "guards/dogs",
    ] {
        let path = scope.runtime_dir().join(name);
        let named = format!("{} is not a file of kennel", path.display());
        assert!(ended.stderr.contains(&named), "{named}: {}", ended.stderr);
    }
}

#[test]
fn files_of_the_user_beside_kennels_stay_with_their_directories_and_are_named() {
    let scope = Scope::new("purge-beside");
    ends(&scope, session(&scope, "always", "a"));
    let key = format!("daemons/{}", keys(&scope).remove(0));
    let sock = format!("{key}/0123456789abcdef.sock");
    let notes = format!("{key}/notes.txt");
    let lock = format!("{key}/lock");
    let mine = plant(
        &scope,
        &[
            &notes,
            &lock,
            // A file, where Kennel has a socket.
            &sock,
            "guards/77/mynotes",
            "trees/mytree",
            "solo/myfile",
            "starting/mine",
        ],
    );
    let ended = kennel(&scope, &["purge", "--yes", "--json"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let told: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    for item in told["items"].as_array().unwrap() {
        let path = PathBuf::from(item["path"].as_str().unwrap());
        assert!(path.symlink_metadata().is_err(), "{item} is still there");
    }
    let files = everything(scope.runtime_dir()).into_iter();
    let mut files: Vec<PathBuf> = files.filter(|path| !path.is_dir()).collect();
    let mut expected = mine.clone();
    files.sort();
    expected.sort();
    assert_eq!(files, expected);
    for path in &mine {
        let named = format!("{} is not a file of kennel", path.display());
        assert!(ended.stderr.contains(&named), "{named}: {}", ended.stderr);
        let kept = told["kept"].as_array().unwrap();
        assert!(kept.contains(&json!(path)), "{kept:?}");
    }
}

#[test]
fn files_that_killed_processes_and_former_builds_left_go() {
    let scope = Scope::new("purge-left");
    let cookie = "0123456789abcdef0123456789abcdef";
    let in_store = |name: &str| format!("stores/{cookie}/{name}");
    let in_daemon = |name: &str| format!("daemons/0123456789abcdef/{name}");
    let names = [
        in_daemon("spawn.lock"),
        in_daemon("daemon.lock"),
        in_daemon("daemon.json"),
        in_daemon(".4711-0.daemon.json"),
        in_daemon("state.json"),
        in_daemon(".4711-12.state.json"),
        in_daemon("log"),
        in_daemon("log.1"),
        in_store("lock"),
        in_store("declared"),
        in_store(".4711-0.declared"),
        "guards/4711/record.json".to_owned(),
        "guards/4711/.4711-1.record.json".to_owned(),
        "guards/4711/log".to_owned(),
        "guards/4711/log.1".to_owned(),
        "solo/4711".to_owned(),
        "solo/.4711-1.4711".to_owned(),
        "starting/port-9500".to_owned(),
        format!("trees/{cookie}"),
        format!("trees/.{cookie}"),
        "trees/kept-4711-88".to_owned(),
        "trees/.kept-4711-88".to_owned(),
        "eras/0123456789abcdef".to_owned(),
        "eras/.4711-0.0123456789abcdef".to_owned(),
    ];
    plant(&scope, &names.each_ref().map(String::as_str));
    let socket = scope.runtime_dir().join(in_daemon("fedcba9876543210.sock"));
    std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let ended = kennel(&scope, &["purge", "--yes"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(
        !ended.stderr.contains("is not a file of kennel"),
        "{}",
        ended.stderr
    );
    assert!(!scope.runtime_dir().exists());
}
