//! Performs each step. Returns the affected processes, for the trace.

use std::io::Result;
use std::time::Duration;

use kennel_sys::{Signal, events};
use kennel_testkit::Rng;

use crate::install;
use crate::intruders;
use crate::jobs;
use crate::plan::{Act, Step};
use crate::processes::{Member, Processes, Role};
use crate::services;
use crate::strangers;
use crate::world::World;

/// Maximum number of guarded servers.
const MAX_GUARDS: usize = 6;
/// Maximum time for which the world is stopped: longer than Kennel waits for a stopped process.
const MAX_STOP: Duration = Duration::from_secs(4);

pub(crate) fn perform(world: &mut World, step: Step) -> Result<String> {
    let Step {
        act, target, how, ..
    } = step;
    let processes = world.look();
    let mut chance = Rng::of(how, "step");
    let no_process = || Ok("no process".to_owned());
    Ok(match act {
        Act::StartSession => match open(world).len() < world.most {
            true => world.join(how)?,
            false => "limit reached".to_owned(),
        },
        Act::StartManySessions => {
            // All of one kind, so that they share a daemon.
            let all = world.most.min(crowd(how)).saturating_sub(open(world).len());
            for _ in 0..all {
                world.join(how & !0xffff_ffff | 1 | (how & 0xff00) | (chance.below(3) << 16))?;
            }
            format!("{all} more")
        }
        Act::CloseSession => match pick(&open(world), target) {
            Some(number) => {
                world.apps[number].leave();
                format!("app {number}")
            }
            None => return no_process(),
        },
        Act::SendRequests => ask(world, 1 + chance.below(4), 200, &mut chance),
        Act::SendManyRequests => ask(world, 10 + chance.below(30), 2000, &mut chance),
        Act::Guard => match world.guards.len() < MAX_GUARDS {
            true => world.guard()?,
            false => "limit reached".to_owned(),
        },
        Act::Connect => {
            let place = (target as usize).checked_rem(world.guards.len());
            match place.map(|place| &mut world.guards[place]) {
                Some(guard) => format!("guard {}: {}", guard.pid(), guard.visit()),
                None => return no_process(),
            }
        }
        Act::Disconnect => {
            let place = (target as usize).checked_rem(world.guards.len());
            match place.map(|place| &mut world.guards[place]) {
                Some(guard) => format!("guard {}: {:?}", guard.pid(), guard.visitors.pop()),
                None => return no_process(),
            }
        }
        Act::Signal(role, signal) => match processes.pick(role, target) {
            Some(member) => world.signal(member, signal),
            None => return no_process(),
        },
        Act::KillTogether(one, others) => both(world, &processes, one, others, target),
        Act::KillAll => kill_all(world, &processes),
        Act::ContinueAll => continue_all(&processes),
        Act::StopWorld => sleep(&processes, &mut chance),
        Act::ReusePid => strangers::reuse_pid(world, how)?,
        Act::ReusePidAfterKill => strangers::reuse_pid_after_kill(world, &processes, target)?,
        Act::ConnectConfined => intruders::connect_confined(world, target, how)?,
        Act::Service => services::start_or_use(world, &processes, target, how)?,
        Act::Jobs => {
            // A pidfd of an orphan would spare it.
            drop(processes);
            jobs::start_and_reap(world, how)?
        }
        Act::Command(words) => run(world, words)?,
        Act::RemoveDir => silently(world, World::remove_dir),
        Act::LoosenDir => world.loosen_dir(how),
        Act::RestoreDir => silently(world, World::restore_dir),
        Act::FillDisk => world.fill_disk()?.to_owned(),
        Act::FreeDisk => silently(world, World::free_disk),
        Act::NoDescriptors(role) => match processes.pick(role, target) {
            Some(member) => world.limit(member, how % 6),
            None => return no_process(),
        },
        Act::Descriptors => silently(world, World::lift_limits),
        Act::Upgrade => upgrade(world)?,
        Act::Reinstall => reinstall(world)?,
        Act::ChangeServer => change_server(world, how)?,
    })
}

/// Performs an action that needs no note in the trace.
fn silently(world: &mut World, action: impl FnOnce(&mut World)) -> String {
    action(world);
    String::new()
}

