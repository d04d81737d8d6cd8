//! With the daemon itself.

use std::io::{BufRead, BufReader, Write};

use kennel_testkit::{Rng, count};

use super::*;
use crate::{confined, key};

fn begin(wanted: ElectionRequest) -> Pending {
    pending(elect_with_program(wanted, bin("kennel"), || {}).unwrap())
}

/// A daemon serves only its own key: the label is in the environment, and so in the key.
pub(super) fn wanted(label: &str) -> ElectionRequest {
    let mut wanted = super::wanted(label);
    let mut hello = ClientHello::clone(&wanted.hello);
    let text = |text: &str| Text::from(text.as_bytes());
    Arc::make_mut(&mut hello.env).push((text("LABEL"), text(label)));
    hello.key = Some(KeyFields {
        version: key::VERSION,
        names: vec![text("LABEL")],
        env_key: None,
        no_cache: false,
    });
    wanted.key = key::of_hello(&hello, confined::ours().unwrap()).unwrap();
    wanted.hello = Arc::new(hello);
    wanted.policy.linger = Duration::from_secs(60);
    wanted
}

/// Where those with this label meet.
fn place(label: &str) -> PathBuf {
    runtime_dir().join("daemons").join(wanted(label).key)
}

#[track_caller]
fn attach(key: &str) -> Attached {
    connected(decided(&begin(wanted(key))))
}

#[track_caller]
fn attach_all(key: &str, shims: usize) -> Vec<Attached> {
    let pending: Vec<Pending> = (0..shims).map(|_| begin(wanted(key))).collect();
    let all: Vec<Attached> = pending.iter().map(|one| connected(decided(one))).collect();
    for one in &all {
        assert_eq!(one.generation, all[0].generation);
        speak(one);
    }
    all
}

/// A question to its server, which is `cat`: it asks us the same.
#[track_caller]
fn speak(attached: &Attached) {
    let mut socket = &attached.socket;
    socket.set_nonblocking(false).unwrap();
    let question = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"hear\"}\n";
    socket.write_all(question.as_bytes()).unwrap();
    assert_eq!(receive_line(attached), question);
}

#[track_caller]
fn receive_line(attached: &Attached) -> String {
    let socket = &attached.socket;
    socket.set_nonblocking(false).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut line = String::new();
    BufReader::new(socket).read_line(&mut line).unwrap();
    line
}

/// How many daemons have begun to serve this key.
fn served(label: &str) -> usize {
    let text = std::fs::read_to_string(place(label).join("log")).unwrap_or_default();
    let begun = format!(" of key {}, pid ", wanted(label).key);
    text.lines().filter(|line| line.contains(&begun)).count()
}

#[test]
fn while_a_thread_elects_the_shim_does_what_it_has_to_do() {
    in_a_scope(|| {
        let mut calls = 0;
        let elected = elect_with_program(wanted("key"), bin("kennel"), || calls += 1).unwrap();
        connected(decided(&pending(elected)));
        assert_eq!(calls, 1);
    });
}

#[test]
fn rule_1_twenty_at_once_from_cold_are_served_by_one_daemon() {
    in_a_scope(|| {
        for round in 0..count(50) {
            let key = format!("key{round}");
            let all = attach_all(&key, 20);
            assert_eq!(served(&key), 1);
            kill(&all[0].daemon);
        }
    });
}

#[test]
fn rule_1_twenty_at_once_over_stale_files_are_served_by_one_daemon() {
    in_a_scope(|| {
        kill(&attach("key").daemon);
        for round in 0..count(50) as usize {
            if round % 2 == 1 {
                std::fs::write(place("key").join("daemon.json"), "7").unwrap();
            }
            let all = attach_all("key", 20);
            assert_eq!(served("key"), round + 2);
            kill(&all[0].daemon);
        }
    });
}

#[test]
fn rule_1_twenty_processes_of_which_some_are_killed_at_any_moment_get_one_daemon() {
    in_a_scope(|| {
        let mut rng = Rng::seeded("killed");
        for round in 0..count(50) {
            let key = format!("key{round}");
            let mut shims: Vec<Child> = (0..20).map(|_| shim(&key, "kennel")).collect();
            // The first ones are the likeliest to be starting it.
            for shim in &mut shims[..5] {
                let moment = rng.duration_below(Duration::from_millis(20));
                events::sleep(&[], &[], Some(moment)).unwrap();
                shim.kill().unwrap();
                shim.wait().unwrap();
            }
            for shim in &mut shims[5..] {
                assert!(shim.wait().unwrap().success());
            }
            let attached = attach(&key);
            let log = std::fs::read_to_string(place(&key).join("log"));
            assert_eq!(served(&key), 1, "{}", log.unwrap());
            kill(&attached.daemon);
        }
    });
}

#[test]
fn a_session_that_arrives_while_a_daemon_is_being_stopped_gets_the_next_one() {
    in_a_scope(|| {
        let first = attach("key");
        first.daemon.signal(Signal::TERM).unwrap();
        assert_eq!(receive_line(&first), "!stopped\n");
        let second = attach_all("key", 5);
        assert_ne!(second[0].generation, first.generation);
        assert_eq!(served("key"), 2);
    });
}

#[test]
fn a_stopped_daemon_is_replaced_and_its_clients_are_served() {
    in_a_scope(|| {
        let first = attach("key");
        stop(&first.daemon);
        let begun = Instant::now();
        let all = attach_all("key", 5);
        assert!(begun.elapsed() < Duration::from_secs(5));
        assert!(!first.daemon.is_alive());
        assert_eq!(served("key"), 2);
        drop(all);
    });
}

#[test]
fn arrivals_around_the_end_of_linger_are_all_served() {
    in_a_scope(|| {
        let mut rng = Rng::seeded("linger");
        let linger = Duration::from_millis(3);
        for _ in 0..count(1000) {
            let mut wanted = wanted("key");
            wanted.policy.linger = linger;
            drop(connected(decided(&begin(wanted))));
            events::sleep(&[], &[], Some(rng.duration_below(linger * 3))).unwrap();
        }
    });
}

/// As `/proc` tells them: a session whose leader is outside our pid namespace is 0 there.
fn parent_and_session(pid: &str) -> [String; 2] {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat[stat.rfind(')').unwrap() + 2..].split(' ').collect();
    [fields[1].to_owned(), fields[3].to_owned()]
}

#[test]
fn a_daemon_is_out_of_our_session_and_knows_little_of_us() {
    in_a_scope(|| {
        let attached = attach("key");
        let pid = attached.daemon.pid();
        let [parent, session] = parent_and_session(&pid.to_string());
        assert_ne!(parent, std::process::id().to_string(), "its parent");
        assert_ne!(session, parent_and_session("self")[1], "its session");
        let cwd = std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap();
        assert_eq!(cwd, Path::new("/"));
        let environ = std::fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
        assert!(!environ.contains("TESTKIT_"), "{environ}");
        let words = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
        assert!(words.starts_with("kennel\0daemon\0"), "{words}");
    });
}
