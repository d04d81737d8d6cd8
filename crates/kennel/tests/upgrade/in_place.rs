//! The daemon becomes the newer build: same process, same servers, same sessions.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kennel_testkit::{Client, Rng, Scope, run, wait_for};
use serde_json::json;

use crate::stage::{
    build, daemon, daemon_when, log, seen, server_of, session, shared_with, text, this, works,
};

const NEWER: &str = "99.1.0";

#[test]
fn five_busy_clients_notice_nothing_while_their_daemon_becomes_a_newer_build() {
    let scope = Scope::new("busy");
    let mut clients: Vec<Client> = (0..5).map(|_| session(&scope, &this())).collect();
    let server = server_of(&mut clients[0]);
    let before = daemon(&scope);
    assert_eq!(before["version"], env!("CARGO_PKG_VERSION"));

    // They never let it come to rest: each has a call in flight that outlasts the patience for a quiet moment.
    let calls: Vec<u64> = clients
        .iter_mut()
        .enumerate()
        .map(|(number, client)| works(client, &format!("of {number}"), 8000))
        .collect();
    let newer = build(&scope, NEWER);
    let mut newcomer = session(&scope, &newer);
    assert_eq!(server_of(&mut newcomer), server, "served meanwhile");

    let after = daemon_when(&scope, NEWER);
    assert_eq!(after["daemon_pid"], before["daemon_pid"]);
    assert_eq!(after["since"], before["since"]);
    let open = seen(&mut newcomer);
    assert_eq!(open["pid"], server);
    for (number, (client, id)) in clients.iter_mut().zip(calls).enumerate() {
        assert_eq!(text(&client.answer(id)), format!("of {number}"));
        assert_eq!(server_of(client), server);
    }
    let told = seen(&mut newcomer);
    assert_eq!(told["initialize"], 1);
    assert_eq!(told["cancelled"], 0);
    assert!(log(&scope).contains("goes on as 99.1.0"), "{}", log(&scope));
}

#[test]
fn a_session_that_talks_keeps_its_pipes() {
    let scope = Scope::new("keeps-pipes");
    let mut client = session(&scope, &this());
    let pipes = |client: &Client| {
        let open = std::fs::read_dir(format!("/proc/{}/fd", client.pid())).unwrap();
        let mut open: Vec<_> = open
            .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
            .filter(|target| target.to_string_lossy().starts_with("pipe:"))
            .collect();
        open.sort();
        open
    };
    let quiet = pipes(&client).len();
    let server = server_of(&mut client);
    for _ in 0..40 {
        seen(&mut client);
    }
    let before = pipes(&client);
    assert_eq!(before.len(), quiet + 2);
    let _newcomer = session(&scope, &build(&scope, NEWER));
    daemon_when(&scope, NEWER);
    for _ in 0..40 {
        assert_eq!(server_of(&mut client), server);
    }
    assert_eq!(pipes(&client), before);
}

#[test]
fn a_daemon_that_became_another_build_is_as_good_as_one_that_was_started_so() {
    let scope = Scope::new("as-good");
    let newer = build(&scope, NEWER);
    let linger = ["--linger", "300ms"];
    let begin = |kennel: &Path| Client::begin(&mut shared_with(&scope, kennel, &linger));
    let mut first = begin(&this());
    let server = server_of(&mut first);
    let subscribe = json!({"uri": "a"});
    assert_eq!(
        first.request("resources/subscribe", subscribe)["result"],
        json!({})
    );
    let mut second = begin(&newer);
    daemon_when(&scope, NEWER);

    // What the server holds for one is still known.
    second.call("touch", json!({"uri": "a"}));
    wait_for("the subscriber is told", || {
        let line = first.line().unwrap();
        line.contains("notifications/resources/updated")
            .then_some(())
    });
    // Newcomers of either build find it, and an older one asks for nothing.
    let mut older = begin(&this());
    assert_eq!(server_of(&mut older), server);
    assert_eq!(daemon(&scope)["version"], NEWER);

    // A server that is killed is one loss, and its tree goes: the warden is still a child of its daemon.
    kill_server(&scope, server);
    let next = wait_for("another server", || {
        let answer = first.request("tools/call", json!({"name": "seen", "arguments": {}}));
        answer.get("result").map(|_| server_of(&mut first))
    });
    assert_ne!(next, server);
    assert_eq!(server_of(&mut second), next);
    assert_eq!(server_of(&mut older), next);

    // And it ends as any other.
    for client in [first, second, older] {
        let mut client = client;
        client.close();
        assert!(client.wait().status.success());
    }
    scope.nothing_left_within("after linger", Duration::from_secs(30));
}

