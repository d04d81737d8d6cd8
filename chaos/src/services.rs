//! Detached services that a server starts and other processes use. Rule: a service lives while a process outside the
//! server's tree is connected to it, even after the server and its session have ended.

use std::io::{BufRead, BufReader, Result, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use kennel_sys::process::ProcessRef;

use crate::processes::{Member, Processes, Role};
use crate::world::World;

/// Maximum time for a service to answer. A stopped one does not answer.
const TIME_LIMIT: Duration = Duration::from_millis(500);

/// A service that this process, which is in no tree, uses.
#[derive(Debug)]
pub(crate) struct Used {
    pub(crate) service: ProcessRef,
    pub(crate) _connection: UnixStream,
    /// `kennel stop` ends it too.
    pub(crate) may_end: bool,
}

/// Starts a session whose server has a service, or connects to the service of one.
pub(crate) fn start_or_use(
    world: &mut World,
    processes: &Processes,
    target: u64,
    how: u64,
) -> Result<String> {
    let Some(service) = processes
        .pick(Role::Service, target)
        .filter(|_| !how.is_multiple_of(3))
    else {
        return world.start_backed_session();
    };
    let pid = service.process.pid();
    if world.used.iter().any(|it| is_same(&it.service, service)) {
        return Ok(format!("service {pid} is used already"));
    }
    world
        .used_before
        .insert(service.process.identity().to_string());
    let place = service.line.split(' ').nth(2).unwrap_or_default();
    let Some(connection) = connect(place, pid) else {
        return Ok(format!("service {pid} says nothing"));
    };
    // It is decided before its tree ends whether it is kept. Check whether that was already the case when we connected.
    let now = world.look();
    let Some(service) = now.find(pid).filter(|it| is_same(&it.process, service)) else {
        return Ok(format!("service {pid} is gone"));
    };
    if !world.tree_is_whole(&now, service) {
        return Ok(format!("service {pid} is of a tree that may be ending"));
    }
    world.used.push(Used {
        service: ProcessRef::open(pid)?,
        _connection: connection,
        may_end: world.is_stopping(),
    });
    Ok(format!("service {pid} is used"))
}

fn is_same(process: &ProcessRef, member: &Member) -> bool {
    process.identity().same_process(member.process.identity())
}

/// A connection to a service that has answered with its pid.
fn connect(place: &str, pid: u32) -> Option<UnixStream> {
    let mut connection = UnixStream::connect(place).ok()?;
    connection.set_read_timeout(Some(TIME_LIMIT)).ok()?;
    connection.write_all(b"who\n").ok()?;
    let mut output = String::new();
    BufReader::new(&connection).read_line(&mut output).ok()?;
    (output.trim() == pid.to_string()).then_some(connection)
}

/// Whether a living service had a connection from here at some time, and may have been kept for that.
pub(crate) fn any_was_used(world: &World, processes: &Processes) -> bool {
    let is_met = |it: &Member| {
        world
            .used_before
            .contains(&it.process.identity().to_string())
    };
    processes.of(Role::Service).any(is_met)
}

/// Services that are gone though they are used.
pub(crate) fn lost_services(world: &World) -> Vec<String> {
    let used = world.used.iter();
    let lost_services = used.filter(|it| !it.may_end && !it.service.is_alive());
    lost_services
        .map(|it| format!("service {} is gone, though it is used", it.service.pid()))
        .collect()
}
