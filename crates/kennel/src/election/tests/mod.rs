//! Elections as they happen, each test in a process and a runtime directory of its own.

mod impostors;
mod stories;
mod with_the_daemon;

use std::any::type_name_of_val;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use kennel_core::hello::{KeyFields, PROTOCOL, Spec, Text};
use kennel_sys::lock::{Lock, Mode, probe};
use kennel_sys::{Signal, events};
use kennel_testkit::{DEADLINE, Scope, bin, wait_for};

use super::*;
use crate::key_dir::{DaemonRecord, SPAWN_LOCK};

/// Set in the process that is the test itself: only there leads the environment to the scope.
const INSIDE: &str = "TESTKIT_INSIDE";

/// Runs `test`, its only statement, in a process and a runtime directory of its own.
#[track_caller]
fn in_a_scope<F: FnOnce()>(test: F) {
    if std::env::var_os(INSIDE).is_some() {
        return test();
    }
    let scope = Scope::new("election");
    std::fs::create_dir(scope.runtime_dir()).unwrap();
    std::fs::set_permissions(scope.runtime_dir(), PermissionsExt::from_mode(0o700)).unwrap();
    let path = type_name_of_val(&test).trim_end_matches("::{{closure}}");
    let (_, name) = path.split_once("::").unwrap();
    let output = again(&scope.command(std::env::current_exe().unwrap()), name)
        .output()
        .unwrap();
    end_daemons(&scope.runtime_dir());
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{name}:\n{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Daemons that a failed test left behind, and would keep: stopped ones, say.
fn end_daemons(runtime_dir: &Path) {
    let keys = std::fs::read_dir(runtime_dir.join("daemons"));
    for key in keys.into_iter().flatten() {
        let record = std::fs::read(key.unwrap().path().join("daemon.json")).unwrap_or_default();
        let record = serde_json::from_slice(&record).ok();
        if let Some(daemon) = record.and_then(|record: DaemonRecord| record.process()) {
            kill(&daemon);
        }
    }
}

/// The test's program once more, for one test.
fn again(command: &Command, name: &str) -> Command {
    let mut again = Command::new(command.get_program());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => again.env(name, value),
            None => again.env_remove(name),
        };
    }
    again
        .args(["--exact", name, "--nocapture", "--include-ignored"])
        .env(INSIDE, "1");
    again
}

fn runtime_dir() -> PathBuf {
    std::env::var_os("KENNEL_RUNTIME_DIR").unwrap().into()
}

/// Every client is a session of its own.
static SESSIONS: AtomicU32 = AtomicU32::new(0);

fn wanted(key: &str) -> ElectionRequest {
    let session = SESSIONS.fetch_add(1, Ordering::Relaxed);
    ElectionRequest {
        former: Arc::default(),
        key: key.to_owned(),
        hello: Arc::new(ClientHello {
            version: "0".into(),
            protocol: PROTOCOL,
            pid: std::process::id(),
            identity: ProcessRef::me().unwrap().identity().to_string(),
            app: None,
            session: format!("{}-{session}", std::process::id()),
            spec: Spec {
                command: vec![Text::from(&b"cat"[..])],
                cwd: Text::from(&b"/"[..]),
                ladder: (100, 100),
                cache: true,
                in_turn: false,
                hibernate: None,
                replace: true,
                detached: None,
            },
            env: vec![(
                Text::from(&b"PATH"[..]),
                Text::from(std::env::var_os("PATH").unwrap().as_bytes()),
            )]
            .into(),
            shares: Default::default(),
            build: String::new(),
            program: Text::from(&b""[..]),
            pipes: false,
            key: None,
        }),
        policy: Policy {
            linger: Duration::ZERO,
            grace: Duration::ZERO,
            max_idle: Duration::from_secs(60),
            owner: None,
            max_line: 128 << 20,
        },
        start_timeout: Duration::from_secs(5),
        suspect: None,
        handshake: None,
    }
}

#[track_caller]
/// What was decided at once is an election that is over.
fn pending(elected: Elected) -> Pending {
    match elected {
        Elected::Pending(pending) => pending,
        Elected::Immediate(outcome) => {
            let shared = Arc::new(Shared {
                decided: Arc::new(Waker::new().unwrap()),
                abandoned: Waker::new().unwrap(),
                outcome: Mutex::new(Some(outcome)),
            });
            shared.decided.wake();
            Pending {
                shared,
                until: Instant::now() + DEADLINE,
            }
        }
    }
}

fn decided(pending: &Pending) -> Outcome {
    wait_for("the election is decided", || {
        events::sleep(&[&*pending.decided()], &[], Some(Duration::from_secs(1))).unwrap();
        pending.take()
    })
}

struct Attached {
    socket: UnixStream,
    daemon: ProcessRef,
    generation: String,
}

#[track_caller]
fn connected(outcome: Outcome) -> Attached {
    match outcome {
        Outcome::Connected {
            socket,
            daemon,
            generation,
            greeted: None,
        } => Attached {
            socket: socket.as_fd().try_clone_to_owned().unwrap().into(),
            daemon: daemon.unwrap(),
            generation,
        },
        Outcome::Connected { greeted, .. } => panic!("nobody greets: {greeted:?}"),
        Outcome::NotStuck => panic!("it is not stuck"),
        Outcome::Solo { why } => panic!("solo: {why}"),
    }
}

#[track_caller]
fn solo(outcome: Outcome) -> String {
    match outcome {
        Outcome::Solo { why } => why,
        other => panic!("{other:?}"),
    }
}

fn kill(daemon: &ProcessRef) {
    daemon.signal(Signal::KILL).unwrap();
    assert!(daemon.wait(Some(DEADLINE)).unwrap());
}

fn stop(process: &ProcessRef) {
    process.signal(Signal::STOP).unwrap();
    wait_for("it is stopped", || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid())).unwrap();
        stat.contains(") T ").then_some(())
    });
}

/// Another process that elects, and starts this program if it has to.
fn shim(key: &str, program: &str) -> Child {
    let inherited = Command::new(std::env::current_exe().unwrap());
    let path = type_name_of_val(&a_shim).split_once("::").unwrap().1;
    again(&inherited, path)
        .env("TESTKIT_KEY", key)
        .env("TESTKIT_DAEMON", program)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
#[ignore = "no test: a part that others play"]
fn a_shim() {
    let variable = |name| std::env::var(name).ok();
    if let (Some(key), Some(program)) = (variable("TESTKIT_KEY"), variable("TESTKIT_DAEMON")) {
        let mut wanted = match &*program {
            "kennel" => with_the_daemon::wanted(&key),
            _ => wanted(&key),
        };
        wanted.policy.linger = Duration::from_secs(60);
        let elected = elect_with_program(wanted, bin(&program), || {}).unwrap();
        connected(decided(&pending(elected)));
    }
}