fn run(world: &mut World, words: &[&str]) -> Result<String> {
    world.run(words)?;
    Ok(String::new())
}

fn reinstall(world: &World) -> Result<String> {
    install::again(&world.stash.path("kennel"))?;
    Ok(String::new())
}

fn kill_all(world: &mut World, processes: &Processes) -> String {
    let killed = processes.kennel().map(|it| world.signal(it, Signal::KILL));
    killed.collect::<Vec<String>>().join(", ")
}

fn upgrade(world: &mut World) -> Result<String> {
    world.builds += 1;
    install::newer(&world.stash.path("kennel"), world.builds)?;
    Ok(format!("build {}", world.builds))
}

fn change_server(world: &World, how: u64) -> Result<String> {
    let program = ["tk-shared", "tk-server"][(how % 2) as usize];
    install::again(&world.stash.path(program))?;
    Ok(program.to_owned())
}

/// Usually few apps, rarely the maximum.
fn crowd(how: u64) -> usize {
    [10, 10, 20, 20, 30, 40, 60, 200][(how >> 40) as usize % 8]
}

fn open(world: &World) -> Vec<usize> {
    let open = world.apps.iter().filter(|app| app.is_open());
    open.map(|app| app.number).collect()
}

fn pick(those: &[usize], target: u64) -> Option<usize> {
    let place = (target as usize).checked_rem(those.len())?;
    Some(those[place])
}

fn ask(world: &mut World, times: u64, longest: u64, chance: &mut Rng) -> String {
    let open = open(world);
    let mut output = Vec::new();
    for _ in 0..times {
        // The same number of random values is drawn whether or not there is an app.
        let (target, mut how) = (chance.next_u64(), Rng::of(chance.next_u64(), "ask"));
        let Some(number) = pick(&open, target) else {
            continue;
        };
        let asked = world.apps[number].ask(&mut how, longest);
        output.push(format!("{number} {}", asked.unwrap_or("waits")));
    }
    output.join(", ")
}

fn both(world: &mut World, processes: &Processes, one: Role, others: Role, target: u64) -> String {
    let Some(first) = processes.pick(one, target) else {
        return "no process".to_owned();
    };
    let mut output = vec![world.signal(first, Signal::KILL)];
    if others == Role::Shim {
        let shim = processes.pick(others, target);
        output.extend(shim.map(|shim| world.signal(shim, Signal::KILL)));
    } else {
        let below = processes.of(others).filter(|member| {
            processes
                .above(member)
                .any(|above| above.process.pid() == first.process.pid())
        });
        for member in below {
            output.push(world.signal(member, Signal::KILL));
        }
    }
    output.join(", ")
}

pub(crate) fn continue_all(processes: &Processes) -> String {
    let stopped = processes.members.iter().filter(|member| member.stopped);
    let output = stopped.map(|member| {
        let _ = member.process.signal(Signal::CONT);
        format!("{:?} {}", member.role, member.process.pid())
    });
    output.collect::<Vec<_>>().join(", ")
}

fn sleep(processes: &Processes, chance: &mut Rng) -> String {
    let time = chance.duration_below(MAX_STOP);
    let stopped_processes = StoppedProcesses::all(processes);
    let _ = events::sleep(&[], &[], Some(time));
    format!("{} for {time:?}", stopped_processes.0.len())
}

/// All running processes, stopped while this value lives.
pub(crate) struct StoppedProcesses<'a>(Vec<&'a Member>);

impl<'a> StoppedProcesses<'a> {
    pub(crate) fn all(processes: &'a Processes) -> StoppedProcesses<'a> {
        let awake = processes.members.iter().filter(|member| !member.stopped);
        let awake = awake.filter(|member| member.role != Role::Bystander);
        let stopped_processes = StoppedProcesses(awake.collect());
        stopped_processes.tell(Signal::STOP);
        stopped_processes
    }

    fn tell(&self, signal: Signal) {
        for member in &self.0 {
            let _ = member.process.signal(signal);
        }
    }
}

impl Drop for StoppedProcesses<'_> {
    fn drop(&mut self) {
        self.tell(Signal::CONT);
    }
}
