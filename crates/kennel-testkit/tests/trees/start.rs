//! The start of a server: what it inherits, and what its warden refuses.

use super::*;

#[test]
fn a_server_inherits_its_stdio_and_nothing_else_and_leads_its_own_session() {
    let scope = Scope::new("inherits");
    // Each line in one write: the reports go to the same stdout, at any moment.
    let script = "echo $(ls /proc/self/fd); env | grep -c ^KENNEL_; \
                  env | grep -c ^KENNEL_TREE=; ps -o pid=,sid= -p $$";
    let mut served = Served::start(&scope, QUICK, &["sh", "-c", script]);
    let told: Vec<String> = served
        .told()
        .into_iter()
        .filter(|line| !line.starts_with("report"))
        .collect();
    served.child.wait().unwrap();
    // `ls` itself has the directory open as 3.
    assert_eq!(told[0].trim(), "0 1 2 3", "{told:?}");
    assert_eq!(
        told[1].trim(),
        "1",
        "of Kennel's variables only the tree's cookie"
    );
    assert_eq!(told[2].trim(), "1");
    let numbers: Vec<&str> = told[3].split_whitespace().collect();
    assert_eq!(numbers[0], numbers[1], "pid and session");
}

#[test]
fn a_command_that_cannot_be_started_is_refused_as_a_shell_would() {
    let scope = Scope::new("refused");
    let script = scope.path("not-executable");
    std::fs::write(&script, "#!/bin/sh\n").unwrap();
    for (program, errno) in [("no-such-program", 2), (script.to_str().unwrap(), 13)] {
        let mut served = Served::start(&scope, QUICK, &[program]);
        let told = served.told();
        assert!(
            told.contains(&format!("report Refused({errno})")),
            "{told:?}"
        );
        served.child.wait().unwrap();
        assert_eq!(records_left(&scope), 0);
    }
}

