//! What another user planted in our own directories, however it got there: nobody is ended, held up or overwritten
//! by it (rule 9).

use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::PathBuf;

use kennel_sys::process::ProcessRef;
use kennel_testkit::{Client, Scope, run};
use serde_json::{Value, json};

use crate::stage::{kennel, listing, serves, shared};

/// A directory of the runtime directory, as Kennel makes it.
fn room(scope: &Scope, path: &str) -> PathBuf {
    let dir = scope.runtime_dir().join(path);
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(&dir).unwrap();
    dir
}

/// What a solo session writes down about itself, and half of what a guard does.
fn entry(identity: &str, mode: &str) -> Value {
    json!({
        "key": format!("{mode}-1"), "name": "it", "command": ["it"], "cwd": "/", "mode": mode,
        "daemon_pid": null, "version": "0", "since": 0, "state": "serving", "owner": null,
        "servers": [], "clients": [], "identity": identity,
    })
}

/// Writes a record of each kind that says that a process is Kennel's. The files.
fn plant_records(scope: &Scope, process: &ProcessRef) -> Vec<PathBuf> {
    let (identity, pid) = (process.identity().to_string(), process.pid().to_string());
    let guard = json!({
        "entry": entry(&identity, "guard"), "sameness": "", "owner": null, "owner_was_gone": false,
        "ports": [], "grace_ms": 0, "program": [], "detached": false, "ended": null,
    });
    let daemon = json!({
        "identity": identity, "generation": "planted", "version": "0", "since": 0,
        "name": "it", "command": [], "cwd": "/",
    });
    let place = "daemons/0123456789abcdef";
    std::fs::write(room(scope, place).join("daemon.lock"), "").unwrap();
    let records = [
        (place, "daemon.json", daemon),
        (&*format!("guards/{pid}"), "record.json", guard),
        ("solo", &*pid, entry(&identity, "solo")),
    ];
    let plant = |(dir, name, record): (&str, &str, Value)| {
        let file = room(scope, dir).join(name);
        std::fs::write(&file, record.to_string()).unwrap();
        file
    };
    records.map(plant).to_vec()
}

