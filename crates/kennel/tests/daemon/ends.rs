//! When the daemon ends, and what is left of it: nothing.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use kennel_core::hello::Control;
use kennel_sys::Signal;
use kennel_sys::lock::{Lock, Mode};
use kennel_sys::process::ProcessRef;
use kennel_sys::runtime_dir::RuntimeDir;
use kennel_testkit::wait_for;
use serde_json::json;

use crate::stage::{Cast, Connection, Daemon};

fn brief(label: &str) -> (Daemon, Connection) {
    let linger = Duration::from_millis(300);
    let cast = Cast {
        linger,
        ..Cast::default()
    };
    Daemon::with_first(label, cast)
}

#[track_caller]
fn has_left_nothing(daemon: &Daemon) {
    let names: Vec<OsString> = std::fs::read_dir(daemon.dir())
        .expect("its directory")
        .map(|entry| entry.expect("an entry").file_name())
        .filter(|name| {
            !["log", "daemon.lock", "spawn.lock"]
                .iter()
                .any(|kept| name == kept)
        })
        .collect();
    assert!(names.is_empty(), "{names:?}");
    let trees = daemon.scope.runtime_dir().join("trees");
    assert_eq!(std::fs::read_dir(trees).expect("trees").count(), 0);
    daemon
        .scope
        .nothing_left_within("the daemon is gone", Duration::from_secs(2));
}

#[test]
fn linger_over_the_daemon_is_gone_and_nothing_is_left() {
    let (daemon, mut first) = brief("linger");
    first.greet(&daemon.hello());
    first.server();
    drop(first);
    let left = Instant::now();
    daemon.is_gone();
    assert!(left.elapsed() >= Duration::from_millis(300));
    has_left_nothing(&daemon);
    assert!(
        daemon.log().contains("no client attached for"),
        "{}",
        daemon.log()
    );
}

#[test]
fn a_quiet_client_is_never_cut_and_an_arrival_cancels_the_end() {
    let (daemon, first) = brief("arrival");
    // It said nothing at all, not even hello: it counts from its connection on (lesson 30).
    kennel_sys::events::sleep(&[], &[], Some(Duration::from_millis(700))).unwrap();
    assert!(daemon.process.is_alive());
    drop(first);
    let mut second = daemon.client();
    kennel_sys::events::sleep(&[], &[], Some(Duration::from_millis(700))).unwrap();
    assert_eq!(second.ask("echo", json!(1)), 1);
    drop(second);
    daemon.is_gone();
    has_left_nothing(&daemon);
}

#[test]
fn while_somebody_is_on_the_way_the_daemon_stays() {
    let (daemon, first) = brief("contended");
    let dir = RuntimeDir::open(daemon.dir()).unwrap().unwrap();
    let lock = Lock::acquire(&dir, "spawn.lock", Mode::Exclusive).unwrap();
    drop(first);
    daemon.logs("ending: no client attached");
    kennel_sys::events::sleep(&[], &[], Some(Duration::from_millis(500))).unwrap();
    assert!(daemon.process.is_alive());
    let mut client = daemon.client();
    assert_eq!(client.ask("echo", json!(1)), 1);
    drop(lock);
    drop(client);
    daemon.is_gone();
    has_left_nothing(&daemon);
}

#[test]
fn arrivals_around_the_end_are_served_or_told_to_go_elsewhere() {
    for round in 0..kennel_testkit::count(100) as u64 {
        let cast = Cast {
            linger: Duration::from_millis(20),
            ..Cast::default()
        };
        let (daemon, first) = Daemon::with_first("around", cast);
        drop(first);
        let wait = Duration::from_micros(18_000 + round % 10 * 500);
        kennel_sys::events::sleep(&[], &[], Some(wait)).unwrap();
        // Too late to connect is to be told so as well.
        if let Ok(stream) = std::os::unix::net::UnixStream::connect(daemon.socket_path()) {
            let mut client = Connection::of(stream);
            use std::io::Write;
            let hello = [&daemon.hello().line()[..], b"\n"].concat();
            let _ = client.stream().write_all(&hello);
            match client.line() {
                None => {}
                Some(line) if line == "!going" => {}
                Some(line) => {
                    assert!(line.starts_with("!hello "), "{line}");
                    assert_eq!(client.ask("echo", json!(1)), 1);
                }
            }
        }
        daemon.is_gone();
        has_left_nothing(&daemon);
    }
}

