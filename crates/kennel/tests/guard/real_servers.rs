//! Real servers: Python's and node's, and workers, at a port that is taken.

use std::process::Command;

use kennel_testkit::{Client, DEADLINE, Scope, bin, tool, wait_for};

use crate::stage::{LOCALHOST, ends_with, free_port, json_of, kennel, kill, listens, owner};

const NODE: &str = "const http = require('http');
http.createServer((request, response) => response.end('hello')).listen(Number(process.argv[2]), '127.0.0.1');
";
const CLUSTER: &str = "const cluster = require('cluster');
const http = require('http');
if (cluster.isPrimary) {
  for (let i = 0; i < 3; i++) cluster.fork();
} else {
  http.createServer((request, response) => response.end('hello')).listen(Number(process.argv[2]), '127.0.0.1');
}
";

/// The branches of an occupied port, with this server.
fn every_branch(scope: &Scope, server: impl Fn(u16) -> Vec<String>) {
    let port = free_port();
    let guard = |options: &[&str]| -> Command {
        let mut command = kennel(scope);
        command.args(["guard", "--detach", "--json", "--port", &port.to_string()]);
        command.args(options).arg("--").args(server(port));
        command
    };
    let mut first = owner(scope);
    let options = ["--grace", "1h", "--owner-pid", &first.id().to_string()];
    let facts = json_of(&ends_with(0, &mut guard(&options)).0);
    assert_eq!(facts["status"], "started");
    assert_eq!(facts["ports"][0], port);
    let pid = facts["pid"].clone();
    // It serves, and hangs up.
    wait_for("an answer", || fetch(port));

    // Wanted: already running.
    let facts = json_of(&ends_with(0, &mut guard(&[])).0);
    assert_eq!(
        (&facts["status"], &facts["pid"]),
        (&"already running".into(), &pid)
    );
    // Another command at its port.
    let mut other = kennel(scope);
    other.args([
        "guard",
        "--json",
        "--port",
        &port.to_string(),
        "--",
        "sleep",
        "1000",
    ]);
    let facts = json_of(&ends_with(98, &mut other).0);
    assert_eq!(
        (&facts["holder"]["guarded"], &facts["holder"]["pid"]),
        (&true.into(), &pid)
    );
    // An orphan: replaced, all of it.
    kill(&mut first);
    wait_for("nobody to be connected", || {
        let open = kennel_sys::net::connections(&[port]).unwrap();
        open.is_empty().then_some(())
    });
    let mut second = owner(scope);
    let options = ["--grace", "300ms", "--owner-pid", &second.id().to_string()];
    let facts = json_of(&ends_with(0, &mut guard(&options)).0);
    assert_eq!(facts["status"], "started");
    assert_ne!(facts["pid"], pid);
    assert!(facts["replaced"].is_number());
    wait_for("an answer", || fetch(port));
    // And gone with its owner.
    kill(&mut second);
    wait_for("the port to be free", || (!listens(port)).then_some(()));
    scope.nothing_left_within("the owner is gone", DEADLINE);

    // Not guarded: untouched.
    let line = server(port);
    let mut foreign = scope.command(&line[0]);
    let mut foreign = foreign
        .args(&line[1..])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    wait_for("an answer", || fetch(port));
    let (stdout, stderr) = ends_with(98, &mut guard(&["--takeover", "older"]));
    assert_eq!(json_of(&stdout)["holder"]["guarded"], false);
    assert!(stderr.contains("leaves alone"), "{stderr}");
    assert!(foreign.try_wait().unwrap().is_none());
    assert!(fetch(port).is_some());
    kill(&mut foreign);
    wait_for("what it left", || {
        scope
            .survivors()
            .iter()
            .for_each(|process| drop(process.signal(kennel_sys::Signal::KILL)));
        scope.survivors().is_empty().then_some(())
    });
}

/// One request, answered.
fn fetch(port: u16) -> Option<()> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect((LOCALHOST, port)).ok()?;
    stream.set_read_timeout(Some(DEADLINE)).ok()?;
    write!(
        stream,
        "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )
    .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.contains("200 OK").then_some(())
}

