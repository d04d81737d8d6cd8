//! The daemon's event loop: waits on the reactor, passes each event to its handler, and sleeps until the next timer.
//!
//! No handler waits. A client or server with more work than [`LINES_PER_RUN`](super::run_queue::LINES_PER_RUN) lines goes
//! to the end of the [`RunQueue`], and the reactor is polled in between, so that none starves the others.
//!
//! [`RunQueue`]: super::run_queue::RunQueue

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

use kennel_core::engine::daemon::SlotId;
use kennel_core::lifetime::ClientId;
use kennel_sys::io::{Event, Wait};

use super::client::ClientRef;
use super::daemon_state::DaemonState;
use super::origin::Origin;
use super::run_queue::Runnable;
use super::timers::Timer;
use super::{accept, life, state, upgrade};
use crate::lines::buffer_pool;

/// Serves until the daemon has left.
pub(super) fn run(daemon: &DaemonState) -> ExitCode {
    let (mut events, mut run_queue) = (Vec::new(), Vec::new());
    loop {
        daemon.parsed_bytes.set(0);
        daemon.run_queue.take_all(&mut run_queue);
        for runnable in run_queue.drain(..) {
            if !run_guarded(daemon, Subject::of_runnable(runnable), || {
                continue_work(daemon, runnable)
            }) {
                return ExitCode::FAILURE;
            }
        }
        if daemon.has_left.get() {
            drop(daemon.watchdog.take());
            return ExitCode::SUCCESS;
        }
        daemon.schedule_memory_return();
        let next = daemon.timers.borrow().next_timeout();
        let wait = match next {
            _ if !daemon.run_queue.is_empty() => Wait::No,
            Some(at) => Wait::Until(at),
            None => {
                daemon.reactor.cancel_alarm();
                Wait::Forever
            }
        };
        let waited = daemon.reactor.wait(wait, &mut events);
        let time_is_over = waited.expect("the event loop is set up");
        for event in events.drain(..) {
            let Some(origin) = Origin::of(event.token) else {
                continue;
            };
            if !run_guarded(daemon, Subject::of(origin), || {
                on_event(daemon, origin, event)
            }) {
                return ExitCode::FAILURE;
            }
        }
        let is_due = |at: Instant| wait == Wait::No && at <= Instant::now();
        if (time_is_over || next.is_some_and(is_due)) && !run_due_timers(daemon) {
            return ExitCode::FAILURE;
        }
    }
}

/// The part of the daemon that an event is about.
#[derive(Debug, Clone, Copy)]
enum Subject {
    Client(ClientId),
    Server(SlotId),
    Daemon,
}

impl Subject {
    fn of_runnable(runnable: Runnable) -> Subject {
        match runnable {
            Runnable::Client(id) => Subject::Client(id),
            Runnable::Server(slot) => Subject::Server(slot),
            Runnable::Accept | Runnable::Life | Runnable::Upgrade => Subject::Daemon,
        }
    }

    fn of(origin: Origin) -> Subject {
        match origin {
            Origin::ClientSocket(id)
            | Origin::ClientInput(id)
            | Origin::ClientOutput(id)
            | Origin::ClientExit(id) => Subject::Client(id),
            Origin::ServerStdin(slot)
            | Origin::ServerStdout(slot)
            | Origin::ServerStderr(slot)
            | Origin::Reports(slot)
            | Origin::WardenExit(slot) => Subject::Server(slot),
            _ => Subject::Daemon,
        }
    }

    fn of_timer(timer: Timer) -> Subject {
        match timer {
            Timer::Client(id) | Timer::ClientSweep(id) => Subject::Client(id),
            Timer::Slot(slot) | Timer::ServerThrottle(slot) | Timer::ServerExit(slot) => {
                Subject::Server(slot)
            }
            _ => Subject::Daemon,
        }
    }
}

