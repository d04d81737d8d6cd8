//! What happens, in which order: drawn from the seed alone. Whom a step meets depends on who is there by then, but
//! no step draws more or fewer numbers for it: the same seed is the same schedule.

use std::time::Duration;

use kennel_sys::Signal;
use kennel_testkit::Rng;

use crate::cast::Role;

/// The longest pause before a step: from the middle of what the last one began to well after it.
const PAUSE: Duration = Duration::from_millis(500);

/// One thing that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    /// An app begins a session.
    Join,
    /// Many do, at once.
    Crowd,
    /// An app closes its side.
    Leave,
    /// Apps ask for something.
    Ask,
    /// Many ask at once, and some of it takes long.
    Hurry,
    /// An owner starts a guarded server.
    Guard,
    /// Somebody connects to one.
    Visit,
    /// A visitor goes.
    Part,
    /// One of these gets a signal.
    Signal(Role, Signal),
    /// One of the first and all of the second die at once.
    Both(Role, Role),
    /// All of Kennel dies at once.
    Massacre,
    /// Whoever is stopped goes on.
    Thaw,
    /// The whole world is stopped for a while, as by a laptop's lid: every clock has jumped when it goes on.
    Sleep,
    /// Somebody gets the pid of one who has died.
    Impersonate,
    /// A daemon and its warden die, and somebody has the pid of one of them before anyone can look.
    Haunt,
    /// A confined process says hello to a daemon, with a command and a newer build of its own.
    Intrude,
    /// An app begins a session whose server starts a detached service, or somebody outside begins to use such a service.
    Service,
    /// Background jobs are started, orphans among them, and `kennel reap --foreign` runs.
    Jobs,
    /// A command of Kennel's.
    Command(&'static [&'static str]),
    /// The runtime directory is removed under everyone.
    RemoveDir,
    /// Its mode becomes one that Kennel refuses.
    LoosenDir,
    /// It is as it was.
    MendDir,
    FillDisk,
    FreeDisk,
    /// One of these can open no more files.
    NoDescriptors(Role),
    /// It can again.
    Descriptors,
    /// A newer Kennel is installed.
    Upgrade,
    /// The same build is installed once more.
    Reinstall,
    /// The server's program changes.
    ChangeServer,
}

/// How likely each is.
const TABLE: &[(u64, Act)] = &[
    (200, Act::Join),
    (18, Act::Crowd),
    (30, Act::Leave),
    (240, Act::Ask),
    (60, Act::Hurry),
    (12, Act::Guard),
    (12, Act::Visit),
    (8, Act::Part),
    (40, Act::Signal(Role::Server, Signal::KILL)),
    (12, Act::Signal(Role::Server, Signal::TERM)),
    (12, Act::Signal(Role::Server, Signal::STOP)),
    (25, Act::Signal(Role::Daemon, Signal::KILL)),
    (8, Act::Signal(Role::Daemon, Signal::TERM)),
    (12, Act::Signal(Role::Daemon, Signal::STOP)),
    (20, Act::Signal(Role::Warden, Signal::KILL)),
    (6, Act::Signal(Role::Warden, Signal::TERM)),
    (6, Act::Signal(Role::Warden, Signal::STOP)),
    (20, Act::Signal(Role::Shim, Signal::KILL)),
    (8, Act::Signal(Role::Shim, Signal::TERM)),
    (8, Act::Signal(Role::Shim, Signal::STOP)),
    (30, Act::Signal(Role::App, Signal::KILL)),
    (6, Act::Signal(Role::App, Signal::STOP)),
    (8, Act::Signal(Role::Owner, Signal::KILL)),
    (4, Act::Signal(Role::Guard, Signal::KILL)),
    (4, Act::Signal(Role::Guard, Signal::TERM)),
    (8, Act::Both(Role::Daemon, Role::Warden)),
    (8, Act::Both(Role::Daemon, Role::Server)),
    (6, Act::Both(Role::Daemon, Role::Shim)),
    (6, Act::Both(Role::Shim, Role::Warden)),
    (3, Act::Massacre),
    (50, Act::Thaw),
    (6, Act::Sleep),
    (16, Act::Impersonate),
    (10, Act::Haunt),
    (14, Act::Intrude),
    (24, Act::Service),
    (16, Act::Jobs),
    (14, Act::Command(&["ps", "--json"])),
    (4, Act::Command(&["doctor", "--json"])),
    (4, Act::Command(&["logs", "tk-shared"])),
    (4, Act::Command(&["reap"])),
    (5, Act::Command(&["stop", "--all"])),
    (5, Act::Command(&["stop", "tk-shared"])),
    (5, Act::Command(&["purge", "--yes"])),
    (6, Act::RemoveDir),
    (6, Act::LoosenDir),
    (16, Act::MendDir),
    (8, Act::FillDisk),
    (20, Act::FreeDisk),
    (8, Act::NoDescriptors(Role::Daemon)),
    (4, Act::NoDescriptors(Role::Shim)),
    (16, Act::Descriptors),
    (6, Act::Upgrade),
    (6, Act::Reinstall),
    (6, Act::ChangeServer),
];

/// One step: what, and three numbers that decide about whom, how and when.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    pub(crate) act: Act,
    pub(crate) whom: u64,
    pub(crate) how: u64,
    pub(crate) pause: Duration,
}

/// The first steps of every world: somebody has to be there.
const FIRST: u32 = 5;

/// What Kennel has to do without, see `kennel_sys::kernel`.
const KERNELS: [&str; 6] = ["", "", "", "pidfs", "peer-pidfd", "pidfd"];

/// The steps of one world.
#[derive(Debug)]
pub(crate) struct Plan {
    chance: Rng,
    drawn: u32,
    /// Features of the kernel that are switched off.
    pub(crate) off: &'static str,
}

impl Plan {
    pub(crate) fn new(seed: u64, world: u32) -> Plan {
        let mut chance = Rng::of(seed, &format!("world {world}"));
        let off = KERNELS[chance.below(KERNELS.len() as u64) as usize];
        Plan {
            chance,
            drawn: 0,
            off,
        }
    }

    pub(crate) fn next(&mut self) -> Step {
        let chance = &mut self.chance;
        self.drawn += 1;
        let all: u64 = TABLE.iter().map(|(weight, _)| weight).sum();
        let mut drawn = chance.below(all);
        let act = TABLE.iter().find(|(weight, _)| {
            let found = drawn < *weight;
            drawn = drawn.saturating_sub(*weight);
            found
        });
        let (_, act) = act.expect("the weights add up");
        let act = if self.drawn <= FIRST { &Act::Join } else { act };
        Step {
            act: *act,
            whom: chance.next_u64(),
            how: chance.next_u64(),
            // Half of them come right behind the one before.
            pause: match chance.below(2) {
                0 => chance.duration_below(PAUSE / 50),
                _ => chance.duration_below(PAUSE),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_schedule_and_every_world_has_its_own() {
        let steps = |seed, world| {
            let mut plan = Plan::new(seed, world);
            let steps = (0..50).map(|_| format!("{:?}", plan.next()));
            steps.collect::<Vec<_>>()
        };
        assert_eq!(steps(7, 0), steps(7, 0));
        assert_ne!(steps(7, 0), steps(8, 0));
        assert_ne!(steps(7, 0), steps(7, 1));
    }

    #[test]
    fn everything_in_the_table_happens() {
        let mut plan = Plan::new(1, 0);
        let drawn: Vec<Act> = (0..20_000).map(|_| plan.next().act).collect();
        for (_, act) in TABLE {
            assert!(drawn.contains(act), "{act:?}");
        }
    }
}
