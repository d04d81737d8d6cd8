//! A stopped server is known by its process; a stopped child of it is not the server.
#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;
use kennel_sys::tree::{self, ProcessTable, Stopped};
use kennel_testkit::{Client, Scope, wait_for};

fn stopped_below(pid: u32) -> Option<Stopped> {
    tree::stopped(&[pid], &ProcessTable::now().unwrap())
}

/// Sends a signal, and waits until the process has this state.
#[track_caller]
fn signal_until(process: &ProcessRef, signal: Signal, is_stopped: bool) {
    process.signal(signal).unwrap();
    wait_for("the signal has its effect", || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid())).ok()?;
        let (_, state) = stat.rsplit_once(") ")?;
        (state.starts_with('T') == is_stopped).then_some(())
    });
}

#[test]
fn a_stopped_server_is_found_until_it_is_continued() {
    let scope = Scope::new("stopped");
    let mut cat = Client::start(&mut scope.command("cat"));
    let (pid, process) = (cat.pid(), ProcessRef::open(cat.pid()).unwrap());
    assert_eq!(stopped_below(pid), None);
    signal_until(&process, Signal::STOP, true);
    assert_eq!(stopped_below(pid), Some(Stopped { pid, tracer: None }));
    signal_until(&process, Signal::CONT, false);
    assert_eq!(stopped_below(pid), None);
    cat.kill();
}

#[test]
fn a_stopped_server_behind_a_launcher_is_found_and_a_stopped_child_of_it_is_not() {
    let scope = Scope::new("stopped-launched");
    // One `cat` reads the launcher's stdin, and the other a pipe of its own.
    let mut command = scope.command("sh");
    let mut launcher = Client::start(command.args(["-c", "sleep 1000 | cat & cat; :"]));
    let stdin = |pid: u32| std::fs::read_link(format!("/proc/{pid}/fd/0")).ok();
    let cat = |has_our_stdin: bool| {
        wait_for("the launcher started both", || {
            let all = ProcessTable::now()
                .unwrap()
                .with_descendants(launcher.pid());
            let is_cat = |pid: &u32| {
                let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
                name.is_ok_and(|name| name == "cat\n")
            };
            let mut cats = all.into_iter().filter(is_cat);
            let found = cats.find(|&pid| (stdin(pid) == stdin(launcher.pid())) == has_our_stdin)?;
            ProcessRef::open(found).ok()
        })
    };
    let (server, child) = (cat(true), cat(false));
    signal_until(&child, Signal::STOP, true);
    assert_eq!(stopped_below(launcher.pid()), None);
    signal_until(&server, Signal::STOP, true);
    let found = stopped_below(launcher.pid());
    assert_eq!(found.map(|found| found.pid), Some(server.pid()));
    for process in scope.survivors() {
        process.signal(Signal::KILL).unwrap();
    }
    launcher.kill();
}
