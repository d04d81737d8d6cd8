//! Who has the port that the server wants, and what follows from that.

use std::io;

use kennel_guard::{PortHolder, port_holders};
use kennel_sys::process::{Identity, ProcessRef};

use super::record::Record;
use crate::listing::Entry;

/// How many ancestors a process may have before we stop asking.
const DEPTH: usize = 64;

/// Whose place may be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Takeover {
    /// One of the same command whose owner is gone, with nobody connected
    Orphan,
    /// That, and one of the same command whose program has changed on disk since it was started
    Older,
    /// Nobody's
    Never,
}

/// What stands at a port that is not free, as far as it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Not proven to be guarded by us.
    Foreign,
    /// Guarded, but something else.
    OtherCommand,
    SameCommand {
        /// Its owner lives, or it has none, or somebody is connected; and its end has not begun.
        needed: bool,
        /// Its program is not any more what it was started as.
        changed: bool,
    },
}

/// What to do about it. In the order of which has the say where ports differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Decision {
    /// Stop the incumbent, then start.
    TakeOver,
    /// It is there already, and wanted.
    AlreadyRunning,
    Refuse,
}

/// The table. Nothing is stopped but what is proven to be ours, the same, and not needed or outdated.
#[rustfmt::skip]
pub(super) const fn decide(standing: Standing, takeover: Takeover) -> Decision {
    use Decision::*;
    use Standing::*;
    use Takeover::*;

    match (standing, takeover) {
        (Foreign,                                      _)              => Refuse,
        (OtherCommand,                                 _)              => Refuse,

        (SameCommand { needed: false, .. },            Orphan | Older) => TakeOver,
        // It is about to end by itself: neither is it there, nor may it be replaced.
        (SameCommand { needed: false, .. },            Never)          => Refuse,

        (SameCommand { needed: true, changed: true },  Older)          => TakeOver,
        (SameCommand { needed: true, .. },             _)              => AlreadyRunning,
    }
}

/// Whoever is at a port.
#[derive(Debug)]
pub(super) struct Holder {
    pub(super) port: u16,
    pub(super) standing: Standing,
    pub(super) who: Who,
}

#[derive(Debug)]
pub(super) enum Who {
    Foreign(PortHolder),
    Guarded {
        record: Box<Record>,
        entry: Box<Entry>,
    },
}

/// Who is at `ports`: whoever listens there, and guards that were started for one of them and have yet to listen.
pub(super) fn look(ports: &[u16], living: &[Record], sameness: &str) -> io::Result<Vec<Holder>> {
    let mut holders: Vec<Holder> = Vec::new();
    for &port in ports {
        let promised = living.iter().filter(|record| record.ports.contains(&port));
        let mut guards: Vec<&Record> = promised.collect();
        for holder in port_holders(port)? {
            let guard = holder.process.as_ref().and_then(|it| guard_of(it, living));
            match guard {
                Some(record) => guards.push(record),
                // It ended while we looked whose it was, and has the port no more.
                None if holder.process.as_ref().is_some_and(|it| !it.is_alive()) => {}
                None => holders.push(Holder {
                    port,
                    standing: Standing::Foreign,
                    who: Who::Foreign(holder),
                }),
            }
        }
        guards.sort_by_key(|record| &record.entry.key);
        guards.dedup_by_key(|record| &record.entry.key);
        holders.extend(
            guards
                .into_iter()
                .filter_map(|record| guarded(port, record, sameness)),
        );
    }
    Ok(holders)
}

/// `None` if it is gone by now.
fn guarded(port: u16, record: &Record, sameness: &str) -> Option<Holder> {
    let entry = record.look()?;
    let connected = entry.guarded.as_ref().is_some_and(|it| it.connections > 0);
    let standing = match record.sameness == sameness {
        false => Standing::OtherCommand,
        true => Standing::SameCommand {
            needed: !record.ending && (record.owner_alive().unwrap_or(true) || connected),
            changed: record.sources.are_stale(),
        },
    };
    let who = Who::Guarded {
        record: Box::new(record.clone()),
        entry: Box::new(entry),
    };
    Some(Holder {
        port,
        standing,
        who,
    })
}

/// The guard that a process is below, if there is one: every process of its server's tree is.
fn guard_of<'a>(process: &ProcessRef, living: &'a [Record]) -> Option<&'a Record> {
    let is = |process: &ProcessRef, record: &Record| {
        let identity = record.entry.identity.as_deref();
        let identity: Option<Identity> = identity.and_then(|text| text.parse().ok());
        identity.is_some_and(|identity| identity.same_process(process.identity()))
    };
    let mut ancestor = ProcessRef::parent_of(process).ok()?;
    for _ in 0..DEPTH {
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

    fn same(needed: bool, changed: bool) -> Standing {
        Standing::SameCommand { needed, changed }
    }

    #[test]
    fn nobody_is_stopped_who_is_not_proven_ours_and_the_same() {
        for takeover in ALL {
            assert_eq!(decide(Standing::Foreign, takeover), Decision::Refuse);
            assert_eq!(decide(Standing::OtherCommand, takeover), Decision::Refuse);
        }
    }

    #[test]
    fn an_orphan_is_replaced_unless_nobody_may_be() {
        for changed in [false, true] {
            let of = |takeover| decide(same(false, changed), takeover);
            assert_eq!(of(Takeover::Orphan), Decision::TakeOver);
            assert_eq!(of(Takeover::Older), Decision::TakeOver);
            assert_eq!(of(Takeover::Never), Decision::Refuse);
        }
    }

    #[test]
    fn one_that_is_needed_stays_unless_it_is_outdated_and_that_counts() {
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
