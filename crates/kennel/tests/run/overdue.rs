//! A daemon that does not get done, be it with its start or with its end, is ended by a thread of its own: what
//! waits on the event loop stalls with it (lesson 29).

use std::time::Duration;

use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;
use kennel_testkit::{Client, DEADLINE, Scope, wait_for};

use crate::stage::{
    daemons, kennel, log, logs, server_of, serves, shared, shared_with, the_daemon, warden_of,
};

/// What a daemon may take to be ready, and what its end may take beyond the ladder.
const ALARM: Duration = Duration::from_secs(5);

mod needs_root {
    use std::time::Instant;

    use kennel_testkit::{run, tool};

    use super::*;

    /// Holds one thread of a process, and none of the others, until the process ends.
    const HOLD: &str = "
import ctypes, os, sys
SEIZE, INTERRUPT, ALL = 0x4206, 0x4207, 0x40000000
thread = int(sys.argv[1])
ptrace = ctypes.CDLL(None, use_errno=True).ptrace
ptrace.argtypes = [ctypes.c_long] * 4
for request in (SEIZE, INTERRUPT):
    if ptrace(request, thread, 0, 0) != 0:
        sys.exit(os.strerror(ctypes.get_errno()))
os.waitpid(thread, ALL)
print('held', flush=True)
os.waitpid(thread, ALL)
";

    /// From now on its event loop stands still.
    #[track_caller]
    fn hold_daemon(scope: &Scope, process: &ProcessRef) -> Client {
        wait_for("its watchdog", || {
            let threads = std::fs::read_dir(format!("/proc/{}/task", process.pid())).ok()?;
            let name = |thread: std::fs::DirEntry| {
                std::fs::read_to_string(thread.path().join("comm")).unwrap_or_default()
            };
            let mut names = threads.map(|thread| name(thread.unwrap()));
            names.any(|name| name.trim() == "watchdog").then_some(())
        });
        hold(scope, process)
    }

    /// From now on its first thread stands still, until the holder ends: SIGCONT does not help.
    #[track_caller]
    fn hold(scope: &Scope, process: &ProcessRef) -> Client {
        let mut command = scope.command(tool("python3").unwrap());
        let mut holder = Client::start(command.args(["-c", HOLD, &process.pid().to_string()]));
        let held = holder.line();
        assert_eq!(held.as_deref(), Some("held"), "{}", holder.stderr_so_far());
        holder
    }

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn a_daemon_whose_server_cannot_be_ended_ends_all_the_same() {
        let scope = Scope::new("stuck-end");
        let mut client = Client::begin(&mut shared(&scope));
        let (daemon, server) = (the_daemon(&scope), server_of(&mut client));
        let warden = warden_of(daemon.pid());
        // Nobody ends the server, and nobody tells that it is gone.
        let mut holder = hold(&scope, &warden);
        let asked = Instant::now();
        daemon.signal(Signal::TERM).unwrap();
        assert!(daemon.wait(Some(DEADLINE)).unwrap(), "{}", log(&scope));
        assert!(asked.elapsed() >= ALARM, "it had its time");
        logs(&scope, "stuck while ending: exits at once");
        holder.kill();
        assert!(server.wait(Some(DEADLINE)).unwrap());
        serves(&mut client);
        the_daemon(&scope);
    }

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn kennel_stop_kills_a_daemon_that_does_not_hear_it_and_says_so() {
        let scope = Scope::new("stop-stuck");
        let mut client = Client::begin(&mut shared(&scope));
        let (daemon, server) = (the_daemon(&scope), server_of(&mut client));
        let _holder = hold(&scope, &daemon);
        client.kill();
        let stopped = run(kennel(&scope).args(["stop", "--all"]));
        assert_eq!(stopped.code(), Some(0), "{}", stopped.stderr);
        let said = format!("its daemon (pid {}) did not stop within 10 s", daemon.pid());
        assert!(stopped.stdout.contains(&said), "{}", stopped.stdout);
        assert!(!daemon.is_alive());
        assert!(server.wait(Some(DEADLINE)).unwrap());
    }

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn a_daemon_that_hangs_before_it_is_ready_ends_and_gives_up_its_turn() {
        let scope = Scope::new("stuck-start");
        let mut former = Client::begin(&mut shared(&scope));
        let server = server_of(&mut former);
        // What a killed daemon left to its warden is waited for by the next one: time to get hold of it.
        let (daemon, warden) = (the_daemon(&scope), warden_of(the_daemon(&scope).pid()));
        let mut warden = hold(&scope, &warden);
        former.kill();
        daemon.signal(Signal::KILL).unwrap();
        assert!(daemon.wait(Some(DEADLINE)).unwrap());

        let mut session = Client::start(&mut shared_with(&scope, &["--start-timeout", "5s"]));
        let hanging = wait_for("its daemon", || daemons(&scope).pop());
        let _holder = hold_daemon(&scope, &hanging);
        assert!(hanging.wait(Some(DEADLINE)).unwrap());
        logs(&scope, "not ready after 5 s: ended");
        warden.kill();
        assert!(server.wait(Some(DEADLINE)).unwrap());

        // The one that waited for it starts another; so may the next one.
        session.initialize();
        serves(&mut session);
        let mut next = Client::begin(&mut shared(&scope));
        serves(&mut next);
        the_daemon(&scope);
        session.close();
        assert_eq!(session.wait().stderr, "");
    }

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn lesson_29_a_daemon_whose_event_loop_stands_still_while_it_ends_is_ended() {
        let scope = Scope::new("stuck-loop");
        let mut client = Client::begin(&mut shared(&scope));
        let (daemon, server) = (the_daemon(&scope), server_of(&mut client));
        let warden = warden_of(daemon.pid());
        let mut warden = hold(&scope, &warden);
        daemon.signal(Signal::TERM).unwrap();
        let _holder = hold_daemon(&scope, &daemon);
        assert!(daemon.wait(Some(DEADLINE)).unwrap(), "{}", log(&scope));
        logs(&scope, "stuck while ending: exits at once");
        warden.kill();
        assert!(server.wait(Some(DEADLINE)).unwrap());
        serves(&mut client);
        the_daemon(&scope);
    }
}
