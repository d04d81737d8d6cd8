//! Connects to the daemon of a key and verifies its process.

use std::io;

use kennel_sys::confinement::Confinement;
use kennel_sys::io::Stream;
use kennel_sys::lock::{Probe, is_held_by, probe};
use kennel_sys::peer::Peer;
use kennel_sys::process::ProcessRef;
use kennel_sys::user::UserId;

use crate::confined;
use crate::key_dir::{DAEMON_LOCK, KeyDir};

/// The result of [`try_connect`].
pub(super) enum ConnectAttempt {
    Connected(DaemonConnection),
    /// A process listens, but the queue of its socket is full.
    Busy,
    /// No process listens, or the listening process is not the daemon.
    Absent,
}

/// A connection to the verified daemon of a key.
#[derive(Debug)]
pub(super) struct DaemonConnection {
    pub(super) socket: Stream,
    pub(super) daemon: Option<ProcessRef>,
}

/// Tries once, without waiting. Removes nothing: only the holder of the lock removes stale files.
pub(super) fn try_connect(key_dir: &KeyDir) -> ConnectAttempt {
    let recorded = key_dir.record();
    let generations = match &recorded {
        Some(record) => vec![record.generation.clone()],
        // The record is missing or invalid, but a daemon may be running.
        None => sockets(key_dir),
    };
    let lock = recorded.and_then(|record| record.lock);
    let mut attempt = ConnectAttempt::Absent;
    for generation in generations {
        match connect_socket(key_dir, &generation) {
            Ok(socket) => {
                if let Some(daemon) = trusted(key_dir, &socket, &generation, lock) {
                    // The daemon may offer pipes later. The session works without them, too.
                    socket.allow_passing();
                    let daemon = Some(daemon);
                    return ConnectAttempt::Connected(DaemonConnection { socket, daemon });
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                attempt = ConnectAttempt::Busy
            }
            // A dead daemon's socket refuses connections or is missing.
            Err(_) => {}
        }
    }
    attempt
}

/// The generations whose sockets exist.
fn sockets(key_dir: &KeyDir) -> Vec<String> {
    let names = key_dir.dir().entries().unwrap_or_default();
    let generation = |name: std::ffi::OsString| Some(name.to_str()?.strip_suffix(".sock")?.into());
    names.into_iter().filter_map(generation).collect()
}

pub(super) fn connect_socket(key_dir: &KeyDir, generation: &str) -> io::Result<Stream> {
    let path = key_dir
        .socket_path(generation)
        .map_err(|error| io::Error::new(io::ErrorKind::NotFound, error))?;
    Stream::connect(&path)
}

/// Returns the process at the other end if it is the daemon: it has our uid (rule 9) and our confinement, holds `daemon.lock`
/// according to the kernel, and listens at the daemon's socket. Records prove nothing: any process of this user can write
/// them.
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
    // A confined process can hold the lock and write the record; it must not receive the lines of an unconfined session.
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

/// Whether this process holds `daemon.lock`. Its holder is the daemon (lesson 2).
pub(super) fn is_holder(key_dir: &KeyDir, process: &ProcessRef) -> bool {
    match probe(key_dir.dir(), DAEMON_LOCK) {
        Probe::Held { by: Some(holder) } => {
            let holder = holder.process;
            holder.identity().same_process(process.identity())
        }
        Probe::Held { by: None } | Probe::Free => false,
    }
}
