//! The other half of an upgrade: a program that was another one a moment ago goes on with what that one had.

use std::fs::File;
use std::os::fd::RawFd;
use std::os::unix::net::UnixListener as StdListener;
use std::process::ExitCode;
use std::rc::Rc;

use kennel_sys::detach::{self, Kind};
use kennel_sys::handover;
use kennel_sys::lock::{Lock, Record};
use kennel_sys::passing;

use super::carried::Carried;
use super::daemon_state::DaemonState;
use super::life;
use super::log::Log;
use super::memory::MAX_ODD_LINE;
use super::orders::Orders;
use super::server_io::ServerIo;
use super::start::{Handed, Made, Prepared, armed, tell_panics};
use super::{client, tasks};
use crate::meeting::{DAEMON_LOCK, Meeting};
use crate::shim::lines;
use crate::this_build;

/// Goes on with the state in the descriptor of this number. What fails here is a daemon that died: its wardens end its
/// servers, and its clients elect another.
pub(super) fn run(state: RawFd) -> ExitCode {
    match prepare(state) {
        Ok(prepared) => prepared.serve(),
        Err(why) => crate::fail(&format!("the daemon cannot go on: {why}")),
    }
}

fn prepare(state: RawFd) -> Result<Prepared, Box<dyn std::error::Error>> {
    let carried = Carried::read(File::from(detach::adopt(state, Kind::File)?))?;
    handover::resume(&carried.system)?;
    let meeting = Meeting::ensure(&carried.key)?;
    let log = Log::open(meeting.dir())?;
    let owner = carried.owner.as_ref().map(|owner| owner.parse());
    let orders = Orders::resumed(
        &carried.key,
        carried.policy,
        owner.transpose()?,
        carried.max_line,
    );
    lines::set_max_line(orders.max_line);
    lines::set_max_odd_line(MAX_ODD_LINE);
    let alarm = armed(&log, orders.alarm);
    tell_panics(&log);
    let signals = life::catch_signals()?;
    handover::hear_signals();
    let lock = File::from(detach::adopt(carried.lock, Kind::File)?);
    let lock = Lock::taken_over(meeting.dir(), DAEMON_LOCK, lock);
    if lock.is_at_its_path() {
        // The same process: what they say is true but for the version, and not worth a daemon.
        if let Ok(me) = Record::of_me("kennel daemon")
            && let Err(error) = lock.write_record(&me)
        {
            log.line(error);
        }
        if let Some(mut record) = meeting.record() {
            record.version = this_build::version();
            record.build = this_build::text();
            record.lock = Some(lock.descriptor());
            if let Err(error) = meeting.write_record(&record) {
                log.line(error);
            }
        }
    }
    log.line(format_args!(
        "daemon {} goes on as {}, before {}",
        carried.generation,
        this_build::text(),
        carried.build
    ));
    let listener = StdListener::from(detach::adopt(carried.listener, Kind::Socket)?);
    // An earlier build may not have.
    passing::refuse(&listener);
    let hold = meeting.hold();
    if let Some(former) = carried.hold {
        drop(detach::adopt(former, Kind::Directory)?);
    }
    Ok(Prepared {
        orders,
        handed: Handed::default(),
        hold,
        meeting,
        log,
        made: Made {
            lock,
            listener,
            generation: carried.generation.clone(),
            signals,
        },
        alarm,
        carried: Some(carried),
    })
}

/// Everybody is here as before, and served on.
pub(super) fn move_in(daemon: &Rc<DaemonState>, carried: Carried) -> std::io::Result<()> {
    // First: the others share its environment.
    *daemon.first_hello.borrow_mut() = carried.first_hello.map(Rc::new);
    let mut servers = Vec::new();
    for server_io in carried.stations {
        servers.push(Rc::new(ServerIo::resume(daemon, server_io)?));
    }
    let mut links = Vec::new();
    for client in carried.clients {
        let id = client.id;
        links.push((id, client::ClientConn::resume(daemon, client)?));
    }
    // Nobody is served before all are here.
    for (id, link) in &links {
        daemon.has(*id, link);
        if let Some(hello) = link.hello() {
            let may_lend = || client::admission::may_lend_its_program(daemon, link);
            daemon.upgrade.consider(hello, may_lend);
        }
    }
    for server_io in &servers {
        daemon.attend(daemon, server_io);
    }
    for (id, link) in links {
        tasks::spawn(client::serve(Rc::clone(daemon), id, link));
    }
    Ok(())
}
