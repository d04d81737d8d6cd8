//! Shapes that need a program, a machine or a load of their own.

use std::path::Path;

use kennel_testkit::{bin, run, skipped, tool, wait_for};
use serde_json::Value;

use super::{Zoo, offered};
use crate::stage::{Family, Ward, wait_until_blocked};

/// What `doctor` says of the only suspect of a ward, which it does not offer.
fn only_doubts(ward: &Ward) -> String {
    let report = ward.doctor();
    assert_eq!(offered(&report), [0; 0], "{report:#}");
    let shown = report["in_doubt"].as_array().unwrap();
    assert_eq!(shown.len(), 1, "{report:#}");
    shown[0]["doubts"].to_string()
}

/// Runs `reap` on the only suspect of a ward, which it does not end.
fn spared(ward: &Ward, family: &Family) {
    let ended = ward.kennel(&["reap", "--foreign", "--yes"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(family.child.is_alive(), "{}", ended.stdout);
}

/// A job that computes, and gets almost no time: a process of ordinary priority computes on the same CPU, for ten seconds. It is of
/// the same session, for the kernel shares out time by session first.
const STARVED: &str = "
cpu = min(os.sched_getaffinity(0))
os.sched_setaffinity(0, [cpu])
if os.fork() == 0:
    if os.fork() == 0:
        null = os.open('/dev/null', os.O_RDWR)
        [os.dup2(null, fd) for fd in range(3)]
        spin(10)
    os._exit(0)
os.wait()
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
ready()
while True: pass
";

#[test]
fn a_job_that_gets_no_cpu_time_is_in_doubt() {
    if tool("python3").is_none() {
        return skipped("python3 is not installed");
    }
    let zoo = Zoo::new();
    let mut family = zoo.start(0, STARVED);
    zoo.is_ready(0);
    family.kill_app();
    let doubts = only_doubts(&zoo.ward);
    assert!(doubts.contains("runs, or waits for a CPU"), "{doubts}");
    spared(&zoo.ward, &family);
}

/// A program of 32 bits that sleeps: the number of its call is another one's for programs of 64 bits.
fn sleeper_of_32_bits(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    const BASE: u32 = 0x0804_8000;
    const CODE: u32 = BASE + 84;
    let mut program = b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    let half = |number: u16| number.to_le_bytes().to_vec();
    let word = |number: u32| number.to_le_bytes().to_vec();
    program.extend(
        [
            half(2),
            half(3),
            word(1),
            word(CODE),
            word(52),
            word(0),
            word(0),
        ]
        .concat(),
    );
    program.extend([half(52), half(32), half(1), half(0), half(0), half(0)].concat());
    let size = 84 + 16 + 8;
    program.extend(
        [
            word(1),
            word(0),
            word(BASE),
            word(BASE),
            word(size),
            word(size),
        ]
        .concat(),
    );
    program.extend([word(5), word(4096)].concat());
    // mov eax, 162 (nanosleep); mov ebx, the time; xor ecx, ecx; int 0x80; jmp back
    program.extend([vec![0xb8], word(162), vec![0xbb], word(CODE + 16)].concat());
    program.extend([0x31, 0xc9, 0xcd, 0x80, 0xeb, 0xf0]);
    program.extend([word(1000), word(0)].concat());
    std::fs::write(path, program).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_32_bit_program_is_in_doubt() {
    let ward = Ward::new();
    let program = ward.scope.path("sleeper");
    sleeper_of_32_bits(&program);
    // Not every kernel runs 32-bit programs.
    if !ward.command(&program).spawn().is_ok_and(|mut child| {
        child.kill().unwrap();
        child.wait().is_ok()
    }) {
        return;
    }
    let mut family = ward.family(&[], &[program.to_str().unwrap()]);
    wait_until_blocked(family.child.pid());
    family.kill_app();
    let doubts = only_doubts(&ward);
    assert!(doubts.contains("32-bit program"), "{doubts}");
    spared(&ward, &family);
}

/// Node waits for events in its first thread, and its worker for a time.
const WORKER_WITH_A_TIMER: &str = "
const { Worker } = require('worker_threads');
new Worker('setTimeout(() => {}, 1000000)', { eval: true });
";

/// Node waits for its child, which reads a pipe that nobody else has.
const WAITING_NODE: &str =
    "require('child_process').spawn('cat', { stdio: ['pipe', 'ignore', 'ignore'] });";

/// Rust's, Node's and Python's runtimes keep threads without work in waits without a time limit.
const WAITING_PYTHON: &str = "
import asyncio, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
asyncio.run(asyncio.Event().wait())
";

#[test]
fn a_node_server_is_an_orphan_unless_a_timer_of_any_thread_runs() {
    let Some(node) = tool("node") else {
        return;
    };
    let node = node.to_str().unwrap();
    for (script, orphan) in [(WAITING_NODE, true), (WORKER_WITH_A_TIMER, false)] {
        let ward = Ward::new();
        let mut family = ward.family(&[], &[node, "-e", script]);
        let pid = family.child.pid();
        wait_for("its threads are there", || {
            let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?.count();
            (threads > if orphan { 6 } else { 7 }).then_some(())
        });
        family.kill_app();
        match orphan {
            // The garbage collector of a young process works for a while.
            true => wait_for("it is found", || (ward.orphans() == [pid]).then_some(())),
            false => {
                let doubts = only_doubts(&ward);
                assert!(doubts.contains("sleeps"), "{doubts}");
            }
        }
        let ended = ward.kennel(&["reap", "--foreign", "--yes"]);
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
        assert_eq!(family.child.is_alive(), !orphan, "{}", ended.stdout);
    }
}

#[test]
fn a_script_that_waits_for_a_guarded_server_is_in_doubt() {
    let ward = Ward::new();
    let script = r#""$0" guard --owner-pid $$ -- "$1" 127.0.0.1:0; :"#;
    let (kennel, server) = (env!("CARGO_BIN_EXE_kennel"), bin("tk-ports"));
    let words = ["sh", "-c", script, kennel, server.to_str().unwrap()];
    let mut family = ward.family(&[], &words);
    let guard = family.grandchild();
    wait_for("the guard has a warden", || {
        let children = format!("/proc/{0}/task/{0}/children", guard.pid());
        let children = std::fs::read_to_string(children).ok()?;
        (!children.is_empty()).then_some(())
    });
    wait_until_blocked(family.child.pid());
    family.kill_app();
    let doubts = only_doubts(&ward);
    assert!(doubts.contains("in charge of a server"), "{doubts}");
    spared(&ward, &family);
    assert!(guard.is_alive());
}

#[test]
fn a_python_server_with_threads_that_wait_for_events_is_an_orphan() {
    if tool("python3").is_none() {
        return skipped("python3 is not installed");
    }
    let ward = Ward::new();
    let python = tool("python3").expect("python3 is installed");
    let words = [python.to_str().unwrap(), "-c", WAITING_PYTHON];
    let mut family = ward.family(&[], &words);
    let pid = family.child.pid();
    wait_for("its thread is there", || {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?.count();
        (threads == 2).then_some(())
    });
    family.kill_app();
    wait_for("it is found", || (ward.orphans() == [pid]).then_some(()));
    let ended = ward.kennel(&["reap", "--foreign", "--yes"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(!family.child.is_alive(), "{}", ended.stdout);
}

/// `kennel` where `/proc/PID/syscall` cannot be read, as of an ordinary user on Ubuntu.
fn without_calls(ward: &Ward, words: &[&str]) -> kennel_testkit::Ended {
    let mut command = ward.restricted(env!("CARGO_BIN_EXE_kennel"));
    run(command
        .env("KENNEL_FEATURES_OFF", "proc-syscall")
        .args(words))
}

#[test]
fn where_system_calls_are_hidden_a_process_is_an_orphan_only_in_waits_that_have_no_time_limit() {
    if tool("python3").is_none() {
        return skipped("python3 is not installed");
    }
    for (name, words) in [
        ("job", &["sleep", "1000"][..]),
        ("launcher of a job", &["sh", "-c", "sleep 1000; :"]),
        ("server that waits for events", &["tk-idle"]),
    ] {
        let ward = Ward::new();
        let mut family = ward.family(&[], words);
        wait_until_blocked(family.child.pid());
        family.kill_app();
        let pid = family.child.pid();
        let told = without_calls(&ward, &["doctor", "--json"]);
        let report: Value = serde_json::from_str(&told.stdout).unwrap();
        assert_eq!(offered(&report), [0; 0], "{name}: {report:#}");
        let doubts = report["in_doubt"][0]["doubts"].to_string();
        assert!(doubts.contains("cannot see what pid"), "{name}: {doubts}");
        let told = without_calls(&ward, &["reap", "--foreign", "--yes"]);
        assert_eq!(told.code(), Some(0), "{}", told.stderr);
        for words in [
            &format!("if it is not needed: kill {pid}"),
            "root sees more: sudo kennel",
        ] {
            assert!(told.stdout.contains(words), "{name}: {}", told.stdout);
        }
        assert!(family.child.is_alive(), "{name} was ended");
    }
    // Waits that never have a time limit are told by the function of the kernel.
    let ward = Ward::new();
    let python = tool("python3").expect("python3 is installed");
    let ready = ward.scope.path("ready");
    let code = "import os, sys; r, w = os.pipe(); open(sys.argv[1], 'w').close(); os.read(r, 1)";
    let shell = "\"$0\" -c \"$1\" \"$2\"; :";
    let python = python.to_str().unwrap();
    let words = ["sh", "-c", shell, python, code, ready.to_str().unwrap()];
    let mut family = ward.family(&[], &words);
    // Its interpreter may be behind a script that reads pipes, too.
    wait_for("Python is there", || ready.exists().then_some(()));
    let below = family.grandchild();
    let wchan = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap();
    wait_for("it reads", || {
        wait_until_blocked(family.child.pid());
        wchan(below.pid()).contains("pipe").then_some(())
    });
    family.kill_app();
    let told = without_calls(&ward, &["doctor", "--json"]);
    let report: Value = serde_json::from_str(&told.stdout).unwrap();
    assert_eq!(offered(&report), [family.child.pid()], "{report:#}");
}
