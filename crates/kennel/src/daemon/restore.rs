//! Continues as a newer build with the snapshot of the former program.

use std::fs::File;
use std::process::ExitCode;
use std::rc::Rc;

use kennel_sys::detach::{self, Kind};
use kennel_sys::handover;
use kennel_sys::io::Listener;
use kennel_sys::lock::{Lock, Record};

use super::args::DaemonArgs;
use super::client;
use super::daemon_state::DaemonState;
use super::life;
use super::log::Log;
use super::memory::MAX_ODD_LINE;
use super::run_queue::Runnable;
use super::server_io::ServerIo;
use super::snapshot::Snapshot;
use super::start::{Claimed, HandedOver, Prepared, arm_start_timeout, log_panics};
use crate::key_dir::{DAEMON_LOCK, KeyDir};
use crate::lines;
use crate::this_build;

/// Continues with the snapshot in the descriptor of this number. If that fails, the daemon is dead: its wardens end its
/// servers, and its clients elect another.
pub(super) fn run(state: i32) -> ExitCode {
    match prepare(state) {
        Ok(prepared) => prepared.serve(),
        Err(why) => crate::fail(&format!("the daemon cannot continue: {why}")),
    }
}

fn prepare(state: i32) -> Result<Prepared, Box<dyn std::error::Error>> {
    let snapshot = Snapshot::read(File::from(detach::adopt(state, Kind::File)?))?;
    handover::restore(&snapshot.system)?;
    let key_dir = KeyDir::ensure(&snapshot.key)?;
    let log = Log::open(key_dir.dir())?;
    let owner = snapshot.owner.as_ref().map(|owner| owner.parse());
    let args = DaemonArgs::restored(
        &snapshot.key,
        snapshot.policy,
        owner.transpose()?,
        snapshot.max_line,
    );
    lines::set_max_line(args.max_line);
    lines::set_max_odd_line(MAX_ODD_LINE);
    let alarm = arm_start_timeout(&log, args.alarm);
    log_panics(&log);
    let signals = life::catch_signals()?;
    handover::unblock_end_signals();
    let lock = File::from(detach::adopt(snapshot.lock, Kind::File)?);
    let lock = Lock::taken_over(key_dir.dir(), DAEMON_LOCK, lock);
    if lock.is_at_its_path() {
        // The record names the same process; only its version is old, which is not worth a failure.
        if let Ok(me) = Record::of_this_process("kennel daemon")
            && let Err(error) = lock.write_record(&me)
        {
            log.line(error);
        }
        if let Some(mut record) = key_dir.record() {
            record.version = this_build::version();
            record.build = this_build::text();
            record.lock = Some(lock.descriptor());
            if let Err(error) = key_dir.write_record(&record) {
                log.line(error);
            }
        }
    }
    log.line(format_args!(
        "daemon {} goes on as {}, before {}",
        snapshot.generation,
        this_build::text(),
        snapshot.build
    ));
    let listener = Listener::new(detach::adopt(snapshot.listener, Kind::Socket)?)?;
    let hold = key_dir.hold();
    if let Some(former) = snapshot.hold {
        drop(detach::adopt(former, Kind::Directory)?);
    }
    Ok(Prepared {
        args,
        handed: HandedOver::default(),
        hold,
        key_dir,
        log,
        claimed: Claimed {
            lock,
            listener,
            generation: snapshot.generation.clone(),
            signals,
        },
        alarm,
        snapshot: Some(snapshot),
    })
}

/// Restores all servers and clients.
pub(super) fn restore(daemon: &DaemonState, snapshot: Snapshot) -> std::io::Result<()> {
    // First: the others share its environment.
    *daemon.first_hello.borrow_mut() = snapshot.first_hello.map(Rc::new);
    let mut servers = Vec::new();
    for server_io in snapshot.slots {
        servers.push(Rc::new(ServerIo::restore(daemon, server_io)?));
    }
    let mut conns = Vec::new();
    for client in snapshot.clients {
        conns.push(client::ClientConn::restore(daemon, client)?);
    }
    // Before any client is served.
    for conn in &conns {
        daemon.client_added(conn);
        if let Some(hello) = conn.hello() {
            let may_offer = || client::admission::may_offer_program(daemon, conn);
            daemon
                .upgrade
                .offer_build(hello, &daemon.run_queue, may_offer);
        }
    }
    for server_io in &servers {
        daemon.serve_slot(server_io);
    }
    for conn in conns {
        daemon.run_queue.push(Runnable::Client(conn.id));
    }
    Ok(())
}
