//! Who shares a server, and who does not.

use std::time::Duration;

use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;
use kennel_testkit::{Client, Scope, bin, wait_for};
use serde_json::json;

use crate::stage::{
    kennel, listing, seen, server_of, servers, session, session_as, shake_hands, shared_with,
};

#[test]
fn ten_clients_of_one_class_have_one_server_and_it_shook_hands_once() {
    let scope = Scope::new("ten");
    let mut clients: Vec<Client> = (0..10).map(|_| session(&scope)).collect();
    let server = server_of(&mut clients[0]);
    for client in &mut clients {
        assert_eq!(server_of(client), server);
    }
    let told = seen(&mut clients[9]);
    assert_eq!(told["initialize"], 1);
    assert_eq!(told["initialized"], 1);
    assert_eq!(servers(&scope).len(), 1);

    let server = wait_for("all are listed", || {
        let server = &listing(&scope)[0]["servers"][0];
        (server["clients"] == 10).then(|| server.clone())
    });
    assert_eq!(server["class"], "2025-06-18 {}");
    assert!(listing(&scope)[0]["saved_bytes"].as_u64() > server["rss_bytes"].as_u64());
    drop(clients);
}

#[test]
fn sessions_that_differ_in_a_locale_that_python_sets_by_itself_share() {
    let scope = Scope::new("locale");
    let with = |locale: Option<&str>| {
        let mut command = shared_with(&scope, &[]);
        for name in ["LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE"] {
            command.env_remove(name);
        }
        Client::begin(command.envs(locale.map(|value| ("LC_CTYPE", value))))
    };
    let mut clients = [None, Some("C.UTF-8"), Some("C.utf8"), Some("UTF-8")].map(with);
    let server = server_of(&mut clients[0]);
    for client in &mut clients {
        assert_eq!(server_of(client), server);
    }
    assert_eq!(listing(&scope).len(), 1, "one daemon");
    let mut other = with(Some("de_DE.UTF-8"));
    assert_ne!(server_of(&mut other), server, "a person chose this one");
    assert_eq!(listing(&scope).len(), 2);
}

#[test]
fn every_client_is_answered_as_the_first_was() {
    let scope = Scope::new("same-answer");
    let mut answers = Vec::new();
    let mut clients = Vec::new();
    for _ in 0..3 {
        let mut client = Client::start(&mut shared_with(&scope, &[]));
        answers.push(shake_hands(&mut client, "2025-06-18", json!({})));
        clients.push(client);
    }
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0], answers[2]);
}

#[test]
fn another_version_or_other_capabilities_are_another_server() {
    let scope = Scope::new("classes");
    let mut one = session(&scope);
    let mut same = session_as(&scope, "2025-06-18", json!({}));
    let mut version = session_as(&scope, "2025-11-25", json!({}));
    let mut able = session_as(&scope, "2025-06-18", json!({"sampling": {}}));
    let server = server_of(&mut one);
    assert_eq!(server_of(&mut same), server);
    assert_ne!(server_of(&mut version), server);
    assert_ne!(server_of(&mut able), server);
    assert_ne!(server_of(&mut able), server_of(&mut version));
    assert_eq!(servers(&scope).len(), 3);
}

#[test]
fn a_server_outlives_its_last_client_for_as_long_as_it_may_and_the_next_one_finds_it() {
    let scope = Scope::new("linger");
    let lingering = |linger| Client::begin(&mut shared_with(&scope, &["--linger", linger]));
    let mut first = lingering("10m");
    let server = server_of(&mut first);
    first.close();
    assert!(first.wait().status.success());
    let mut second = lingering("10m");
    assert_eq!(server_of(&mut second), server);
    // Another class's server goes when its time is over, whoever else is there.
    drop(second);
}

#[test]
fn a_server_that_ended_while_nobody_was_there_is_not_joined_though_a_helper_of_it_lives() {
    let scope = Scope::new("silent-linger");
    let line = format!(
        "sleep 1000 <&0 >/dev/null 2>&1 & exec {}",
        bin("tk-shared").display()
    );
    let begin = || {
        let mut run = kennel(&scope);
        run.args(["run", "--share", "always", "--linger", "10m"])
            .args(["--stop-after", "100ms,100ms", "--", "sh", "-c", &line]);
        Client::begin(&mut run)
    };
    let mut first = begin();
    first.call("leave", json!({"ms": 300}));
    first.close();
    assert!(first.wait().status.success());
    wait_for("the server is gone", || {
        servers(&scope).is_empty().then_some(())
    });
    seen(&mut begin());
}