#[test]
fn nobody_is_left_when_the_served_process_dies_at_any_moment_of_the_start() {
    let mut chance = kennel_testkit::Rng::seeded("start");
    for _ in 0..count(100) {
        let scope = Scope::new("early");
        let records = scope.path("trees");
        std::fs::create_dir_all(&records).unwrap();
        let mut child = scope
            .command(bin("tk-tree"))
            .arg("serve")
            .arg(records)
            .args(QUICK)
            .arg("--")
            .arg(bin("tk-stubborn"))
            .arg(scope.roll())
            .args(["family", "1"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let moment = chance.duration_below(Duration::from_millis(15));
        let process = ProcessRef::open(child.id()).unwrap();
        process.wait(Some(moment)).unwrap();
        child.kill().unwrap();
        scope.nothing_left_within("killed at start", Duration::from_secs(60));
        child.wait().unwrap();
    }
}

/// Takes a lease on a file: whoever opens it, to execute it too, waits until this process ends, or for 45 s.
const LEASE: &str = "
import fcntl, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
f = open(sys.argv[1])
fcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print(flush=True)
signal.pause()
";

/// A server whose exec takes long, with the child of the warden that waits for it.
struct SlowStart {
    served: Served,
    child: ProcessRef,
    lease: Child,
}

impl SlowStart {
    /// `None`, and a word about it, where there is no python3.
    fn new(scope: &Scope, ladder: [&str; 2]) -> Option<SlowStart> {
        let python = kennel_testkit::tool("python3")?;
        let program = scope.path("server");
        std::fs::copy(bin("tk-idle"), &program).unwrap();
        let mut lease = scope
            .command(python)
            .args(["-c", LEASE])
            .arg(&program)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(lease.stdout.take().unwrap());
        assert_eq!(stdout.read_line(&mut String::new()).unwrap(), 1);
        let served = Served::start(scope, ladder, &[program.to_str().unwrap()]);
        let warden = served.warden().pid();
        let child = wait_for("the child of the warden", || {
            let children = format!("/proc/{warden}/task/{warden}/children");
            let children = std::fs::read_to_string(children).ok()?;
            ProcessRef::open(children.trim().parse().ok()?).ok()
        });
        Some(SlowStart {
            served,
            child,
            lease,
        })
    }

    /// Waits until the child asked for its death signal: it leads a session then. Before that, only the next start could
    /// end it.
    fn await_death_signal(&self) {
        let pid = self.child.pid().to_string();
        wait_for("the child leads a session", || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            let session = stat.rsplit(") ").next().unwrap().split(' ').nth(3);
            (session == Some(&pid)).then_some(())
        });
    }

    /// Waits until the child is stopped.
    fn stop_child(&self) {
        self.child.signal(Signal::STOP).unwrap();
        let stat = format!("/proc/{}/stat", self.child.pid());
        wait_for("the child is stopped", || {
            let stat = std::fs::read_to_string(&stat).unwrap();
            stat.contains(") T ").then_some(())
        });
    }

    /// Whether warden and child have ended long before the lease does.
    fn all_end(&self) -> bool {
        let soon = Some(Duration::from_secs(20));
        [self.served.warden(), &self.child]
            .iter()
            .all(|it| it.wait(soon).unwrap())
    }

    fn finish(mut self) {
        self.lease.kill().unwrap();
        self.lease.wait().unwrap();
        self.served.child.wait().unwrap();
    }
}

#[test]
fn rule_2_a_server_whose_exec_hangs_ends_with_the_process_that_is_served() {
    for stopped in [false, true] {
        let scope = Scope::new("exec-hangs");
        let Some(mut start) = SlowStart::new(&scope, QUICK) else {
            return;
        };
        if stopped {
            start.stop_child();
        }
        start.served.child.kill().unwrap();
        let ended = start.all_end();
        start.finish();
        assert!(ended, "stopped: {stopped}");
        assert_eq!(records_left(&scope), 0);
    }
}

#[test]
fn a_server_whose_exec_hangs_can_be_stopped() {
    let scope = Scope::new("exec-stopped");
    let Some(mut start) = SlowStart::new(&scope, QUICK) else {
        return;
    };
    start.stop_child();
    start.served.ask_to_stop();
    let ended = start.all_end();
    let told = start.served.told();
    start.finish();
    assert!(ended);
    assert_eq!(told.last().unwrap(), "report Empty", "{told:?}");
    assert_eq!(records_left(&scope), 0);
}

#[test]
fn a_child_that_is_stopped_before_its_exec_dies_with_its_warden() {
    let scope = Scope::new("exec-killed");
    let Some(mut start) = SlowStart::new(&scope, SLOW) else {
        return;
    };
    start.await_death_signal();
    start.stop_child();
    // Both at once: no process is left that could end it.
    start.served.child.kill().unwrap();
    start.served.warden().signal(Signal::KILL).unwrap();
    let ended = start.all_end();
    start.finish();
    assert!(ended);
}

#[test]
fn a_server_whose_exec_took_long_is_reported_once_it_runs() {
    let scope = Scope::new("exec-late");
    let Some(mut start) = SlowStart::new(&scope, QUICK) else {
        return;
    };
    start.lease.kill().unwrap();
    let mut line = String::new();
    start.served.stdout.read_line(&mut line).unwrap();
    let pid = start.child.pid();
    assert!(
        line.starts_with(&format!("report Started {{ pid: {pid},")),
        "{line}"
    );
    start.served.ask_to_stop();
    assert!(start.all_end());
    start.finish();
}

#[test]
fn a_warden_that_has_not_begun_dies_with_the_process_that_is_served() {
    let scope = Scope::new("no-warden");
    let records = scope.path("trees");
    std::fs::create_dir(&records).unwrap();
    let mut served = scope
        .command(bin("tk-tree"))
        .arg("serve")
        .arg(records)
        .args(SLOW)
        .args(["--", "true"])
        .env("TK_WARDEN", bin("tk-idle"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(served.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    let warden: Identity = line
        .trim()
        .strip_prefix("warden ")
        .unwrap()
        .parse()
        .unwrap();
    served.kill().unwrap();
    served.wait().unwrap();
    all_gone(&[warden]);
}

#[test]
fn a_child_from_before_an_exec_is_no_stray() {
    let scope = Scope::new("elder");
    let records = scope.path("trees");
    std::fs::create_dir(&records).unwrap();
    // One stays; the other starts a process and exits once it is told to: that process becomes ours.
    let (go, pid) = (scope.path("go"), scope.path("pid"));
    let line = format!(
        "sleep 1000 >/dev/null & echo $!; mkfifo {go}; \
         (read word <{go}; sleep 1000 & echo $! >{pid}.new; mv {pid}.new {pid}) >/dev/null & \
         exec {} serve {} {} {} -- {} {} family 1",
        bin("tk-tree").display(),
        records.display(),
        SLOW[0],
        SLOW[1],
        bin("tk-stubborn").display(),
        scope.roll().display(),
        go = go.display(),
        pid = pid.display()
    );
    let mut child = scope
        .command("sh")
        .args(["-c", &line])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap);
    let elder = ProcessRef::open(lines.next().unwrap().parse().unwrap()).unwrap();
    let warden: Identity = lines
        .next()
        .unwrap()
        .strip_prefix("warden ")
        .unwrap()
        .parse()
        .unwrap();
    let members = all_signed(&scope, 2);
    std::fs::write(go, "go\n").unwrap();
    let adopted = wait_for("the process becomes a child of the served one", || {
        let pid = std::fs::read_to_string(&pid).ok()?;
        let process = ProcessRef::open(pid.trim().parse().unwrap()).unwrap();
        let parent = ProcessRef::parent_of(&process).unwrap()?;
        (parent.pid() == child.id()).then_some(process)
    });
    ProcessRef::find(&warden)
        .unwrap()
        .unwrap()
        .signal(Signal::KILL)
        .unwrap();
    assert!(lines.any(|line| line.starts_with("strays ")));
    all_gone(&members);
    assert!(
        elder.is_alive(),
        "a child that was never in the tree was ended"
    );
    assert!(adopted.is_alive(), "a child of such a child was ended");
    child.wait().unwrap();
}

#[test]
fn whoever_ignores_sigchld_is_served_all_the_same() {
    let scope = Scope::new("sigchld");
    let records = scope.path("trees");
    std::fs::create_dir(&records).unwrap();
    for (server, told) in [
        ("true", "Exited(Code(0))"),
        ("no-such-program", "Refused(2)"),
    ] {
        let program = bin("tk-tree");
        let line = format!(
            "trap '' CHLD; exec {} serve {} 50 50 -- {server}",
            program.display(),
            records.display()
        );
        let output = scope
            .command("sh")
            .args(["-c", &line])
            .stdin(Stdio::piped())
            .output()
            .unwrap();
        let heard = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "{heard}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(heard.contains(told), "{heard}");
        assert_eq!(records_left(&scope), 0);
    }
}

#[test]
fn a_server_whose_record_is_required_and_cannot_be_written_is_not_started() {
    let scope = Scope::new("unrecorded");
    let records = scope.path("trees");
    std::fs::create_dir(&records).unwrap();
    let output = scope
        .command(bin("tk-tree"))
        .arg("serve-recorded")
        .arg(&records)
        .args(QUICK)
        .arg("--")
        .arg("touch")
        .arg(scope.path("started"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let heard = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{heard}");
    // The directory is gone: ENOENT.
    assert!(
        heard.contains("report NotRecorded(2)\nreport Empty\n"),
        "{heard}"
    );
    assert!(!scope.path("started").exists(), "the server ran");
}
