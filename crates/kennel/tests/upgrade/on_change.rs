//! A server whose files changed on disk: marked, and replaced under its sessions when nobody waits for it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use kennel_testkit::{Client, Scope, bin, run, tool, wait_for};
use serde_json::{Value, json};

use crate::stage::{build, daemon, daemon_when, log, seen, server_of, text, this};

/// A server of our own making, to be replaced.
fn server(scope: &Scope) -> PathBuf {
    let path = scope.path("server");
    install(scope, &path);
    path
}

/// Another file in its place, at once and whole.
fn install(scope: &Scope, path: &Path) {
    let aside = scope.path("aside");
    std::fs::copy(bin("tk-shared"), &aside).unwrap();
    std::fs::rename(aside, path).unwrap();
}

fn kennel_run(scope: &Scope, options: &[&str], server: &Path) -> Command {
    let mut command = scope.command(this());
    command
        .args(["run", "--stop-after", "1s,50ms"])
        .args(options)
        .arg("--")
        .arg(server)
        .env("TESTKIT_ROLL", scope.roll());
    command
}

fn is_stale(scope: &Scope) -> bool {
    daemon(scope)["servers"][0]["stale"] == true
}

#[test]
fn a_server_that_changed_on_disk_is_replaced_when_nobody_waits_for_it() {
    let scope = Scope::new("replaced");
    let path = server(&scope);
    let shared = || Client::begin(&mut kennel_run(&scope, &["--share", "always"], &path));
    let (mut one, mut other) = (shared(), shared());
    let old = server_of(&mut one);
    wait_for("it is listed", || {
        (daemon(&scope)["servers"][0]["stale"] == false).then_some(())
    });
    // A call that lasts until the client has answered a question.
    let arguments = json!({"method": "sampling/createMessage", "tag": "t"});
    let call = other.send("tools/call", json!({"name": "ask", "arguments": arguments}));
    let question: Value = serde_json::from_str(&other.line().unwrap()).unwrap();
    install(&scope, &path);
    assert!(is_stale(&scope), "{}", daemon(&scope));
    let words = run(scope.command(this()).arg("ps")).stdout;
    assert!(words.contains("is stale"), "{words}");

    // It has settled, and is still the same: somebody waits for it.
    wait_for("the change is seen", || {
        assert_eq!(server_of(&mut one), old);
        log(&scope).contains("files changed").then_some(())
    });
    assert_eq!(server_of(&mut one), old);
    let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": {}});
    other.say(&format!("{answer}\n"));
    assert_eq!(text(&other.answer(call)), "{}");
    let new = wait_for("another server", || {
        let server = server_of(&mut one);
        (server != old).then_some(server)
    });
    assert_eq!(server_of(&mut other), new);
    assert_eq!(seen(&mut one)["initialize"], 1);
    wait_for("it is fresh", || (!is_stale(&scope)).then_some(()));
}

#[test]
fn a_newcomer_gets_what_is_there_now() {
    let scope = Scope::new("newcomer");
    let path = server(&scope);
    let shared = || Client::begin(&mut kennel_run(&scope, &["--share", "always"], &path));
    let mut first = shared();
    let old = server_of(&mut first);
    install(&scope, &path);
    // Nobody says anything: whoever comes is the reason to look.
    let mut newcomer = wait_for("a newcomer finds another", || {
        let mut newcomer = shared();
        (server_of(&mut newcomer) != old).then_some(newcomer)
    });
    assert_eq!(server_of(&mut newcomer), server_of(&mut first));
}

#[test]
fn one_that_is_to_be_kept_is_marked_and_kept_and_so_is_a_sessions_own() {
    for options in [
        &["--share", "always", "--on-change", "keep"][..],
        &["--share", "never"],
    ] {
        let scope = Scope::new("kept");
        let path = server(&scope);
        let mut client = Client::begin(&mut kennel_run(&scope, options, &path));
        let old = server_of(&mut client);
        // The record of a session is written a moment after its first answer.
        wait_for("it is listed", || {
            let listed = run(scope.command(this()).args(["ps", "--json"])).stdout;
            listed.contains("\"servers\"").then_some(())
        });
        install(&scope, &path);
        wait_for("it is stale", || is_stale(&scope).then_some(()));
        let changed = Instant::now();
        wait_for("time passes", || {
            assert_eq!(server_of(&mut client), old);
            (changed.elapsed() > Duration::from_secs(4)).then_some(())
        });
    }
}

