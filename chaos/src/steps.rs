//! How each step is done. Returns whom it met, for the trace.

use std::io::Result;
use std::time::Duration;

use kennel_sys::{Signal, events};
use kennel_testkit::Rng;

use crate::cast::{Cast, Member, Role};
use crate::install;
use crate::intruders;
use crate::jobs;
use crate::plan::{Act, Step};
use crate::services;
use crate::strangers;
use crate::world::World;

/// How many guarded servers.
const FEW: usize = 6;
/// How long the world sleeps at most: longer than any patience that Kennel has with one who is stopped.
const NAP: Duration = Duration::from_secs(4);

pub(crate) fn perform(world: &mut World, step: Step) -> Result<String> {
    let Step { act, whom, how, .. } = step;
    let cast = world.look();
    let mut chance = Rng::of(how, "step");
    let nobody = || Ok("nobody is there".to_owned());
    Ok(match act {
        Act::Join => match open(world).len() < world.most {
            true => world.join(how)?,
            false => "there are enough".to_owned(),
        },
        Act::Crowd => {
            // All of one kind, so that they meet.
            let all = world.most.min(crowd(how)).saturating_sub(open(world).len());
            for _ in 0..all {
                world.join(how & !0xffff_ffff | 1 | (how & 0xff00) | (chance.below(3) << 16))?;
            }
            format!("{all} more")
        }
        Act::Leave => match pick(&open(world), whom) {
            Some(number) => {
                world.apps[number].leave();
                format!("app {number}")
            }
            None => return nobody(),
        },
        Act::Ask => ask(world, 1 + chance.below(4), 200, &mut chance),
        Act::Hurry => ask(world, 10 + chance.below(30), 2000, &mut chance),
        Act::Guard => match world.guards.len() < FEW {
            true => world.guard()?,
            false => "there are enough".to_owned(),
        },
        Act::Visit => {
            let place = (whom as usize).checked_rem(world.guards.len());
            match place.map(|place| &mut world.guards[place]) {
                Some(guard) => format!("guard {}: {}", guard.pid(), guard.visit()),
                None => return nobody(),
            }
        }
        Act::Part => {
            let place = (whom as usize).checked_rem(world.guards.len());
            match place.map(|place| &mut world.guards[place]) {
                Some(guard) => format!("guard {}: {:?}", guard.pid(), guard.visitors.pop()),
                None => return nobody(),
            }
        }
        Act::Signal(role, signal) => match cast.pick(role, whom) {
            Some(member) => world.signal(member, signal),
            None => return nobody(),
        },
        Act::Both(one, others) => both(world, &cast, one, others, whom),
        Act::Massacre => {
            let told: Vec<String> = cast
                .kennel()
                .map(|it| world.signal(it, Signal::KILL))
                .collect();
            told.join(", ")
        }
        Act::Thaw => thaw(&cast),
        Act::Sleep => sleep(&cast, &mut chance),
        Act::Impersonate => strangers::impersonate(world, how)?,
        Act::Haunt => strangers::haunt(world, &cast, whom)?,
        Act::Intrude => intruders::intrude(world, whom, how)?,
        Act::Service => services::serve_or_use(world, &cast, whom, how)?,
        Act::Jobs => jobs::start_and_reap(world, how)?,
        Act::Command(words) => {
            world.run(words)?;
            String::new()
        }
        Act::RemoveDir => {
            world.remove_dir();
            String::new()
        }
        Act::LoosenDir => world.loosen_dir(how),
        Act::MendDir => {
            world.mend_dir();
            String::new()
        }
        Act::FillDisk => world.fill_disk()?.to_owned(),
        Act::FreeDisk => {
            world.free_disk();
            String::new()
        }
        Act::NoDescriptors(role) => match cast.pick(role, whom) {
            Some(member) => world.limit(member, how % 6),
            None => return nobody(),
        },
        Act::Descriptors => {
            world.lift_limits();
            String::new()
        }
        Act::Upgrade => {
            world.builds += 1;
            install::newer(&world.stash.path("kennel"), world.builds)?;
            format!("build {}", world.builds)
        }
        Act::Reinstall => {
            install::again(&world.stash.path("kennel"))?;
            String::new()
        }
        Act::ChangeServer => {
            let program = ["tk-shared", "tk-server"][(how % 2) as usize];
            install::again(&world.stash.path(program))?;
            program.to_owned()
        }
    })
}

/// Mostly few, seldom all that there may be.
fn crowd(how: u64) -> usize {
    [10, 10, 20, 20, 30, 40, 60, 200][(how >> 40) as usize % 8]
}

fn open(world: &World) -> Vec<usize> {
    let open = world.apps.iter().filter(|app| app.is_open());
    open.map(|app| app.number).collect()
}

fn pick(those: &[usize], whom: u64) -> Option<usize> {
    let place = (whom as usize).checked_rem(those.len())?;
    Some(those[place])
}

fn ask(world: &mut World, times: u64, longest: u64, chance: &mut Rng) -> String {
    let open = open(world);
    let mut told = Vec::new();
    for _ in 0..times {
        // As many numbers are drawn whether somebody is there or not.
        let (whom, mut how) = (chance.next_u64(), Rng::of(chance.next_u64(), "ask"));
        let Some(number) = pick(&open, whom) else {
            continue;
        };
        let asked = world.apps[number].ask(&mut how, longest);
        told.push(format!("{number} {}", asked.unwrap_or("waits")));
    }
    told.join(", ")
}

fn both(world: &mut World, cast: &Cast, one: Role, others: Role, whom: u64) -> String {
    let Some(first) = cast.pick(one, whom) else {
        return "nobody is there".to_owned();
    };
    let mut told = vec![world.signal(first, Signal::KILL)];
    if others == Role::Shim {
        let shim = cast.pick(others, whom);
        told.extend(shim.map(|shim| world.signal(shim, Signal::KILL)));
    } else {
        let below = cast.of(others).filter(|member| {
            cast.above(member)
                .any(|above| above.process.pid() == first.process.pid())
        });
        for member in below {
            told.push(world.signal(member, Signal::KILL));
        }
    }
    told.join(", ")
}

pub(crate) fn thaw(cast: &Cast) -> String {
    let stopped = cast.members.iter().filter(|member| member.stopped);
    let told = stopped.map(|member| {
        let _ = member.process.signal(Signal::CONT);
        format!("{:?} {}", member.role, member.process.pid())
    });
    told.collect::<Vec<_>>().join(", ")
}

fn sleep(cast: &Cast, chance: &mut Rng) -> String {
    let nap = chance.duration_below(NAP);
    let asleep = Asleep::all(cast);
    let _ = events::sleep(&[], &[], Some(nap));
    format!("{} for {nap:?}", asleep.0.len())
}

/// Everyone who was awake, stopped for as long as this lives.
pub(crate) struct Asleep<'a>(Vec<&'a Member>);

impl<'a> Asleep<'a> {
    pub(crate) fn all(cast: &'a Cast) -> Asleep<'a> {
        let awake = cast.members.iter().filter(|member| !member.stopped);
        let awake = awake.filter(|member| member.role != Role::Bystander);
        let asleep = Asleep(awake.collect());
        asleep.tell(Signal::STOP);
        asleep
    }

    fn tell(&self, signal: Signal) {
        for member in &self.0 {
            let _ = member.process.signal(signal);
        }
    }
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        self.tell(Signal::CONT);
    }
}
