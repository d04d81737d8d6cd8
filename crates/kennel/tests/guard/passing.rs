//! What passes through: the exit code, signals, stdio; and what is left when the server or its guard ends.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;
use kennel_testkit::{Client, DEADLINE, Scope, bin, run, wait_for};

use crate::stage::{Guarded, ends_with, free_port, guard, kennel, kill, listens};

fn shell(scope: &Scope, line: &str) -> std::process::Command {
    let mut command = kennel(scope);
    command.args(["guard", "--stop-after", "300ms", "--", "sh", "-c", line]);
    command
}

#[test]
fn the_servers_exit_code_is_ours() {
    let scope = Scope::new("codes");
    for (line, code) in [
        ("exit 0", 0),
        ("exit 7", 7),
        ("kill -9 $$", 137),
        ("kill -15 $$", 143),
    ] {
        ends_with(code, &mut shell(&scope, line));
    }
    for (program, code) in [("no-such-command", 127), ("/etc/passwd", 126)] {
        let (_, stderr) = ends_with(code, kennel(&scope).args(["guard", "--", program]));
        assert!(
            stderr.starts_with(&format!("kennel: {program}: ")),
            "{stderr}"
        );
    }
    let ages = "18446744073709551s";
    let mut patient = kennel(&scope);
    patient.args([
        "guard",
        "--grace",
        ages,
        "--stop-after",
        ages,
        "--ready-timeout",
        ages,
    ]);
    ends_with(
        7,
        patient.args([
            "--port",
            &free_port().to_string(),
            "--",
            "sh",
            "-c",
            "exit 7",
        ]),
    );
    ends_with(2, kennel(&scope).arg("guard"));
    ends_with(
        2,
        kennel(&scope).args(["guard", "--port", "0", "--", "true"]),
    );
    ends_with(
        2,
        kennel(&scope).args(["guard", "--grace", "soon", "--", "true"]),
    );
}

#[test]
fn a_quiet_server_has_a_quiet_guard_and_its_words_pass_untouched() {
    let scope = Scope::new("stdio");
    let mut command = shell(&scope, "cat; printf 'no newline' >&2");
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
        .write_all(b"\0bytes\xff\n")
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(output.stdout, b"\0bytes\xff\n");
    assert_eq!(output.stderr, b"no newline");
}

#[test]
fn what_a_server_leaves_behind_is_cleaned_up() {
    let scope = Scope::new("leaves");
    let line = format!(
        "{} {} family 2 & sleep 0.3; exit 5",
        bin("tk-stubborn").display(),
        scope.roll().display()
    );
    ends_with(5, &mut shell(&scope, &line));
    scope.nothing_left_within("the server ended", DEADLINE);
    // One that ends well, too: nothing of it listens.
    ends_with(0, &mut shell(&scope, "sleep 1000 & exit 0"));
    scope.nothing_left_within("the server ended", DEADLINE);
}

#[test]
fn signals_reach_the_server() {
    let scope = Scope::new("signals");
    let line = "trap 'echo usr1' USR1; trap 'echo hup' HUP; trap 'echo term; exit 9' TERM; echo ready; while :; do sleep 0.05; done";
    let mut client = Client::start(&mut shell(&scope, line));
    assert_eq!(client.line().as_deref(), Some("ready"));
    let guard = ProcessRef::open(client.pid()).unwrap();
    for (signal, word) in [
        (Signal::USR1, "usr1"),
        (Signal::HUP, "hup"),
        (Signal::TERM, "term"),
    ] {
        guard.signal(signal).unwrap();
        assert_eq!(client.line().as_deref(), Some(word));
    }
    let status = client.wait().status;
    assert_eq!(status.code(), Some(9), "the server's own word");
}

#[test]
fn ctrl_c_ends_a_server_behind_a_launcher_and_one_that_does_not_care() {
    let scope = Scope::new("ctrl-c");
    for server in ["127.0.0.1:0", "stubborn 127.0.0.1:0"] {
        let line = format!("{} {server}; exit 3", bin("tk-ports").display());
        let mut child = shell(&scope, &line).stdout(Stdio::piped()).spawn().unwrap();
        let mut first = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut first)
            .unwrap();
        let port: u16 = first
            .trim()
            .strip_prefix("listening ")
            .unwrap()
            .parse()
            .unwrap();
        ProcessRef::open(child.id())
            .unwrap()
            .signal(Signal::INT)
            .unwrap();
        wait_for("the guard to end", || child.try_wait().unwrap());
        assert!(!listens(port));
        scope.nothing_left_within("after Ctrl-C", DEADLINE);
    }
}

#[test]
fn rule_2_whoever_is_killed_nothing_is_left() {
    for victim in ["guard", "warden", "both"] {
        let scope = Scope::new("killed");
        let mut guarded = Guarded::with(&scope, &[], &["stubborn", "127.0.0.1:0"], |_| {});
        let warden = warden_of(guarded.child.id());
        if victim != "warden" {
            guarded.child.kill().unwrap();
        }
        if victim != "guard" {
            warden.signal(Signal::KILL).unwrap();
        }
        let status = guarded.child.wait().unwrap();
        if victim == "warden" {
            assert_eq!(status.code(), Some(1));
        }
        if victim == "both" {
            // Whatever the death signal did not reach, the next start does.
            ends_with(0, &mut shell(&scope, "exit 0"));
        }
        scope.nothing_left_within(victim, DEADLINE);
    }
}