#[test]
fn a_sessions_own_server_is_replaced_if_that_is_wanted() {
    let scope = Scope::new("own");
    let path = server(&scope);
    let mut run = kennel_run(&scope, &["--share", "never"], &path);
    run.env("KENNEL_ON_CHANGE", "replace");
    let mut client = Client::begin(&mut run);
    let old = server_of(&mut client);
    install(&scope, &path);
    wait_for("another server", || {
        (server_of(&mut client) != old).then_some(())
    });
    assert_eq!(seen(&mut client)["initialize"], 1);
}

#[test]
fn what_is_neither_replace_nor_keep_is_refused() {
    let scope = Scope::new("usage");
    let ended = run(&mut kennel_run(
        &scope,
        &["--on-change", "x"],
        Path::new("true"),
    ));
    assert_eq!(ended.code(), Some(2));
    assert!(ended.stderr.contains("--on-change"), "{}", ended.stderr);
}

#[test]
fn a_change_is_still_known_after_an_upgrade() {
    let scope = Scope::new("both");
    let newer = build(&scope, "99.1.0");
    let path = server(&scope);
    let mut client = Client::begin(&mut kennel_run(&scope, &["--share", "always"], &path));
    let old = server_of(&mut client);
    let run = kennel_run(&scope, &["--share", "always"], &path);
    let mut second = scope.command(&newer);
    second
        .args(run.get_args())
        .env("TESTKIT_ROLL", scope.roll());
    let _second = Client::begin(&mut second);
    daemon_when(&scope, "99.1.0");
    assert_eq!(server_of(&mut client), old);
    install(&scope, &path);
    wait_for("another server", || {
        (server_of(&mut client) != old).then_some(())
    });
}

/// A package of npm's without anything beside it: a server whose tools are those of its version.
fn package(scope: &Scope, version: u32) -> PathBuf {
    let dir = scope.path(format!("v{version}"));
    std::fs::create_dir(&dir).unwrap();
    let about = json!({"name": "tk-small", "version": format!("{version}.0.0"), "bin": "index.js"});
    std::fs::write(dir.join("package.json"), about.to_string()).unwrap();
    let tools: Vec<Value> = (1..=version)
        .map(|number| json!({"name": format!("tool-{number}"), "inputSchema": {"type": "object"}}))
        .collect();
    let script = format!(
        r#"#!/usr/bin/env node
const tools = {};
require("readline").createInterface({{ input: process.stdin }}).on("line", (line) => {{
  const {{ id, method, params }} = JSON.parse(line);
  if (id === undefined) return;
  const result = method === "initialize"
    ? {{ protocolVersion: params.protocolVersion, capabilities: {{ tools: {{ listChanged: true }} }}, serverInfo: {{ name: "small", version: "{version}" }} }}
    : {{ tools, pid: process.pid }};
  console.log(JSON.stringify({{ jsonrpc: "2.0", id, result }}));
}});
"#,
        Value::from(tools)
    );
    std::fs::write(dir.join("index.js"), script).unwrap();
    dir
}

fn npm_installs(scope: &Scope, package: &Path) {
    let project = scope.path("project");
    std::fs::create_dir_all(&project).unwrap();
    let mut npm = scope.command(tool("npm").unwrap());
    npm.args([
        "install",
        "--offline",
        "--no-audit",
        "--no-fund",
        "--install-links",
    ])
    .arg(package)
    .current_dir(&project);
    let ended = run(&mut npm);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
}

#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_another_version_of_an_npm_package_takes_over_and_its_tools_are_announced() {
    let scope = Scope::new("npm");
    npm_installs(&scope, &package(&scope, 1));
    let project = scope.path("project");
    let begin = || {
        let mut run = scope.command(this());
        run.args(["run", "--share", "always", "--cwd"])
            .arg(&project)
            .args(["--", "npx", "--no-install", "tk-small"]);
        Client::begin(&mut run)
    };
    let tools = |client: &mut Client| {
        let listed = client.request("tools/list", json!({}));
        listed["result"]["tools"].as_array().unwrap().len()
    };
    let mut clients = [begin(), begin()];
    for client in &mut clients {
        assert_eq!(tools(client), 1);
    }
    npm_installs(&scope, &package(&scope, 2));
    assert!(is_stale(&scope), "{}", daemon(&scope));
    wait_for("the next version is there", || {
        (tools(&mut clients[0]) == 2).then_some(())
    });
    // The other one said nothing meanwhile, and is told.
    wait_for("the change is announced", || {
        let line = clients[1].line().unwrap();
        line.contains("notifications/tools/list_changed")
            .then_some(())
    });
    assert_eq!(tools(&mut clients[1]), 2);
    assert_eq!(daemon(&scope)["servers"].as_array().unwrap().len(), 1);
    assert!(log(&scope).contains("is replaced"), "{}", log(&scope));
}
