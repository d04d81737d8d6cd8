//! Servers that start one detached backend for all sessions: it lives while a session uses it.

use std::process::{Command, Stdio};

use kennel_sys::process::ProcessRef;
use kennel_testkit::{Client, Scope, bin, run, wait_for};
use serde_json::{Value, json};

use crate::stage::{daemons, kennel, listing, serves};

fn session(scope: &Scope, options: &[&str]) -> Command {
    let mut command = kennel(scope);
    command
        .args(["run", "--stop-after", "50ms,50ms"])
        .args(options)
        .arg("--")
        .arg(bin("tk-backend"))
        .arg("serve")
        .arg(scope.path("backend.sock"))
        .arg(scope.roll());
    command
}

#[track_caller]
fn backend_of(client: &mut Client) -> u32 {
    let told = client.call("ask", json!({}));
    let text = told["content"][0]["text"].as_str();
    text.and_then(|text| text.parse().ok())
        .unwrap_or_else(|| panic!("no pid: {told}"))
}

fn kept(scope: &Scope) -> Vec<Value> {
    let all = listing(scope).into_iter();
    all.filter(|entry| entry["mode"] == "kept").collect()
}

#[test]
fn a_backend_that_other_sessions_use_outlives_the_session_that_started_it() {
    let scope = Scope::new("three");
    let mut sessions: Vec<Client> = Vec::new();
    for _ in 0..3 {
        sessions.push(Client::begin(&mut session(&scope, &["--share", "never"])));
    }
    let backend = backend_of(&mut sessions[0]);
    for session in &mut sessions {
        assert_eq!(backend_of(session), backend, "one backend for all");
    }
    let process = ProcessRef::open(backend).unwrap();
    let mut first = sessions.remove(0);
    first.close();
    assert_eq!(first.wait().code(), Some(0));
    for session in &mut sessions {
        assert_eq!(backend_of(session), backend, "a session lost its backend");
    }
    // Its warden may still be writing that down when the session has ended.
    let shown = wait_for("it is listed as kept", || {
        Some(kept(&scope)).filter(|kept| !kept.is_empty())
    });
    assert_eq!(shown.len(), 1, "{shown:?}");
    assert_eq!(shown[0]["servers"][0]["pid"], backend);
    assert!(shown[0]["why"].as_str().unwrap().contains("connected"));
    let table = run(kennel(&scope).arg("ps"));
    assert!(
        table.stdout.contains("outlived its server"),
        "{}",
        table.stdout
    );

    for mut session in sessions {
        session.close();
        assert_eq!(session.wait().code(), Some(0));
    }
    assert!(process.is_alive(), "it is in nobody's tree any more");
    let key = shown[0]["key"].as_str().unwrap();
    let stopped = run(kennel(&scope).args(["stop", key]));
    assert_eq!(stopped.code(), Some(0), "{}", stopped.stderr);
    assert!(!process.is_alive());
    assert_eq!(kept(&scope).len(), 0);
}

#[test]
fn rule_2_a_backend_of_one_session_goes_with_it() {
    let scope = Scope::new("one");
    let mut client = Client::begin(&mut session(&scope, &["--share", "never"]));
    let backend = ProcessRef::open(backend_of(&mut client)).unwrap();
    client.close();
    assert_eq!(client.wait().code(), Some(0));
    wait_for("the backend to be gone", || {
        (!backend.is_alive()).then_some(())
    });
    assert_eq!(kept(&scope).len(), 0);
}

#[test]
fn a_backend_that_others_use_outlives_a_shared_server_and_its_daemon() {
    let scope = Scope::new("shared");
    let mut shared = Client::begin(&mut session(&scope, &["--share", "always"]));
    let backend = backend_of(&mut shared);
    let process = ProcessRef::open(backend).unwrap();
    let mut other = Client::begin(&mut session(&scope, &["--share", "never"]));
    assert_eq!(backend_of(&mut other), backend);
    let all = listing(&scope);
    let daemon = all.iter().find(|entry| entry["mode"] == "shared").unwrap();
    let stop = run(kennel(&scope).args(["stop", daemon["key"].as_str().unwrap()]));
    assert_eq!(stop.code(), Some(0), "{}", stop.stderr);
    assert_eq!(backend_of(&mut other), backend, "it lost its backend");
    assert_eq!(kept(&scope).len(), 1);
    drop(shared);
    wait_for("the daemon to end", || {
        daemons(&scope).is_empty().then_some(())
    });
    assert_eq!(backend_of(&mut other), backend, "it lost its backend");
    other.close();
    assert_eq!(other.wait().code(), Some(0));
    assert!(process.is_alive());
    let stop = run(kennel(&scope).args(["stop", "--all"]));
    assert_eq!(stop.code(), Some(0), "{}", stop.stderr);
    assert!(!process.is_alive());
}

