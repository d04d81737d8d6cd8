//! Much, slow, and too many.

use std::io::{BufRead, Read};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kennel_core::hello::Control;
use kennel_sys::io::is_readable_within;
use kennel_testkit::wait_for;
use serde_json::json;

use crate::stage::{Cast, Connection, Daemon, INITIALIZE, hello};

#[test]
fn environments_of_clients_that_take_up_too_much_are_not_kept() {
    let daemon = Daemon::start("wishes");
    let mut long = daemon.hello();
    let padding = "x".repeat(3 << 20);
    let usual = Arc::clone(&long.env);
    // Each has another one: equal ones are kept once.
    let env = |number: usize| {
        let text = |text: &str| kennel_core::hello::Text::from(text.as_bytes());
        let mut env = Vec::clone(&usual);
        env.push((text("TERM_PADDING"), text(&format!("{padding}{number}"))));
        Arc::new(env)
    };
    let mut clients = Vec::new();
    let refused = loop {
        assert!(clients.len() < 64, "192 MB are kept");
        long.session = daemon.hello().session;
        long.env = env(clients.len());
        let mut client = daemon.connect();
        client.greet(&long);
        client.say("!ping");
        match client.word() {
            Control::Pong => clients.push(client),
            other => break other,
        }
    };
    let Control::Solo(solo) = refused else {
        panic!("{refused:?}");
    };
    assert!(solo.why.contains("too much memory"), "{}", solo.why);
    assert!(clients.len() > 10, "{}", clients.len());
    // Ordinary ones are served, and long ones again when there is room.
    daemon.client().ask("echo", json!({}));
    drop(clients);
    wait_for("there is room", || {
        long.session = daemon.hello().session;
        let mut client = daemon.connect();
        client.greet(&long);
        client.say("!ping");
        (client.word() == Control::Pong).then_some(())
    });
    daemon.stop();
}

#[test]
fn a_long_line_passes_both_ways_unchanged_and_its_room_is_given_back() {
    let daemon = Daemon::start("long");
    let mut client = daemon.client();
    client.server();
    let before = resident(daemon.process.pid());
    let text = "0123456789abcde€".repeat((32 << 20) / 18);
    let line =
        format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"echo\",\"params\":[\"{text}\"]}}\n");
    let mut sender = client.stream().try_clone().unwrap();
    let sent = std::thread::spawn(move || std::io::Write::write_all(&mut sender, line.as_bytes()));
    let mut answer = Vec::new();
    client.reader.read_until(b'\n', &mut answer).unwrap();
    sent.join().unwrap().unwrap();
    let expected = format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":[\"{text}\"]}}\n");
    assert!(answer == expected.as_bytes(), "{} bytes", answer.len());
    wait_for("the room is given back", || {
        (resident(daemon.process.pid()) < 2 * before).then_some(())
    });
    daemon.stop();
}

