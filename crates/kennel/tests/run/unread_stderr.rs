//! An app that never reads the stderr of its sessions: a full pipe holds up neither requests nor the end.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;
use kennel_testkit::{DEADLINE, Scope, bin, wait_for};
use rustix::fs::OFlags;

use crate::stage::{kennel, shared_with, solo};

/// A pipe that is full, and whose reading end is open.
struct FullPipe {
    writer: OwnedFd,
    _reader: OwnedFd,
}

impl FullPipe {
    fn new() -> FullPipe {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        rustix::fs::fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
        while rustix::io::write(&writer, &[b'x'; 4096]).is_ok() {}
        while rustix::io::write(&writer, b"x").is_ok() {}
        // As the app made it: a write blocks.
        rustix::fs::fcntl_setfl(&writer, OFlags::empty()).unwrap();
        FullPipe {
            writer,
            _reader: reader,
        }
    }

    fn end(&self) -> Stdio {
        self.writer.try_clone().unwrap().into()
    }

    fn is_still_blocking(&self) -> bool {
        let flags = rustix::fs::fcntl_getfl(&self.writer).unwrap();
        !flags.contains(OFlags::NONBLOCK)
    }
}

/// A session whose stderr is a full pipe, and that has something to say there from the first moment on.
struct Session {
    child: Child,
    answers: Receiver<String>,
}

impl Session {
    fn start(command: &mut Command, stderr: &FullPipe) -> Session {
        let mut child = command
            .env("KENNEL_MAX_IDLE", "no duration")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr.end())
            .spawn()
            .unwrap();
        let (tell, answers) = channel();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        std::thread::spawn(move || {
            lines
                .map_while(Result::ok)
                .all(|line| tell.send(line).is_ok());
        });
        Session { child, answers }
    }

    fn ask(&mut self, line: &str) -> String {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
        self.answers.recv_timeout(DEADLINE).expect("an answer")
    }

    fn ends(mut self, label: &str) -> Option<i32> {
        wait_for(label, || self.child.try_wait().unwrap()).code()
    }
}

const ECHO: &str = r#"{"jsonrpc":"2.0","id":1,"method":"echo","params":["heard"]}"#;
const ANSWER: &str = r#"{"jsonrpc":"2.0","id":1,"result":["heard"]}"#;

/// Sessions of every kind: with a server of their own by decision, and for want of a daemon.
fn sessions(scope: &Scope) -> Vec<Command> {
    let mut no_daemon = shared_with(scope, &[]);
    // A directory that is no directory: the shim warns and has a server of its own.
    let blocked = scope.path("not-a-directory");
    std::fs::write(&blocked, "").unwrap();
    no_daemon.env("KENNEL_RUNTIME_DIR", &blocked);
    vec![solo(scope), no_daemon]
}

#[test]
fn requests_are_answered_and_eof_is_obeyed_though_nobody_reads_stderr() {
    let scope = Scope::new("unread-eof");
    for mut command in sessions(&scope) {
        let full = FullPipe::new();
        let mut session = Session::start(&mut command, &full);
        assert_eq!(session.ask(ECHO), ANSWER);
        drop(session.child.stdin.take());
        assert_eq!(session.ends("the session ends at EOF"), Some(0));
        assert!(full.is_still_blocking(), "the flags are the app's");
    }
}

#[test]
fn sigterm_is_obeyed_though_nobody_reads_stderr() {
    let scope = Scope::new("unread-term");
    for mut command in sessions(&scope) {
        let full = FullPipe::new();
        let mut session = Session::start(&mut command, &full);
        assert_eq!(session.ask(ECHO), ANSWER);
        let shim = ProcessRef::open(session.child.id()).unwrap();
        shim.signal(Signal::TERM).unwrap();
        assert_eq!(session.ends("the session ends at SIGTERM"), Some(143));
    }
}

#[test]
fn rule_2_the_death_of_the_app_is_noticed_though_a_helper_holds_a_full_stderr() {
    let scope = Scope::new("unread-death");
    let full = FullPipe::new();
    let session = solo(&scope);
    let mut command = scope.command(bin("tk-app"));
    command
        .arg("hold")
        .arg("--")
        .arg(session.get_program())
        .args(session.get_args())
        .env("KENNEL_MAX_IDLE", "no duration")
        .env("TESTKIT_ROLL", scope.roll())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(full.end());
    let mut app = command.spawn().unwrap();
    let mut told = BufReader::new(app.stdout.take().unwrap()).lines();
    assert_eq!(told.next().unwrap().unwrap(), "ready");
    let is_shim = |process: &ProcessRef| {
        let line = std::fs::read(format!("/proc/{}/cmdline", process.pid())).unwrap_or_default();
        line.split(|&byte| byte == 0).nth(1) == Some(b"run")
    };
    let shim = scope.survivors().into_iter().find(is_shim).unwrap();
    app.kill().unwrap();
    app.wait().unwrap();
    wait_for("the shim ends with its app", || {
        (!shim.is_alive()).then_some(())
    });
}

#[test]
fn what_a_server_says_on_stderr_holds_nobody_up() {
    let scope = Scope::new("unread-flood");
    let full = FullPipe::new();
    let mut session = Session::start(&mut solo(&scope), &full);
    let words = "w".repeat(4000);
    for id in 1..=200 {
        let line = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"say","params":{{"stderr":"{words}"}}}}"#
        );
        let said = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"said"}}"#);
        assert_eq!(session.ask(&line), said);
    }
    drop(session.child.stdin.take());
    assert_eq!(session.ends("the session ends at EOF"), Some(0));
}

#[test]
fn a_command_line_that_is_no_good_and_a_guard_end_though_nobody_reads_stderr() {
    let scope = Scope::new("unread-usage");
    let lines: [&[&str]; 5] = [
        &["run"],
        &["run", "--no-such-option"],
        &["run", "--linger", "x", "--", "true"],
        &["run", "--", "/no/such/server"],
        &["guard", "--grace", "x", "--", "true"],
    ];
    for line in lines {
        let full = FullPipe::new();
        let mut command = kennel(&scope);
        let mut child = command
            .args(line)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(full.end())
            .spawn()
            .unwrap();
        let label = format!("{line:?} ends");
        let status = wait_for(&label, || child.try_wait().unwrap());
        assert!(!status.success(), "{line:?}");
    }
}