fn warden_of(guard: u32) -> ProcessRef {
    wait_for("the warden", || {
        let children =
            std::fs::read_to_string(format!("/proc/{guard}/task/{guard}/children")).ok()?;
        ProcessRef::open(children.split_whitespace().next()?.parse().ok()?).ok()
    })
}

#[test]
fn a_start_under_which_the_runtime_directory_is_removed_serves_all_the_same() {
    let scope = Scope::new("removed");
    let mut first = Guarded::start(&scope, &[]);
    // A start waits for the warden of one that was killed.
    let warden = warden_of(first.child.id());
    warden.signal(Signal::STOP).unwrap();
    kill(&mut first.child);
    let port = free_port();
    let (named, address) = (port.to_string(), format!("127.0.0.1:{port}"));
    let mut second = guard(&scope, &["--port", &named], &[&address]);
    let words = std::fs::File::create(scope.path("words")).unwrap();
    second.stdout(Stdio::null()).stderr(words);
    let mut second = second.spawn().unwrap();
    let files = format!("/proc/{}/fd", second.id());
    wait_for("it has opened the directory", || {
        let mut files = std::fs::read_dir(&files).unwrap().flatten();
        let trees = scope.runtime_dir().join("trees");
        files.find(|file| std::fs::read_link(file.path()).is_ok_and(|file| file == trees))
    });
    scope.remove_runtime_dir();
    warden.signal(Signal::CONT).unwrap();
    wait_for("it serves, or has ended", || {
        (listens(port) || second.try_wait().unwrap().is_some()).then_some(())
    });
    let words = std::fs::read_to_string(scope.path("words")).unwrap();
    assert_eq!(second.try_wait().unwrap(), None, "{words}");
    kill(&mut second);
}

#[test]
fn switched_off_kennel_is_not_there() {
    let scope = Scope::new("off");
    let ended = run(shell(&scope, "echo $PPID; exit 9").env("KENNEL_OFF", "1"));
    assert_eq!(ended.code(), Some(9));
    assert_eq!(ended.stdout.trim(), std::process::id().to_string());
}

#[test]
fn without_a_runtime_directory_it_guards_with_one_line_of_warning() {
    let scope = Scope::new("no-dir");
    std::fs::write(scope.path("file"), "").unwrap();
    let mut command = shell(&scope, "exit 4");
    let (_, stderr) = ends_with(4, command.env("KENNEL_RUNTIME_DIR", scope.path("file")));
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with("kennel: warning: "), "{stderr}");
    // Detached, its words would have no place.
    let mut command = kennel(&scope);
    command.args(["guard", "--detach", "--", "sh", "-c", "exit 4"]);
    let (_, stderr) = ends_with(1, command.env("KENNEL_RUNTIME_DIR", scope.path("file")));
    assert!(stderr.contains("not a directory"), "{stderr}");
}

#[test]
fn help_teaches_with_an_example() {
    let scope = Scope::new("help");
    let (stdout, _) = ends_with(0, kennel(&scope).args(["guard", "--help"]));
    for words in [
        "kennel guard --owner-pid $PPID --port 8080 --",
        "--takeover",
        "98",
        "KENNEL_OWNER_PID",
    ] {
        assert!(stdout.contains(words), "{words}: {stdout}");
    }
}

#[test]
fn what_a_child_from_before_an_exec_leaves_to_a_guard_is_reaped() {
    let scope = Scope::new("left");
    let go = scope.path("go");
    std::fs::write(&go, "").unwrap();
    let leaves = format!(
        "while [ -e {0} ]; do (sleep 0.01 &); echo >>{0}; sleep 0.01; done",
        go.display()
    );
    let line = format!(
        "({leaves}) & exec {} guard --stop-after 300ms -- sleep 1000",
        env!("CARGO_BIN_EXE_kennel")
    );
    let mut guard = scope.command("sh").args(["-c", &line]).spawn().unwrap();
    let pid = guard.id();
    let children = || {
        let path = format!("/proc/{pid}/task/{pid}/children");
        let text = std::fs::read_to_string(path).unwrap();
        let pids = text.split_whitespace().map(str::to_owned);
        pids.collect::<Vec<String>>()
    };
    let is_warden = |pid: &String| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
        name.is_ok_and(|name| name.trim() == "kennel-warden")
    };
    wait_for("a warden", || {
        children().iter().any(is_warden).then_some(())
    });
    let left = || std::fs::metadata(&go).unwrap().len();
    let before = left();
    wait_for("it leaves more", || (left() > before + 20).then_some(()));
    std::fs::remove_file(&go).unwrap();
    // The child from before the exec is nobody's to reap.
    wait_for("nobody but the warden and the child from before", || {
        (children().len() <= 2).then_some(())
    });
    let process = ProcessRef::open(pid).unwrap();
    process.signal(Signal::TERM).unwrap();
    guard.wait().unwrap();
}
