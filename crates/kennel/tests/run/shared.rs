//! `kennel run --share always`: sessions through one daemon, from outside.

use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;
use kennel_testkit::{Client, Rng, Scope, bin, count, on_each_kernel, run, wait_for};
use serde_json::{Value, json};

use crate::stage::{
    daemons, kennel, listing, logs, server_of, serves, shared, shared_with, started_so_far,
    the_daemon,
};

/// Gone soon after its last client.
fn brief(scope: &Scope) -> Command {
    shared_with(scope, &["--linger", "100ms"])
}

#[test]
fn a_session_goes_on_when_its_server_its_daemon_or_both_are_killed() {
    on_each_kernel(|| {
        let scope = Scope::new("deaths");
        let mut client = Client::begin(&mut shared(&scope));
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
    let initialize = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\",\"params\":{\"protocolVersion\":\"2025-06-18\"}}\n";
    let mut stdin = shim.stdin.take().unwrap();
    stdin.write_all(initialize.as_bytes()).unwrap();
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
    // Also after Kennel was installed again: the warden's program is another file than the daemon's.
    for reinstalled in [false, true] {
        daemon_survives_the_server_it_was_started_from(reinstalled);
    }
}

fn daemon_survives_the_server_it_was_started_from(reinstalled: bool) {
    let scope = Scope::new("nested");
    // An app that is itself a server: behind a shim of its own, it starts a session with a daemon.
    let inner = shared(&scope);
    // A server gets none of Kennel's variables: the inner one is told again where this test meets.
    let place = format!("KENNEL_RUNTIME_DIR={}", scope.runtime_dir().display());
    let mut words = vec!["env".into(), place.into(), inner.get_program().to_owned()];
    words.extend(inner.get_args().map(ToOwned::to_owned));
    let mut outer = match reinstalled {
        false => kennel(&scope),
        true => {
            let copy = scope.path("kennel");
            std::fs::copy(env!("CARGO_BIN_EXE_kennel"), &copy).unwrap();
            scope.command(copy)
        }
    };
    outer
        .args(["run", "--stop-after", "50ms,50ms", "--"])
        .args(&words);
    outer.env("TESTKIT_ROLL", scope.roll());
    let mut nested = Client::begin(&mut outer);
    serves(&mut nested);
    let daemon = the_daemon(&scope);
    let mut other = Client::begin(&mut shared(&scope));
    serves(&mut other);
    nested.kill();
    logs(&scope, "left: ");
    serves(&mut other);
    assert!(
        daemon.is_alive(),
        "the daemon went with the server it was started from"
    );
    the_daemon(&scope);
}

#[test]
fn a_killed_client_leaves_its_server_to_the_others_and_takes_one_of_its_own_with_it() {
    let scope = Scope::new("client");
    let mut one = Client::begin(&mut shared(&scope));
    let mut two = Client::begin(&mut shared(&scope));
    let mut alone = Client::start(&mut shared(&scope));
    let (theirs, own) = (server_of(&mut one), server_of(&mut alone));
    assert_ne!(theirs.pid(), own.pid());
    one.kill();
    alone.kill();
    assert!(own.wait(Some(Duration::from_secs(60))).unwrap());
    assert_eq!(server_of(&mut two).pid(), theirs.pid());
    the_daemon(&scope);
}

#[test]
fn a_stopped_daemon_is_replaced_for_those_who_wait_and_those_who_come() {
    let scope = Scope::new("stopped");
    let mut attached = Client::begin(&mut shared(&scope));
    serves(&mut attached);
    let stopped = the_daemon(&scope);
    stopped.signal(Signal::STOP).unwrap();
    let waiting = attached.send("echo", json!({}));
    let mut newcomer = Client::begin(&mut shared(&scope));
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
        let mut client = Client::begin(&mut brief(&scope));
        serves(&mut client);
        client.close();
        assert_eq!(client.wait().code(), Some(0));
        scope.nothing_left_within("after linger", Duration::from_secs(60));
        assert_eq!(listing(&scope), Vec::<Value>::new());
    }
}

#[test]
fn arrivals_around_the_end_of_linger_are_all_served() {
    let mut chance = Rng::seeded("arrivals");
    let scope = Scope::new("arrivals");
    let linger = Duration::from_millis(30);
    for _ in 0..count(1000) {
        let mut client = Client::begin(&mut shared_with(&scope, &["--linger", "30ms"]));
        serves(&mut client);
        client.close();
        let ended = client.wait();
        assert_eq!((ended.code(), &*ended.stderr), (Some(0), ""));
        let moment = chance.duration_below(linger * 2);
        kennel_sys::events::sleep(&[], &[], Some(moment)).unwrap();
    }
    let daemons = started_so_far(&scope);
    assert!(daemons > 1, "some came too late: {daemons} daemons");
}

#[test]
fn rule_2_daemon_and_all_shims_killed_together_leave_nothing_after_the_next_start() {
    let mut chance = Rng::seeded("all");
    for _ in 0..count(20) {
        let scope = Scope::new("all");
        let mut clients: Vec<Client> = (0..3).map(|_| Client::begin(&mut brief(&scope))).collect();
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
    let mut client = Client::begin(&mut shared(&scope));
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
fn the_beginning_of_two_keys_stops_neither_and_names_both() {
    let scope = Scope::new("short-key");
    let mut client = Client::begin(&mut shared(&scope));
    serves(&mut client);
    let key = listing(&scope)[0]["key"].as_str().unwrap().to_owned();
    // Keys that begin alike are rare: a second one by hand, of a daemon that lives.
    let (beginning, rest) = key.split_at(8);
    let last = if rest.ends_with('0') { '1' } else { '0' };
    let other = format!("{beginning}{}{last}", &rest[..rest.len() - 1]);
    let daemons_dir = scope.runtime_dir().join("daemons");
    let twin = daemons_dir.join(&other);
    std::fs::DirBuilder::new()
        .mode(0o700)
        .create(&twin)
        .unwrap();
    // It is believed only if its process holds its lock and the runtime directory, and was started as a daemon.
    let lock = twin.join("daemon.lock");
    let script = "exec 9>\"$1\" 8<\"$2\"; flock 9; flock -s 8; read never";
    std::fs::write(scope.path("daemon"), script).unwrap();
    let mut holder = scope.command("sh");
    let holder = holder.current_dir(scope.path("")).arg("daemon");
    let holder = holder.arg(&lock).arg(scope.runtime_dir());
    let mut holder = holder.stdin(Stdio::piped()).spawn().unwrap();
    let process = ProcessRef::open(holder.id()).unwrap();
    let record = std::fs::read_to_string(daemons_dir.join(&key).join("daemon.json")).unwrap();
    let mut record: serde_json::Value = serde_json::from_str(&record).unwrap();
    record["identity"] = process.identity().to_string().into();
    std::fs::write(twin.join("daemon.json"), record.to_string()).unwrap();
    wait_for("the second daemon", || {
        (listing(&scope).len() == 2).then_some(())
    });

    let stopped = run(kennel(&scope).args(["stop", beginning]));
    assert_eq!(stopped.code(), Some(2), "{}", stopped.stdout);
    for key in [&key, &other] {
        assert!(stopped.stderr.contains(key), "{}", stopped.stderr);
    }
    assert_eq!(daemons(&scope).len(), 2, "it and its stand-in");

    // A whole key means one.
    assert_eq!(run(kennel(&scope).args(["stop", &key])).code(), Some(0));
    assert_eq!(daemons(&scope).len(), 1, "the stand-in");
    assert_eq!(holder.try_wait().unwrap(), None);
    holder.kill().unwrap();
    holder.wait().unwrap();
}

#[test]
fn rule_8_the_environment_keeps_nobody_from_meeting_unless_it_matters_to_the_server() {
    let scope = Scope::new("meet");
    let attach = |options: &[&str], name: &str| {
        let mut client = Client::begin(shared_with(&scope, options).env(name, scope.path("x")));
        serves(&mut client);
        client
    };
    let _bare = Client::begin(&mut shared(&scope));
    let _xdg = attach(&[], "XDG_RUNTIME_DIR");
    assert_eq!(daemons(&scope).len(), 1);
    let _token = attach(&[], "API_TOKEN");
    assert_eq!(
        daemons(&scope).len(),
        2,
        "another account is another server"
    );
    let _one = attach(&["--env-key", "HOME"], "ONE");
    let _two = attach(&["--env-key", "HOME"], "TWO");
    assert_eq!(daemons(&scope).len(), 3, "unless it was said what matters");
    let _token = attach(&["--env-key", "HOME"], "API_TOKEN");
    assert_eq!(daemons(&scope).len(), 4, "an account matters always");
    assert_eq!(
        std::fs::read_dir(scope.path("home")).unwrap().count(),
        0,
        "the home is left alone"
    );
}

#[test]
fn sessions_with_different_credentials_have_two_servers_whatever_env_key_says() {
    let scope = Scope::new("rights");
    let attach = |name: &str, value: &str| {
        let mut session = shared_with(&scope, &["--env-key", "HOME"]);
        let mut client = Client::begin(session.env(name, value));
        serves(&mut client);
        client
    };
    let mut clients = Vec::new();
    for (name, one, other) in [
        (
            "X",
            r#"{"Authorization":"Bearer 1"}"#,
            r#"{"Authorization":"Bearer 2"}"#,
        ),
        ("PG_CONN", "host=db password=one", "host=db password=two"),
        ("MCP_HEADERS", "1", "2"),
        ("BW_SESSION", "1", "2"),
    ] {
        let before = daemons(&scope).len();
        clients.extend([attach(name, one), attach(name, one)]);
        assert_eq!(daemons(&scope).len(), before + 1, "{name}");
        clients.push(attach(name, other));
        assert_eq!(daemons(&scope).len(), before + 2, "{name}");
    }
}

#[test]
fn lesson_31_a_signal_to_a_clients_process_group_ends_that_client_alone() {
    let scope = Scope::new("group");
    let mut other = Client::begin(&mut shared(&scope));
    // The group's leader is the one that starts the daemon in the other order too.
    let mut group = Client::begin(shared(&scope).process_group(0));
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
    let mut client = Client::begin(brief(&scope).env("KENNEL_RUNTIME_DIR", scope.path("file")));
    serves(&mut client);
    client.close();
    assert!(client.wait().stderr.contains("using a dedicated server"));
}

#[test]
fn lines_of_megabytes_pass_whole_through_the_daemon() {
    let scope = Scope::new("large");
    let mut client = Client::begin(&mut shared(&scope));
    for megabytes in [1, 8, 32] {
        let text = "x".repeat(megabytes << 20);
        let answer = client.request("echo", json!({ "text": text }));
        assert_eq!(
            answer["result"]["text"].as_str().map(str::len),
            Some(text.len())
        );
    }
}

#[test]
fn stop_ends_the_server_of_a_session_that_is_dedicated_for_now_and_not_the_session() {
    let scope = Scope::new("for-now");
    let daemons = scope.runtime_dir().join("daemons");
    let mut builder = std::fs::DirBuilder::new();
    builder
        .recursive(true)
        .mode(0o700)
        .create(&daemons)
        .unwrap();
    let allow = |mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(&daemons, mode).unwrap();
    };
    // No daemon can meet anybody there.
    allow(0o755);
    let mut client = Client::begin(&mut shared(&scope));
    let pid = |client: &mut Client| {
        let pid = client.request("pid", json!({}))["result"].as_u64().unwrap();
        ProcessRef::open(u32::try_from(pid).unwrap()).unwrap()
    };
    let listed = || -> Vec<Value> {
        let said = run(kennel(&scope).args(["ps", "--json"]));
        serde_json::from_str(&said.stdout).unwrap()
    };
    for words in [["stop", "--all"], ["stop", "tk-server"]] {
        let server = pid(&mut client);
        wait_for("it is listed", || {
            let listed = listed();
            (listed.len() == 1 && listed[0]["dedicated_for_now"] == true).then_some(())
        });
        let stopped = run(kennel(&scope).args(words));
        assert_eq!(stopped.code(), Some(0), "{}", stopped.stderr);
        assert!(stopped.stdout.contains("its session stays"), "{words:?}");
        assert!(!server.is_alive(), "{words:?}");
        // What it is asked next, another server of its own answers.
        serves(&mut client);
    }
    allow(0o700);
    let _ = pid(&mut client);
    // On its way back to a daemon it is listed nowhere for a moment.
    wait_for("there is something to be stopped", || {
        let stopped = run(kennel(&scope).args(["stop", "--all"]));
        (stopped.code() == Some(0)).then_some(())
    });
    // Now there can be a daemon.
    serves(&mut client);
    wait_for("it shares", || {
        let listed = listed();
        (listed.len() == 1 && listed[0]["mode"] == "shared").then_some(())
    });
    client.close();
    assert_eq!(client.wait().code(), Some(0));
}
