//! Processes of this user that listen where a daemon would, and are none.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};

use kennel_core::hello::{DaemonHello, KEY_VERSION, PROTOCOL};
use kennel_sys::lock::Probe;
use kennel_sys::passing::{self, Passing};

use super::super::connect::{ConnectAttempt, connect_socket, try_connect};
use super::super::stuck;
use super::stories::attach;
use super::*;
use crate::key_dir::DAEMON_LOCK;

/// Writes this process down as the daemon of a key, and listens as it would.
fn pose(key: &str) -> (KeyDir, UnixListener) {
    let key_dir = KeyDir::ensure(key).unwrap();
    let generation = "one".to_owned();
    let listener = UnixListener::bind(key_dir.socket_path(&generation).unwrap()).unwrap();
    let record = DaemonRecord {
        identity: ProcessRef::me().unwrap().identity().to_string(),
        generation,
        version: "0".into(),
        build: String::new(),
        lock: None,
        since: 0,
        name: "server".into(),
        command: Vec::new(),
        cwd: "/".into(),
    };
    key_dir.write_record(&record).unwrap();
    (key_dir, listener)
}

fn is_open(key_dir: &KeyDir) -> bool {
    matches!(try_connect(key_dir), ConnectAttempt::Connected(_))
}

/// What the kernel says of a socket when descriptors are refused once more.
fn passing_before(socket: &Stream) -> Passing {
    let copy = UnixStream::from(socket.as_fd().try_clone_to_owned().unwrap());
    Stream::new(copy.into()).unwrap().passing()
}

#[test]
fn who_is_not_known_to_be_the_daemon_can_pass_no_descriptor() {
    in_a_scope(|| {
        let (key_dir, listener) = pose("passes");
        let socket = connect_socket(&key_dir, "one").unwrap();
        let (impostor, _) = listener.accept().unwrap();
        if !passing::can_be_refused() {
            return kennel_testkit::skipped("this kernel has no SO_PASSRIGHTS (Linux 6.16)");
        }
        assert_eq!(passing_before(&socket), Passing::Refused);
        drop(impostor);
        // The daemon may: it offers pipes.
        let _lock = Lock::acquire(key_dir.dir(), DAEMON_LOCK, Mode::Exclusive).unwrap();
        let ConnectAttempt::Connected(reached) = try_connect(&key_dir) else {
            panic!("this process holds the lock");
        };
        assert_eq!(passing_before(&reached.socket), Passing::RefusedFromNow);
    });
}

#[test]
fn a_process_that_is_on_record_and_does_not_hold_the_lock_is_no_daemon() {
    in_a_scope(|| {
        let (key_dir, _listener) = pose("recorded");
        assert!(!is_open(&key_dir), "nobody holds the lock");
        let mut command = Command::new("flock");
        let lock = key_dir.dir().path().join(DAEMON_LOCK);
        command.arg(&lock).args(["sleep", "600"]);
        let mut holder = command.stdin(Stdio::null()).spawn().unwrap();
        wait_for("another process holds the lock", || {
            let held = probe(key_dir.dir(), DAEMON_LOCK);
            matches!(held, kennel_sys::lock::Probe::Held { .. }).then_some(())
        });
        let open = is_open(&key_dir);
        // The lock is the one of `sleep`, too.
        let heirs = kennel_sys::lock::holders(key_dir.dir(), DAEMON_LOCK, |_| true);
        for process in &heirs {
            process.signal(Signal::KILL).unwrap();
        }
        holder.wait().unwrap();
        assert!(!open, "another process holds the lock");
        wait_for("the lock is free", || {
            let lock = Lock::try_acquire(key_dir.dir(), DAEMON_LOCK, Mode::Exclusive).unwrap();
            let _lock = lock?;
            assert!(is_open(&key_dir), "this process holds it");
            Some(())
        });
    });
}

#[test]
fn a_process_that_has_the_lock_and_is_on_record_is_not_ended_unless_it_is_a_daemon() {
    in_a_scope(|| {
        let (key_dir, _listener) = pose("stuck");
        let _lock = Lock::acquire(key_dir.dir(), DAEMON_LOCK, Mode::Exclusive).unwrap();
        let me = ProcessRef::me().unwrap();
        let refused = stuck::kill_if_verified(&key_dir, &me).unwrap_err();
        assert!(refused.contains("cannot be verified"), "{refused}");
        let _hold = key_dir.hold().unwrap();
        stuck::kill_if_verified(&key_dir, &me).unwrap_err();
    });
}

#[test]
fn a_socket_that_was_bound_elsewhere_is_not_the_daemons() {
    in_a_scope(|| {
        let (key_dir, listener) = pose("elsewhere");
        let _lock = Lock::acquire(key_dir.dir(), DAEMON_LOCK, Mode::Exclusive).unwrap();
        assert!(is_open(&key_dir));
        drop(listener);
        let path = key_dir.socket_path("one").unwrap();
        std::fs::remove_file(&path).unwrap();
        let elsewhere = runtime_dir().join("one.sock");
        let _listener = UnixListener::bind(&elsewhere).unwrap();
        std::fs::rename(&elsewhere, &path).unwrap();
        assert!(!is_open(&key_dir));
    });
}

