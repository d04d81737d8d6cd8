//! Running one test on several kernels: this one, and this one with features switched off.

use std::any::type_name_of_val;
use std::process::{Child, Command};

/// The features that are switched off in each round; see `kennel_sys::kernel`.
const ROUNDS: [&str; 4] = ["", "pidfs", "peer-pidfd", "pidfd"];

/// Environment variable of the processes that run a round.
const ROUND: &str = "TESTKIT_ROUND";

/// Runs `test` once per kind of kernel, each in a new process. Call it as the test's only statement: the process is the
/// test program, started again for this one test.
#[track_caller]
pub fn on_each_kernel<F: FnOnce()>(test: F) {
    rounds(&[], test);
}

/// [`on_each_kernel`], in new pid namespaces: no other process takes pids there, so [`with_pid`] gets the pid that it
/// wants. Needs root.
#[track_caller]
pub fn on_each_kernel_alone<F: FnOnce()>(test: F) {
    if std::env::var_os(ROUND).is_some() {
        // A new namespace counts from 1: such small numbers could appear anywhere in a message.
        choose_next_pid(20_000);
    }
    rounds(
        &["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"],
        test,
    );
}

#[track_caller]
fn rounds<F: FnOnce()>(before: &[&str], test: F) {
    if std::env::var_os(ROUND).is_some() {
        return test();
    }
    // `program::module::name::{{closure}}` is the test `module::name` of that program.
    let path = type_name_of_val(&test).trim_end_matches("::{{closure}}");
    let (_, name) = path.split_once("::").expect("a test in a program");
    let program = std::env::current_exe().expect("the running test has a path");
    let mut line: Vec<_> = before.iter().map(Into::into).collect();
    line.push(program);
    for off in ROUNDS {
        let output = Command::new(&line[0])
            .args(&line[1..])
            .args(["--exact", name, "--nocapture", "--include-ignored"])
            .env(ROUND, "1")
            .env("KENNEL_FEATURES_OFF", off)
            .output()
            .expect("the test starts again");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{name} with {off:?} switched off:\n{text}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

/// Starts processes until one has `pid`. Needs root, and [`on_each_kernel_alone`], else another process may take the pid.
#[track_caller]
pub fn with_pid(pid: u32, start: impl FnMut() -> Child) -> Child {
    try_with_pid(pid, start).unwrap_or_else(|| panic!("pid {pid} was not given out again"))
}

/// [`with_pid`] where other processes take pids too: `None` if another one has it.
pub fn try_with_pid(pid: u32, mut start: impl FnMut() -> Child) -> Option<Child> {
    for _ in 0..200 {
        choose_next_pid(pid);
        let mut child = start();
        if child.id() == pid {
            return Some(child);
        }
        child.kill().expect("our own child");
        child.wait().expect("our own child");
    }
    None
}

fn choose_next_pid(pid: u32) {
    std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string())
        .expect("root chooses the next pid");
}
