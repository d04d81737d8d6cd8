//! Detached services that a server starts and other processes use. Rule: a service lives while a process outside the
//! server's tree is connected to it, even after the server and its session have ended.

use std::io::{BufRead, BufReader, Result, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use kennel_sys::process::ProcessRef;

use crate::cast::{Cast, Member, Role};
use crate::world::World;

/// How long a service may take to say who it is; one that is stopped says nothing.
const PATIENCE: Duration = Duration::from_millis(500);

/// A service that this process, which is in no tree, uses.
#[derive(Debug)]
pub(crate) struct Used {
    pub(crate) service: ProcessRef,
    pub(crate) _connection: UnixStream,
    /// `kennel stop` ends it too.
    pub(crate) may_end: bool,
}

/// Begins a session whose server has a service, or connects to the service of one.
pub(crate) fn serve_or_use(world: &mut World, cast: &Cast, whom: u64, how: u64) -> Result<String> {
    let Some(service) = cast
        .pick(Role::Service, whom)
        .filter(|_| !how.is_multiple_of(3))
    else {
        return world.join_backed();
    };
    let pid = service.process.pid();
    if world.used.iter().any(|it| is_same(&it.service, service)) {
        return Ok(format!("service {pid} is used already"));
    }
    world.met.insert(service.process.identity().to_string());
    let place = service.line.split(' ').nth(2).unwrap_or_default();
    let Some(connection) = connect(place, pid) else {
        return Ok(format!("service {pid} says nothing"));
    };
    // Whether it is kept is decided before its tree ends. Was that under way already when we came?
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
        may_end: world.commands.iter().any(|command| command.stops),
    });
    Ok(format!("service {pid} is used"))
}

fn is_same(process: &ProcessRef, member: &Member) -> bool {
    process.identity().same_process(member.process.identity())
}

/// A connection to a service that has answered on it with its own pid.
fn connect(place: &str, pid: u32) -> Option<UnixStream> {
    let mut connection = UnixStream::connect(place).ok()?;
    connection.set_read_timeout(Some(PATIENCE)).ok()?;
    connection.write_all(b"who\n").ok()?;
    let mut told = String::new();
    BufReader::new(&connection).read_line(&mut told).ok()?;
    (told.trim() == pid.to_string()).then_some(connection)
}

/// Whether one that is there had a connection from here at some time, and may have been kept for that.
pub(crate) fn any_was_met(world: &World, cast: &Cast) -> bool {
    let is_met = |it: &Member| world.met.contains(&it.process.identity().to_string());
    cast.of(Role::Service).any(is_met)
}

/// Those that are gone though they are used.
pub(crate) fn lost(world: &World) -> Vec<String> {
    let used = world.used.iter();
    let lost = used.filter(|it| !it.may_end && !it.service.is_alive());
    lost.map(|it| format!("service {} is gone, though it is used", it.service.pid()))
        .collect()
}
