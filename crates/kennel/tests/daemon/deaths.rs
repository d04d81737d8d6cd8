//! Who dies, and what becomes of the others.

use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use kennel_core::session::{SERVER_RESTARTED, SERVER_UNAVAILABLE};
use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;
use kennel_testkit::{bin, wait_until};
use serde_json::json;

use crate::stage::{Cast, Connection, Daemon, INITIALIZE, hello};

const SOON: Duration = Duration::from_secs(2);

#[test]
fn a_client_that_announces_a_dead_process_is_dropped_at_once() {
    let daemon = Daemon::start("dead-pid");
    let mut child = daemon.scope.command("sleep").arg("600").spawn().unwrap();
    let identity = *ProcessRef::open(child.id()).unwrap().identity();
    child.kill().unwrap();
    child.wait().unwrap();
    let mut hello = daemon.hello();
    hello.pid = identity.pid();
    hello.identity = identity.to_string();
    let mut client = daemon.connect();
    client.write(&[&hello.line()[..], b"\n"].concat());
    assert_eq!(client.line(), None);
    daemon.logs("which is gone");
    daemon.stop();
}

#[test]
fn a_client_that_leaves_a_private_server_with_a_long_call_pending_holds_nobody_up() {
    let daemon = Daemon::start("left-pending");
    let (mut stays, mut leaves) = (daemon.client(), daemon.client());
    let server = leaves.server();
    leaves.say(r#"{"jsonrpc":"2.0","id":"long","method":"slow","params":{"ms":60000}}"#);
    // Meanwhile the call is pending for so long that its server is timed.
    stays.ask("slow", json!({"ms": 1500}));
    drop(leaves);
    stays.ask("echo", json!({"still": "served"}));
    wait_until("its server is gone", SOON, || {
        (!server.is_alive()).then_some(())
    });
    stays.ask("echo", json!({"and": "now"}));
    daemon.stop();
}

#[test]
fn a_client_killed_while_its_child_holds_its_socket_is_dropped_and_its_server_with_it() {
    // Where the kernel tells.
    if kennel_sys::kernel::features().pidfd {
        a_held_socket_does_not_help(Daemon::start("held-socket"));
    }
}

#[test]
fn where_the_kernel_tells_no_ends_a_sweep_finds_the_killed_client() {
    let cast = Cast {
        env: vec![("KENNEL_FEATURES_OFF", "pidfd"), ("KENNEL_SWEEP", "100ms")],
        ..Cast::default()
    };
    a_held_socket_does_not_help(Daemon::cast("swept", cast));
}

fn a_held_socket_does_not_help(daemon: Daemon) {
    let part = "deaths::a_client_to_be_killed";
    let mut client = daemon
        .scope
        .command(std::env::current_exe().expect("we are here"))
        .args(["--exact", part, "--ignored", "--nocapture"])
        .env("TESTKIT_SOCKET", daemon.socket_path())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a client");
    let stdout = BufReader::new(client.stdout.take().expect("a pipe"));
    let server = stdout
        .lines()
        .map_while(Result::ok)
        .find_map(|line| line.split_once("server ")?.1.parse().ok())
        .expect("it has a server");
    let server = ProcessRef::open(server).expect("it lives");
    client.kill().expect("a kill");
    client.wait().expect("a child");
    assert!(
        server.wait(Some(SOON)).expect("an exit"),
        "{}",
        daemon.log()
    );
    daemon.logs("its process ended");
    daemon.state_when("nobody is left", |state| state["clients"] == json!([]));
    daemon.process.signal(Signal::TERM).expect("a signal");
    daemon.is_gone();
}

#[test]
#[ignore = "a part of another test: the client that is killed"]
#[expect(clippy::zombie_processes, reason = "its child is to outlive it")]
fn a_client_to_be_killed() {
    let path = std::env::var_os("TESTKIT_SOCKET").expect("started by another test");
    let mut client = Connection::of(UnixStream::connect(path).unwrap());
    let me = ProcessRef::me().unwrap();
    let mut hello = hello_from_env();
    hello.pid = me.pid();
    hello.identity = me.identity().to_string();
    client.greet(&hello);
    let server = client.server();
    // It keeps the connection open after us.
    let held: OwnedFd = client.stream().try_clone().unwrap().into();
    let _holder = Command::new("sleep")
        .arg("600")
        .stdin(held)
        .spawn()
        .unwrap();
    println!("server {}", server.pid());
    std::io::stdin().lines().for_each(drop);
    kennel_sys::events::sleep(&[], &[], Some(Duration::from_secs(600))).unwrap();
}

/// A hello for a process that carries a scope's marks already.
fn hello_from_env() -> kennel_core::hello::ClientHello {
    use std::os::unix::ffi::OsStrExt;
    let scope = kennel_testkit::Scope::new("unused");
    let mut hello = hello(&scope, &[bin("tk-server").as_os_str().as_bytes()]);
    let text = |bytes: &[u8]| kennel_core::hello::Text::from(bytes);
    Arc::make_mut(&mut hello.env).retain_mut(|(name, value)| {
        let is = std::env::var_os(std::ffi::OsStr::from_bytes(name.as_bytes()));
        is.map(|is| *value = text(is.as_bytes())).is_some()
    });
    hello
}

#[test]
fn a_client_that_closes_its_connection_takes_its_server_with_it() {
    let daemon = Daemon::start("closes");
    let mut client = daemon.client();
    let server = client.server();
    drop(client);
    assert!(server.wait(Some(SOON)).unwrap(), "{}", daemon.log());
    daemon.stop();
}

#[test]
fn a_killed_server_is_told_and_the_next_one_answers_on_the_same_connection() {
    let daemon = Daemon::start("lost");
    let mut client = daemon.client();
    client.say(INITIALIZE);
    client.said().unwrap();
    client.ask("say", json!({"stderr": "last words"}));
    let server = client.server();
    server.signal(Signal::KILL).unwrap();
    let lost = client.lost();
    assert_eq!((&*lost.reason, lost.is_final), (SERVER_RESTARTED, false));
    assert_eq!(lost.detail, "last words");
    // What was on its way to the lost one is not for the next one.
    client.say(r#"{"jsonrpc":"2.0","id":"stale","method":"echo","params":[0]}"#);
    client.begin_again();
    assert!(client.said().unwrap().contains(r#""id":"i""#));
    assert_ne!(client.server().pid(), server.pid());
    daemon.state_when("a restart", |state| state["restarts"] == 1);
    daemon.stop();
}

#[test]
fn another_clients_server_is_not_touched_by_a_loss() {
    let daemon = Daemon::start("untouched");
    let (mut one, mut two) = (daemon.client(), daemon.client());
    let server = two.server();
    one.say(r#"{"jsonrpc":"2.0","id":1,"method":"die"}"#);
    one.lost();
    assert_eq!(two.server().pid(), server.pid());
    daemon.stop();
}

#[test]
fn a_server_that_dies_again_and_again_is_started_five_times_and_then_when_asked() {
    let script = b"echo dying >&2; exit 3";
    let daemon = Daemon::of("budget", &[b"sh", b"-c", script]);
    let mut client = daemon.client();
    client.say(INITIALIZE);
    let mut next_loss = || {
        let lost = client.lost();
        client.begin_again();
        lost
    };
    let losses: Vec<_> = (0..6).map(|_| next_loss()).collect();
    assert!(
        losses.iter().all(|lost| lost.detail == "dying"),
        "{losses:?}"
    );
    let finals: Vec<bool> = losses.iter().map(|lost| lost.is_final).collect();
    assert_eq!(finals, [false, false, false, false, false, true]);
    assert!(client.lost().is_final, "one more attempt, because it asked");
    client.say("!ping");
    assert_eq!(client.word(), kennel_core::hello::Control::Pong);
    daemon.stop();
}

#[test]
fn a_command_that_cannot_be_started_is_told_as_a_shell_would() {
    let scope = kennel_testkit::Scope::new("refused-file");
    let file = scope.path("file");
    std::fs::write(&file, "text").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    for (command, words) in [
        ("/nowhere/server", "command not found"),
        ("no-such-command-at-all", "command not found"),
        (file.to_str().unwrap(), "permission denied"),
    ] {
        let daemon = Daemon::of("refused", &[command.as_bytes()]);
        let mut client = daemon.client();
        client.say(INITIALIZE);
        let lost = client.lost();
        assert_eq!((&*lost.reason, lost.is_final), (SERVER_UNAVAILABLE, true));
        assert!(lost.detail.contains(words), "{}", lost.detail);
        assert!(lost.detail.contains(command), "{}", lost.detail);
        client.begin_again();
        assert!(client.lost().is_final);
        daemon.stop();
    }
    let nowhere = |scope: &kennel_testkit::Scope| {
        let mut hello = hello(scope, &[b"cat"]);
        hello.spec.cwd = kennel_core::hello::Text::from(&b"/nowhere"[..]);
        hello
    };
    let (daemon, _) = Daemon::for_hello("no-directory", Cast::default(), nowhere);
    let mut client = daemon.client();
    client.say(INITIALIZE);
    assert!(client.lost().detail.contains("/nowhere"));
    daemon.stop();
}

#[test]
fn a_killed_warden_leaves_nothing_and_its_client_has_a_new_server() {
    let daemon = Daemon::start("warden");
    let mut client = daemon.client();
    let mut other = daemon.client();
    let (server, untouched) = (client.server(), other.server());
    let warden = ProcessRef::parent_of(&server).unwrap().unwrap();
    warden.signal(Signal::KILL).unwrap();
    client.lost();
    client.say("!again");
    assert!(server.wait(Some(SOON)).unwrap());
    assert_ne!(client.server().pid(), server.pid());
    assert_eq!(other.server().pid(), untouched.pid());
    daemon.logs("was killed; killed strays");
    daemon.stop();
}

#[test]
fn a_killed_daemon_leaves_no_server() {
    let daemon = Daemon::start("killed");
    let mut client = daemon.client();
    let server = client.server();
    daemon.process.signal(Signal::KILL).unwrap();
    assert!(server.wait(Some(SOON)).unwrap());
    client.is_closed();
    daemon
        .scope
        .nothing_left_within("a killed daemon", Duration::from_secs(5));
}

#[test]
fn a_stubborn_family_is_gone_with_its_client() {
    use std::os::unix::ffi::OsStrExt;
    let family = |scope: &kennel_testkit::Scope| {
        let (roll, program) = (scope.roll(), bin("tk-stubborn"));
        let command = [
            program.as_os_str().as_bytes(),
            roll.as_os_str().as_bytes(),
            b"family",
            b"3",
        ];
        hello(scope, &command)
    };
    let (daemon, _) = Daemon::for_hello("stubborn", Cast::default(), family);
    let client = daemon.client();
    client.say(r#"{"jsonrpc":"2.0","id":1,"method":"go"}"#);
    wait_until("the family is there", Duration::from_secs(20), || {
        (daemon.scope.signed().len() >= 4).then_some(())
    });
    drop(client);
    wait_until("only the daemon is left", Duration::from_secs(5), || {
        (daemon.scope.survivors().len() == 1).then_some(())
    });
    daemon.stop();
}

#[test]
fn a_silent_client_whose_process_cannot_be_seen_falls_to_the_backstop() {
    let cast = Cast {
        max_idle: Duration::from_millis(300),
        ..Cast::default()
    };
    let (daemon, first) = Daemon::with_first("phantom", cast);
    // It connects, hands its connection on and ends before it is looked at.
    daemon.process.signal(Signal::STOP).unwrap();
    let part = "deaths::a_client_that_hands_its_connection_on";
    let gone = daemon
        .scope
        .command(std::env::current_exe().unwrap())
        .args(["--exact", part, "--ignored"])
        .env("TESTKIT_SOCKET", daemon.socket_path())
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(gone.success());
    daemon.process.signal(Signal::CONT).unwrap();
    daemon.state_when("both are here", |state| {
        state["clients"]
            .as_array()
            .is_some_and(|all| all.len() == 2)
    });
    kennel_sys::events::sleep(&[], &[], Some(Duration::from_millis(500))).unwrap();
    assert!(daemon.process.is_alive(), "somebody is provably alive");
    drop(first);
    daemon.is_gone();
    let log = daemon.log();
    assert!(log.contains("no client provably alive"), "{log}");
}

#[test]
#[ignore = "a part of another test: a client that cannot be seen"]
#[expect(clippy::zombie_processes, reason = "its child is to outlive it")]
fn a_client_that_hands_its_connection_on() {
    let path = std::env::var_os("TESTKIT_SOCKET").expect("started by another test");
    let held: OwnedFd = UnixStream::connect(path).unwrap().into();
    let mut heir = Command::new("sleep");
    heir.arg("600").stdin(held).stdout(Stdio::null());
    let _heir = heir.stderr(Stdio::null()).spawn().unwrap();
}

#[test]
fn a_bad_sweep_in_the_environment_is_a_line_in_the_log() {
    let cast = Cast {
        env: vec![("KENNEL_SWEEP", "soon")],
        ..Cast::default()
    };
    let daemon = Daemon::cast("bad-sweep", cast);
    daemon.logs("KENNEL_SWEEP is ignored");
    daemon.stop();
}

#[test]
fn the_daemon_after_a_killed_one_clears_up_and_serves() {
    let daemon = Daemon::start("successor");
    daemon.process.signal(Signal::KILL).unwrap();
    daemon.is_gone();
    std::fs::write(daemon.dir().join("daemon.json"), "gar\0bage").unwrap();
    let (report, first) = crate::stage::spawn(&daemon.scope, &Cast::default());
    assert!(report.starts_with("ready "), "{report}");
    assert!(!daemon.socket_path().exists());
    let mut first = Connection::of(first);
    first.greet(&daemon.hello());
    assert_eq!(first.ask("echo", json!(1)), 1);
}

mod needs_root {
    use super::*;

    /// Every directory on the way opened: what is left is the daemon's own look at the peer (rule 9).
    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn another_user_is_refused_even_where_it_can_reach_the_socket() {
        let daemon = Daemon::start("foreign");
        let open = |path: &std::path::Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        for dir in daemon.dir().ancestors().take(4) {
            open(dir, 0o711);
        }
        open(&daemon.socket_path(), 0o666);
        let program = daemon.scope.path("stranger");
        std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        open(&program, 0o755);
        let stranger = daemon
            .scope
            .command(&program)
            .args(["--exact", "deaths::a_stranger", "--ignored", "--nocapture"])
            .env("TESTKIT_SOCKET", daemon.socket_path())
            .uid(65534)
            .gid(65534)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&stranger.stdout);
        assert!(said.contains("heard nothing"), "{said}");
        daemon.logs("of uid 65534: not our user");
        assert_eq!(daemon.client().ask("echo", json!(1)), 1);
        daemon.stop();
    }
}

#[test]
#[ignore = "a part of another test: somebody else's client"]
fn a_stranger() {
    use std::io::Read;
    let path = std::env::var_os("TESTKIT_SOCKET").expect("started by another test");
    let mut stream = UnixStream::connect(path).unwrap();
    let mut heard = Vec::new();
    let _ = stream.read_to_end(&mut heard);
    assert!(heard.is_empty());
    println!("heard nothing");
}
