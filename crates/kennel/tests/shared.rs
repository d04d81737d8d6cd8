//! `kennel run --share always`: sessions through one daemon, from outside.
#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;
use kennel_testkit::{Client, Rng, Scope, bin, count, on_each_kernel, run, wait_for};
use serde_json::{Value, json};

fn kennel(scope: &Scope) -> Command {
    scope.command(env!("CARGO_BIN_EXE_kennel"))
}

fn shared_with(scope: &Scope, options: &[&str]) -> Command {
    let mut command = kennel(scope);
    command
        .args(["run", "--share", "always", "--stop-after", "50ms,50ms"])
        .args(options)
        .arg("--")
        .arg(bin("tk-server"))
        .env("TESTKIT_ROLL", scope.roll());
    command
}

fn shared(scope: &Scope) -> Command {
    shared_with(scope, &["--linger", "100ms"])
}

fn listing(scope: &Scope) -> Vec<Value> {
    let ended = run(kennel(scope).args(["ps", "--json"]));
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    serde_json::from_str(&ended.stdout).unwrap()
}

fn daemons(scope: &Scope) -> Vec<ProcessRef> {
    let is_daemon = |process: &ProcessRef| {
        let line = std::fs::read(format!("/proc/{}/cmdline", process.pid())).unwrap_or_default();
        line.split(|&byte| byte == 0).nth(1) == Some(b"daemon")
    };
    scope.survivors().into_iter().filter(is_daemon).collect()
}

fn the_daemon(scope: &Scope) -> ProcessRef {
    let mut daemons = daemons(scope);
    assert_eq!(daemons.len(), 1, "one daemon");
    daemons.remove(0)
}

fn server_of(client: &mut Client) -> ProcessRef {
    let pid = client.request("pid", json!({}))["result"].as_u64().unwrap();
    ProcessRef::open(u32::try_from(pid).unwrap()).unwrap()
}

fn serves(client: &mut Client) {
    assert_eq!(
        client.request("echo", json!({"a": 1}))["result"],
        json!({"a": 1})
    );
}

#[test]
fn rule_1_twenty_shims_at_once_from_cold_meet_at_one_daemon_and_all_are_served() {
    for _ in 0..count(50) {
        let scope = Scope::new("cold");
        let mut clients: Vec<Client> = (0..20)
            .map(|_| Client::start(&mut shared_with(&scope, &[])))
            .collect();
        for client in &mut clients {
            client.initialize();
            serves(client);
        }
        the_daemon(&scope);
        drop(clients);
    }
}

#[test]
fn rule_11_through_the_daemon_the_app_hears_what_the_server_said_to_the_byte() {
    let scope = Scope::new("bytes");
    let odd = [
        r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"a","version":"0"}}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
        r#"{ "id" : "sträng-😀", "method":"echo" ,"jsonrpc":"2.0","params":{"n":1.0e2,"e":"\u00e4\/","z":{"b":1,"a":2}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"slow","params":{"ms":300}}"#,
        r#"{"jsonrpc":"2.0","id":"1","method":"echo","params":[]}"#,
    ]
    .join("\n");
    let hear = |mut command: Command| {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(odd.as_bytes())
            .unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stderr),
            "",
            "a quiet run says nothing"
        );
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let direct = hear(scope.command(bin("tk-server")));
    assert_eq!(hear(shared(&scope)), direct);
    scope.nothing_left_within("after linger", Duration::from_secs(60));
}

#[test]
fn a_session_goes_on_when_its_server_its_daemon_or_both_are_killed() {
    on_each_kernel(|| {
        let scope = Scope::new("deaths");
        let mut client = Client::begin(&mut shared_with(&scope, &[]));
        for victims in ["server", "daemon", "both"] {
            let (server, daemon) = (server_of(&mut client), the_daemon(&scope));
            let begun = format!("{victims}: begun");
            let lost = client.send("slow", json!({"ms": 600_000, "stderr": begun}));
            wait_for(&begun, || {
                client.stderr_so_far().contains(&begun).then_some(())
            });
            if victims != "server" {
                daemon.signal(Signal::KILL).unwrap();
            }
            if victims != "daemon" {
                server.signal(Signal::KILL).unwrap();
            }
            let answer = client.answer(lost);
            assert_eq!(
                answer["error"]["data"]["reason"], "server_restarted",
                "{answer}"
            );
            serves(&mut client);
            server.wait(Some(Duration::from_secs(60))).unwrap();
            assert!(!server.is_alive(), "the old server is gone");
            assert_ne!(server_of(&mut client).pid(), server.pid());
            the_daemon(&scope);
        }
        client.close();
        assert_eq!(client.wait().code(), Some(0));
    });
}