#[test]
fn detached_end_ends_what_others_use() {
    let scope = Scope::new("end");
    let options = ["--share", "never", "--detached", "end"];
    let mut first = Client::begin(&mut session(&scope, &options));
    let backend = ProcessRef::open(backend_of(&mut first)).unwrap();
    let mut user = scope
        .command(bin("tk-backend"))
        .arg("use")
        .arg(scope.path("backend.sock"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    first.close();
    assert_eq!(first.wait().code(), Some(0));
    wait_for("the backend to be gone", || {
        (!backend.is_alive()).then_some(())
    });
    user.kill().unwrap();
    user.wait().unwrap();
    let wrong = run(kennel(&scope).args(["run", "--detached", "maybe", "--", "true"]));
    assert_eq!(wrong.code(), Some(2));
    assert!(
        wrong.stderr.contains("not one of auto, keep, end"),
        "{}",
        wrong.stderr
    );
}

/// Begins a session whose backend another process uses, ends it, and tells whether the backend was kept.
fn keeps_backend(scope: &Scope, command: &mut Command) -> bool {
    let mut client = Client::begin(command);
    let backend = ProcessRef::open(backend_of(&mut client)).unwrap();
    client.close();
    assert_eq!(client.wait().code(), Some(0));
    wait_for("the backend is kept or gone", || {
        (!backend.is_alive() || !kept(scope).is_empty()).then_some(())
    });
    backend.is_alive()
}

#[test]
fn kennel_detached_decides_unless_a_flag_does() {
    for (variable, options, keeps) in [
        ("keep", &["--share", "never"][..], true),
        ("keep", &["--share", "never", "--detached", "end"], false),
        ("end", &["--share", "never", "--detached", "keep"], true),
        ("end", &["--share", "never"], false),
    ] {
        let scope = Scope::new("variable");
        let mut command = session(&scope, options);
        command.env("KENNEL_DETACHED", variable);
        let kept = keeps_backend(&scope, &mut command);
        assert_eq!(kept, keeps, "{variable} {options:?}");
    }
    let scope = Scope::new("variable");
    let mut wrong = kennel(&scope);
    wrong
        .args(["run", "--", "true"])
        .env("KENNEL_DETACHED", "maybe");
    let wrong = run(&mut wrong);
    let words = "KENNEL_DETACHED is ignored";
    assert!(wrong.stderr.contains(words), "{}", wrong.stderr);
}

#[test]
fn servers_toml_says_which_detached_services_are_kept() {
    for (written, variable, keeps) in [
        ("keep", None, true),
        ("end", None, false),
        ("keep", Some("end"), false),
    ] {
        let scope = Scope::new("written");
        let dir = scope.path("home/.config/kennel");
        std::fs::create_dir_all(&dir).unwrap();
        let word = |path: &std::path::Path| format!("{:?}", path.to_str().unwrap());
        let command = [
            word(&bin("tk-backend")),
            "\"serve\"".to_owned(),
            word(&scope.path("backend.sock")),
            word(&scope.roll()),
        ];
        let text = format!(
            "[[server]]\nname = \"it\"\ncommand = [{}]\nstop_after = \"50ms,50ms\"\ndetached = {written:?}\n",
            command.join(", ")
        );
        std::fs::write(dir.join("servers.toml"), text).unwrap();
        let mut command = kennel(&scope);
        command.args(["run", "--share", "never", "it"]);
        command.envs(variable.map(|variable| ("KENNEL_DETACHED", variable)));
        let kept = keeps_backend(&scope, &mut command);
        assert_eq!(kept, keeps, "{written} {variable:?}");
    }
}

/// The parent of a process.
fn parent_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let rest = &stat[stat.rfind(") ")? + 2..];
    rest.split(' ').nth(1)?.parse().ok()
}

/// The children of a process, zombies included.
fn children_of(pid: u32) -> Vec<u32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = std::fs::read_to_string(path).unwrap();
    let pids = text.split_whitespace();
    pids.map(|pid| pid.parse().unwrap()).collect()
}

#[test]
fn what_a_kept_service_leaves_to_a_session_or_a_daemon_is_reaped() {
    for share in ["never", "always"] {
        let scope = Scope::new("left");
        let go = scope.path("go");
        let go = go.display();
        // Once, a detached process whose children leave children behind until it is told to stop.
        let leaves =
            format!("until [ -e {go}.stop ]; do (sleep 0.01 &); echo >>{go}; sleep 0.01; done");
        let script = format!(
            "[ -e {go} ] || {{ echo >{go}; setsid sh -c '{leaves}' </dev/null >/dev/null 2>&1 & echo $! >{go}.pid; }}; exec {}",
            bin("tk-server").display()
        );
        let mut command = kennel(&scope);
        command
            .args(["run", "--stop-after", "50ms,50ms", "--share", share])
            .args(["--detached", "keep", "--", "sh", "-c", &script]);
        let mut client = Client::begin(&mut command);
        client.request("die", json!({}));
        serves(&mut client);
        let pid = std::fs::read_to_string(scope.path("go.pid")).unwrap();
        let service = ProcessRef::open(pid.trim().parse().unwrap()).unwrap();
        let adopter = match share {
            "never" => client.pid(),
            _ => daemons(&scope)[0].pid(),
        };
        // The warden of the server that died may still be on its way out.
        wait_for("the service is adopted", || {
            (parent_of(service.pid()) == Some(adopter)).then_some(())
        });
        let left = || std::fs::metadata(scope.path("go")).unwrap().len();
        let before = left();
        wait_for("it leaves more", || (left() > before + 20).then_some(()));
        std::fs::write(scope.path("go.stop"), "").unwrap();
        wait_for("the service ends", || (!service.is_alive()).then_some(()));
        wait_for("nobody but the warden", || {
            (children_of(adopter).len() == 1).then_some(())
        });
        serves(&mut client);
    }
}
