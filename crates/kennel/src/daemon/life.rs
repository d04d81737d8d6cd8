//! The daemon's end: signals, its owner, and what it removes.

use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use kennel_core::engine::daemon::ExitAttempt;
use kennel_sys::Signal;
use kennel_sys::io::{Exit, Interest, Source};
use kennel_sys::lock::{Lock, LockError, Mode};
use kennel_sys::process::ProcessRef;
use kennel_sys::signals::Signals;
use kennel_sys::tree;

use super::daemon_state::DaemonState;
use super::origin::Origin;
use super::state::STATE;
use super::timers::Timer;
use super::watchdog::Watchdog;
use super::{accept, server};
use crate::key_dir::SPAWN_LOCK;

/// How long an end may take beyond the stop ladder before the watchdog ends the process.
const STUCK_AFTER: Duration = Duration::from_secs(5);

/// Catches signals, before there is a daemon to handle them.
pub(super) fn catch_signals() -> io::Result<Signals> {
    // The daemon has no terminal: SIGHUP is ignored.
    Signals::catch(&[Signal::TERM, Signal::INT, Signal::HUP])
}

/// Watches SIGCHLD, to reap processes that outlived a server and became children of the daemon. Apart from the other
/// signals: an upgrade waits until none of those is pending.
pub(super) fn watch_children(daemon: &mut DaemonState) {
    let caught = Signals::catch(&[Signal::CHILD]);
    let watched = caught.and_then(|signals| {
        let token = Origin::Children.token();
        Source::with(&daemon.reactor, signals, token, Interest::READ)
    });
    match watched {
        Ok(children) => daemon.children = Some(children),
        Err(_) => daemon.log.line("cannot watch the end of child processes"),
    }
    // The program before an upgrade may have missed the last one.
    on_children(daemon);
}

/// Reaps children that have ended.
pub(super) fn on_children(daemon: &DaemonState) {
    while daemon.children.as_ref().and_then(|it| it.next()).is_some() {}
    tree::reap_kept(daemon.upgrade.checking.get().as_slice());
}

/// Checks whether the daemon is to end.
pub(super) fn advance(daemon: &DaemonState) {
    daemon.check_runtime_dir();
    daemon.tell_engine(|engine| engine.advance_life(daemon.now()));
    let wake = daemon.engine.borrow().life_timeout();
    daemon.set_timer(Timer::Life, wake.map(|at| daemon.instant(at)));
}

/// Handles SIGTERM, SIGINT and SIGHUP.
pub(super) fn on_signals(daemon: &DaemonState) {
    while let Some(signal) = daemon.signals.next() {
        if signal != Signal::HUP {
            daemon.log.line("asked to stop");
            daemon.engine.borrow_mut().handle_stop(daemon.now());
            advance(daemon);
        }
    }
}

/// The owner: the daemon ends after it.
pub(super) struct OwnerWatch {
    process: Rc<ProcessRef>,
    /// Its exit as an event, if the kernel reports it.
    exit: Option<Source<Exit>>,
}

/// Watches the owner.
pub(super) fn watch_owner(daemon: &DaemonState) {
    let Some(process) = find_owner(daemon).map(Rc::new) else {
        return;
    };
    let exit = daemon.watch_exit(&process, Origin::OwnerExit);
    daemon
        .owner_watch
        .replace(Some(OwnerWatch { process, exit }));
    on_owner_sweep(daemon);
}

/// Checks whether the owner is alive, where the kernel reports no exit.
pub(super) fn on_owner_sweep(daemon: &DaemonState) {
    let watch = daemon.owner_watch.borrow();
    let is_alive = match &*watch {
        Some(OwnerWatch {
            process,
            exit: None,
        }) => process.is_alive(),
        _ => return,
    };
    drop(watch);
    match is_alive {
        true => daemon.set_timer(Timer::OwnerSweep, Some(Instant::now() + daemon.sweep)),
        false => on_owner_exit(daemon),
    }
}

/// Handles the owner's exit.
pub(super) fn on_owner_exit(daemon: &DaemonState) {
    daemon.owner_watch.take();
    daemon.log.line("the owner is gone");
    daemon.engine.borrow_mut().handle_owner_gone(daemon.now());
    advance(daemon);
}

fn find_owner(daemon: &DaemonState) -> Option<ProcessRef> {
    let owner = daemon.owner?;
    match ProcessRef::find(&owner) {
        Ok(Some(process)) => {
            let pid = owner.pid();
            daemon.log.line(format_args!("bound to its owner {pid}"));
            Some(process)
        }
        Ok(None) => {
            daemon.log.line("the owner is gone already");
            daemon.engine.borrow_mut().handle_owner_gone(daemon.now());
            None
        }
        // In doubt it is alive.
        Err(error) => {
            daemon
                .log
                .line(format_args!("cannot watch the owner: {error}"));
            None
        }
    }
}

/// Leaves if no connection waits to be accepted.
pub(super) fn try_to_leave(daemon: &DaemonState) {
    let tried = match Lock::acquire(daemon.key_dir.dir(), SPAWN_LOCK, Mode::Exclusive) {
        Ok(lock) => leave_under(daemon, Some(lock)),
        Err(LockError::Held { .. }) => ExitAttempt::LockHeld,
        Err(error) => {
            daemon
                .log
                .line(format_args!("leaving without spawn.lock: {error}"));
            leave_under(daemon, None)
        }
    };
    let now = daemon.now();
    daemon.engine.borrow_mut().handle_exit_attempt(tried, now);
}

fn leave_under(daemon: &DaemonState, spawn: Option<Lock>) -> ExitAttempt {
    if accept::accept_all(daemon) > 0 {
        return ExitAttempt::ClientsArrived;
    }
    leave(daemon, spawn);
    ExitAttempt::Exited
}

/// Arms the watchdog for the daemon's end.
pub(super) fn arm(daemon: &DaemonState) {
    let handle = daemon.log.handle();
    let mut ladder = Duration::ZERO;
    daemon.for_each_server(|server_io| {
        let its = server::stop_ladder(&server_io.hello);
        ladder = ladder.max(its.after_eof + its.after_term);
    });
    let watchdog = Watchdog::arm(ladder + STUCK_AFTER, move || {
        if let Some(log) = handle {
            log.line("stuck while ending: exits at once");
        }
    });
    daemon.watchdog.replace(Some(watchdog));
}

/// Removes the daemon's files and releases its locks. Without its runtime directory, the files there are not the daemon's.
pub(super) fn leave(daemon: &DaemonState, spawn: Option<Lock>) {
    daemon.has_left.set(true);
    if daemon.has_runtime_dir() {
        let socket = format!("{}.sock", daemon.generation);
        let removed = daemon.key_dir.dir().unlink(socket);
        accept::refuse(daemon);
        let removed = removed.and_then(|_| daemon.key_dir.remove_record());
        let removed = removed.and_then(|()| daemon.key_dir.dir().unlink(STATE).map(drop));
        if let Err(error) = removed {
            daemon.log.line(error);
        }
    } else {
        accept::refuse(daemon);
    }
    daemon.log.line("gone");
    drop(daemon.lock.take());
    drop(spawn);
}