#[test]
fn no_server_has_two_owners_a_stubborn_one_is_gone_before_the_next_starts() {
    let scope = Scope::new("two-owners");
    let begin = || {
        let mut command = kennel(&scope);
        command.args([
            "run",
            "--share",
            "always",
            "--stop-after",
            "200ms,200ms",
            "--",
        ]);
        command
            .arg(bin("tk-stubborn"))
            .arg(scope.roll())
            .args(["family", "1"]);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut shim = begin();
    let family = wait_for("the family", || {
        let signed = scope.signed();
        (signed.len() == 2).then_some(signed)
    });
    the_daemon(&scope).signal(Signal::KILL).unwrap();
    // The shim elects anew by itself, and its new server signs only when the old family is gone.
    wait_for("the next server", || {
        (scope.signed().len() > 2).then_some(())
    });
    assert!(
        family
            .iter()
            .all(|identity| ProcessRef::find(identity).unwrap().is_none())
    );
    shim.kill().unwrap();
    shim.wait().unwrap();
}

#[test]
fn a_daemon_first_needed_inside_another_servers_tree_survives_that_server() {
    let scope = Scope::new("nested");
    // An app that is itself a server: behind a shim of its own, it starts a session with a daemon.
    let inner = shared_with(&scope, &[]);
    // A server gets none of Kennel's variables: the inner one is told again where this test meets.
    let place = format!("KENNEL_RUNTIME_DIR={}", scope.runtime_dir().display());
    let mut words = vec!["env".into(), place.into(), inner.get_program().to_owned()];
    words.extend(inner.get_args().map(ToOwned::to_owned));
    let mut outer = kennel(&scope);
    outer
        .args(["run", "--stop-after", "50ms,50ms", "--"])
        .args(&words);
    outer.env("TESTKIT_ROLL", scope.roll());
    let mut nested = Client::begin(&mut outer);
    let inner_server = server_of(&mut nested);
    let daemon = the_daemon(&scope);
    let mut other = Client::begin(&mut shared_with(&scope, &[]));
    serves(&mut other);
    nested.kill();
    assert!(inner_server.wait(Some(Duration::from_secs(60))).unwrap());
    serves(&mut other);
    assert!(
        daemon.is_alive(),
        "the daemon went with the server it was started from"
    );
    the_daemon(&scope);
}

#[test]
fn a_killed_client_takes_its_server_with_it_and_nobody_elses() {
    let scope = Scope::new("client");
    let mut one = Client::begin(&mut shared_with(&scope, &[]));
    let mut two = Client::begin(&mut shared_with(&scope, &[]));
    let (first, second) = (server_of(&mut one), server_of(&mut two));
    one.kill();
    assert!(first.wait(Some(Duration::from_secs(60))).unwrap());
    serves(&mut two);
    assert!(second.is_alive());
    the_daemon(&scope);
}

#[test]
fn a_stopped_daemon_is_replaced_for_those_who_wait_and_those_who_come() {
    let scope = Scope::new("stopped");
    let mut attached = Client::begin(&mut shared_with(&scope, &[]));
    serves(&mut attached);
    let stopped = the_daemon(&scope);
    stopped.signal(Signal::STOP).unwrap();
    let waiting = attached.send("echo", json!({}));
    let mut newcomer = Client::begin(&mut shared_with(&scope, &[]));
    serves(&mut newcomer);
    // Whether it reached the old server is unknown: an error or a result, but one answer.
    attached.answer(waiting);
    serves(&mut attached);
    assert!(
        stopped.wait(Some(Duration::from_secs(60))).unwrap(),
        "the stopped one is gone"
    );
    the_daemon(&scope);
}

#[test]
fn when_linger_is_over_everything_is_gone_and_the_next_one_starts_anew() {
    let scope = Scope::new("linger");
    for _ in 0..3 {
        let mut client = Client::begin(&mut shared(&scope));
        serves(&mut client);
        client.close();
        assert_eq!(client.wait().code(), Some(0));
        scope.nothing_left_within("after linger", Duration::from_secs(60));
        assert_eq!(listing(&scope), Vec::<Value>::new());
    }
}

#[test]
fn rule_2_daemon_and_all_shims_killed_together_leave_nothing_after_the_next_start() {
    let mut chance = Rng::seeded("all");
    for _ in 0..count(20) {
        let scope = Scope::new("all");
        let mut clients: Vec<Client> = (0..3).map(|_| Client::begin(&mut shared(&scope))).collect();
        let servers: Vec<ProcessRef> = clients.iter_mut().map(server_of).collect();
        let mut victims: Vec<ProcessRef> = daemons(&scope);
        victims.extend(
            clients
                .iter()
                .map(|client| ProcessRef::open(client.pid()).unwrap()),
        );
        let rotation = chance.below(4) as usize;
        victims.rotate_left(rotation);
        for victim in &victims {
            victim.signal(Signal::KILL).unwrap();
        }
        // The wardens are left, and see to it.
        for server in servers {
            assert!(server.wait(Some(Duration::from_secs(60))).unwrap());
        }
        drop(clients);
        scope.nothing_left_within("everyone killed", Duration::from_secs(60));
    }
}

#[test]
fn a_person_sees_what_runs_and_stops_it_and_a_session_starts_it_again_when_needed() {
    let scope = Scope::new("ps");
    let before = run(kennel(&scope).args(["ps", "--json"]));
    assert_eq!(before.stdout.trim(), "[]");
    assert!(!scope.runtime_dir().exists(), "looking creates nothing");
    let mut client = Client::begin(&mut shared_with(&scope, &[]));
    serves(&mut client);
    let entries = wait_for("the listing", || {
        let entries = listing(&scope);
        (entries[0]["servers"].as_array()?.len() == 1).then_some(entries)
    });
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0]["name"], "tk-server");
    assert_eq!(entries[0]["mode"], "shared");
    assert_eq!(entries[0]["clients"][0]["pid"], client.pid());
    assert_eq!(entries[0]["daemon_pid"], the_daemon(&scope).pid());
    let key = entries[0]["key"].as_str().unwrap().to_owned();
    assert_eq!(run(kennel(&scope).args(["stop", &key])).code(), Some(0));
    assert_eq!(daemons(&scope).len(), 0);
    serves(&mut client);
    the_daemon(&scope);
    assert!(
        run(kennel(&scope).args(["logs", &key]))
            .stdout
            .contains("attached")
    );
    assert_eq!(run(kennel(&scope).args(["stop", "nobody"])).code(), Some(3));
}