#[test]
fn a_process_that_holds_no_lock_of_kennels_is_not_stopped_whatever_a_record_says() {
    let scope = Scope::new("planted-own");
    let mut bystander = scope.command("sleep").arg("1000").spawn().unwrap();
    let process = ProcessRef::open(bystander.id()).unwrap();
    plant_records(&scope, &process);
    let kept = format!(
        "kennel-kept 1\nprocess {}\nreason used\nsince 1\ncommand it\ntree {}\n",
        process.identity(),
        "0f".repeat(16)
    );
    for words in [&["stop", "--all"][..], &["stop", "it"]] {
        let ended = run(kennel(&scope).args(words));
        assert_eq!(ended.code(), Some(3), "{}{}", ended.stdout, ended.stderr);
    }
    assert_eq!(listing(&scope), Vec::<Value>::new());
    // A service that outlived its server holds no lock: it has the cookie of its tree.
    std::fs::write(room(&scope, "trees").join("kept-1-1"), kept).unwrap();
    let ended = run(kennel(&scope).args(["stop", "it"]));
    assert_eq!(ended.code(), Some(1), "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stderr.contains("was not stopped"), "{}", ended.stderr);
    assert_eq!(bystander.try_wait().unwrap(), None, "on a record's word");
    bystander.kill().unwrap();
    bystander.wait().unwrap();
}

/// A daemon holds the locks that a session holds, and more.
#[test]
fn a_daemon_is_not_stopped_by_a_record_that_calls_it_a_session() {
    let scope = Scope::new("planted-daemon");
    let mut client = Client::begin(&mut shared(&scope));
    serves(&mut client);
    let pid = listing(&scope)[0]["daemon_pid"].as_u64().unwrap();
    let daemon = ProcessRef::open(u32::try_from(pid).unwrap()).unwrap();
    let record = entry(&daemon.identity().to_string(), "solo");
    let file = room(&scope, "solo").join(pid.to_string());
    std::fs::write(&file, record.to_string()).unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    let ended = run(kennel(&scope).args(["stop", "it"]));
    assert_eq!(ended.code(), Some(3), "{}{}", ended.stdout, ended.stderr);
    assert_eq!(listing(&scope).len(), 1);
    assert!(daemon.is_alive());
    serves(&mut client);
    client.close();
    client.wait();
}

mod needs_root {
    use std::io::{BufRead, BufReader};
    use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
    use std::path::Path;
    use std::process::{Child, Stdio};

    use kennel_sys::process::ProcessRef;
    use kennel_testkit::{Client, Scope, run};
    use serde_json::Value;

    use super::plant_records;
    use crate::stage::{kennel, key_dir, listing, serves, shared};

    const STRANGER: u32 = 65534;

    fn gives_away(path: &Path) {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
        chown(path, Some(STRANGER), Some(STRANGER)).unwrap();
    }

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn records_of_another_user_are_neither_shown_nor_end_anybody() {
        let scope = Scope::new("planted-records");
        let mut bystander = scope.command("sleep").arg("1000").spawn().unwrap();
        let process = ProcessRef::open(bystander.id()).unwrap();
        let files = plant_records(&scope, &process);
        files.iter().for_each(|file| gives_away(file));
        for words in [&["stop", "--all"][..], &["stop", "it"]] {
            let ended = run(kennel(&scope).args(words));
            assert_eq!(ended.code(), Some(3), "{}{}", ended.stdout, ended.stderr);
        }
        run(kennel(&scope).args(["reap", "--yes"]));
        assert_eq!(listing(&scope), Vec::<Value>::new());
        assert_eq!(bystander.try_wait().unwrap(), None, "on a stranger's word");
        // Said by us, they are no truer: the bystander holds none of the locks that they would hold.
        for file in &files {
            chown(file, Some(0), Some(0)).unwrap();
        }
        assert_eq!(listing(&scope), Vec::<Value>::new());
        run(kennel(&scope).args(["stop", "--all"]));
        assert_eq!(bystander.try_wait().unwrap(), None, "on a record's word");
        bystander.kill().unwrap();
        bystander.wait().unwrap();
    }

    /// What lies where a session or its daemon looks for a file of its own.
    #[derive(Debug, Clone, Copy)]
    enum Plant {
        /// Another user's file, locked by that user for good.
        Held,
        /// A link to a file of ours that is none of Kennel's business.
        Link,
        /// A pipe that nobody writes to.
        Pipe,
    }

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn files_of_another_user_hold_up_no_session_and_lead_nowhere() {
        let scope = Scope::new("planted-files");
        let mut first = Client::begin(&mut shared(&scope));
        serves(&mut first);
        let place = key_dir(&scope);
        first.close();
        first.wait();
        let precious = scope.path("precious");
        for name in ["spawn.lock", "daemon.lock", "daemon.json", "log"] {
            for plant in [Plant::Held, Plant::Link, Plant::Pipe] {
                run(kennel(&scope).args(["stop", "--all"]));
                std::fs::write(&precious, "precious").unwrap();
                let path = place.join(name);
                let _ = std::fs::remove_file(&path);
                let mut holder = planted(&scope, plant, &path, &precious);

                let mut client = Client::begin(&mut shared(&scope));
                serves(&mut client);
                let key = place.file_name().unwrap().to_str().unwrap();
                let told = run(kennel(&scope).args(["logs", key]));
                assert!(!told.stdout.contains("precious"), "{plant:?} {name}");
                client.close();
                client.wait();

                let kept = std::fs::read_to_string(&precious).unwrap();
                assert_eq!(kept, "precious", "{plant:?} {name}");
                if let Some(holder) = &mut holder {
                    assert_eq!(holder.try_wait().unwrap(), None, "{plant:?} {name}");
                    holder.kill().unwrap();
                    holder.wait().unwrap();
                }
                let _ = std::fs::remove_file(&path);
            }
        }
    }

    fn planted(scope: &Scope, plant: Plant, path: &Path, precious: &Path) -> Option<Child> {
        match plant {
            Plant::Held => {
                std::fs::write(path, "theirs").unwrap();
                gives_away(path);
                return Some(held(scope, path));
            }
            Plant::Link => symlink(precious, path).unwrap(),
            Plant::Pipe => {
                let made = scope.command("mkfifo").arg(path).status().unwrap();
                assert!(made.success());
            }
        }
        lchown(path, Some(STRANGER), Some(STRANGER)).unwrap();
        None
    }

    /// Locked by a process of the stranger's, which was handed the open file: it could not reach it.
    fn held(scope: &Scope, path: &Path) -> Child {
        const SCRIPT: &str = "exec 9<>\"$0\"; exec setpriv --reuid=65534 --regid=65534 \
            --clear-groups sh -c 'flock 9 && echo held; exec sleep 1000'";
        let mut command = scope.command("sh");
        command.args(["-c", SCRIPT]).arg(path);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        assert_eq!(line, "held\n");
        child
    }
}
