//! Who is connected to the server: looked at only once its owner is gone, for the kernel tells nobody when a
//! connection ends (rule 10 names this).

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

use kennel_sys::net::{self, Listener};
use kennel_sys::process::ProcessRef;
use kennel_sys::tree;

/// How often connections are looked at once the owner is gone; and at the least, however long a look takes.
pub(super) const SWEEP: Duration = Duration::from_millis(500);
const RAREST: Duration = Duration::from_secs(5);
/// A look may take one part in so many of the time until the next: watching must stay cheap, however many
/// are connected and however they are seen.
const PARTS: u32 = 150;

/// Which sockets are the server's is asked again at the latest after so long: a look at a tree that is just
/// forking may miss one.
const REFRESH: Duration = Duration::from_secs(10);

/// The ports of one server, and who uses them.
#[derive(Debug)]
pub(super) struct Sessions {
    /// Those that were named; else all that the tree listens on.
    named: Vec<u16>,
    /// Every listener there was at the last look, and which of them are the tree's.
    known: Vec<Listener>,
    ours: BTreeSet<u64>,
    looked: Option<Instant>,
}

/// What a look saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    Connected,
    /// Nobody is, but somebody was since the last look.
    CameAndWent,
    Nobody,
}

impl Sessions {
    pub(super) fn on(named: &[u16]) -> Sessions {
        Sessions {
            named: named.to_vec(),
            known: Vec::new(),
            ours: BTreeSet::new(),
            looked: None,
        }
    }

    /// The ports that the tree below `warden` listens on now.
    pub(super) fn listening(&mut self, warden: &ProcessRef) -> io::Result<BTreeSet<u16>> {
        let now = net::listeners()?;
        let stale = self.looked.is_none_or(|looked| looked.elapsed() > REFRESH);
        // A walk over the descriptors of a thousand connections is dear; the list of listeners is not.
        if stale || now != self.known {
            self.ours = ours(&now, warden)?;
            self.known = now;
            self.looked = Some(Instant::now());
        }
        let of_ours = self.known.iter().filter(|it| self.ours.contains(&it.inode));
        Ok(of_ours.map(|listener| listener.address.port()).collect())
    }

    /// Whether the server takes connections: at every port that was named, else at any.
    pub(super) fn ready(&mut self, warden: &ProcessRef) -> io::Result<bool> {
        let listening = self.listening(warden)?;
        Ok(match self.named.is_empty() {
            true => !listening.is_empty(),
            false => self.named.iter().all(|port| listening.contains(port)),
        })
    }

    /// Looks who is connected, or was within `since`.
    pub(super) fn look(&mut self, warden: &ProcessRef, since: Duration) -> io::Result<Seen> {
        let ports: Vec<u16> = match self.named.is_empty() {
            true => self.listening(warden)?.into_iter().collect(),
            false => self.named.clone(),
        };
        let sessions = net::sessions(&ports)?;
        Ok(match sessions.last_closed {
            _ if sessions.open > 0 => Seen::Connected,
            Some(ago) if ago <= since => Seen::CameAndWent,
            _ => Seen::Nobody,
        })
    }
}

/// When to look again after a look that took so long.
pub(super) fn next_sweep(took: Duration) -> Duration {
    (took * PARTS).clamp(SWEEP, RAREST)
}

/// The time this thread has worked, and not waited.
pub(super) fn worked() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Which listeners are sockets of the tree.
fn ours(listeners: &[Listener], warden: &ProcessRef) -> io::Result<BTreeSet<u64>> {
    let wanted: BTreeSet<u64> = listeners.iter().map(|listener| listener.inode).collect();
    let mut ours = BTreeSet::new();
    let mut hidden = false;
    for process in tree::below(warden)? {
        match net::sockets_of(&process) {
            Ok(sockets) => ours.extend(sockets.into_iter().filter(|inode| wanted.contains(inode))),
            // One that changed its user hides them; one that ended has none.
            Err(_) => hidden |= process.is_alive(),
        }
    }
    match ours.is_empty() && hidden {
        true => Err(io::ErrorKind::PermissionDenied.into()),
        false => Ok(ours),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_that_takes_long_makes_the_next_one_later_within_bounds() {
        for (took, next) in [(0, 500), (3, 500), (10, 1500), (1000, 5000)] {
            let [took, next] = [took, next].map(Duration::from_millis);
            assert_eq!(next_sweep(took), next);
        }
    }
}