#[test]
fn a_daemon_ends_with_its_owner_but_not_under_its_clients() {
    let scope = kennel_testkit::Scope::new("owner");
    let mut owner = scope.command("sleep").arg("600").spawn().unwrap();
    let cast = Cast {
        owner: Some(*ProcessRef::open(owner.id()).unwrap().identity()),
        ..Cast::default()
    };
    let (daemon, mut first) = Daemon::with_first("owned", cast);
    first.greet(&daemon.hello());
    daemon.state_when("an owner", |state| state["owner"] == owner.id());
    owner.kill().unwrap();
    owner.wait().unwrap();
    daemon.logs("the owner is gone");
    kennel_sys::events::sleep(&[], &[], Some(Duration::from_millis(300))).unwrap();
    assert_eq!(first.ask("echo", json!(1)), 1);
    drop(first);
    daemon.is_gone();
    has_left_nothing(&daemon);
}

#[test]
fn asked_to_stop_it_tells_all_stops_all_and_is_gone() {
    let daemon = Daemon::start("stop");
    let (mut one, mut two) = (daemon.client(), daemon.client());
    let server = one.server();
    let unheard = daemon.connect();
    daemon.state_when("all are here", |state| {
        state["clients"]
            .as_array()
            .is_some_and(|all| all.len() >= 3)
    });
    daemon.process.signal(Signal::TERM).unwrap();
    for client in [&mut one, &mut two] {
        assert_eq!(client.word(), Control::Stopped);
        client.is_closed();
    }
    let mut unheard = unheard;
    assert_eq!(unheard.word(), Control::Going);
    daemon.is_gone();
    assert!(!server.is_alive());
    has_left_nothing(&daemon);
}

#[test]
fn a_hangup_of_nobodys_terminal_is_nothing() {
    let daemon = Daemon::start("sighup");
    daemon.process.signal(Signal::HUP).unwrap();
    assert_eq!(daemon.client().ask("echo", json!(1)), 1);
    daemon.stop();
}

#[test]
fn a_daemon_whose_place_was_removed_says_so_serves_its_clients_and_ends_with_the_last() {
    let daemon = Daemon::start("moved");
    let mut client = daemon.client();
    let mut other = daemon.client();
    std::fs::rename(daemon.scope.runtime_dir(), daemon.scope.path("away")).unwrap();
    // Somebody else's by now, whatever it is.
    std::fs::create_dir_all(daemon.dir()).unwrap();
    let theirs = ["daemon.json", "daemon.lock", "x.sock"].map(|name| daemon.dir().join(name));
    theirs
        .iter()
        .for_each(|path| std::fs::write(path, "theirs").unwrap());
    wait_for("the daemon looks after its place", || {
        other.say("!ping");
        let word = other.word();
        (word == Control::Moved).then_some(())
    });
    assert_eq!(client.word(), Control::Moved);
    assert_eq!(client.ask("echo", json!(1)), 1);
    drop(other);
    assert_eq!(client.ask("echo", json!(2)), 2);
    drop(client);
    daemon.is_gone();
    for path in theirs {
        assert_eq!(std::fs::read_to_string(path).unwrap(), "theirs");
    }
}

#[test]
fn asked_to_stop_while_it_ends_it_stops_for_good() {
    let (daemon, first) = brief("stop-ending");
    let dir = RuntimeDir::open(daemon.dir()).unwrap().unwrap();
    let lock = Lock::acquire(&dir, "spawn.lock", Mode::Exclusive).unwrap();
    drop(first);
    daemon.logs("ending: no client attached");
    daemon.process.signal(Signal::TERM).unwrap();
    daemon.is_gone();
    drop(lock);
    has_left_nothing(&daemon);
}

#[test]
fn a_daemon_without_a_place_says_why_it_does_not_start() {
    let scope = kennel_testkit::Scope::new("no-place");
    let cast = Cast {
        env: vec![("KENNEL_RUNTIME_DIR", "/proc/nowhere")],
        ..Cast::default()
    };
    let (report, _) = crate::stage::spawn(&scope, &cast);
    assert!(report.starts_with("failed "), "{report}");
    assert!(report.contains("/proc/nowhere"), "{report}");
    scope.nothing_left_within("a start that failed", Duration::from_secs(2));
}
