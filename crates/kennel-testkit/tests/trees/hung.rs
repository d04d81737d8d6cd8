//! Servers with a locked file on a file system that does not answer.

use super::*;

/// A server under a warden that has a locked file on a file system that does not answer, and calls itself a daemon.
/// `None`, and a word about it, where there is no FUSE.
fn served_hung(scope: &Scope, server: &[&str]) -> Option<(Served, Identity)> {
    // Where the warden looks for the lock of a daemon.
    kennel_sys::runtime_dir::RuntimeDir::ensure(scope.runtime_dir()).unwrap();
    std::fs::create_dir(scope.path("hung")).unwrap();
    let (program, mountpoint) = (bin("tk-hung"), scope.path("hung"));
    let hung = format!(
        "exec unshare --mount {} daemon {}",
        program.display(),
        mountpoint.display()
    );
    let mut words = server.to_vec();
    words.push(&hung);
    let mut served = Served::start(scope, QUICK, &words);
    let is_said = |said: &str| said == "ready" || said.starts_with("no FUSE");
    let mut said = served.said_before.clone();
    while !said.iter().any(|said| is_said(said)) {
        let mut line = String::new();
        assert!(served.stdout.read_line(&mut line).unwrap() > 0, "{said:?}");
        said.push(line.trim().to_owned());
    }
    if !said.contains(&"ready".to_owned()) {
        skipped(&said.join(" "));
        return None;
    }
    let is_hung = |process: &ProcessRef| {
        let line = std::fs::read(format!("/proc/{}/cmdline", process.pid())).unwrap_or_default();
        line.starts_with(program.as_os_str().as_encoded_bytes())
    };
    let process = scope.survivors().into_iter().find(is_hung).unwrap();
    Some((served, *process.identity()))
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn needs_root_rule_2_a_server_with_a_lock_on_a_file_system_that_does_not_answer_is_ended() {
    let scope = Scope::new("hung-server");
    let Some((mut served, hung)) = served_hung(&scope, &["sh", "-c"]) else {
        return;
    };
    served.child.kill().unwrap();
    all_gone(&[hung]);
    wait_for("the warden to end", || {
        (!served.warden().is_alive()).then_some(())
    });
    served.child.wait().unwrap();
    assert_eq!(records_left(&scope), 0);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn needs_root_rule_2_a_leftover_with_a_lock_on_a_file_system_that_does_not_answer_is_ended() {
    let scope = Scope::new("hung-leftover");
    // Not a child of the warden: it does not die with it.
    let server = ["sh", "-c", "sh -c \"$0\" & exec sleep 1000"];
    let Some((mut served, hung)) = served_hung(&scope, &server) else {
        return;
    };
    served.child.kill().unwrap();
    served.warden().signal(Signal::KILL).unwrap();
    served.child.wait().unwrap();
    wait_for("the warden to end", || {
        (!served.warden().is_alive()).then_some(())
    });
    let hung = ProcessRef::find(&hung).unwrap().unwrap();
    let mut next = scope
        .command(bin("tk-tree"))
        .arg("next-start")
        .arg(scope.path("trees"))
        .arg("50")
        .spawn()
        .unwrap();
    let starting = ProcessRef::open(next.id()).unwrap();
    let is_done = starting.wait(Some(DEADLINE)).unwrap();
    let was_ended = !hung.is_alive();
    // Frees one that hangs.
    hung.signal(Signal::KILL).unwrap();
    next.wait().unwrap();
    assert!(is_done, "the next start hangs");
    assert!(was_ended);
    assert_eq!(records_left(&scope), 0);
}
