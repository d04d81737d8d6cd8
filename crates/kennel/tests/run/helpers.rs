//! Sessions that somebody else than the app started: a helper that exits, an app that goes on as another process.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Stdio};

use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;
use kennel_testkit::{Client, Scope, bin, tool, wait_for};
use serde_json::json;

use crate::stage::{kennel, serves, solo};

/// Starts a session and exits once `gone` exists. Its stdin is passed on.
const HELPER: &str = "exec 3<&0; gone=$1; shift; \"$@\" <&3 & \
    while [ ! -e \"$gone\" ]; do sleep 0.02; done";

#[test]
fn a_session_goes_on_when_the_helper_that_started_it_exits() {
    let scope = Scope::new("helper");
    let gone = scope.path("gone");
    let session = solo(&scope);
    let mut command = scope.command("sh");
    command.args(["-c", HELPER, "helper"]).arg(&gone);
    command.arg(session.get_program()).args(session.get_args());
    command.env("TESTKIT_ROLL", scope.roll());
    let mut client = Client::begin(&mut command);
    serves(&mut client);
    let helper = ProcessRef::open(client.pid()).unwrap();
    std::fs::write(&gone, "").unwrap();
    wait_for("the helper to exit", || (!helper.is_alive()).then_some(()));
    for _ in 0..3 {
        serves(&mut client);
    }
    client.close();
    scope.nothing_left_within("closed", kennel_testkit::DEADLINE);
}

/// An app that makes the pipes itself and has a helper start the session: the helper's own stdin is another. Something
/// else holds the pipes as well. Passes lines on both ways.
const APP: &str = "
import os, subprocess, sys, threading
to_r, to_w = os.pipe()
from_r, from_w = os.pipe()
line = 'gone=$1; shift; \"$@\" <&%d >&%d & while [ ! -e \"$gone\" ]; do sleep 0.02; done' % (to_r, from_w)
helper = subprocess.Popen(['sh', '-c', line, 'helper'] + sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          pass_fds=[to_r, from_w])
os.close(to_r); os.close(from_w)
keeper = subprocess.Popen(['sleep', '1000'], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          pass_fds=[to_w, from_r])
def out():
    while True:
        data = os.read(from_r, 65536)
        if not data: os._exit(0)
        os.write(1, data)
threading.Thread(target=out, daemon=True).start()
threading.Thread(target=helper.wait, daemon=True).start()
while True:
    data = os.read(0, 65536)
    if not data: break
    os.write(to_w, data)
";

#[test]
fn rule_2_the_app_that_is_found_when_the_helper_exits_is_watched_from_then_on() {
    let Some(python) = tool("python3") else {
        return;
    };
    let scope = Scope::new("found");
    let gone = scope.path("gone");
    let session = solo(&scope);
    let mut command = scope.command(python);
    command.args(["-c", APP]).arg(&gone);
    command.arg(session.get_program()).args(session.get_args());
    command.env("TESTKIT_ROLL", scope.roll());
    let mut client = Client::begin(&mut command);
    serves(&mut client);
    let is_helper = |process: &ProcessRef| {
        let line = process.command_line().unwrap_or_default();
        line.iter().any(|word| word == "helper")
    };
    std::fs::write(&gone, "").unwrap();
    wait_for("the helper to exit", || {
        (!scope.survivors().iter().any(is_helper)).then_some(())
    });
    for _ in 0..3 {
        serves(&mut client);
    }
    let app = ProcessRef::open(client.pid()).unwrap();
    app.signal(Signal::KILL).unwrap();
    wait_for("nobody but the keeper of the pipes", || {
        let left = scope.survivors();
        let names = left.iter().map(|it| it.command_line().unwrap_or_default());
        let others = names.filter(|line| line.first().is_none_or(|word| word != "sleep"));
        (others.count() == 0).then_some(())
    });
}

/// Starts a session and goes on as its own child, which holds the pipes: as a daemon does.
const DAEMONIZES: &str = "
import json, os, subprocess, sys, time
p = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
hello = {'jsonrpc': '2.0', 'id': 1, 'method': 'initialize', 'params': {'protocolVersion': '2025-06-18', 'capabilities': {},
         'clientInfo': {'name': 'daemon', 'version': '0'}}}
p.stdin.write(json.dumps(hello).encode() + b'\\n'); p.stdin.flush()
p.stdout.readline()
print('up', flush=True)
sys.stdin.readline()
if os.fork() == 0:
    os.close(1); os.close(2)
    time.sleep(1000)
os._exit(0)
";

#[test]
fn a_session_says_why_it_ends_when_its_app_goes_on_as_another_process() {
    let Some(python) = tool("python3") else {
        return;
    };
    let scope = Scope::new("daemonizes");
    let session = solo(&scope);
    let mut app: Child = scope
        .command(python)
        .args(["-c", DAEMONIZES])
        .arg(session.get_program())
        .args(session.get_args())
        .env("TESTKIT_ROLL", scope.roll())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut up = String::new();
    let mut stdout = BufReader::new(app.stdout.take().unwrap());
    stdout.read_line(&mut up).unwrap();
    assert_eq!(up, "up\n");
    app.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    let mut said = String::new();
    app.stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    app.wait().unwrap();
    let told = said.matches("the session ends").count();
    assert_eq!(told, 1, "{said}");
    assert!(said.contains("KENNEL_PARENT_WATCH=off"), "{said}");
}

#[test]
fn a_session_that_ends_by_eof_or_by_a_signal_says_nothing() {
    let scope = Scope::new("quiet-end");
    let mut client = Client::begin(&mut solo(&scope));
    serves(&mut client);
    client.close();
    let ended = client.wait();
    assert_eq!(ended.stderr, "", "EOF");
    let mut command = kennel(&scope);
    command.args(["run", "--share", "never", "--"]);
    let mut client = Client::begin(command.arg(bin("tk-server")));
    client.request("echo", json!({}));
    let shim = ProcessRef::open(client.pid()).unwrap();
    shim.signal(Signal::TERM).unwrap();
    assert_eq!(client.wait().stderr, "", "SIGTERM");
}

#[test]
fn a_session_whose_app_is_killed_with_its_pipes_says_nothing() {
    let scope = Scope::new("killed-app");
    let session = solo(&scope);
    let mut command = scope.command(bin("tk-app"));
    command.arg("--").arg(session.get_program());
    command.args(session.get_args());
    command.env("TESTKIT_ROLL", scope.roll());
    let mut app = Client::start(&mut command);
    assert_eq!(app.line().as_deref(), Some("ready"));
    let process = ProcessRef::open(app.pid()).unwrap();
    process.signal(Signal::KILL).unwrap();
    assert_eq!(app.wait().stderr, "", "its stdin is at its end");
    scope.nothing_left_within("the app is gone", kennel_testkit::DEADLINE);
}