#[test]
fn rule_8_the_environment_keeps_nobody_from_meeting_unless_it_matters_to_the_server() {
    let scope = Scope::new("meet");
    let attach = |options: &[&str], name: &str| {
        let mut client = Client::begin(shared_with(&scope, options).env(name, scope.path("x")));
        serves(&mut client);
        client
    };
    let _bare = Client::begin(&mut shared_with(&scope, &[]));
    let _xdg = attach(&[], "XDG_RUNTIME_DIR");
    assert_eq!(daemons(&scope).len(), 1);
    let _token = attach(&[], "API_TOKEN");
    assert_eq!(
        daemons(&scope).len(),
        2,
        "another account is another server"
    );
    let _one = attach(&["--env-key", "HOME"], "API_TOKEN");
    let _two = attach(&["--env-key", "HOME"], "OTHER_TOKEN");
    assert_eq!(daemons(&scope).len(), 3, "unless it was said what matters");
    assert_eq!(
        std::fs::read_dir(scope.path("home")).unwrap().count(),
        0,
        "the home is left alone"
    );
}

#[test]
fn lesson_31_a_signal_to_a_clients_process_group_ends_that_client_alone() {
    let scope = Scope::new("group");
    let mut other = Client::begin(&mut shared_with(&scope, &[]));
    // The group's leader is the one that starts the daemon in the other order too.
    let mut group = Client::begin(shared_with(&scope, &[]).process_group(0));
    serves(&mut group);
    let pid = format!("-{}", group.pid());
    assert!(
        run(scope.command("kill").args(["-TERM", "--", &pid]))
            .status
            .success()
    );
    assert_eq!(group.wait().code(), Some(128 + 15));
    serves(&mut other);
    the_daemon(&scope);
}

#[test]
fn without_a_runtime_directory_a_session_has_a_server_of_its_own_and_says_so() {
    let scope = Scope::new("no-place");
    std::fs::write(scope.path("file"), "").unwrap();
    let mut client = Client::begin(shared(&scope).env("KENNEL_RUNTIME_DIR", scope.path("file")));
    serves(&mut client);
    client.close();
    assert!(client.wait().stderr.contains("a server of its own"));
}

#[test]
fn lines_of_megabytes_pass_whole_through_the_daemon() {
    let scope = Scope::new("large");
    let mut client = Client::begin(&mut shared_with(&scope, &[]));
    for megabytes in [1, 8, 32] {
        let text = "x".repeat(megabytes << 20);
        let answer = client.request("echo", json!({ "text": text }));
        assert_eq!(
            answer["result"]["text"].as_str().map(str::len),
            Some(text.len())
        );
    }
}
