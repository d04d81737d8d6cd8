//! Trees that the next start finds: it ends those without a warden, and continues stopped wardens.

use super::*;

#[test]
fn rule_2_what_outlives_both_is_ended_by_the_next_start() {
    on_each_kernel(|| {
        for _ in 0..count(100) {
            let scope = Scope::new("both-killed");
            let mut other = bystander(&scope);
            let mut served = Served::family(&scope, SLOW, "family", 3);
            let members = all_signed(&scope, 4);
            served.child.kill().unwrap();
            served.warden().signal(Signal::KILL).unwrap();
            served.child.wait().unwrap();
            wait_for("the warden to end", || {
                (!served.warden().is_alive()).then_some(())
            });
            // The detached ones do live on: else this test would show nothing.
            assert!(
                members
                    .iter()
                    .any(|member| ProcessRef::find(member).unwrap().is_some())
            );
            next_start(&scope);
            assert!(
                members
                    .iter()
                    .all(|member| ProcessRef::find(member).unwrap().is_none())
            );
            assert_eq!(records_left(&scope), 0);
            assert_eq!(other.try_wait().unwrap(), None, "a bystander was touched");
            other.kill().unwrap();
            other.wait().unwrap();
        }
    });
}

/// A server beside which processes fork and exit at once, for a few seconds at most. They count in a file.
const CHAIN: &str = "
import mmap, os, signal, sys, time
with open(sys.argv[1], 'w+b') as f:
    f.truncate(8)
    count = mmap.mmap(f.fileno(), 8)
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        count[:] = (int.from_bytes(count[:], 'little') + 1).to_bytes(8, 'little')
        if os.fork(): os._exit(0)
    os._exit(0)
sys.stdin.read()
";

#[test]
fn rule_2_a_chain_of_processes_that_fork_and_exit_at_once_is_ended_by_the_next_start() {
    let Some(python) = tool("python3") else {
        return skipped("python3 is not installed");
    };
    for _ in 0..count(20) {
        let scope = Scope::new("chain");
        let file = scope.path("count");
        let words = [
            python.to_str().unwrap(),
            "-c",
            CHAIN,
            file.to_str().unwrap(),
        ];
        let mut served = Served::start(&scope, SLOW, &words);
        let links = || {
            let count = std::fs::read(&file).ok()?;
            Some(u64::from_le_bytes(count.try_into().ok()?))
        };
        wait_for("the chain is on its way", || {
            links().filter(|&links| links > 20)
        });
        served.child.kill().unwrap();
        served.warden().signal(Signal::KILL).unwrap();
        served.child.wait().unwrap();
        wait_for("the warden to end", || {
            (!served.warden().is_alive()).then_some(())
        });
        // A start that is too slow on a busy machine keeps the record for the next one.
        wait_for("a start that ends it", || {
            next_start(&scope);
            (records_left(&scope) == 0).then_some(())
        });
        let before = links();
        let moment = Some(Duration::from_millis(200));
        kennel_sys::events::sleep(&[], &[], moment).unwrap();
        assert_eq!(links(), before, "it goes on, and nothing knows of it");
    }
}

#[test]
fn what_a_warden_was_writing_when_it_was_killed_goes_with_its_record() {
    let scope = Scope::new("half-written");
    let mut served = Served::family(&scope, SLOW, "family", 1);
    all_signed(&scope, 2);
    served.child.kill().unwrap();
    served.warden().signal(Signal::KILL).unwrap();
    served.child.wait().unwrap();
    wait_for("the warden to end", || {
        (!served.warden().is_alive()).then_some(())
    });
    let trees = std::fs::read_dir(scope.path("trees")).unwrap();
    let names: Vec<String> = trees
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with('.'))
        .collect();
    assert_eq!(names.len(), 1, "{names:?}");
    std::fs::write(scope.path("trees").join(format!(".{}", names[0])), "half").unwrap();
    next_start(&scope);
    assert_eq!(records_left(&scope), 0);
}

#[test]
fn the_next_start_leaves_a_tree_alone_whose_warden_lives() {
    let scope = Scope::new("attended");
    let mut served = Served::family(&scope, SLOW, "family", 1);
    let members = all_signed(&scope, 2);
    next_start(&scope);
    assert!(
        members
            .iter()
            .all(|member| ProcessRef::find(member).unwrap().is_some())
    );
    served.child.kill().unwrap();
    served.child.wait().unwrap();
}

#[test]
fn rule_2_a_stopped_warden_is_continued_by_whoever_ends_its_tree() {
    on_each_kernel(|| {
        let scope = Scope::new("stopped-warden");
        let mut served = Served::family(&scope, QUICK, "family", 2);
        let members = all_signed(&scope, 3);
        stop_warden(served.warden());
        served.ask_to_stop();
        let told = served.told();
        assert!(told.contains(&"report Empty".to_owned()), "{told:?}");
        all_gone(&members);
        assert!(served.child.wait().unwrap().success());
    });
}

#[test]
fn rule_2_a_stopped_warden_whose_served_process_is_gone_is_continued_by_the_next_start() {
    on_each_kernel(|| {
        let scope = Scope::new("stopped-orphan");
        let mut served = Served::family(&scope, QUICK, "family", 2);
        let members = all_signed(&scope, 3);
        stop_warden(served.warden());
        let records = std::fs::File::open(scope.path("trees")).unwrap();
        let found = || kennel_sys::tree::find_leftovers(records.as_fd()).unwrap();
        assert!(found().is_empty(), "the process that it serves lives");
        served.child.kill().unwrap();
        served.child.wait().unwrap();
        assert_eq!(found().len(), members.len() + 1);
        next_start(&scope);
        all_gone(&members);
        assert!(!served.warden().is_alive());
        assert_eq!(records_left(&scope), 0);
    });
}

#[test]
fn rule_2_a_server_that_stops_its_warden_again_and_again_is_ended_by_the_next_start() {
    let scope = Scope::new("stopped-again");
    let line = format!(
        "{} {} stay & trap '' TERM; while kill -STOP $PPID; do :; done",
        bin("tk-stubborn").display(),
        scope.roll().display()
    );
    let mut served = Served::start(&scope, QUICK, &["sh", "-c", &line]);
    let members = all_signed(&scope, 1);
    served.child.kill().unwrap();
    served.child.wait().unwrap();
    next_start(&scope);
    all_gone(&members);
    assert!(!served.warden().is_alive());
}

#[test]
fn the_next_start_sends_sigterm_once_before_it_kills() {
    let scope = Scope::new("levels-left");
    let (program, roll) = (bin("tk-stubborn"), scope.roll());
    let words = [
        program.to_str().unwrap(),
        roll.to_str().unwrap(),
        "levels",
        "2",
        "3",
    ];
    let mut served = Served::start(&scope, SLOW, &words);
    let members = all_signed(&scope, 9);
    served.child.kill().unwrap();
    served.warden().signal(Signal::KILL).unwrap();
    served.child.wait().unwrap();
    wait_for("the warden to end", || {
        (!served.warden().is_alive()).then_some(())
    });
    next_start_within(&scope, "60000");
    all_gone(&members);
    let terminated = std::fs::read_to_string(roll.with_extension("terminated")).unwrap();
    let mut names: Vec<&str> = terminated.lines().collect();
    names.sort_unstable();
    let all = names.len();
    names.dedup();
    assert_eq!(names.len(), all, "one was sent SIGTERM twice");
    assert_eq!(all, 8, "all but the server, which died with its warden");
}