/// Answers one hello as a daemon would; returns what was said.
fn answer(listener: &UnixListener, checks_keys: bool, key_version: u32) -> String {
    let (mut visitor, _) = listener.accept().unwrap();
    let mut said = String::new();
    BufReader::new(&visitor).read_line(&mut said).unwrap();
    let hello = DaemonHello {
        version: "0".into(),
        protocol: PROTOCOL,
        generation: format!("{checks_keys} {key_version}"),
        build: String::new(),
        checks_keys,
        key_version,
    };
    let hello = [hello.line().as_slice(), b"\n"].concat();
    visitor.write_all(&hello).unwrap();
    said
}

#[test]
fn a_daemon_that_does_not_check_keys_of_this_version_is_joined_only_when_it_became_a_build_that_does()
 {
    in_a_scope(|| {
        let (key_dir, listener) = pose("outdated");
        let _lock = Lock::acquire(key_dir.dir(), DAEMON_LOCK, Mode::Exclusive).unwrap();
        let daemon = std::thread::spawn(move || {
            let (none, former, present) = ((false, 0), (true, 0), (true, KEY_VERSION));
            let hellos = [none, none, former, present]
                .map(|(checks_keys, version)| answer(&listener, checks_keys, version));
            assert!(hellos.iter().all(|hello| hello.starts_with("!hello ")));
        });
        let newest = format!("true {}", KEY_VERSION);
        assert_eq!(attach("outdated").generation, newest);
        daemon.join().unwrap();
    });
}

/// The last line that an impostor reads.
const ENOUGH: &str = "enough";

/// Starts a process, behind `launcher`, that holds the lock of a key's daemon and listens at its socket.
fn impostor(key_dir: &KeyDir, launcher: &[&str]) -> Child {
    let program = std::env::current_exe().unwrap();
    let name = type_name_of_val(&an_impostor).split_once("::").unwrap().1;
    let mut words: Vec<&std::ffi::OsStr> = launcher.iter().map(|word| word.as_ref()).collect();
    words.push(program.as_os_str());
    let child = Command::new(words[0])
        .args(&words[1..])
        .args(["--exact", name, "--nocapture", "--ignored"])
        .env(INSIDE, "1")
        .env("TESTKIT_KEY", key_dir.key())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // The lock comes last.
    wait_for("the impostor holds the lock", || {
        let found = probe(key_dir.dir(), DAEMON_LOCK);
        matches!(found, Probe::Held { .. }).then_some(())
    });
    child
}

#[test]
#[ignore = "no test: a part that others play"]
fn an_impostor() {
    let Ok(key) = std::env::var("TESTKIT_KEY") else {
        return;
    };
    let (key_dir, listener) = pose(&key);
    let _lock = Lock::acquire(key_dir.dir(), DAEMON_LOCK, Mode::Exclusive).unwrap();
    loop {
        let (client, _) = listener.accept().unwrap();
        let mut line = String::new();
        BufReader::new(client).read_line(&mut line).unwrap();
        match line.as_str() {
            ENOUGH => return,
            "" => {}
            line => panic!("the impostor heard {line}"),
        }
    }
}

/// Ends an impostor; whether it heard nothing.
fn heard_nothing(key_dir: &KeyDir, mut impostor: Child) -> bool {
    // Connections are read in their order: what was said before is heard before. One that heard something is gone.
    if let Ok(mut last) = UnixStream::connect(key_dir.socket_path("one").unwrap()) {
        let _ = last.write_all(ENOUGH.as_bytes());
    }
    impostor.wait().unwrap().success()
}

#[test]
fn a_confined_process_that_holds_the_lock_hears_nothing_of_an_unconfined_session() {
    in_a_scope(|| {
        let key_dir = KeyDir::ensure("free").unwrap();
        let free = impostor(&key_dir, &[]);
        let open = is_open(&key_dir);
        assert!(heard_nothing(&key_dir, free));
        assert!(open, "only its confinement tells the other one apart");

        let key_dir = KeyDir::ensure("confined").unwrap();
        let confined = impostor(&key_dir, &["setpriv", "--no-new-privs"]);
        let open = is_open(&key_dir);
        let mut wanted = wanted("confined");
        wanted.start_timeout = Duration::from_secs(1);
        let elected = elect_with_program(wanted, bin("tk-daemon"), || {}).unwrap();
        let outcome = decided(&pending(elected));
        assert!(heard_nothing(&key_dir, confined), "a hello was heard");
        assert!(!open);
        solo(outcome);
    });
}
