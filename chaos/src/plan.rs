//! The schedule: drawn from the seed alone. Which process a step affects depends on the processes that exist then, but each
//! step draws the same number of random values: the same seed is the same schedule.

use std::time::Duration;

use kennel_sys::Signal;
use kennel_testkit::Rng;

use crate::processes::Role;

/// Maximum pause before a step: from the middle of what the last step started to well after it.
const PAUSE: Duration = Duration::from_millis(500);

/// The action of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    /// An app starts a session.
    StartSession,
    /// Many apps start a session, at once.
    StartManySessions,
    /// An app closes its side.
    CloseSession,
    /// Apps send requests.
    SendRequests,
    /// Apps send many requests at once, some of which take long.
    SendManyRequests,
    /// An owner starts a guarded server.
    Guard,
    /// A visitor connects to a guarded server.
    Connect,
    /// A visitor disconnects.
    Disconnect,
    /// A process with this role gets a signal.
    Signal(Role, Signal),
    /// A process with the first role and all its descendants with the second are killed at once.
    KillTogether(Role, Role),
    /// All processes of Kennel are killed at once.
    KillAll,
    /// All stopped processes are continued.
    ContinueAll,
    /// The whole world is stopped for some time, as by closing a laptop: every clock has jumped when it continues.
    StopWorld,
    /// A stranger gets the pid of a dead process.
    ReusePid,
    /// A daemon and its warden are killed, and a stranger gets the pid of one of them before their records are read.
    ReusePidAfterKill,
    /// A confined process says hello to a daemon, with its own command and a newer build.
    ConnectConfined,
    /// An app starts a session whose server starts a detached service, or a process outside connects to such a service.
    Service,
    /// Background jobs are started, orphans among them, and `kennel reap --foreign` runs.
    Jobs,
    /// A command of Kennel runs.
    Command(&'static [&'static str]),
    /// The runtime directory is removed while it is in use.
    RemoveDir,
    /// The runtime directory gets a mode that Kennel refuses.
    LoosenDir,
    /// The runtime directory gets its mode back.
    RestoreDir,
    FillDisk,
    FreeDisk,
    /// A process with this role cannot open more files.
    NoDescriptors(Role),
    /// All processes can open files again.
    Descriptors,
    /// A newer Kennel is installed.
    Upgrade,
    /// The same build is installed again.
    Reinstall,
    /// The server's program changes.
    ChangeServer,
}

/// The weight of each action.
const TABLE: &[(u64, Act)] = &[
    (200, Act::StartSession),
    (18, Act::StartManySessions),
    (30, Act::CloseSession),
    (240, Act::SendRequests),
    (60, Act::SendManyRequests),
    (12, Act::Guard),
    (12, Act::Connect),
    (8, Act::Disconnect),
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
    (8, Act::KillTogether(Role::Daemon, Role::Warden)),
    (8, Act::KillTogether(Role::Daemon, Role::Server)),
    (6, Act::KillTogether(Role::Daemon, Role::Shim)),
    (6, Act::KillTogether(Role::Shim, Role::Warden)),
    (3, Act::KillAll),
    (50, Act::ContinueAll),
    (6, Act::StopWorld),
    (16, Act::ReusePid),
    (10, Act::ReusePidAfterKill),
    (14, Act::ConnectConfined),
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
    (16, Act::RestoreDir),
    (8, Act::FillDisk),
    (20, Act::FreeDisk),
    (8, Act::NoDescriptors(Role::Daemon)),
    (4, Act::NoDescriptors(Role::Shim)),
    (16, Act::Descriptors),
    (6, Act::Upgrade),
    (6, Act::Reinstall),
    (6, Act::ChangeServer),
];

/// One step: an action, and three numbers that select the process, the details and the pause.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    pub(crate) act: Act,
    pub(crate) target: u64,
    pub(crate) how: u64,
    pub(crate) pause: Duration,
}

/// Number of initial steps that start sessions.
const FIRST: u32 = 5;

/// The kernel features that are switched off, see `kennel_sys::kernel`.
const KERNELS: [&str; 6] = ["", "", "", "pidfs", "peer-pidfd", "pidfd"];

/// The steps of one world.
#[derive(Debug)]
pub(crate) struct Plan {
    chance: Rng,
    drawn: u32,
    /// The kernel features that are switched off.
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
        let act = if self.drawn <= FIRST {
            &Act::StartSession
        } else {
            act
        };
        Step {
            act: *act,
            target: chance.next_u64(),
            how: chance.next_u64(),
            // Half of the steps follow the one before at once.
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
    fn each_seed_and_world_has_its_own_schedule() {
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
    fn every_action_in_the_table_happens() {
        let mut plan = Plan::new(1, 0);
        let drawn: Vec<Act> = (0..20_000).map(|_| plan.next().act).collect();
        for (_, act) in TABLE {
            assert!(drawn.contains(act), "{act:?}");
        }
    }
}