#[test]
fn a_client_that_does_not_read_holds_up_nobody_else_and_fills_no_memory() {
    let script = r#"read x; exec yes '{"jsonrpc":"2.0","method":"notifications/x"}'"#;
    let daemon = Daemon::of_two("stalled", script);
    let mut stalled = daemon.odd();
    stalled.say(r#"{"jsonrpc":"2.0","id":1,"method":"go"}"#);
    let mut client = daemon.client();
    for _ in 0..200 {
        assert_eq!(client.ask("echo", json!("a")), "a");
    }
    let memory = resident(daemon.process.pid());
    assert!(memory < 64 << 20, "{memory}");
    let mut taken = vec![0; 8 << 20];
    stalled.reader.read_exact(&mut taken).unwrap();
    drop(stalled);
    daemon.state_when("it is gone", |state| {
        state["servers"].as_array().unwrap().len() == 1
    });
    daemon.stop();
}

#[test]
fn a_server_that_does_not_read_holds_up_its_client_and_nobody_else() {
    let daemon = Daemon::of_two("deaf", "exec sleep 600");
    let deaf = daemon.odd();
    deaf.stream().set_nonblocking(true).unwrap();
    deaf.say(r#"{"jsonrpc":"2.0","id":1,"method":"go"}"#);
    // However little of it is taken, there are whole lines in it.
    let text = "x".repeat(900);
    let line =
        format!("{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\",\"params\":[\"{text}\"]}}\n");
    let lines = line.into_bytes().repeat(100);
    let start = Instant::now();
    let mut sent = 0;
    while start.elapsed() < Duration::from_millis(500) {
        sent += std::io::Write::write(&mut deaf.stream(), &lines).unwrap_or(0);
    }
    assert!(sent < 8 << 20, "{sent}");
    assert_eq!(daemon.client().ask("echo", json!(1)), 1);
    drop(deaf);
    daemon.state_when("it is gone", |state| state["clients"] == json!([]));
    daemon.stop();
}

#[test]
fn a_server_that_hears_no_more_is_ended_before_anybody_waits_for_it() {
    let script = b"read x; exec <&-; exec sleep 600";
    let daemon = Daemon::of("closed-stdin", &[b"sh", b"-c", script]);
    let mut client = daemon.client();
    client.say(INITIALIZE);
    let stop = &std::sync::atomic::AtomicBool::new(false);
    let lost = std::thread::scope(|threads| {
        let stream = client.stream().try_clone().unwrap();
        let talking = move || {
            let line = b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}\n";
            while !stop.load(std::sync::atomic::Ordering::Relaxed)
                && std::io::Write::write_all(&mut &stream, line).is_ok()
            {}
        };
        threads.spawn(talking);
        let lost = client.word();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        lost
    });
    assert!(matches!(lost, Control::Lost(_)), "{lost:?}");
    daemon.stop();
}

#[test]
fn out_of_descriptors_it_does_not_spin_and_serves_again_later() {
    let cast = Cast {
        ulimit: Some("-n 64"),
        ..Cast::default()
    };
    let daemon = Daemon::cast("emfile", cast);
    let crowd: Vec<_> = (0..60).map(|_| daemon.connect()).collect();
    for client in &crowd {
        let line = [&daemon.hello().line()[..], b"\n"].concat();
        let _ = std::io::Write::write_all(&mut client.stream(), &line);
    }
    daemon.logs("no connections are accepted for now");
    let before = processor_ticks(daemon.process.pid());
    kennel_sys::events::sleep(&[], &[], Some(Duration::from_secs(1))).unwrap();
    let spent = processor_ticks(daemon.process.pid()) - before;
    assert!(spent < 20, "{spent} ticks in a second");
    drop(crowd);
    let mut client = daemon.client();
    let served = wait_for("a server again", || {
        client.say("!again");
        client.say(r#"{"jsonrpc":"2.0","id":1,"method":"echo","params":[1]}"#);
        client.said().filter(|line| line.contains("result"))
    });
    assert!(served.contains("\"id\":1"));
    daemon.stop();
}

#[test]
fn as_many_descriptors_as_are_allowed_are_taken_and_servers_get_no_more_than_before() {
    let cast = Cast {
        ulimit: Some("-Sn 64"),
        ..Cast::default()
    };
    let script =
        br#"read line; printf '{"jsonrpc":"2.0","id":1,"result":{"limit":%s}}\n' "$(ulimit -n)""#;
    let command: [&[u8]; 3] = [b"sh", b"-c", script];
    let (daemon, _) = Daemon::for_hello("ulimit", cast, |scope| hello(scope, &command));
    let crowd: Vec<_> = (0..100).map(|_| daemon.client()).collect();
    let mut client = daemon.client();
    client.say(r#"{"jsonrpc":"2.0","id":"x","method":"go"}"#);
    let answer = client.said().unwrap();
    assert!(answer.contains("\"limit\":64}"), "{answer}");
    drop(crowd);
    daemon.stop();
}

#[test]
fn a_sleeping_daemon_sleeps() {
    let daemon = Daemon::start("idle");
    let mut client = daemon.client();
    client.server();
    let switches = || -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.process.pid()));
        let status = status.unwrap();
        let line = status.lines().find(|line| line.starts_with("voluntary"));
        line.unwrap()
            .split_whitespace()
            .nth(1)
            .unwrap()
            .parse()
            .unwrap()
    };
    // What was asked is written down for `kennel ps` within a second, once.
    let written_down = Duration::from_secs(3);
    kennel_sys::events::sleep(&[], &[], Some(written_down)).unwrap();
    let before = switches();
    kennel_sys::events::sleep(&[], &[], Some(Duration::from_secs(2))).unwrap();
    assert_eq!(switches(), before, "rule 10");
    daemon.stop();
}

#[test]
fn the_log_has_one_older_part_and_no_more() {
    let daemon = Daemon::start("log");
    let mut client = daemon.client();
    let words = "x".repeat(8000);
    for _ in 0..300 {
        client.ask("say", json!({ "stderr": words }));
    }
    let size = |name: &str| {
        daemon
            .dir()
            .join(name)
            .metadata()
            .map_or(0, |meta| meta.len())
    };
    assert!(size("log") <= 1 << 20);
    assert!((1..=1 << 20).contains(&size("log.1")));
    daemon.stop();
}

/// Resident bytes.
fn resident(pid: u32) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).expect("it lives");
    let pages: u64 = statm
        .split(' ')
        .nth(1)
        .expect("a field")
        .parse()
        .expect("a number");
    pages * 4096
}

/// What it has used of the processor, in ticks of 10 ms.
fn processor_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    let fields: Vec<&str> = stat
        .rsplit_once(") ")
        .expect("a name")
        .1
        .split(' ')
        .collect();
    fields[11].parse::<u64>().expect("a number") + fields[12].parse::<u64>().expect("a number")
}

#[test]
fn many_odd_lines_that_end_at_one_moment_hold_up_nobody_else_until_all_are_judged() {
    const MANY: usize = 16;
    let daemon = Daemon::start("odd-at-once");
    let mut other = daemon.client();
    // Each takes many times as long to judge as a short line.
    let ids = r#""id":1,"#.repeat(500_000);
    let line = format!(r#"{{"jsonrpc":"2.0","method":"echo",{ids}"id":1}}"#);
    let mut odd: Vec<_> = (0..MANY).map(|_| daemon.client()).collect();
    for client in &odd {
        client.write(line.as_bytes());
    }
    other.ask("echo", json!({}));
    for client in &odd {
        client.write(b"\n");
    }
    other.say("!ping");
    assert_eq!(other.word(), Control::Pong);
    let is_answered = |client: &&Connection| is_readable_within(client.stream(), Duration::ZERO);
    let answered = odd.iter().filter(is_answered).count();
    assert!(answered <= MANY / 2, "{answered} of {MANY} came first");
    for client in &mut odd {
        assert!(client.said().unwrap().contains("error"));
    }
    daemon.stop();
}
