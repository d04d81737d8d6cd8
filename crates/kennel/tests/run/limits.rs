//! Where the system gives less than usual: files that may not grow, a pipe that never falls silent, no `/proc`.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kennel_sys::{Signal, events};
use kennel_testkit::{Client, Scope, wait_for};
use rustix::fs::OFlags;
use serde_json::json;

use crate::stage::{log, server_of, serves, shared, solo, the_daemon};

/// The same command behind a shell that runs `script` first.
fn behind(scope: &Scope, script: &str, session: &Command) -> Command {
    let mut command = scope.command("sh");
    command
        .args(["-c", &format!("{script}; exec \"$@\""), "sh"])
        .arg(session.get_program())
        .args(session.get_args())
        .env("TESTKIT_ROLL", scope.roll());
    command
}

#[test]
fn a_log_that_cannot_grow_ends_nobody() {
    let scope = Scope::new("file-size");
    // 4 KiB, or 8 where a shell counts so.
    let mut client = Client::begin(&mut behind(&scope, "ulimit -f 8", &shared(&scope)));
    let daemon = the_daemon(&scope);
    for _ in 0..20 {
        let said = client.request("say", json!({ "stderr": "w".repeat(1000) }));
        assert_eq!(said["result"], "said", "{said}");
    }
    serves(&mut client);
    assert!(log(&scope).len() <= 8192, "the limit is in force");
    assert!(daemon.is_alive());
    // The server is as it would be without Kennel.
    let server = server_of(&mut client);
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let ignored = status.lines().find_map(|it| it.strip_prefix("SigIgn:"));
    let ignored = u64::from_str_radix(ignored.unwrap().trim(), 16).unwrap();
    assert_eq!(
        ignored & 1 << (25 - 1),
        0,
        "SIGXFSZ is not ignored: {ignored:x}"
    );
    client.close();
    assert_eq!(client.wait().code(), Some(0));
}

#[test]
fn a_session_needs_little_stack() {
    for share in [false, true] {
        let scope = Scope::new("small-stack");
        let session = if share { shared(&scope) } else { solo(&scope) };
        let mut client = Client::begin(&mut behind(&scope, "ulimit -s 128", &session));
        serves(&mut client);
        client.close();
        assert_eq!(client.wait().code(), Some(0));
    }
}

#[test]
fn a_session_with_too_few_descriptors_for_kennel_has_a_server() {
    for share in [false, true] {
        let scope = Scope::new("too-few");
        let session = if share { shared(&scope) } else { solo(&scope) };
        let mut client = Client::begin(&mut behind(&scope, "ulimit -n 5", &session));
        assert_eq!(server_of(&mut client).pid(), client.pid());
        client.close();
        let ended = client.wait();
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
        assert!(
            ended.stderr.contains("runs without Kennel"),
            "{}",
            ended.stderr
        );
    }
}

#[test]
fn who_goes_on_writing_to_the_stdout_of_a_dead_server_holds_nobody_up() {
    for share in [false, true] {
        let scope = Scope::new("foreign-writer");
        let command = || match share {
            true => shared(&scope),
            false => solo(&scope),
        };
        let mut client = Client::begin(&mut command());
        let mut other = Client::begin(&mut command());
        let server = server_of(&mut client);
        let stdout = File::options()
            .write(true)
            .custom_flags(OFlags::NONBLOCK.bits() as i32)
            .open(format!("/proc/{}/fd/1", server.pid()))
            .unwrap();
        // Several writers and a large pipe: it is never empty, also where cores are few.
        let _ = rustix::pipe::fcntl_setpipe_size(&stdout, 1 << 20);
        let enough = Arc::new(AtomicBool::new(false));
        let writer = |_| {
            let (stdout, is_enough) = (stdout.try_clone().unwrap(), Arc::clone(&enough));
            std::thread::spawn(move || {
                let noise =
                    b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/noise\"}\n".repeat(80);
                while !is_enough.load(Ordering::Relaxed) {
                    // Full now, or closed for good.
                    if (&stdout).write(&noise).is_err() {
                        std::thread::yield_now();
                    }
                }
            })
        };
        let writers: Vec<_> = (0..4).map(writer).collect();
        server.signal(Signal::KILL).unwrap();
        wait_for("the server is gone", || (!server.is_alive()).then_some(()));
        serves(&mut other);
        serves(&mut client);
        assert_ne!(server_of(&mut client).pid(), server.pid());
        enough.store(true, Ordering::Relaxed);
        for writer in writers {
            writer.join().unwrap();
        }
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn needs_root_without_proc_a_session_has_a_server() {
    let scope = Scope::new("no-proc");
    for session in [solo(&scope), shared(&scope)] {
        let mut command = scope.command("unshare");
        command
            .args([
                "-m",
                "sh",
                "-c",
                "mount -t tmpfs none /proc && exec \"$@\"",
                "sh",
            ])
            .arg(session.get_program())
            .args(session.get_args())
            .env("TESTKIT_ROLL", scope.roll());
        let mut client = Client::start(&mut command);
        client.initialize();
        serves(&mut client);
        client.close();
        let ended = client.wait();
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
        let warnings = ended.stderr.matches("kennel: warning").count();
        assert!(warnings <= 1, "{}", ended.stderr);
    }
}

/// Where `/proc` lists nobody, the warden finds the detached part of a tree by trying pids.
#[test]
#[ignore = "needs root: cargo xtask test"]
fn needs_root_rule_2_without_proc_nothing_is_left_of_a_detached_process() {
    let detached = "(trap '' TERM; cd \"$0\"; while :; do : > beat; sleep 0.05; done)";
    let server = r#"setsid sh -c "$1" "$0" </dev/null >/dev/null 2>&1 & exec sleep 60"#;
    // The /proc of another pid namespace is no better than none.
    let worlds = [
        (&["-m"][..], "mount -t tmpfs none /proc && exec \"$@\""),
        (&["-p", "-f", "--kill-child"][..], "\"$@\"; sleep 60"),
    ];
    for (unshare, script) in worlds {
        let scope = Scope::new("no-proc-detached");
        let beat = scope.path("beat");
        let mut command = scope.command("unshare");
        command
            .args(unshare)
            .args(["sh", "-c", script, "sh", env!("CARGO_BIN_EXE_kennel")])
            .args(["run", "--stop-after", "50ms,50ms", "--share", "never"])
            .args(["--", "sh", "-c", server])
            .arg(beat.parent().unwrap())
            .arg(detached);
        let mut client = Client::start(&mut command);
        let beats = || {
            let _ = std::fs::remove_file(&beat);
            events::sleep(&[], &[], Some(Duration::from_millis(500))).unwrap();
            beat.exists()
        };
        wait_for("the detached process runs", || beats().then_some(()));
        client.close();
        wait_for("the detached process is gone", || (!beats()).then_some(()));
    }
}
