//! Lessons 17 and 19: whoever started the server dies, another process keeps its stdin open, and the
//! server is gone all the same. Where nobody died, it serves until EOF.
#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use kennel_sys::process::ProcessRef;
use kennel_testkit::{Rng, Scope, bin, count, on_each_kernel, tool, wait_for};

/// What the issue allows, times what a busy machine may add.
const GONE: Duration = Duration::from_secs(60);

fn notes() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_notes"))
}

fn serve(scope: &Scope) -> Vec<OsString> {
    let db = scope.path("notes.db");
    vec![notes().into(), "serve".into(), "--db".into(), db.into()]
}

/// A line for a shell that serves.
fn serve_line(scope: &Scope) -> String {
    let words: Vec<String> = serve(scope)
        .iter()
        .map(|word| word.to_str().unwrap().to_owned())
        .collect();
    words.join(" ")
}

/// `tk-app` with its server behind it.
struct App {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl App {
    fn start(scope: &Scope, options: &[&str], server: &[OsString]) -> App {
        let mut command = scope.command(bin("tk-app"));
        command.args(options).arg("--").args(server);
        App::of(command)
    }

    fn of(mut command: Command) -> App {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        App {
            child,
            stdin,
            stdout,
        }
    }

    fn hears(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn asks(&mut self, order: &str) -> String {
        writeln!(self.stdin, "{order}").unwrap();
        self.hears()
    }

    fn ready(mut self) -> App {
        assert_eq!(self.hears(), "ready");
        self
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// It is not cut, and EOF ends it.
    fn serves_until_eof(mut self) {
        for _ in 0..20 {
            assert_eq!(self.asks("ping"), "pong");
        }
        assert_eq!(self.asks("eof"), "exited Some(0)");
        drop(self.stdin);
        self.child.wait().unwrap();
    }
}

fn server_is_gone(scope: &Scope) {
    let is_server = |process: &ProcessRef| {
        let exe = std::fs::read_link(format!("/proc/{}/exe", process.pid()));
        exe.is_ok_and(|exe| exe == notes())
    };
    kennel_testkit::wait_until("the server to be gone", GONE, || {
        (!scope.survivors().iter().any(is_server)).then_some(())
    });
}

fn server_is_there(scope: &Scope) -> bool {
    scope.survivors().iter().any(|process| {
        std::fs::read_link(format!("/proc/{}/exe", process.pid())).is_ok_and(|exe| exe == notes())
    })
}

fn gone_with_its_app(scope: &Scope, options: &[&str], server: &[OsString]) {
    let mut app = App::start(scope, options, server).ready();
    assert!(server_is_there(scope));
    app.kill();
    server_is_gone(scope);
}

fn words(line: &[&str]) -> Vec<OsString> {
    line.iter().map(OsString::from).collect()
}

#[test]
fn lesson_17_a_killed_app_ends_its_server_though_the_pipe_is_held() {
    on_each_kernel(|| {
        for options in [&["hold"][..], &["hold", "socket"], &[]] {
            let scope = Scope::new("killed-app");
            gone_with_its_app(&scope, options, &serve(&scope));
        }
    });
}

#[test]
fn a_killed_app_left_as_a_zombie_ends_its_server_as_well() {
    on_each_kernel(|| {
        let scope = Scope::new("zombie-app");
        let mut app = App::start(&scope, &["hold"], &serve(&scope)).ready();
        app.child.kill().unwrap();
        server_is_gone(&scope);
        app.child.wait().unwrap();
    });
}

/// What the kernel calls it.
fn name_of(process: &ProcessRef) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{}/comm", process.pid())).ok()?;
    Some(name.trim_end().to_owned())
}

#[test]
fn lesson_19_an_app_killed_within_the_first_moments_leaves_nothing() {
    let mut chance = Rng::seeded("early");
    for _ in 0..count(200) {
        let scope = Scope::new("early");
        let mut app = App::start(&scope, &["hold"], &serve(&scope));
        let moment = chance.duration_below(Duration::from_millis(100));
        ProcessRef::open(app.child.id())
            .unwrap()
            .wait(Some(moment))
            .unwrap();
        app.kill();
        let is_holder = |process: &ProcessRef| name_of(process).is_some_and(|name| name == "sleep");
        wait_for(
            &format!("nothing but the holder, killed after {moment:?}"),
            || scope.survivors().iter().all(is_holder).then_some(()),
        );
    }
}

#[test]
fn lesson_19_behind_a_launcher_too() {
    let mut chance = Rng::seeded("early-launcher");
    for _ in 0..count(200) {
        let scope = Scope::new("early-sh");
        let line = format!("{}; sleep 1000", serve_line(&scope));
        let mut app = App::start(&scope, &["hold"], &words(&["sh", "-c", &line]));
        let moment = chance.duration_below(Duration::from_millis(100));
        ProcessRef::open(app.child.id())
            .unwrap()
            .wait(Some(moment))
            .unwrap();
        app.kill();
        // The launcher may live on, start the server late, and outlive it: it sleeps then.
        wait_for("the launcher to be through with the server", || {
            let survivors = scope.survivors();
            let called = |name: &str| -> Vec<&ProcessRef> {
                let is = |process: &&ProcessRef| name_of(process).is_some_and(|its| its == name);
                survivors.iter().filter(is).collect()
            };
            let ended = called("notes").is_empty() && called("tk-app").is_empty();
            let sleeps = |launcher: &&ProcessRef| {
                let is_its = |sleep: &&ProcessRef| {
                    let parent = ProcessRef::parent_of(sleep).ok().flatten();
                    parent.is_some_and(|parent| parent.pid() == launcher.pid())
                };
                called("sleep").iter().any(is_its)
            };
            (ended && called("sh").iter().all(sleeps)).then_some(())
        });
    }
}

#[test]
fn through_a_shell_a_nameless_script_and_a_launcher_that_survives_its_app() {
    on_each_kernel(|| {
        let scope = Scope::new("launchers");
        let script = scope.path("w");
        std::fs::write(&script, "#!/bin/sh\n\"$@\"\nexit\n").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&script, mode).unwrap();
        let line = serve_line(&scope);
        let mut through_script = vec![script.clone().into_os_string()];
        through_script.extend(serve(&scope));
        let mut twice = vec![script.into_os_string()];
        twice.extend(words(&["sh", "-c", &format!("{line}; true")]));
        for server in [
            words(&["sh", "-c", &line]),
            words(&["sh", "-c", &format!("{line}; sleep 1000")]),
            through_script,
            twice,
        ] {
            gone_with_its_app(&scope, &["hold"], &server);
            gone_with_its_app(&scope, &["hold", "socket"], &server);
        }
    });
}

#[test]
fn through_npm_exec() {
    let Some(npm) = tool("npm") else {
        return;
    };
    let scope = Scope::new("npm");
    std::fs::write(
        scope.path("package.json"),
        r#"{"name":"x","version":"1.0.0"}"#,
    )
    .unwrap();
    let prefix = scope.dir().to_str().unwrap().to_owned();
    let line = serve_line(&scope);
    let server = words(&[
        npm.to_str().unwrap(),
        "--prefix",
        &prefix,
        "exec",
        "--offline",
        "-c",
        &line,
    ]);
    for options in [&["hold"][..], &["hold", "socket"]] {
        gone_with_its_app(&scope, options, &server);
    }
    App::start(&scope, &["hold"], &server).ready().kill();
    server_is_gone(&scope);
}

#[test]
fn a_living_starter_of_any_kind_is_served_until_eof() {
    on_each_kernel(|| {
        let scope = Scope::new("alive");
        let line = serve_line(&scope);
        let mut under_setsid = words(&["setsid", "--wait"]);
        under_setsid.extend(serve(&scope));
        for server in [serve(&scope), words(&["sh", "-c", &line]), under_setsid] {
            for options in [
                &[][..],
                &["socket"],
                &["subreaper"],
                &["socket", "subreaper"],
            ] {
                App::start(&scope, options, &server)
                    .ready()
                    .serves_until_eof();
            }
        }
    });
}

#[test]
fn through_a_living_npm_exec_it_serves_until_eof() {
    let Some(npm) = tool("npm") else {
        return;
    };
    let scope = Scope::new("npm-alive");
    std::fs::write(
        scope.path("package.json"),
        r#"{"name":"x","version":"1.0.0"}"#,
    )
    .unwrap();
    let prefix = scope.dir().to_str().unwrap().to_owned();
    let line = serve_line(&scope);
    let server = words(&[
        npm.to_str().unwrap(),
        "--prefix",
        &prefix,
        "exec",
        "--offline",
        "-c",
        &line,
    ]);
    App::start(&scope, &[], &server).ready().serves_until_eof();
}

#[test]
fn a_stdin_socket_whose_maker_has_exited_is_served_until_eof() {
    let Some(python) = tool("python3") else {
        return;
    };
    on_each_kernel(move || {
        let scope = Scope::new("maker");
        // A helper makes the pair, hands both ends over, and is gone before the server starts.
        let script = r#"
import os, socket, subprocess, sys
here, there = socket.socketpair()
if os.fork() == 0:
    one, two = socket.socketpair()
    socket.send_fds(there, [b"."], [one.fileno(), two.fileno()])
    os._exit(0)
_, ends, _, _ = socket.recv_fds(here, 1, 2)
os.wait()
server = subprocess.Popen(sys.argv[1:], stdin=ends[0], stdout=subprocess.PIPE)
os.close(ends[0])
init = b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"a","version":"0"}}}\n'
os.write(ends[1], init)
server.stdout.readline()
os.write(ends[1], b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
print("ready", flush=True)
for line in sys.stdin:
    if line == "ping\n":
        os.write(ends[1], b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
        server.stdout.readline()
        print("pong", flush=True)
    else:
        os.close(ends[1])
        print(f"exited Some({server.wait()})", flush=True)
"#;
        let mut command = scope.command(&python);
        command.args(["-c", script]).args(serve(&scope));
        App::of(command).ready().serves_until_eof();
    });
}