#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_every_branch_with_pythons_own_server() {
    let scope = Scope::new("python");
    let python = tool("python3")
        .expect("the testbed has python")
        .display()
        .to_string();
    every_branch(&scope, |port| {
        let words = [
            &python,
            "-m",
            "http.server",
            "--bind",
            "127.0.0.1",
            &port.to_string(),
        ];
        words.map(str::to_owned).into()
    });
}

#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_every_branch_with_a_node_server() {
    let scope = Scope::new("node");
    let node = tool("node")
        .expect("the testbed has node")
        .display()
        .to_string();
    let script = scope.path("server.js");
    std::fs::write(&script, NODE).unwrap();
    let script = script.to_str().unwrap().to_owned();
    every_branch(&scope, |port| {
        vec![node.clone(), script.clone(), port.to_string()]
    });
}

#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_every_branch_with_a_server_that_forks_workers() {
    let scope = Scope::new("cluster");
    let node = tool("node")
        .expect("the testbed has node")
        .display()
        .to_string();
    let script = scope.path("server.js");
    std::fs::write(&script, CLUSTER).unwrap();
    let script = script.to_str().unwrap().to_owned();
    every_branch(&scope, |port| {
        vec![node.clone(), script.clone(), port.to_string()]
    });
}

#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_lesson_34_a_script_that_does_not_parse_leaves_the_incumbent_serving() {
    let scope = Scope::new("scripts");
    for (program, name, broken) in [
        ("node", "server.js", "const x = ;\n"),
        ("python3", "server.py", "def f(:\n"),
    ] {
        let port = free_port();
        let program = tool(program)
            .expect("the testbed has it")
            .display()
            .to_string();
        let script = scope.path(name);
        let text = match name {
            "server.js" => NODE.to_owned(),
            _ => "import sys, http.server\nhttp.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), http.server.SimpleHTTPRequestHandler).serve_forever()\n".to_owned(),
        };
        std::fs::write(&script, text).unwrap();
        let guard = || {
            let mut command = kennel(&scope);
            command.args([
                "guard",
                "--detach",
                "--takeover",
                "older",
                "--port",
                &port.to_string(),
                "--",
            ]);
            command.arg(&program).arg(&script).arg(port.to_string());
            command
        };
        ends_with(0, &mut guard());
        std::fs::write(&script, broken).unwrap();
        let (_, stderr) = ends_with(126, &mut guard());
        assert!(
            stderr.contains("cannot be parsed") && stderr.contains("the running server goes on"),
            "{stderr}"
        );
        wait_for("an answer", || fetch(port));
    }
}

#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_a_real_websocket_outlives_the_owner_is_killed_comes_back_and_takes_the_server_along()
 {
    let scope = Scope::new("websocket");
    let node = tool("node").expect("the testbed has node");
    let mut owner = owner(&scope);
    let mut command = kennel(&scope);
    command.args([
        "guard",
        "--grace",
        "4s",
        "--owner-pid",
        &owner.id().to_string(),
        "--",
    ]);
    let mut guard = Client::start(command.arg(bin("ws")).args(["--port", "0"]));
    let port = guard.line().unwrap();
    let port = port.strip_prefix("listening ").unwrap().to_owned();
    let browser = || {
        let script = "const ws = new WebSocket('ws://127.0.0.1:' + process.argv[1] + '/');
            ws.onopen = () => ws.send('pid');
            ws.onmessage = (message) => console.log(message.data);";
        let mut client = Client::start(scope.command(&node).args([
            "--experimental-websocket",
            "-e",
            script,
            &port,
        ]));
        (client.line().expect("an answer"), client)
    };
    let (server, mut session) = browser();
    kill(&mut owner);
    crate::stage::pause(std::time::Duration::from_millis(4600));
    assert!(guard.try_wait().is_none(), "somebody is connected");
    session.kill();
    let (again, mut session) = browser();
    assert_eq!(again, server, "the very same server");
    session.kill();
    assert_eq!(guard.wait().code(), Some(0));
    scope.nothing_left_within("the last session was killed", DEADLINE);
}
