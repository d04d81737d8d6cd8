//! Counts connections to the server. Only done once its owner is gone, because the kernel sends no event when a
//! connection ends (rule 10 names this).
//!
//! A connection counts if it comes from outside the server's process tree, to an address that the tree listens on. Not
//! connections of the server or its children to itself, nor those to the same port of another address. A connection
//! that the tree accepted before it stopped listening counts, too, as far as it can be told from one that the tree
//! made.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use kennel_sys::net::{self, Connection, Listener};
use kennel_sys::process::ProcessRef;
use kennel_sys::tree;

/// How often connections are counted once the owner is gone; less often if counting takes long.
pub(super) const COUNT_INTERVAL: Duration = Duration::from_millis(500);
const MAX_COUNT_INTERVAL: Duration = Duration::from_secs(5);
/// Counting takes at most this fraction of the time: watching must stay cheap, however many clients are connected.
const COUNTING_FRACTION: u32 = 150;

/// How long the list of the server's sockets may be reused: a search of a tree that is just forking may miss one.
const REFRESH: Duration = Duration::from_secs(10);

/// How long ended connections do not count after all connections were the tree's own: as long as the kernel remembers
/// them.
const REMEMBERED: Duration = Duration::from_secs(60);

/// The ports of one server, and their connections.
#[derive(Debug)]
pub(super) struct Sessions {
    /// The ports given with `--port`; if none, all that the tree listens on.
    named: Vec<u16>,
    /// All listeners at the last count, and which of them are the tree's.
    known: Vec<Listener>,
    ours: BTreeSet<u64>,
    counted_at: Option<Instant>,
    /// Sockets of clients on this machine that were not the tree's, and when that was checked.
    other_sockets: BTreeSet<u64>,
    checked_at: Option<Instant>,
    /// When the tree had no connections but its own at the last time.
    only_own_connections: Option<Instant>,
    /// Without given ports: those that the tree was seen to listen on.
    seen: BTreeSet<u16>,
}

/// The result of a count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Connections {
    Connected,
    /// No client is connected, but one was since the last count.
    CameAndWent,
    NoClient,
}

impl Sessions {
    pub(super) fn on(named: &[u16]) -> Sessions {
        Sessions {
            named: named.to_vec(),
            known: Vec::new(),
            ours: BTreeSet::new(),
            counted_at: None,
            other_sockets: BTreeSet::new(),
            checked_at: None,
            only_own_connections: None,
            seen: BTreeSet::new(),
        }
    }

    /// The ports that the tree below `warden` listens on now.
    pub(super) fn listening(&mut self, warden: &ProcessRef) -> io::Result<BTreeSet<u16>> {
        let now = net::listeners()?;
        // Reading the descriptors of a process with a thousand connections is expensive; the list of listeners is not.
        if !is_recent(self.counted_at) || now != self.known {
            self.ours = ours(&now, &self.named, warden)?;
            self.known = now;
            self.counted_at = Some(Instant::now());
        }
        let of_ours = self.known.iter().filter(|it| self.ours.contains(&it.inode));
        let listening: BTreeSet<u16> = of_ours.map(|listener| listener.address.port()).collect();
        if self.named.is_empty() {
            self.seen.extend(&listening);
        }
        Ok(listening)
    }

    /// Whether the server accepts connections: on every given port, else on any.
    pub(super) fn ready(&mut self, warden: &ProcessRef) -> io::Result<bool> {
        let listening = self.listening(warden)?;
        Ok(match self.named.is_empty() {
            true => !listening.is_empty(),
            false => self.named.iter().all(|port| listening.contains(port)),
        })
    }

    /// Checks whether a client is connected from outside, or was within `since`.
    pub(super) fn inspect(
        &mut self,
        warden: &ProcessRef,
        since: Duration,
    ) -> io::Result<Connections> {
        let listening = self.listening(warden)?;
        if self.connected(warden, &listening, false)? > 0 {
            return Ok(Connections::Connected);
        }
        if self.named.is_empty() && accepted_before(warden, &listening)? {
            return Ok(Connections::Connected);
        }
        // The kernel does not say which process had a connection that has ended.
        let itself = self.only_own_connections;
        if itself.is_some_and(|at| at.elapsed() <= REMEMBERED) {
            return Ok(Connections::NoClient);
        }
        let closed = net::closed(&self.counted(&listening))?;
        let was_here = closed
            .iter()
            .any(|it| it.age <= since && self.is_reached(it.address, it.by_client));
        Ok(match was_here {
            true => Connections::CameAndWent,
            false => Connections::NoClient,
        })
    }

    /// The number of connections from outside, and the ports that the tree below `root` listens on.
    pub(super) fn count(&mut self, root: &ProcessRef) -> io::Result<(usize, BTreeSet<u16>)> {
        let listening = self.listening(root)?;
        let connected = self.connected(root, &listening, true)?;
        Ok((connected, listening))
    }

