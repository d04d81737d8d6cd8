//! Strangers with the pids of dead processes: only possible where pids can be chosen.

use std::io::Result;
use std::time::{Duration, Instant};

use kennel_sys::{Signal, events};

use crate::processes::{Member, Processes, Role};
use crate::steps::StoppedProcesses;
use crate::world::World;

/// Maximum number of bystanders.
const MANY: usize = 24;
/// Maximum time until a dead process is reaped, and the interval for checking that.
const MAX_REAP_TIME: Duration = Duration::from_secs(2);
const INTERVAL: Duration = Duration::from_millis(5);
/// Maximum number of attempts to get a pid: other processes start too.
const ATTEMPTS: usize = 5;

/// A stranger gets the pid of a dead process; then perhaps `kennel reap` runs.
pub(crate) fn reuse_pid(world: &mut World, how: u64) -> Result<String> {
    let Some(pid) = world.dead_pids.pop() else {
        return Ok("no process has died".to_owned());
    };
    if !is_possible(world) {
        return Ok("not here".to_owned());
    }
    let got = give(world, pid)?;
    let ends: &[&str] = [&["stop", "--all"][..], &["reap"], &[], &[]][how as usize % 4];
    if !ends.is_empty() {
        world.run(ends)?;
    }
    Ok(format!("{pid} is wanted, {got} was given; {ends:?}"))
}

/// A daemon and a warden of its are killed, and a stranger gets the pid of one of them before their records are read.
pub(crate) fn reuse_pid_after_kill(
    world: &mut World,
    processes: &Processes,
    target: u64,
) -> Result<String> {
    if !is_possible(world) {
        return Ok("not here".to_owned());
    }
    let wardens = processes.of(Role::Warden);
    let mut pairs: Vec<(&Member, &Member)> = wardens
        .filter_map(|warden| {
            let served = processes.find(warden.parent)?;
            (served.role == Role::Daemon).then_some((warden, served))
        })
        .collect();
    // Preferably a server that does not end by itself.
    if pairs
        .iter()
        .any(|(warden, _)| has_family(processes, warden))
    {
        pairs.retain(|(warden, _)| has_family(processes, warden));
    }
    let place = (target as usize).checked_rem(pairs.len());
    let Some((warden, served)) = place.map(|place| pairs[place]) else {
        return Ok("no process".to_owned());
    };
    let stopped_processes = StoppedProcesses::all(processes);
    for member in [served, warden] {
        world.signal(member, Signal::KILL);
    }
    // With the pid of the warden, the danger is a server's end; with that of the served process, that its server is not
    // ended.
    let pid = [warden, served][(target >> 32) as usize % 2].process.pid();
    let start = Instant::now();
    while exists(pid) && start.elapsed() < MAX_REAP_TIME {
        let _ = events::sleep(&[], &[], Some(INTERVAL));
    }
    let got = give(world, pid)?;
    drop(stopped_processes);
    let (warden, served) = (warden.process.pid(), served.process.pid());
    Ok(format!(
        "daemon {served}, warden {warden}; {pid} is wanted, {got} was given"
    ))
}

/// Whether it has detached descendants that ignore signals.
fn has_family(processes: &Processes, warden: &Member) -> bool {
    let mut servers = processes.of(Role::Server);
    servers.any(|server| {
        let mut above = processes.above(server);
        server.line.ends_with("family 1")
            && above.any(|above| above.process.pid() == warden.process.pid())
    })
}

fn is_possible(world: &World) -> bool {
    crate::has_own_namespaces() && world.bystanders.len() < MANY
}

/// Starts a bystander, with this pid if possible.
fn give(world: &mut World, pid: u32) -> Result<u32> {
    let mut got = 0;
    for _ in 0..ATTEMPTS {
        if exists(pid) {
            break;
        }
        std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string())?;
        got = world.start_bystander()?;
        if got == pid {
            break;
        }
    }
    Ok(got)
}

fn exists(pid: u32) -> bool {
    std::path::Path::new(&format!("/proc/{pid}")).exists()
}