/// Runs a handler. A panic (logged by the panic hook) ends only the client or server of that event. `false` if the daemon
/// cannot continue.
fn run_guarded(daemon: &DaemonState, about: Subject, act: impl FnOnce()) -> bool {
    if catch_unwind(AssertUnwindSafe(act)).is_ok() {
        return true;
    }
    let recover = || match about {
        Subject::Client(id) => {
            if let Some(conn) = daemon.client(id) {
                ClientRef::new(daemon, &conn).leave("see the panic above");
            }
        }
        Subject::Server(slot) => daemon.at_server(slot, |server_io| server_io.give_up(daemon)),
        Subject::Daemon => {}
    };
    let recovered = catch_unwind(AssertUnwindSafe(recover));
    recovered.is_ok() && !matches!(about, Subject::Daemon)
}

fn continue_work(daemon: &DaemonState, runnable: Runnable) {
    match runnable {
        Runnable::Client(id) => with_client(daemon, id, |it| it.run()),
        Runnable::Server(slot) => daemon.at_server(slot, |it| it.run(daemon)),
        Runnable::Accept => accept::unpause(daemon),
        Runnable::Life => life::advance(daemon),
        Runnable::Upgrade => upgrade::run(daemon),
    }
}

fn on_event(daemon: &DaemonState, origin: Origin, event: Event) {
    match origin {
        Origin::Listener => accept::on_readable(daemon),
        Origin::Signals => life::on_signals(daemon),
        Origin::Children => life::on_children(daemon),
        Origin::OwnerExit => life::on_owner_exit(daemon),
        Origin::ClientSocket(id) => with_client(daemon, id, |it| it.on_event(event)),
        Origin::ClientInput(id) => with_client(daemon, id, |it| it.on_input()),
        Origin::ClientOutput(id) => with_client(daemon, id, |it| it.on_output()),
        Origin::ClientExit(id) => with_client(daemon, id, |it| it.on_exit()),
        Origin::ServerStdin(slot) => daemon.at_server(slot, |it| it.on_writable(daemon)),
        Origin::ServerStdout(slot) => daemon.at_server(slot, |it| it.on_stdout(daemon)),
        Origin::ServerStderr(slot) => daemon.at_server(slot, |it| it.on_stderr(daemon)),
        Origin::Reports(slot) => daemon.at_server(slot, |it| it.on_reports(daemon)),
        Origin::WardenExit(slot) => daemon.at_server(slot, |it| it.on_warden_exit(daemon)),
        Origin::CheckAnswer => upgrade::on_answer(daemon),
        Origin::CheckExit => upgrade::on_exit(daemon),
    }
}

/// Runs the timers that are due. A timer that a handler sets again fires in the next iteration, even if it is due at once.
fn run_due_timers(daemon: &DaemonState) -> bool {
    let now = Instant::now();
    let take = || daemon.timers.borrow_mut().take_due(now);
    let due: Vec<Timer> = std::iter::from_fn(take).collect();
    let mut due = due.into_iter();
    due.all(|timer| run_guarded(daemon, Subject::of_timer(timer), || on_timer(daemon, timer)))
}

fn on_timer(daemon: &DaemonState, timer: Timer) {
    match timer {
        Timer::Client(id) => with_client(daemon, id, |it| it.on_timer()),
        Timer::ClientSweep(id) => with_client(daemon, id, |it| it.on_sweep()),
        Timer::Slot(slot) => daemon.at_server(slot, |it| it.on_timer(daemon)),
        Timer::ServerThrottle(slot) => daemon.at_server(slot, |it| it.run(daemon)),
        Timer::ServerExit(slot) => daemon.at_server(slot, |it| it.on_exit_timer(daemon)),
        Timer::Accept => accept::unpause(daemon),
        Timer::Life => life::advance(daemon),
        Timer::OwnerSweep => life::on_owner_sweep(daemon),
        Timer::Upgrade => upgrade::on_timer(daemon),
        Timer::WriteState => state::write(daemon),
        Timer::ReturnMemory => buffer_pool::free_if_due(std::time::Instant::now()),
    }
}

fn with_client(daemon: &DaemonState, id: ClientId, act: impl FnOnce(ClientRef<'_>)) {
    if let Some(conn) = daemon.client(id) {
        act(ClientRef::new(daemon, &conn));
    }
}
