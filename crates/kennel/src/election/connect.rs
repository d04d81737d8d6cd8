//! Knocking at the daemon's door, and seeing who opens.

use std::io;

use kennel_sys::confinement::Confinement;
use kennel_sys::io::Stream;
use kennel_sys::lock::{Probe, is_held_by, probe};
use kennel_sys::peer::Peer;
use kennel_sys::process::ProcessRef;
use kennel_sys::user::UserId;

use crate::confined;
use crate::key_dir::{DAEMON_LOCK, KeyDir};

/// What a knock says.
pub(super) enum Door {
    Open(Reached),
    /// Somebody is there, and its queue is full.
    Busy,
    /// Nobody is there, or nobody to be trusted.
    Absent,
}

/// A connection to a daemon that is this user's and this key's.
#[derive(Debug)]
pub(super) struct Reached {
    pub(super) socket: Stream,
    pub(super) daemon: Option<ProcessRef>,
}

/// Tries once, without waiting. Leaves everything as it is: stale files are for the holder of the lock.
pub(super) fn knock(key_dir: &KeyDir) -> Door {
    let recorded = key_dir.record();
    let generations = match &recorded {
        Some(record) => vec![record.generation.clone()],
        // Missing, or garbage: a daemon may be there all the same.
        None => sockets(key_dir),
    };
    let lock = recorded.and_then(|record| record.lock);
    let mut door = Door::Absent;
    for generation in generations {
        match dial(key_dir, &generation) {
            Ok(socket) => {
                if let Some(daemon) = trusted(key_dir, &socket, &generation, lock) {
                    // It offers pipes, later. Without them the session goes on as well.
                    socket.allow_passing();
                    let daemon = Some(daemon);
                    return Door::Open(Reached { socket, daemon });
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => door = Door::Busy,
            // Refused, or no such file: both are what a dead daemon leaves.
            Err(_) => {}
        }
    }
    door
}

/// The generations that have left a socket.
fn sockets(key_dir: &KeyDir) -> Vec<String> {
    let names = key_dir.dir().entries().unwrap_or_default();
    let generation = |name: std::ffi::OsString| Some(name.to_str()?.strip_suffix(".sock")?.into());
    names.into_iter().filter_map(generation).collect()
}

pub(super) fn dial(key_dir: &KeyDir, generation: &str) -> io::Result<Stream> {
    let path = key_dir
        .socket_path(generation)
        .map_err(|error| io::Error::new(io::ErrorKind::NotFound, error))?;
    Stream::connect(&path)
}

/// The process at the other end, if it is the daemon: this user's (rule 9), confined as we are, seen by the kernel to hold
/// `daemon.lock`, and listening where the daemon does. Records are not believed: any process of this user can write them.
fn trusted(
    key_dir: &KeyDir,
    socket: &Stream,
    generation: &str,
    lock: Option<u32>,
) -> Option<ProcessRef> {
    let peer = Peer::of(socket).ok()?;
    if peer.uid != UserId::current().number() {
        return None;
    }
    let process = peer.process?;
    // A confined process can hold the lock and write the record; it must not hear what an unconfined session says.
    let ours = confined::ours().ok()?;
    if Confinement::of(&process, ours).ok()? != *ours {
        return None;
    }
    let holds = is_held_by(key_dir.dir(), DAEMON_LOCK, &process, lock);
    (holds && listens_at(socket, key_dir, generation)).then_some(process)
}

/// Whether the other end was bound in the directory of this key, under this generation's name. The directory may have
/// several paths.
fn listens_at(socket: &Stream, key_dir: &KeyDir, generation: &str) -> bool {
    let name = format!("{generation}.sock");
    let path = socket.peer_path().filter(|path| path.is_absolute());
    let Some((path, dir)) = path
        .as_deref()
        .and_then(|path| Some((path, path.parent()?)))
    else {
        return false;
    };
    path.file_name() == Some(name.as_ref()) && key_dir.dir().is_at(dir)
}

/// Whether this very process holds `daemon.lock`, which is what makes it the daemon (lesson 2).
pub(super) fn is_holder(key_dir: &KeyDir, process: &ProcessRef) -> bool {
    match probe(key_dir.dir(), DAEMON_LOCK) {
        Probe::Held { by: Some(holder) } => {
            let holder = holder.process;
            holder.identity().same_process(process.identity())
        }
        Probe::Held { by: None } | Probe::Free => false,
    }
}