    /// The number of connections from outside: of all, or only whether there is one.
    fn connected(
        &mut self,
        root: &ProcessRef,
        listening: &BTreeSet<u16>,
        all: bool,
    ) -> io::Result<usize> {
        let connections = net::connections(&self.counted(listening))?;
        let (accepted, others): (Vec<Connection>, Vec<Connection>) =
            (connections.into_iter()).partition(|it| self.is_reached(it.local, false));
        // A connection to a counted port that the tree no longer listens on is the tree's if it holds the socket.
        let left: Vec<Connection> = others
            .into_iter()
            .filter(|it| !listening.contains(&it.local.port()))
            .collect();
        let elsewhere = accepted.iter().filter(|it| it.peer_inode.is_none()).count();
        let peers: BTreeSet<u64> = accepted.iter().filter_map(|it| it.peer_inode).collect();
        let known = is_recent(self.checked_at) && !self.other_sockets.is_disjoint(&peers);
        if !all && (elsewhere > 0 || known) {
            self.only_own_connections = None;
            return Ok(1);
        }
        if peers.is_empty() && left.is_empty() {
            return Ok(elsewhere);
        }
        let tree = sockets_below(root)?;
        self.other_sockets = peers.difference(&tree).copied().collect();
        self.checked_at = Some(Instant::now());
        let is_outside = |it: &&Connection| it.peer_inode.is_none_or(|peer| !tree.contains(&peer));
        let held = left.iter().filter(|it| tree.contains(&it.inode));
        let outside = held.filter(is_outside).count() + self.other_sockets.len() + elsewhere;
        self.only_own_connections = (outside == 0).then(Instant::now);
        Ok(outside)
    }

    /// The ports whose connections count.
    fn counted(&self, listening: &BTreeSet<u16>) -> Vec<u16> {
        match self.named.is_empty() {
            true => listening.union(&self.seen).copied().collect(),
            false => self.named.clone(),
        }
    }

    /// Whether a connection to this address reaches the tree.
    fn is_reached(&self, address: SocketAddr, as_client: bool) -> bool {
        let reached = net::reached(&self.known, address, as_client);
        reached.iter().any(|it| self.ours.contains(&it.inode))
    }
}

fn is_recent(at: Option<Instant>) -> bool {
    at.is_some_and(|at| at.elapsed() <= REFRESH)
}

/// When to count again, after a count that took this long.
pub(super) fn next_count(took: Duration) -> Duration {
    (took * COUNTING_FRACTION).clamp(COUNT_INTERVAL, MAX_COUNT_INTERVAL)
}

/// The inodes of the tree's listeners. If the tree hides its sockets, the listeners at the given ports count.
fn ours(listeners: &[Listener], named: &[u16], root: &ProcessRef) -> io::Result<BTreeSet<u64>> {
    let wanted: BTreeSet<u64> = listeners.iter().map(|listener| listener.inode).collect();
    let mut ours = BTreeSet::new();
    let mut hidden = false;
    for process in tree::below(root)? {
        match net::sockets_of(&process) {
            Ok(sockets) => ours.extend(sockets.into_iter().filter(|inode| wanted.contains(inode))),
            // A process that changed its user hides them; an ended one has none.
            Err(_) => hidden |= process.is_alive(),
        }
    }
    if ours.is_empty() && hidden {
        if named.is_empty() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let at_named = |it: &&Listener| named.contains(&it.address.port());
        let at_named = listeners.iter().filter(at_named);
        return Ok(at_named.map(|listener| listener.inode).collect());
    }
    Ok(ours)
}

/// Whether the tree holds a connection from outside on a port that it does not listen on and that the kernel assigns to
/// no client: most likely it was accepted, and its listener is closed since.
fn accepted_before(root: &ProcessRef, listening: &BTreeSet<u16>) -> io::Result<bool> {
    let given = net::ephemeral_ports();
    let ports = (1..=u16::MAX).filter(|port| !given.contains(port) && !listening.contains(port));
    let connections = net::connections(&ports.collect::<Vec<u16>>())?;
    if connections.is_empty() {
        return Ok(false);
    }
    let tree = sockets_below(root)?;
    let is_outside = |it: &Connection| it.peer_inode.is_none_or(|peer| !tree.contains(&peer));
    let mut held = connections.iter().filter(|it| tree.contains(&it.inode));
    Ok(held.any(is_outside))
}

/// The sockets of all processes in the tree, as far as they can be seen.
fn sockets_below(root: &ProcessRef) -> io::Result<BTreeSet<u64>> {
    let everyone = tree::below(root)?;
    let sockets = everyone.iter().filter_map(|it| net::sockets_of(it).ok());
    Ok(sockets.flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_that_takes_long_delays_the_next_one_within_bounds() {
        for (took, next) in [(0, 500), (3, 500), (10, 1500), (1000, 5000)] {
            let [took, next] = [took, next].map(Duration::from_millis);
            assert_eq!(next_count(took), next);
        }
    }
}