#[test]
fn one_build_after_the_other_and_never_back() {
    let scope = Scope::new("chain");
    let builds = ["99.0.0-rc.1", "99.0.0", "99.0.0+7"];
    let mut clients = vec![session(&scope, &this())];
    let server = server_of(&mut clients[0]);
    for name in builds {
        let newer = build(&scope, name);
        clients.push(session(&scope, &newer));
        wait_for("the next build", || {
            log(&scope)
                .contains(&format!("goes on as {name},"))
                .then_some(())
        });
    }
    // An older one that comes later is served, and nothing else.
    clients.push(session(&scope, &scope.path("99.0.0").join("kennel")));
    for client in &mut clients {
        assert_eq!(server_of(client), server);
    }
    assert_eq!(log(&scope).matches("goes on as").count(), builds.len());
}

#[test]
fn lines_of_any_length_that_are_under_way_arrive_whole_and_once() {
    let scope = Scope::new("under-way");
    let mut clients: Vec<Client> = (0..5).map(|_| session(&scope, &this())).collect();
    let server = server_of(&mut clients[0]);
    let builds: Vec<_> = (1..=3).map(|it| format!("99.{it}.0")).collect();
    let programs: Vec<_> = builds.iter().map(|it| build(&scope, it)).collect();
    let done = AtomicBool::new(false);
    let rounds = std::thread::scope(|threads| {
        let talking: Vec<_> = clients
            .iter_mut()
            .enumerate()
            .map(|(number, client)| {
                let (done, mut rng) = (&done, Rng::seeded(&format!("client {number}")));
                threads.spawn(move || {
                    let mut rounds = 0;
                    while !done.load(Ordering::SeqCst) {
                        // Several at once, some longer than any pipe or socket takes.
                        let tags: Vec<String> = (0..4)
                            .map(|_| {
                                format!("{number}-{rounds}-").repeat(1 + rng.below(60_000) as usize)
                            })
                            .collect();
                        let calls: Vec<u64> =
                            tags.iter().map(|tag| works(client, tag, 5)).collect();
                        for (id, tag) in calls.into_iter().zip(tags) {
                            assert!(text(&client.answer(id)) == tag, "another answer");
                        }
                        rounds += 1;
                    }
                    rounds
                })
            })
            .collect();
        let newcomers: Vec<Client> = builds
            .iter()
            .zip(&programs)
            .map(|(name, program)| {
                let newcomer = session(&scope, program);
                daemon_when(&scope, name);
                newcomer
            })
            .collect();
        done.store(true, Ordering::SeqCst);
        drop(newcomers);
        talking
            .into_iter()
            .map(|it| it.join().unwrap())
            .collect::<Vec<u32>>()
    });
    assert!(rounds.iter().all(|&rounds| rounds > 0), "{rounds:?}");
    for client in &mut clients {
        assert_eq!(server_of(client), server);
    }
}

#[test]
fn a_stop_that_comes_with_the_upgrade_is_a_stop() {
    let scope = Scope::new("stop");
    let newer = build(&scope, NEWER);
    for _ in 0..5 {
        let mut first = session(&scope, &this());
        server_of(&mut first);
        let _second = session(&scope, &newer);
        let stopped = run(scope.command(this()).args(["stop", "--all"]));
        assert_eq!(stopped.code(), Some(0), "{}{}", stopped.stderr, log(&scope));
    }
}

fn kill_server(scope: &Scope, pid: u64) {
    let server = scope
        .survivors()
        .into_iter()
        .find(|it| u64::from(it.pid()) == pid);
    server.unwrap().signal(kennel_sys::Signal::KILL).unwrap();
}
