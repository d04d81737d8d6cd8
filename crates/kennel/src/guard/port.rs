//! Finds the process that holds a port, and decides what to do about it.

use std::io;

use kennel_guard::{PortHolder, port_holders};
use kennel_sys::process::{Identity, ProcessRef};

use super::record::Record;
use crate::listing::Entry;

/// Maximum number of ancestors that are searched for a guard.
const MAX_DEPTH: usize = 64;

/// Selects the guarded server to replace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Takeover {
    /// One with the same command whose owner has exited and that has no client
    Orphan,
    /// The same, and one with the same command whose program changed on disk since its start
    Older,
    /// None
    Never,
}

/// The process that holds a port, as far as the decision depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HolderState {
    /// Not proven to be guarded by Kennel.
    Foreign,
    /// Guarded, with another command.
    OtherCommand,
    SameCommand {
        /// Its owner lives, or it has none, or a client is connected; and it is not ending.
        needed: bool,
        /// Its program changed on disk since it was started.
        changed: bool,
    },
}

/// The decision about a port. If ports differ, the greatest decision counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Decision {
    /// Stop the incumbent, then start.
    TakeOver,
    /// It is already running, and needed.
    AlreadyRunning,
    Refuse,
}

/// The table of decisions. Stops a server only if it is proven to be guarded, has the same command, and is not needed
/// or is outdated.
#[rustfmt::skip]
pub(super) const fn decide(state: HolderState, takeover: Takeover) -> Decision {
    use Decision::*;
    use HolderState::*;
    use Takeover::*;

    match (state, takeover) {
        (Foreign,                                      _)              => Refuse,
        (OtherCommand,                                 _)              => Refuse,

        (SameCommand { needed: false, .. },            Orphan | Older) => TakeOver,
        // It is ending by itself: it is neither running nor replaceable.
        (SameCommand { needed: false, .. },            Never)          => Refuse,

        (SameCommand { needed: true, changed: true },  Older)          => TakeOver,
        (SameCommand { needed: true, .. },             _)              => AlreadyRunning,
    }
}

/// The process that holds a port.
#[derive(Debug)]
pub(super) struct Holder {
    pub(super) port: u16,
    pub(super) state: HolderState,
    pub(super) who: HolderKind,
}

#[derive(Debug)]
pub(super) enum HolderKind {
    Foreign(PortHolder),
    Guarded {
        record: Box<Record>,
        entry: Box<Entry>,
    },
}

/// The processes that hold `ports`: those that listen there, and guards that were started for one of them and do not
/// listen yet.
pub(super) fn inspect(
    ports: &[u16],
    living: &[Record],
    command_hash: &str,
) -> io::Result<Vec<Holder>> {
    let mut holders: Vec<Holder> = Vec::new();
    for &port in ports {
        let promised = living.iter().filter(|record| record.ports.contains(&port));
        let mut guards: Vec<&Record> = promised.collect();
        for holder in port_holders(port)? {
            let guard = holder.process.as_ref().and_then(|it| guard_of(it, living));
            match guard {
                Some(record) => guards.push(record),
                // It ended during this search and no longer holds the port.
                None if holder.process.as_ref().is_some_and(|it| !it.is_alive()) => {}
                None => holders.push(Holder {
                    port,
                    state: HolderState::Foreign,
                    who: HolderKind::Foreign(holder),
                }),
            }
        }
        guards.sort_by_key(|record| &record.entry.key);
        guards.dedup_by_key(|record| &record.entry.key);
        holders.extend(
            guards
                .into_iter()
                .filter_map(|record| guarded_holder(port, record, command_hash)),
        );
    }
    Ok(holders)
}

/// The guarded server of this record as the holder of `port`; `None` if it has ended.
fn guarded_holder(port: u16, record: &Record, command_hash: &str) -> Option<Holder> {
    let entry = record.inspect()?;
    let connected = entry.guarded.as_ref().is_some_and(|it| it.connections > 0);
    let state = match record.command_hash == command_hash {
        false => HolderState::OtherCommand,
        true => HolderState::SameCommand {
            needed: !record.ending && (record.owner_alive().unwrap_or(true) || connected),
            changed: record.sources.are_stale(),
        },
    };
    let who = HolderKind::Guarded {
        record: Box::new(record.clone()),
        entry: Box::new(entry),
    };
    Some(Holder { port, state, who })
}

/// The guard among the ancestors of a process, if there is one: every process of its server's tree has it.
fn guard_of<'a>(process: &ProcessRef, living: &'a [Record]) -> Option<&'a Record> {
    let is = |process: &ProcessRef, record: &Record| {
        let identity = record.entry.identity.as_deref();
        let identity: Option<Identity> = identity.and_then(|text| text.parse().ok());
        identity.is_some_and(|identity| identity.same_process(process.identity()))
    };
    let mut ancestor = ProcessRef::parent_of(process).ok()?;
    for _ in 0..MAX_DEPTH {
        let current = ancestor?;
        if let Some(record) = living.iter().find(|record| is(&current, record)) {
            return Some(record);
        }
        ancestor = ProcessRef::parent_of(&current).ok()?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Takeover; 3] = [Takeover::Orphan, Takeover::Older, Takeover::Never];

    fn same(needed: bool, changed: bool) -> HolderState {
        HolderState::SameCommand { needed, changed }
    }

    #[test]
    fn only_a_server_proven_to_be_guarded_with_the_same_command_is_stopped() {
        for takeover in ALL {
            assert_eq!(decide(HolderState::Foreign, takeover), Decision::Refuse);
            assert_eq!(
                decide(HolderState::OtherCommand, takeover),
                Decision::Refuse
            );
        }
    }

    #[test]
    fn an_orphan_is_replaced_unless_takeover_is_never() {
        for changed in [false, true] {
            let of = |takeover| decide(same(false, changed), takeover);
            assert_eq!(of(Takeover::Orphan), Decision::TakeOver);
            assert_eq!(of(Takeover::Older), Decision::TakeOver);
            assert_eq!(of(Takeover::Never), Decision::Refuse);
        }
    }

    #[test]
    fn a_needed_server_stays_unless_it_is_outdated_and_that_counts() {
        for takeover in ALL {
            assert_eq!(
                decide(same(true, false), takeover),
                Decision::AlreadyRunning
            );
        }
        let outdated = |takeover| decide(same(true, true), takeover);
        assert_eq!(outdated(Takeover::Orphan), Decision::AlreadyRunning);
        assert_eq!(outdated(Takeover::Older), Decision::TakeOver);
        assert_eq!(outdated(Takeover::Never), Decision::AlreadyRunning);
    }

    #[test]
    fn of_several_ports_the_most_careful_decision_counts() {
        let order = [
            Decision::TakeOver,
            Decision::AlreadyRunning,
            Decision::Refuse,
        ];
        assert!(order.is_sorted());
    }
}
