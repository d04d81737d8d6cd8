//! The end of the daemon: what asks for it, and what is removed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::time::Duration;

use kennel_core::engine::daemon::LeaveTried;
use kennel_sys::Signal;
use kennel_sys::lock::{Lock, LockError, Mode};
use kennel_sys::process::ProcessRef;
use kennel_sys::signals::Signals;
use kennel_sys::tree;

use super::daemon_state::DaemonState;
use super::state::STATE;
use super::tasks::{Descriptor, first_of, moments};
use super::watchdog::Watchdog;
use super::{accept, server, watch};
use crate::meeting::SPAWN_LOCK;

/// How long an end may take beyond the ladder before the watchdog makes it one.
const STUCK: Duration = Duration::from_secs(5);

/// Catches what asks for the end, before anybody knows whom to ask.
pub(super) fn catch_signals() -> io::Result<Signals> {
    // Nobody's terminal is ours: a hangup is caught, and means nothing.
    Signals::catch(&[Signal::TERM, Signal::INT, Signal::HUP])
}

/// Reaps what outlived a server and became our child, and what that leaves to us.
pub(super) async fn reap_children(daemon: Rc<DaemonState>) {
    // Not among the signals that ask for the end: an upgrade waits for none of these.
    let signals = Signals::catch(&[Signal::CHILD]);
    let Ok(signals) = signals else {
        return daemon.log.line("cannot hear of the end of children");
    };
    let Ok(news) = Descriptor::of_input(signals.as_fd()) else {
        return daemon.log.line("cannot hear of the end of children");
    };
    loop {
        // Also at first: the program that we were before an upgrade may not have heard of the last.
        tree::reap_kept(daemon.upgrade.asked.get().as_slice());
        news.readable().await;
        while signals.next().is_some() {}
        news.was_read();
    }
}

/// Returns when the daemon is gone in all but its process.
pub(super) async fn live(daemon: &Rc<DaemonState>) {
    let signals = &daemon.signals;
    let mut owner = watched(daemon);
    let Ok(news) = Descriptor::of_input(signals.as_fd()) else {
        daemon.log.line("cannot hear signals");
        return leave(daemon, None);
    };
    loop {
        daemon.look_after_place();
        daemon.tell_engine(|engine| engine.advance_life(daemon.now()));
        if daemon.has_left.get() {
            return drop(daemon.watchdog.take());
        }
        let wake = daemon.engine.borrow().life_timeout();
        first_of! {
            () = asked(signals, &news) => {
                daemon.log.line("asked to stop");
                daemon.engine.borrow_mut().stop_asked(daemon.now());
            },
            () = end_of_owner(owner.as_ref(), daemon.sweep) => {
                owner = None;
                daemon.log.line("the owner is gone");
                daemon.engine.borrow_mut().owner_gone(daemon.now());
            },
            () = daemon.stirred.notified() => {},
            () = moments::until(wake.map(|at| daemon.instant(at))) => {},
        }
    }
}

fn watched(daemon: &DaemonState) -> Option<ProcessRef> {
    let owner = daemon.owner?;
    match ProcessRef::find(&owner) {
        Ok(Some(process)) => {
            let pid = owner.pid();
            daemon.log.line(format_args!("bound to its owner {pid}"));
            Some(process)
        }
        Ok(None) => {
            daemon.log.line("the owner is gone already");
            daemon.engine.borrow_mut().owner_gone(daemon.now());
            None
        }
        // Ambiguous means alive.
        Err(error) => {
            daemon
                .log
                .line(format_args!("cannot watch the owner: {error}"));
            None
        }
    }
}

async fn end_of_owner(owner: Option<&ProcessRef>, sweep: Duration) {
    match owner {
        Some(owner) => watch::end_of(owner, sweep).await,
        None => std::future::pending().await,
    }
}

/// Nobody is here: leaves, unless somebody waits to be accepted.
pub(super) fn try_to_leave(daemon: &DaemonState) {
    let tried = match Lock::acquire(daemon.meeting.dir(), SPAWN_LOCK, Mode::Exclusive) {
        Ok(lock) => leave_under(daemon, Some(lock)),
        Err(LockError::Held { .. }) => LeaveTried::Contended,
        Err(error) => {
            daemon.log.line(format_args!("going without: {error}"));
            leave_under(daemon, None)
        }
    };
    let now = daemon.now();
    daemon.engine.borrow_mut().leave_tried(tried, now);
}

fn leave_under(daemon: &DaemonState, spawn: Option<Lock>) -> LeaveTried {
    if accept::those_waiting(daemon) > 0 {
        return LeaveTried::Arrivals;
    }
    leave(daemon, spawn);
    LeaveTried::Left
}

/// Ends the process if it is not gone in time.
pub(super) fn arm(daemon: &DaemonState) {
    let aside = daemon.log.aside();
    let mut ladder = Duration::ZERO;
    daemon.each_server(|server_io| {
        let its = server::ladder(&server_io.hello);
        ladder = ladder.max(its.after_eof + its.after_term);
    });
    let watchdog = Watchdog::arm(ladder + STUCK, move || {
        if let Some(log) = aside {
            log.line("stuck while ending: ended at once");
        }
    });
    daemon.watchdog.replace(Some(watchdog));
}

/// Removes what is ours, and gives the locks up. Where our place is gone, nothing there is ours.
pub(super) fn leave(daemon: &DaemonState, spawn: Option<Lock>) {
    daemon.has_left.set(true);
    if daemon.has_place() {
        let socket = format!("{}.sock", daemon.generation);
        let removed = daemon.meeting.dir().unlink(socket);
        accept::turn_away(daemon);
        let removed = removed.and_then(|_| daemon.meeting.remove_record());
        let removed = removed.and_then(|()| daemon.meeting.dir().unlink(STATE).map(drop));
        if let Err(error) = removed {
            daemon.log.line(error);
        }
    } else {
        accept::turn_away(daemon);
    }
    daemon.log.line("gone");
    drop(daemon.lock.take());
    drop(spawn);
}

/// Waits for a signal that asks for the end.
async fn asked(signals: &Signals, news: &Descriptor<BorrowedFd<'_>>) {
    loop {
        news.readable().await;
        match signals.next() {
            Some(Signal::HUP) => {}
            Some(_) => return,
            None => news.was_read(),
        }
    }
}