#[test]
fn a_parent_whose_first_thread_has_ended_is_alive() {
    let Some(python) = tool("python3") else {
        return;
    };
    on_each_kernel(move || {
        let scope = Scope::new("leader");
        let script = r#"
import ctypes, platform, subprocess, sys, threading, os
def work():
    stat = f"/proc/{os.getpid()}/stat"
    while ") Z " not in open(stat).read():
        pass
    server = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    def ask(line):
        server.stdin.write(line + b"\n")
        server.stdin.flush()
    ask(b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"a","version":"0"}}}')
    server.stdout.readline()
    ask(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
    print("ready", flush=True)
    for line in sys.stdin:
        if line == "ping\n":
            ask(b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
            server.stdout.readline()
            print("pong", flush=True)
        else:
            server.stdin.close()
            print(f"exited Some({server.wait()})", flush=True)
threading.Thread(target=work).start()
ctypes.CDLL(None).syscall(60 if platform.machine() == "x86_64" else 93, 0)
"#;
        let mut command = scope.command(&python);
        command.args(["-c", script]).args(serve(&scope));
        App::of(command).ready().serves_until_eof();
    });
}

/// A command inside a new pid namespace, with or without a `/proc` of its own.
fn in_a_namespace(own_proc: bool, command: Vec<OsString>) -> Vec<OsString> {
    let mut line = words(&["unshare", "--pid", "--fork", "--kill-child"]);
    line.extend(own_proc.then(|| "--mount-proc".into()));
    line.extend(command);
    line
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn needs_root_an_app_that_is_pid_1_of_its_namespace_is_served_until_eof() {
    on_each_kernel(|| {
        for own_proc in [true, false] {
            for option in ["pipe", "socket"] {
                let scope = Scope::new("pid-1-app");
                let mut app = vec![bin("tk-app").into_os_string(), option.into(), "--".into()];
                app.extend(serve(&scope));
                let line = in_a_namespace(own_proc, app);
                let mut command = scope.command(&line[0]);
                command.args(&line[1..]);
                App::of(command).ready().serves_until_eof();
            }
        }
    });
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn needs_root_a_server_that_is_pid_1_itself_serves_until_eof() {
    on_each_kernel(|| {
        for own_proc in [true, false] {
            let scope = Scope::new("pid-1");
            let server = in_a_namespace(own_proc, serve(&scope));
            App::start(&scope, &[], &server).ready().serves_until_eof();
            App::start(&scope, &["socket"], &server)
                .ready()
                .serves_until_eof();
        }
    });
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn needs_root_a_server_whose_parent_is_outside_its_namespace_serves_until_eof() {
    on_each_kernel(|| {
        let scope = Scope::new("ppid-0");
        let mut inhabitant = scope
            .command("unshare")
            .args([
                "--pid",
                "--fork",
                "--kill-child",
                "--mount-proc",
                "sleep",
                "1000",
            ])
            .spawn()
            .unwrap();
        let children = format!("/proc/{0}/task/{0}/children", inhabitant.id());
        let inside = wait_for("somebody inside", || {
            let child = std::fs::read_to_string(&children).ok()?.trim().to_owned();
            let name = std::fs::read_to_string(format!("/proc/{child}/comm")).ok()?;
            (name == "sleep\n").then_some(child)
        });
        let mut server = words(&["nsenter", "--target", &inside, "--pid", "--mount"]);
        server.extend(serve(&scope));
        App::start(&scope, &[], &server).ready().serves_until_eof();
        inhabitant.kill().unwrap();
        inhabitant.wait().unwrap();
    });
}
