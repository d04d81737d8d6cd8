//! The stop ladder: end of input, SIGTERM, SIGKILL.

use super::*;

/// A stop ladder whose last step comes after an hour: only SIGTERM ends the tree.
const TERM_ONLY: [&str; 2] = ["50", "3600000"];

#[test]
fn each_rung_ends_early_when_the_tree_is_empty() {
    let scope = Scope::new("polite");
    let (program, roll) = (bin("tk-stubborn"), scope.roll());
    let words = [program.to_str().unwrap(), roll.to_str().unwrap(), "polite"];
    let mut served = Served::start(&scope, SLOW, &words);
    let members = all_signed(&scope, 1);
    served.ask_to_stop();
    // With rungs of an hour this returns only because EOF was enough.
    let told = served.told();
    assert!(
        told.iter().any(|line| line.contains("Exited(Code(0))")),
        "{told:?}"
    );
    all_gone(&members);
    assert!(served.child.wait().unwrap().success());
}

/// The first step takes an hour, unless it has passed already.
#[test]
fn a_server_that_had_its_time_after_eof_gets_sigterm_at_once() {
    let scope = Scope::new("after-eof");
    let (program, roll) = (bin("tk-stubborn"), scope.roll());
    let words = [
        program.to_str().unwrap(),
        roll.to_str().unwrap(),
        "levels",
        "1",
        "1",
    ];
    let mut served = Served::start(&scope, SLOW, &words);
    let members = all_signed(&scope, 3);
    let stdin = served.stdin.as_mut().unwrap();
    stdin.write_all(b"stop after eof\n").unwrap();
    all_gone(&members);
    assert!(served.child.wait().unwrap().success());
}

#[test]
fn sigterm_reaches_every_process_once_though_launchers_exit_at_once() {
    on_each_kernel(|| {
        for _ in 0..count(20) {
            let scope = Scope::new("levels");
            let (program, roll) = (bin("tk-stubborn"), scope.roll());
            let words = [
                program.to_str().unwrap(),
                roll.to_str().unwrap(),
                "levels",
                "5",
                "6",
            ];
            let mut served = Served::start(&scope, TERM_ONLY, &words);
            let members = all_signed(&scope, 36);
            served.ask_to_stop();
            all_gone(&members);
            let terminated = std::fs::read_to_string(roll.with_extension("terminated")).unwrap();
            let mut terminated: Vec<&str> = terminated.lines().collect();
            assert_eq!(terminated.len(), 36, "each was sent SIGTERM once");
            terminated.sort_unstable();
            terminated.dedup();
            assert_eq!(terminated.len(), 36, "one was sent it twice, another never");
            assert!(served.child.wait().unwrap().success());
        }
    });
}

#[test]
fn a_stopped_server_is_ended_by_sigterm_or_after_it() {
    let scope = Scope::new("frozen");
    let mut served = Served::family(&scope, QUICK, "family", 1);
    let members = all_signed(&scope, 2);
    for member in &members {
        ProcessRef::find(member)
            .unwrap()
            .unwrap()
            .signal(Signal::STOP)
            .unwrap();
    }
    served.child.kill().unwrap();
    all_gone(&members);
    served.child.wait().unwrap();
}
