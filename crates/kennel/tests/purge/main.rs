//! Refused while in use; afterwards nothing of Kennel's is left, and everything else is.
#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod other_files;
mod states;

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;
use kennel_sys::runtime_dir::RuntimeDir;
use kennel_testkit::{Client, Ended, Scope, bin, run, wait_for};
use serde_json::json;

fn kennel(scope: &Scope, words: &[&str]) -> Ended {
    let mut command = scope.command(env!("CARGO_BIN_EXE_kennel"));
    for name in ["CLAUDE_CONFIG_DIR", "CODEX_HOME", "OPENCODE_CONFIG"] {
        command.env_remove(name);
    }
    run(command.args(words).current_dir(scope.path("home")))
}

fn session(scope: &Scope, share: &str, tag: &str) -> Client {
    let mut command = scope.command(env!("CARGO_BIN_EXE_kennel"));
    command
        .args([
            "run",
            "--share",
            share,
            "--linger",
            "0s",
            "--stop-after",
            "50ms,50ms",
            "--",
        ])
        .arg(bin("tk-server"))
        .arg(tag)
        .current_dir(scope.path("home"));
    Client::begin(&mut command)
}

/// Every path below a directory.
fn everything(dir: PathBuf) -> Vec<PathBuf> {
    let mut all = Vec::new();
    let mut line = vec![dir];
    while let Some(dir) = line.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                line.push(path.clone());
            }
            all.push(path);
        }
    }
    all.sort();
    all
}

/// A guarded server with this state, as long as the guard lives.
fn guarded(scope: &Scope, name: &str, state: &Path) -> Child {
    let mut command = scope.command(env!("CARGO_BIN_EXE_kennel"));
    command
        .args(["guard", "--stop-after", "50ms", "--name", name, "--state"])
        .arg(state)
        .args(["--", "sleep", "1000"])
        .stdin(Stdio::null());
    let guard = command.spawn().unwrap();
    wait_for("it is on record", || {
        let listed = kennel(scope, &["ps", "--json"]).stdout;
        listed
            .contains(&format!("\"guard-{}\"", guard.id()))
            .then_some(())
    });
    guard
}

fn stops(mut guard: Child) {
    let process = ProcessRef::open(guard.id()).unwrap();
    process.signal(Signal::TERM).unwrap();
    guard.wait().unwrap();
}

