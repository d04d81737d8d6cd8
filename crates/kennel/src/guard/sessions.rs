//! Who is connected to the server: looked at only once its owner is gone, for the kernel tells nobody when a
//! connection ends (rule 10 names this).
//!
//! A connection counts if it comes from outside the server's process tree, to an address that the tree listens on. Not
//! those of the server to itself or of its children, nor those of others to the same port of another address. One that the
//! tree accepted before it stopped listening counts, too, as far as it can be told from one that the tree made.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use kennel_sys::net::{self, Connection, Listener};
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

/// How long ended connections are not counted after the tree was seen to connect to itself and nobody else to it: as
/// long as the kernel remembers them.
const REMEMBERED: Duration = Duration::from_secs(60);

/// The ports of one server, and who uses them.
#[derive(Debug)]
pub(super) struct Sessions {
    /// Those that were named; else all that the tree listens on.
    named: Vec<u16>,
    /// Every listener there was at the last look, and which of them are the tree's.
    known: Vec<Listener>,
    ours: BTreeSet<u64>,
    looked: Option<Instant>,
    /// Sockets of clients on this machine that were not the tree's, and when that was asked.
    strangers: BTreeSet<u64>,
    asked: Option<Instant>,
    /// When the only connections that there were, were the tree's own.
    talked_to_itself: Option<Instant>,
    /// Where no ports were named: those that the tree was seen to listen on.
    seen: BTreeSet<u16>,
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
            strangers: BTreeSet::new(),
            asked: None,
            talked_to_itself: None,
            seen: BTreeSet::new(),
        }
    }

    /// The ports that the tree below `warden` listens on now.
    pub(super) fn listening(&mut self, warden: &ProcessRef) -> io::Result<BTreeSet<u16>> {
        let now = net::listeners()?;
        // A walk over the descriptors of a thousand connections is dear; the list of listeners is not.
        if !is_fresh(self.looked) || now != self.known {
            self.ours = ours(&now, &self.named, warden)?;
            self.known = now;
            self.looked = Some(Instant::now());
        }
        let of_ours = self.known.iter().filter(|it| self.ours.contains(&it.inode));
        let listening: BTreeSet<u16> = of_ours.map(|listener| listener.address.port()).collect();
        if self.named.is_empty() {
            self.seen.extend(&listening);
        }
        Ok(listening)
    }

    /// Whether the server takes connections: at every port that was named, else at any.
    pub(super) fn ready(&mut self, warden: &ProcessRef) -> io::Result<bool> {
        let listening = self.listening(warden)?;
        Ok(match self.named.is_empty() {
            true => !listening.is_empty(),
            false => self.named.iter().all(|port| listening.contains(port)),
        })
    }

    /// Looks who is connected from outside, or was within `since`.
    pub(super) fn look(&mut self, warden: &ProcessRef, since: Duration) -> io::Result<Seen> {
        let listening = self.listening(warden)?;
        if self.connected(warden, &listening, false)? > 0 {
            return Ok(Seen::Connected);
        }
        if self.named.is_empty() && accepted_before(warden, &listening)? {
            return Ok(Seen::Connected);
        }
        // A connection that has ended does not say whose it was.
        let itself = self.talked_to_itself;
        if itself.is_some_and(|at| at.elapsed() <= REMEMBERED) {
            return Ok(Seen::Nobody);
        }
        let closed = net::closed(&self.counted(&listening))?;
        let was_here = closed
            .iter()
            .any(|it| it.ago <= since && self.is_reached(it.address, it.by_client));
        Ok(match was_here {
            true => Seen::CameAndWent,
            false => Seen::Nobody,
        })
    }

    /// How many are connected from outside, and what the tree below `root` listens on.
    pub(super) fn count(&mut self, root: &ProcessRef) -> io::Result<(usize, BTreeSet<u16>)> {
        let listening = self.listening(root)?;
        let connected = self.connected(root, &listening, true)?;
        Ok((connected, listening))
    }

    /// How many are connected from outside: all of them, or whether there is one.
    fn connected(
        &mut self,
        root: &ProcessRef,
        listening: &BTreeSet<u16>,
        all: bool,
    ) -> io::Result<usize> {
        let connections = net::connections(&self.counted(listening))?;
        let (accepted, others): (Vec<Connection>, Vec<Connection>) =
            (connections.into_iter()).partition(|it| self.is_reached(it.local, false));
        // Those to a port that counts and that the tree has stopped listening on are its own if it holds them.
        let left: Vec<Connection> = others
            .into_iter()
            .filter(|it| !listening.contains(&it.local.port()))
            .collect();
        let elsewhere = accepted.iter().filter(|it| it.peer_inode.is_none()).count();
        let peers: BTreeSet<u64> = accepted.iter().filter_map(|it| it.peer_inode).collect();
        let known = is_fresh(self.asked) && !self.strangers.is_disjoint(&peers);
        if !all && (elsewhere > 0 || known) {
            self.talked_to_itself = None;
            return Ok(1);
        }
        if peers.is_empty() && left.is_empty() {
            return Ok(elsewhere);
        }
        let tree = sockets_below(root)?;
        self.strangers = peers.difference(&tree).copied().collect();
        self.asked = Some(Instant::now());
        let is_outside = |it: &&Connection| it.peer_inode.is_none_or(|peer| !tree.contains(&peer));
        let held = left.iter().filter(|it| tree.contains(&it.inode));
        let outside = held.filter(is_outside).count() + self.strangers.len() + elsewhere;
        self.talked_to_itself = (outside == 0).then(Instant::now);
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

fn is_fresh(at: Option<Instant>) -> bool {
    at.is_some_and(|at| at.elapsed() <= REFRESH)
}

/// When to look again after a look that took so long.
pub(super) fn next_sweep(took: Duration) -> Duration {
    (took * PARTS).clamp(SWEEP, RAREST)
}

/// Which listeners are sockets of the tree. Where the tree hides its sockets, those at the ports that were named.
fn ours(listeners: &[Listener], named: &[u16], root: &ProcessRef) -> io::Result<BTreeSet<u64>> {
    let wanted: BTreeSet<u64> = listeners.iter().map(|listener| listener.inode).collect();
    let mut ours = BTreeSet::new();
    let mut hidden = false;
    for process in tree::below(root)? {
        match net::sockets_of(&process) {
            Ok(sockets) => ours.extend(sockets.into_iter().filter(|inode| wanted.contains(inode))),
            // One that changed its user hides them; one that ended has none.
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

/// Whether the tree holds a connection with somebody outside, on a port that it does not listen on and that the kernel gives
/// to nobody who connects: so it was accepted, most likely, and its listener is closed since.
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

/// The sockets of everyone in the tree, as far as they can be seen.
fn sockets_below(root: &ProcessRef) -> io::Result<BTreeSet<u64>> {
    let everyone = tree::below(root)?;
    let sockets = everyone.iter().filter_map(|it| net::sockets_of(it).ok());
    Ok(sockets.flatten().collect())
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
