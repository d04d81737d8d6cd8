//! Strangers with the pids of those who died: only where pids can be chosen.

use std::io::Result;
use std::time::{Duration, Instant};

use kennel_sys::{Signal, events};

use crate::cast::{Cast, Member, Role};
use crate::steps::Asleep;
use crate::world::World;

/// How many bystanders there may be.
const MANY: usize = 24;
/// How long a dead process may keep its pid, and how often that is looked at.
const REAPED: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(5);
/// How often a pid is wanted: others start processes too.
const TRIES: usize = 5;

/// A stranger gets the pid of one who died; and then perhaps those are ended who are on record.
pub(crate) fn impersonate(world: &mut World, how: u64) -> Result<String> {
    let Some(pid) = world.graves.pop() else {
        return Ok("nobody has died".to_owned());
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

/// A daemon and a warden of its die, and a stranger has the pid of one of them before anybody reads their records.
pub(crate) fn haunt(world: &mut World, cast: &Cast, whom: u64) -> Result<String> {
    if !is_possible(world) {
        return Ok("not here".to_owned());
    }
    let wardens = cast.of(Role::Warden);
    let mut pairs: Vec<(&Member, &Member)> = wardens
        .filter_map(|warden| {
            let served = cast.find(warden.parent)?;
            (served.role == Role::Daemon).then_some((warden, served))
        })
        .collect();
    // Rather those whose server does not go by itself.
    if pairs.iter().any(|(warden, _)| has_family(cast, warden)) {
        pairs.retain(|(warden, _)| has_family(cast, warden));
    }
    let place = (whom as usize).checked_rem(pairs.len());
    let Some((warden, served)) = place.map(|place| pairs[place]) else {
        return Ok("nobody is there".to_owned());
    };
    let asleep = Asleep::all(cast);
    for member in [served, warden] {
        world.signal(member, Signal::KILL);
    }
    // Of the warden's a server's end is the danger, of the served one's that nobody ends its server.
    let pid = [warden, served][(whom >> 32) as usize % 2].process.pid();
    let start = Instant::now();
    while exists(pid) && start.elapsed() < REAPED {
        let _ = events::sleep(&[], &[], Some(LOOK));
    }
    let got = give(world, pid)?;
    drop(asleep);
    let (warden, served) = (warden.process.pid(), served.process.pid());
    Ok(format!(
        "daemon {served}, warden {warden}; {pid} is wanted, {got} was given"
    ))
}

/// Whether detached processes are below it that ignore whoever asks them to go.
fn has_family(cast: &Cast, warden: &Member) -> bool {
    let mut servers = cast.of(Role::Server);
    servers.any(|server| {
        let mut above = cast.above(server);
        server.line.ends_with("family 1")
            && above.any(|above| above.process.pid() == warden.process.pid())
    })
}

fn is_possible(world: &World) -> bool {
    crate::is_apart() && world.bystanders.len() < MANY
}

/// A new bystander, with this pid if it can be had.
fn give(world: &mut World, pid: u32) -> Result<u32> {
    let mut got = 0;
    for _ in 0..TRIES {
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