/// A directory with something in it.
fn full(dir: PathBuf) -> PathBuf {
    std::fs::create_dir_all(dir.join("below")).unwrap();
    std::fs::write(dir.join("below/data"), "dear").unwrap();
    dir
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn needs_root_a_purge_that_cannot_remove_everything_does_not_say_that_nothing_was_removed() {
    let scope = Scope::new("purge-partly");
    ends(&scope, session(&scope, "always", "a"));
    let dir = scope.path("home/.local/state/kennel/wrap");
    std::fs::create_dir_all(&dir).unwrap();
    let backup = dir.join("0123456789abcdef.backup");
    std::fs::write(&backup, "{}").unwrap();
    // A file that something is mounted on cannot be removed.
    let mut command = scope.command("unshare");
    command
        .args(["-m", "sh", "-c"])
        .arg("mount --bind \"$1\" \"$1\" && shift && exec \"$@\"")
        .arg("sh")
        .arg(&backup)
        .arg(env!("CARGO_BIN_EXE_kennel"))
        .args(["purge", "--yes"]);
    let ended = run(&mut command);
    assert_eq!(ended.code(), Some(1), "{}", ended.stderr);
    let words = "not everything was removed: ";
    assert!(ended.stderr.contains(words), "{}", ended.stderr);
    let all = ended.stdout + &ended.stderr;
    assert!(!all.contains("nothing was removed"), "{all}");
    assert!(backup.exists() && !scope.runtime_dir().exists(), "{all}");
}

#[test]
fn json_is_printed_whatever_there_is_to_do() {
    let scope = Scope::new("purge");
    let told = |words: &[&str], code: i32| -> serde_json::Value {
        let ended = kennel(&scope, words);
        assert_eq!(ended.code(), Some(code), "{words:?}: {}", ended.stderr);
        serde_json::from_str(&ended.stdout).unwrap()
    };
    for words in [
        &["purge", "--json", "--yes"][..],
        &["purge", "--json", "--dry-run"],
        &["purge", "nobody", "--json", "--yes"],
    ] {
        let told = told(words, 3);
        assert_eq!(
            (&told["items"], &told["removed"]),
            (&json!([]), &json!(false))
        );
    }
    let client = session(&scope, "always", "a");
    wait_for("it is known by its name", || {
        let listed = kennel(&scope, &["ps", "--json"]).stdout;
        listed.contains("\"tk-server\"").then_some(())
    });
    let refused = told(&["purge", "--json", "--yes"], 2);
    assert!(refused["in_use"].as_str().unwrap().contains("tk-server"));
    assert_eq!(refused["removed"], false);
    ends(&scope, client);
    let unasked = told(&["purge", "--json"], 2);
    assert!(!unasked["items"].as_array().unwrap().is_empty());
    assert_eq!(unasked["removed"], false);
    assert_eq!(told(&["purge", "--json", "--yes"], 0)["removed"], true);
}

fn keys(scope: &Scope) -> Vec<String> {
    let keys = std::fs::read_dir(scope.runtime_dir().join("daemons"))
        .into_iter()
        .flatten();
    keys.map(|key| key.unwrap().file_name().into_string().unwrap())
        .collect()
}

fn ends(scope: &Scope, client: Client) {
    let mut client = client;
    client.close();
    client.wait();
    wait_for("daemon and all are gone", || {
        scope.survivors().is_empty().then_some(())
    });
}

#[test]
fn a_session_that_runs_is_named_and_nothing_is_removed() {
    for share in ["never", "always"] {
        let scope = Scope::new("purge");
        let mut client = session(&scope, share, "a");
        wait_for("it is known by its name", || {
            let listed = kennel(&scope, &["ps", "--json"]).stdout;
            listed.contains("\"tk-server\"").then_some(())
        });
        let before = everything(scope.runtime_dir());
        let ended = kennel(&scope, &["purge", "--yes"]);
        assert_eq!(ended.code(), Some(2), "{share}: {}", ended.stdout);
        assert!(ended.stderr.contains("tk-server (pid "), "{}", ended.stderr);
        assert_eq!(
            kennel(&scope, &["purge", "tk-server", "--yes"]).code(),
            Some(2)
        );
        // What is written aside takes its name a moment later.
        let lasting = |path: &&PathBuf| {
            let name = path.file_name().unwrap().to_string_lossy();
            !name.starts_with('.') && name != "state.json"
        };
        let after = everything(scope.runtime_dir());
        assert!(
            before
                .iter()
                .filter(lasting)
                .all(|path| after.contains(path))
        );
        assert_eq!(client.request("echo", json!([1]))["result"], json!([1]));
    }
}

#[test]
fn a_holder_nobody_knows_is_respected_and_how_to_find_it_is_told() {
    let scope = Scope::new("purge");
    ends(&scope, session(&scope, "always", "a"));
    let before = everything(scope.runtime_dir());
    assert!(!before.is_empty());

    // This test holds the directory, and is in no record.
    let hold = RuntimeDir::open(scope.runtime_dir())
        .unwrap()
        .unwrap()
        .hold()
        .unwrap();
    let ended = kennel(&scope, &["purge", "--yes"]);
    assert_eq!(ended.code(), Some(2), "{}", ended.stdout);
    let me = format!("pid {}", std::process::id());
    assert!(ended.stderr.contains(&me), "{}", ended.stderr);
    assert_eq!(everything(scope.runtime_dir()), before);
    drop(hold);

    // And one whose taker is gone: the lock lives on in what inherited it.
    let lock = daemon_lock(&scope);
    let mut taker = scope.command("flock");
    let taker = taker.arg(&lock).args(["sleep", "1000"]);
    let mut taker = taker.stdin(Stdio::null()).spawn().unwrap();
    let pid = taker.id();
    wait_for("the lock is taken and inherited", || {
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        children.is_ok_and(|pids| !pids.is_empty()).then_some(())
    });
    taker.kill().unwrap();
    taker.wait().unwrap();
    let ended = kennel(&scope, &["purge", "--yes"]);
    assert_eq!(ended.code(), Some(2), "{}", ended.stdout);
    assert!(ended.stderr.contains("is held by"), "{}", ended.stderr);
    assert!(before.iter().all(|path| path.exists()));
}

fn daemon_lock(scope: &Scope) -> PathBuf {
    let key = keys(scope).remove(0);
    scope
        .runtime_dir()
        .join("daemons")
        .join(key)
        .join("daemon.lock")
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn needs_root_a_holder_out_of_sight_is_respected_too() {
    let scope = Scope::new("purge");
    ends(&scope, session(&scope, "always", "a"));
    let before = everything(scope.runtime_dir());
    let _hold = RuntimeDir::open(scope.runtime_dir())
        .unwrap()
        .unwrap()
        .hold()
        .unwrap();
    // In a pid namespace of its own, it cannot see who we are.
    let mut command = scope.command("unshare");
    command.args(["--pid", "--fork", "--mount-proc"]);
    command
        .arg(env!("CARGO_BIN_EXE_kennel"))
        .args(["purge", "--yes"]);
    let ended = run(&mut command);
    assert_eq!(ended.code(), Some(2), "{}", ended.stdout);
    assert!(
        ended.stderr.contains("pid unknown; to find it:"),
        "{}",
        ended.stderr
    );
    assert_eq!(everything(scope.runtime_dir()), before);
}

#[test]
fn afterwards_nothing_of_kennels_is_left_and_everything_else_is() {
    let scope = Scope::new("purge");
    ends(&scope, session(&scope, "always", "a"));
    ends(&scope, session(&scope, "never", "b"));
    let run_dir = scope.runtime_dir();
    let state = scope.path("home/.local/state");
    std::fs::create_dir_all(state.join("kennel/wrap")).unwrap();
    std::fs::write(state.join("kennel/wrap/0123456789abcdef.backup"), "{}").unwrap();
    std::fs::write(state.join("other"), "mine").unwrap();
    let config = scope.path("home/.config/kennel/servers.toml");
    std::fs::create_dir_all(config.parent().unwrap()).unwrap();
    std::fs::write(&config, "# mine\n").unwrap();
    let cursor = scope.path("home/.cursor/mcp.json");
    std::fs::create_dir_all(cursor.parent().unwrap()).unwrap();
    std::fs::write(&cursor, "{\"mcpServers\": {\"a\": {\"command\": \"x\"}}}").unwrap();
    std::fs::write(run_dir.join("not-kennels"), "mine").unwrap();

    let before = everything(scope.dir().to_owned());
    let dry = kennel(&scope, &["purge", "--dry-run"]);
    assert_eq!(dry.code(), Some(0), "{}", dry.stderr);
    for group in ["runtime", "logs", "backups"] {
        assert!(dry.stdout.contains(group), "{group}: {}", dry.stdout);
    }
    assert!(!dry.stdout.contains("not-kennels"));
    assert_eq!(
        kennel(&scope, &["purge"]).code(),
        Some(2),
        "nobody can be asked"
    );
    assert_eq!(everything(scope.dir().to_owned()), before);

    let ended = kennel(&scope, &["purge", "--yes"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert_eq!(everything(run_dir.clone()), [run_dir.join("not-kennels")]);
    assert_eq!(everything(state.clone()), [state.join("other")]);
    assert!(config.exists() && cursor.exists());

    std::fs::remove_file(run_dir.join("not-kennels")).unwrap();
    assert_eq!(
        kennel(&scope, &["purge", "--yes"]).code(),
        Some(3),
        "nothing is left to remove"
    );
    ends(&scope, session(&scope, "always", "a"));
    assert_eq!(kennel(&scope, &["purge", "--yes"]).code(), Some(0));
    assert!(!run_dir.exists(), "nothing else was in it");
}

#[test]
fn directories_that_sessions_left_empty_go_too() {
    let scope = Scope::new("purge");
    ends(&scope, session(&scope, "never", "a"));
    assert_eq!(kennel(&scope, &["purge", "--yes"]).code(), Some(0));
    let user = RuntimeDir::ensure(scope.runtime_dir()).unwrap();
    for kind in ["solo", "trees", "daemons"] {
        user.subdir(kind).unwrap();
    }
    let ended = kennel(&scope, &["purge", "--yes"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(!scope.runtime_dir().exists());
}

#[test]
fn one_server_goes_and_the_others_stay_even_while_they_run() {
    let scope = Scope::new("purge");
    ends(&scope, session(&scope, "always", "a"));
    let gone = keys(&scope).remove(0);
    let mut other = session(&scope, "always", "b");
    assert_eq!(keys(&scope).len(), 2);
    let ended = kennel(&scope, &["purge", &gone, "--yes"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert_eq!(keys(&scope).len(), 1);
    assert!(!keys(&scope).contains(&gone));
    assert_eq!(other.request("echo", json!([1]))["result"], json!([1]));
    // By its name, once it is gone too.
    ends(&scope, other);
    let named = kennel(&scope, &["purge", "tk-server", "--yes"]);
    assert_eq!(named.code(), Some(0), "{}", named.stderr);
    assert!(keys(&scope).is_empty());
    let unknown = kennel(&scope, &["purge", "no-such-server", "--yes"]);
    assert_eq!(unknown.code(), Some(3), "{}", unknown.stderr);
}

#[test]
fn a_configuration_that_points_here_is_named_and_keeps_its_backup() {
    let scope = Scope::new("purge");
    ends(&scope, session(&scope, "always", "a"));
    let cursor = scope.path("home/.cursor/mcp.json");
    std::fs::create_dir_all(cursor.parent().unwrap()).unwrap();
    let text = "{\"mcpServers\": {\"a\": {\"command\": \"/x/kennel\", \"args\": [\"run\", \"--\", \"x\"]}}}";
    std::fs::write(&cursor, text).unwrap();
    let backup = scope.path("home/.local/state/kennel/wrap/0123456789abcdef.backup");
    std::fs::create_dir_all(backup.parent().unwrap()).unwrap();
    std::fs::write(&backup, "{}").unwrap();
    let ended = kennel(&scope, &["purge", "--yes"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("kennel unwrap") && ended.stderr.contains("mcp.json"),
        "{}",
        ended.stderr
    );
    let kept = format!("kept for `kennel unwrap`: {}", backup.display());
    assert!(ended.stderr.contains(&kept), "{}", ended.stderr);
    assert!(backup.exists() && std::fs::read_to_string(&cursor).unwrap() == text);
    assert!(!scope.runtime_dir().exists());
}

#[test]
fn a_whole_name_goes_before_the_first_letters_of_a_key() {
    let scope = Scope::new("purge");
    ends(&scope, session(&scope, "always", "a"));
    let key = keys(&scope).remove(0);
    let letters = &key[..4];
    // A server whose name is the beginning of the other one's key.
    let program = scope.path("home").join(letters);
    std::fs::copy(bin("tk-server"), &program).unwrap();
    let mut command = scope.command(env!("CARGO_BIN_EXE_kennel"));
    let options = ["run", "--share", "always", "--linger", "0s", "--"];
    command
        .args(options)
        .arg(&program)
        .current_dir(scope.path("home"));
    ends(&scope, Client::begin(&mut command));
    assert_eq!(keys(&scope).len(), 2);
    let named = kennel(&scope, &["purge", letters, "--yes"]);
    assert_eq!(named.code(), Some(0), "{}", named.stderr);
    assert_eq!(keys(&scope), [key.as_str()]);
    // Now the letters can only mean the key.
    let few = kennel(&scope, &["purge", &key[..3], "--yes"]);
    assert_eq!(few.code(), Some(3), "{}", few.stderr);
    let short = kennel(&scope, &["purge", letters, "--yes"]);
    assert_eq!(short.code(), Some(0), "{}", short.stderr);
    assert!(keys(&scope).is_empty());
}
