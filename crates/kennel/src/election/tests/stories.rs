//! With a daemon that does what a test wants (`tk-daemon`).

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread::JoinHandle;

use kennel_core::hello::DaemonHello;
use kennel_testkit::count;

use super::*;

/// What the next daemons do.
fn script(words: &str) {
    std::fs::write(runtime_dir().join("script"), words).unwrap();
}

/// Every daemon that was ever started here.
fn started() -> Vec<Identity> {
    let roll = runtime_dir().parent().unwrap().join("roll");
    let text = std::fs::read_to_string(roll).unwrap_or_default();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

fn alive() -> Vec<ProcessRef> {
    let find = |identity: Identity| ProcessRef::find(&identity).unwrap();
    started().into_iter().filter_map(find).collect()
}

fn begin(wanted: ElectionRequest) -> Pending {
    pending(elect_with_program(wanted, bin("tk-daemon"), || {}).unwrap())
}

#[track_caller]
pub(super) fn attach(key: &str) -> Attached {
    connected(decided(&begin(wanted(key))))
}

#[test]
fn the_first_starts_a_daemon_and_the_next_finds_it() {
    in_a_scope(|| {
        let first = attach("key");
        let second = attach("key");
        assert_eq!(first.generation, second.generation);
        assert!(
            first
                .daemon
                .identity()
                .same_process(second.daemon.identity())
        );
        assert_eq!(started().len(), 1);
        assert_ne!(attach("other").generation, first.generation);
    });
}

#[test]
fn what_a_daemon_says_behind_its_hello_is_the_sessions() {
    in_a_scope(|| {
        for _ in 0..2 {
            let attached = attach("key");
            let blocks = rustix::fs::fcntl_getfl(&attached.socket).unwrap();
            assert!(blocks.contains(rustix::fs::OFlags::NONBLOCK));
            attached.socket.set_nonblocking(false).unwrap();
            let mut line = String::new();
            BufReader::new(&attached.socket)
                .read_line(&mut line)
                .unwrap();
            assert_eq!(line, "{\"behind\":1}\n");
        }
    });
}

#[test]
fn rule_1_twenty_at_once_from_cold_get_one_daemon() {
    in_a_scope(|| {
        for round in 0..count(50) as usize {
            let key = format!("key{round}");
            let pending: Vec<Pending> = (0..20).map(|_| begin(wanted(&key))).collect();
            let all: Vec<Attached> = pending.iter().map(|p| connected(decided(p))).collect();
            assert!(all.iter().all(|one| one.generation == all[0].generation));
            assert_eq!(started().len(), round + 1);
            kill(&all[0].daemon);
        }
    });
}

#[test]
fn rule_1_twenty_at_once_over_the_stale_files_of_a_killed_daemon_get_one() {
    in_a_scope(|| {
        kill(&attach("key").daemon);
        for round in 0..count(50) as usize {
            let pending: Vec<Pending> = (0..20).map(|_| begin(wanted("key"))).collect();
            let all: Vec<Attached> = pending.iter().map(|p| connected(decided(p))).collect();
            assert!(all.iter().all(|one| one.generation == all[0].generation));
            assert_eq!(started().len(), round + 2);
            if round % 2 == 1 {
                let record = runtime_dir().join("daemons/key/daemon.json");
                std::fs::write(
                    record,
                    [b"{\"identity\": 7".as_slice(), &[0xff; 90]].concat(),
                )
                .unwrap();
            }
            kill(&all[0].daemon);
        }
    });
}

#[test]
fn a_living_daemon_whose_record_is_garbage_is_found_by_its_socket() {
    in_a_scope(|| {
        let first = attach("key");
        std::fs::write(runtime_dir().join("daemons/key/daemon.json"), "garbage").unwrap();
        assert_eq!(attach("key").generation, first.generation);
        assert_eq!(started().len(), 1);
    });
}

/// Listens where a daemon would, and answers like one. Gives what was said to it, once somebody says [`ENOUGH`].
fn impostor(listener: UnixListener) -> JoinHandle<Vec<String>> {
    std::thread::spawn(move || {
        let mut received = Vec::new();
        loop {
            let (mut visitor, _) = listener.accept().unwrap();
            let mut said = String::new();
            BufReader::new(&visitor).read_line(&mut said).unwrap();
            match said.as_str() {
                ENOUGH => return received,
                "" => {}
                _ => {
                    received.push(said);
                    let hello = DaemonHello {
                        version: "0".into(),
                        protocol: PROTOCOL,
                        generation: "planted".into(),
                        build: String::new(),
                        checks_keys: true,
                        key_version: kennel_core::hello::KEY_VERSION,
                    };
                    let hello = [hello.line().as_slice(), b"\n"].concat();
                    visitor.write_all(&hello).unwrap();
                }
            }
        }
    })
}

const ENOUGH: &str = "enough";

#[test]
fn rule_9_a_socket_of_another_process_than_the_daemon_is_ignored() {
    in_a_scope(|| {
        let key_dir = KeyDir::ensure("key").unwrap();
        let socket = key_dir.socket_path("planted").unwrap();
        let listener = UnixListener::bind(&socket).unwrap();
        // Another living process. Not the test itself: the process on record is ended after the test.
        let mut another = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let on_record = ProcessRef::open(another.id()).unwrap();
        let record = DaemonRecord {
            identity: on_record.identity().to_string(),
            generation: "planted".into(),
            version: "0".into(),
            build: String::new(),
            lock: None,
            since: 0,
            name: String::new(),
            command: Vec::new(),
            cwd: String::new(),
        };
        key_dir.write_record(&record).unwrap();
        let impostor = impostor(listener);
        assert_ne!(attach("key").generation, "planted");
        assert_eq!(started().len(), 1);
        // No hello was sent: it contains the environment.
        let mut last = UnixStream::connect(&socket).unwrap();
        last.write_all(ENOUGH.as_bytes()).unwrap();
        drop(last);
        assert!(impostor.join().unwrap().is_empty());
        another.kill().unwrap();
        another.wait().unwrap();
    });
}

#[test]
fn a_daemon_that_does_not_start_says_why() {
    in_a_scope(|| {
        script("fail");
        let why = solo(decided(&begin(wanted("key"))));
        assert!(why.contains("no luck today"), "{why}");
        script("die");
        let why = solo(decided(&begin(wanted("key"))));
        assert!(why.contains("out of luck"), "{why}");
        script("");
        attach("key");
    });
}

#[test]
fn a_daemon_that_is_not_ready_in_time_is_gone_without() {
    in_a_scope(|| {
        script("hang");
        let brief = Duration::from_millis(200);
        let wanted = ElectionRequest {
            start_timeout: brief,
            ..wanted("key")
        };
        let begun = Instant::now();
        let why = solo(decided(&begin(wanted)));
        assert!(why.contains("--start-timeout"), "{why}");
        assert!(begun.elapsed() >= brief);
    });
}

#[test]
fn daemons_that_hang_up_are_not_started_for_ever() {
    in_a_scope(|| {
        script("rude");
        let why = solo(decided(&begin(wanted("key"))));
        assert!(why.contains("closes connections"), "{why}");
        assert_eq!(started().len(), 1);
    });
}

#[test]
fn lesson_12_a_lock_that_cannot_be_opened_is_an_error_and_not_waited_for() {
    in_a_scope(|| {
        let key_dir = KeyDir::ensure("key").unwrap();
        std::fs::create_dir(key_dir.dir().path().join(SPAWN_LOCK)).unwrap();
        let begun = Instant::now();
        let why = solo(decided(&begin(wanted("key"))));
        assert!(why.contains("spawn.lock"), "{why}");
        assert!(begun.elapsed() < Duration::from_secs(5));
    });
}

#[test]
fn a_daemon_that_is_going_is_let_go_and_the_next_one_serves() {
    in_a_scope(|| {
        script("going 3");
        attach("key");
        assert_eq!(started().len(), 4);
    });
}

#[test]
fn a_vanished_directory_is_made_anew_with_one_daemon_in_it() {
    in_a_scope(|| {
        let first = attach("key");
        std::fs::remove_dir_all(runtime_dir().join("daemons")).unwrap();
        let second = attach("key");
        assert_ne!(first.generation, second.generation);
        assert_eq!(attach("key").generation, second.generation);
        assert!(first.daemon.is_alive());
    });
}

#[test]
fn a_stopped_daemon_is_replaced_within_5_s() {
    in_a_scope(|| {
        let first = attach("key");
        stop(&first.daemon);
        let begun = Instant::now();
        let all: Vec<Pending> = (0..5).map(|_| begin(wanted("key"))).collect();
        let all: Vec<Attached> = all.iter().map(|p| connected(decided(p))).collect();
        assert!(begun.elapsed() < Duration::from_secs(5));
        assert!(all.iter().all(|one| one.generation == all[0].generation));
        assert_eq!(alive().len(), 1);
        assert_eq!(started().len(), 2);
    });
}

#[test]
fn a_daemon_stopped_before_it_is_ready_is_ended_and_the_next_one_serves() {
    in_a_scope(|| {
        script("stop 1");
        let attached = attach("key");
        assert_eq!(started().len(), 2);
        assert_eq!(alive().len(), 1);
        assert!(
            alive()[0]
                .identity()
                .same_process(attached.daemon.identity())
        );
    });
}

#[test]
fn so_it_is_by_those_who_wait_when_the_shim_that_started_it_was_killed() {
    in_a_scope(|| {
        script("stop 1");
        let starting = begin(wanted("key"));
        wait_for("the stopped one", || (started().len() == 1).then_some(()));
        drop(starting);
        attach("key");
        assert_eq!(started().len(), 2);
        assert_eq!(alive().len(), 1);
    });
}

#[test]
fn rule_6_a_stopped_daemon_that_is_not_on_record_is_left_alone() {
    in_a_scope(|| {
        let first = attach("key");
        std::fs::write(runtime_dir().join("daemons/key/daemon.json"), "garbage").unwrap();
        stop(&first.daemon);
        let why = solo(decided(&begin(wanted("key"))));
        assert!(why.contains("cannot be verified"), "{why}");
        assert!(first.daemon.is_alive());
    });
}

#[test]
fn a_suspect_that_is_stopped_is_replaced_and_one_that_answers_is_kept() {
    in_a_scope(|| {
        let first = attach("key");
        let suspecting = |suspect: ProcessRef| ElectionRequest {
            suspect: Some(suspect),
            ..wanted("key")
        };
        let suspect = || ProcessRef::find(first.daemon.identity()).unwrap().unwrap();
        let kept = decided(&begin(suspecting(suspect())));
        assert!(matches!(kept, Outcome::NotStuck), "{kept:?}");
        stop(&first.daemon);
        let second = connected(decided(&begin(suspecting(suspect()))));
        assert_ne!(second.generation, first.generation);
        assert_eq!(alive().len(), 1);
    });
}

#[test]
fn a_stopped_suspect_whose_door_is_shut_is_replaced() {
    in_a_scope(|| {
        let first = attach("key");
        let key_dir = KeyDir::ensure("key").unwrap();
        std::fs::remove_file(key_dir.socket_path(&first.generation).unwrap()).unwrap();
        stop(&first.daemon);
        let wanted = ElectionRequest {
            suspect: Some(first.daemon),
            ..wanted("key")
        };
        let second = connected(decided(&begin(wanted)));
        assert_ne!(second.generation, first.generation);
        assert_eq!(alive().len(), 1);
    });
}

#[test]
fn a_suspect_that_works_is_waited_for() {
    in_a_scope(|| {
        let first = attach("key");
        kill(&first.daemon);
        script("busy 3000");
        let busy = attach("key");
        let wanted = ElectionRequest {
            suspect: Some(busy.daemon),
            ..wanted("key")
        };
        let kept = decided(&begin(wanted));
        assert!(matches!(kept, Outcome::NotStuck), "{kept:?}");
        assert_eq!(started().len(), 2);
    });
}

#[test]
fn a_daemon_that_does_nothing_is_stuck_after_10_s_and_not_before() {
    in_a_scope(|| {
        script("deaf");
        let begun = Instant::now();
        let pending = begin(wanted("key"));
        wait_for("a daemon", || started().first().copied());
        script("");
        connected(decided(&pending));
        assert!(begun.elapsed() >= Duration::from_secs(10));
        assert_eq!(alive().len(), 1);
    });
}

#[test]
fn a_daemon_that_is_always_busy_and_never_answers_is_stuck_after_20_s() {
    in_a_scope(|| {
        script("busy 1000000");
        let begun = Instant::now();
        let pending = begin(wanted("key"));
        wait_for("a daemon", || started().first().copied());
        script("");
        connected(decided(&pending));
        assert!(begun.elapsed() >= Duration::from_secs(20));
        assert_eq!(alive().len(), 1);
    });
}

#[test]
fn a_shim_killed_or_stopped_between_spawn_and_ready_leaves_one_daemon() {
    in_a_scope(|| {
        script("slow 300");
        for (round, signal) in [Signal::KILL, Signal::STOP].into_iter().enumerate() {
            let key = format!("key{round}");
            let mut shim = shim(&key, "tk-daemon");
            wait_for("its daemon", || (started().len() > round).then_some(()));
            let process = ProcessRef::open(shim.id()).unwrap();
            process.signal(signal).unwrap();
            let all: Vec<Pending> = (0..10).map(|_| begin(wanted(&key))).collect();
            for pending in &all {
                connected(decided(pending));
            }
            assert_eq!(started().len(), round + 1, "{signal:?}");
            shim.kill().unwrap();
            shim.wait().unwrap();
        }
    });
}

#[test]
fn an_abandoned_election_takes_nothing_with_it() {
    in_a_scope(|| {
        let key_dir = KeyDir::ensure("key").unwrap();
        let lock = Lock::acquire(key_dir.dir(), SPAWN_LOCK, Mode::Exclusive).unwrap();
        let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
        let before = threads();
        let pending = begin(wanted("key"));
        wait_for("it is under way", || (threads() > before).then_some(()));
        drop(pending);
        wait_for("its thread ends", || (threads() == before).then_some(()));
        lock.release();
        assert!(!probe(key_dir.dir(), SPAWN_LOCK).is_held());
        assert_eq!(started(), []);
    });
}

#[test]
fn a_spawn_lock_that_is_never_released_is_waited_for_before_going_dedicated() {
    in_a_scope(|| {
        let key_dir = KeyDir::ensure("key").unwrap();
        let _lock = Lock::acquire(key_dir.dir(), SPAWN_LOCK, Mode::Exclusive).unwrap();
        let wanted = ElectionRequest {
            start_timeout: Duration::from_millis(1),
            ..wanted("key")
        };
        let why = solo(decided(&begin(wanted)));
        assert!(why.contains(&std::process::id().to_string()), "{why}");
    });
}

#[test]
fn an_election_whose_thread_hangs_is_over_when_it_is_overdue() {
    let shared = Arc::new(Shared {
        decided: Arc::new(Waker::new().unwrap()),
        abandoned: Waker::new().unwrap(),
        outcome: Mutex::new(None),
    });
    let pending = |until| Pending {
        shared: Arc::clone(&shared),
        until,
    };
    let in_time = pending(Instant::now() + DEADLINE);
    assert!(in_time.take().is_none(), "it is undecided");
    let overdue = pending(Instant::now());
    assert!(matches!(overdue.take(), Some(Outcome::Solo { .. })));
    // What it found in the last moment counts.
    *shared.outcome.lock().unwrap() = Some(Outcome::NotStuck);
    assert!(matches!(overdue.take(), Some(Outcome::NotStuck)));
}