#[test]
fn a_stopped_server_is_woken_by_a_request_and_not_by_a_ping() {
    let scope = Scope::new("stopped");
    let mut client = session(&scope);
    seen(&mut client);
    let stopped = kennel_testkit::run(kennel(&scope).args(["stop", "--all"]));
    assert_eq!(stopped.code(), Some(0), "{}", stopped.stderr);
    assert_eq!(client.request("ping", json!({}))["result"], json!({}));
    client.say("{\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}\n");
    assert_eq!(client.request("ping", json!({}))["result"], json!({}));
    assert!(listing(&scope).is_empty(), "{:?}", listing(&scope));
    seen(&mut client);
}

#[test]
fn linger_over_nothing_is_left() {
    let scope = Scope::new("linger-over");
    let mut client = Client::begin(&mut shared_with(&scope, &["--linger", "100ms"]));
    seen(&mut client);
    client.close();
    assert!(client.wait().status.success());
    scope.nothing_left_within("after linger", Duration::from_secs(30));
}

#[test]
fn a_killed_server_is_one_loss_to_each_of_its_clients_and_they_meet_at_the_next() {
    let scope = Scope::new("lost-together");
    let mut clients: Vec<Client> = (0..5).map(|_| session(&scope)).collect();
    let before = server_of(&mut clients[0]);
    let waiting: Vec<u64> = clients
        .iter_mut()
        .map(|client| {
            let work = json!({"name": "work", "arguments": {"ms": 600_000, "tag": "x"}});
            client.send("tools/call", work)
        })
        .collect();
    wait_for("all have asked", || {
        (seen(&mut clients[0])["calls"].as_u64() >= Some(5)).then_some(())
    });
    let server = servers(&scope).remove(0);
    server.signal(kennel_sys::Signal::KILL).unwrap();
    for (client, id) in clients.iter_mut().zip(waiting) {
        let error = &client.answer(id)["error"];
        assert_eq!(error["code"], -32603, "{error}");
        assert_eq!(error["data"]["outcome"], "unknown");
    }
    let after = server_of(&mut clients[0]);
    assert_ne!(after, before);
    for client in &mut clients {
        assert_eq!(server_of(client), after);
    }
    assert_eq!(seen(&mut clients[0])["initialize"], 1);
}

#[test]
fn a_session_that_begins_with_neither_era_has_a_server_of_its_own() {
    let scope = Scope::new("private");
    let mut one = session(&scope);
    let mut odd = Client::start(&mut shared_with(&scope, &[]));
    assert_ne!(server_of(&mut odd), server_of(&mut one));
}

#[test]
fn a_client_with_a_request_out_and_its_input_closed_is_answered() {
    let scope = Scope::new("half-close");
    let _other = session(&scope);
    let mut client = session(&scope);
    let work = json!({"name": "work", "arguments": {"ms": 300, "tag": "late"}});
    client.send("tools/call", work);
    client.close();
    let ended = client.wait();
    assert!(ended.status.success(), "{}", ended.stderr);
    assert!(ended.stdout.contains("late"), "{}", ended.stdout);
}

#[test]
fn what_is_not_there_is_said_as_a_shell_would_even_at_once_after_eof() {
    let scope = Scope::new("nosuch");
    for (command, code) in [
        ("nosuch-command", 127),
        (scope.dir().to_str().unwrap(), 126),
    ] {
        let mut run = kennel(&scope);
        run.args(["run", "--share", "always", "--", command]);
        let mut client = Client::start(&mut run);
        client.ask_to_initialize();
        client.close();
        let ended = client.wait();
        assert_eq!(ended.code(), Some(code), "{}", ended.stderr);
        assert!(ended.stderr.contains(command), "{}", ended.stderr);
    }
    assert!(bin("tk-shared").exists());
}

#[test]
fn what_a_session_says_last_reaches_the_server_though_it_is_gone_by_then() {
    let scope = Scope::new("last-words");
    let mut stays = session(&scope);
    let mut goes = session(&scope);
    server_of(&mut goes);
    let daemon = listing(&scope)[0]["daemon_pid"].as_u64().unwrap();
    let daemon = ProcessRef::open(daemon as u32).unwrap();
    // It hears of the words and of the end at once; and the words are more than it reads at once.
    daemon.signal(Signal::STOP).unwrap();
    let x = "x".repeat(3000);
    let last = json!({"jsonrpc": "2.0", "method": "notifications/x", "params": {"x": x}});
    goes.say(&format!("{last}\n").repeat(40));
    goes.close();
    assert_eq!(goes.wait().code(), Some(0));
    daemon.signal(Signal::CONT).unwrap();
    wait_for("the server has heard all", || {
        (seen(&mut stays)["others"] == 40).then_some(())
    });
}
