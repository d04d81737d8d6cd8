//! Bonds: processes outside a tree that need a member of it, though neither a file nor memory connects them.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::time::Duration;

use crate::os::{self, Descriptor};

/// How long a descriptor must stay open to be a bond. Programs that list processes have a pidfd or the directory of
/// each of them open for a moment.
const MIN_BOND_TIME: Duration = Duration::from_millis(200);

/// Commands of Kennel that search for orphans.
const SEARCH_COMMANDS: [&str; 2] = ["doctor", "reap"];

/// Holders of each open file of the machine, by its link.
type Holders = HashMap<String, Vec<(u32, Descriptor)>>;

/// References between processes at one moment (descriptors, locks, pidfds), read when first needed.
#[derive(Default)]
pub(super) struct Bonds {
    /// Tracers, each with the process that it traces.
    traced: OnceCell<Vec<(u32, u32)>>,
    pidfds: OnceCell<Vec<Pidfd>>,
    /// Set when [`MIN_BOND_TIME`] is over.
    waited: OnceCell<()>,
}

/// A pidfd of some process.
struct Pidfd {
    holder: u32,
    at: Descriptor,
    task: u32,
    /// The process of that task: the pidfd of a thread reaches its process too.
    process: u32,
}

impl Bonds {
    /// Why a process that `is_outside` accepts needs the process `pid`. Each text completes "pid 4711 …".
    pub(super) fn of(
        &self,
        pid: u32,
        holders: &Holders,
        is_outside: impl Fn(u32) -> bool,
    ) -> Vec<String> {
        let mut bonds = Vec::new();
        let mut traced = self.traced.get_or_init(os::traced).iter();
        if let Some((_, other)) =
            traced.find(|(tracer, traced)| *tracer == pid && is_outside(*traced))
        {
            bonds.push(format!("traces pid {other}"));
        }
        if let Some(namespace) = os::namespace_of_init(pid) {
            let others = os::processes_in(namespace);
            let other = others.iter().find(|other| is_outside(**other));
            bonds.extend(other.map(|other| format!("is the init of pid {other}")));
        }
        let is_other = |other: u32| !is_search(other) && is_outside(other);
        let pidfds = self.pidfds.get_or_init(|| pidfds(holders));
        let mut pidfds = pidfds.iter().filter(|pidfd| pidfd.process == pid);
        if let Some(Pidfd { holder, .. }) = pidfds.find(|pidfd| {
            is_other(pidfd.holder)
                && self.stays_open(|| os::pidfd_target(pidfd.at) == Some(pidfd.task))
        }) {
            bonds.push(format!(
                "may be signalled by pid {holder}, which has a pidfd of it"
            ));
        }
        // Its directory can be used like a pidfd.
        for link in [format!("/proc/{pid}"), format!("/proc/{pid}/mem")] {
            let mut users = holders.get(&link).into_iter().flatten();
            if let Some((other, _)) = users
                .find(|&&(other, at)| is_other(other) && self.stays_open(|| at.leads_to(&link)))
            {
                bonds.push(format!("may be used by pid {other}, which has {link} open"));
            }
        }
        bonds
    }

    /// Whether a descriptor that was seen open still is when [`MIN_BOND_TIME`] is over.
    fn stays_open(&self, is_open: impl Fn() -> bool) -> bool {
        self.waited.get_or_init(|| {
            // A wait that fails proves nothing: then the descriptor counts.
            let _ = crate::events::sleep(&[], &[], Some(MIN_BOND_TIME));
        });
        is_open()
    }
}

/// Whether a process is this search for orphans or another one: it has pidfds of suspects, on a busy machine for long.
fn is_search(pid: u32) -> bool {
    let is_command = || {
        let line = os::command_line(pid).unwrap_or_default();
        line.get(1)
            .is_some_and(|word| SEARCH_COMMANDS.contains(&word.as_str()))
    };
    pid == std::process::id() || (os::is_kennel(pid) && is_command())
}

fn pidfds(holders: &Holders) -> Vec<Pidfd> {
    let pidfds = holders.iter().filter(|(link, _)| link.contains("[pidfd]"));
    let target = |&(holder, at): &(u32, Descriptor)| {
        let task = os::pidfd_target(at)?;
        let process = os::thread_group(task).ok().flatten();
        Some(Pidfd {
            holder,
            at,
            task,
            process: process.unwrap_or(task),
        })
    };
    pidfds.flat_map(|(_, all)| all).filter_map(target).collect()
}
