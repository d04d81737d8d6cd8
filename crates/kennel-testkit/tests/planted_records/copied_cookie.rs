//! Processes that have copied the cookie of an abandoned tree: they are shown and not ended.

use super::*;

#[test]
fn a_process_at_a_terminal_with_a_copied_cookie_is_shown_and_not_ended() {
    let scope = Scope::new("terminal");
    let pid = scope.path("pid");
    // As in a terminal multiplexer: the process that made the terminal has no cookie.
    let line = format!(
        "echo $$ >{0}.new; mv {0}.new {0}; KENNEL_TREE={1} exec sleep 1000",
        pid.display(),
        cookie()
    );
    let mut terminal = scope
        .command("script")
        .args(["--quiet", "--command", &line, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let process = wait_for("a process at the terminal", || {
        let pid = std::fs::read_to_string(&pid).ok()?;
        let process = ProcessRef::open(pid.trim().parse().ok()?).ok()?;
        (process.name().as_deref() == Some("sleep")).then_some(process)
    });
    plant(&scope, cookie(), "session 0\n");
    let said = next_start(&scope);
    assert!(process.is_alive());
    let shown = format!("process {} has the cookie", process.pid());
    assert!(said.contains(&shown), "{said}");
    process.signal(Signal::KILL).unwrap();
    terminal.wait().unwrap();
}

#[test]
fn a_job_with_a_copied_cookie_whose_parent_lives_is_shown_and_not_ended() {
    let scope = Scope::new("job");
    // As `atd` does: it starts a job in a session of its own, with the environment that `at` had, and waits for it. The job
    // starts processes too.
    let job = "sleep 1000 & echo $$ $!; wait";
    let script = format!("KENNEL_TREE={} setsid sh -c '{job}'; true", cookie());
    let mut daemon = scope
        .command("setsid")
        .args(["sh", "-c", &script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pids = String::new();
    let mut told = BufReader::new(daemon.stdout.take().unwrap());
    told.read_line(&mut pids).unwrap();
    let pids = pids.split_whitespace().map(|pid| pid.parse().unwrap());
    let jobs: Vec<ProcessRef> = pids.map(|pid| ProcessRef::open(pid).unwrap()).collect();
    plant(&scope, cookie(), "session 0\n");
    let said = next_start(&scope);
    for process in &jobs {
        assert!(process.is_alive(), "{said}");
        let pid = process.pid();
        let shown = format!("process {pid} has the cookie of this tree, and a parent outside");
        assert!(said.contains(&shown), "{said}");
    }

    // Without its parent, nothing tells it from what the tree left.
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    plant(&scope, cookie(), "session 0\n");
    next_start(&scope);
    assert!(jobs.iter().all(|process| !process.is_alive()));
}

#[test]
fn a_service_that_systemd_started_with_a_copied_cookie_is_shown_and_not_ended() {
    let scope = Scope::new("imported");
    // As after `systemctl --user import-environment` in a tree: the manager starts every service with the cookie.
    let manager = scope.path("systemd");
    std::fs::copy("/bin/sh", &manager).unwrap();
    let service = "SYSTEMD_EXEC_PID=$$ exec sleep 1000";
    let script = format!(
        "KENNEL_TREE={} setsid sh -c '{service}' & echo $!; wait",
        cookie()
    );
    let mut manager = scope
        .command(&manager)
        .args(["-c", &script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pid = String::new();
    let mut told = BufReader::new(manager.stdout.take().unwrap());
    told.read_line(&mut pid).unwrap();
    let service = ProcessRef::open(pid.trim().parse().unwrap()).unwrap();
    wait_for("the service runs", || {
        let environment = std::fs::read(format!("/proc/{}/environ", service.pid())).ok()?;
        let started = format!("SYSTEMD_EXEC_PID={}", service.pid());
        let mut variables = environment.split(|&byte| byte == 0);
        variables.find(|it| *it == started.as_bytes()).map(drop)
    });
    plant(&scope, cookie(), "session 0\n");
    let said = next_start(&scope);
    assert!(service.is_alive(), "{said}");
    manager.kill().unwrap();
    manager.wait().unwrap();
    let _ = service.signal(Signal::KILL);
}
