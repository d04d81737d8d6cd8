//! Knocking at the daemon's door, and seeing who opens.

use std::io;
use std::os::unix::net::UnixStream;

use kennel_sys::confinement::Confinement;
use kennel_sys::lock::{Probe, is_held_by, probe};
use kennel_sys::passing;
use kennel_sys::peer::Peer;
use kennel_sys::process::ProcessRef;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::confined;
use crate::meeting::{DAEMON_LOCK, Meeting};

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
    /// Not blocking.
    pub(super) socket: UnixStream,
    pub(super) daemon: Option<ProcessRef>,
}

/// Tries once, without waiting. Leaves everything as it is: stale files are for the holder of the lock.
pub(super) fn knock(meeting: &Meeting) -> Door {
    let recorded = meeting.record();
    let generations = match &recorded {
        Some(record) => vec![record.generation.clone()],
        // Missing, or garbage: a daemon may be there all the same.
        None => sockets(meeting),
    };
    let lock = recorded.and_then(|record| record.lock);
    let mut door = Door::Absent;
    for generation in generations {
        match dial(meeting, &generation) {
            Ok(socket) => {
                if let Some(daemon) = trusted(meeting, &socket, &generation, lock) {
                    // It offers pipes, later. Without them the session goes on as well.
                    passing::allow(&socket);
                    let daemon = Some(daemon);
                    return Door::Open(Reached { socket, daemon });
                }
                // Whoever it is may have passed a descriptor that takes its time to be closed.
                passing::close(socket.into());
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => door = Door::Busy,
            // Refused, or no such file: both are what a dead daemon leaves.
            Err(_) => {}
        }
    }
    door
}

/// The generations that have left a socket.
fn sockets(meeting: &Meeting) -> Vec<String> {
    let names = meeting.dir().entries().unwrap_or_default();
    let generation = |name: std::ffi::OsString| Some(name.to_str()?.strip_suffix(".sock")?.into());
    names.into_iter().filter_map(generation).collect()
}

/// Not std's connect: that one waits in the queue, behind a stopped daemon for ever.
pub(super) fn dial(meeting: &Meeting, generation: &str) -> io::Result<UnixStream> {
    let path = meeting
        .socket_path(generation)
        .map_err(|error| io::Error::new(io::ErrorKind::NotFound, error))?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Until it is known who is there.
    passing::refuse(&socket);
    let address = SocketAddrUnix::new(&path)?;
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) => return Ok(socket.into()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// The process at the other end, if it is the daemon: this user's (rule 9), confined as we are, seen by the kernel to hold
/// `daemon.lock`, and listening where the daemon does. Records are not believed: any process of this user can write them.
fn trusted(
    meeting: &Meeting,
    socket: &UnixStream,
    generation: &str,
    lock: Option<u32>,
) -> Option<ProcessRef> {
    let peer = Peer::of(socket).ok()?;
    if peer.uid != rustix::process::geteuid().as_raw() {
        return None;
    }
    let process = peer.process?;
    // A confined process can hold the lock and write the record; it must not hear what an unconfined session says.
    let ours = confined::ours().ok()?;
    if Confinement::of(&process, ours).ok()? != *ours {
        return None;
    }
    let holds = is_held_by(meeting.dir(), DAEMON_LOCK, &process, lock);
    (holds && listens_at(socket, meeting, generation)).then_some(process)
}

/// Whether the other end was bound in the directory of this key, under this generation's name. The directory may have
/// several paths.
fn listens_at(socket: &UnixStream, meeting: &Meeting, generation: &str) -> bool {
    let Ok(address) = socket.peer_addr() else {
        return false;
    };
    let name = format!("{generation}.sock");
    let path = address.as_pathname().filter(|path| path.is_absolute());
    let Some((path, dir)) = path.and_then(|path| Some((path, path.parent()?))) else {
        return false;
    };
    let same_dir = || {
        let theirs = rustix::fs::stat(dir).ok()?;
        let ours = rustix::fs::fstat(meeting.dir()).ok()?;
        Some((theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino))
    };
    path.file_name() == Some(name.as_ref()) && same_dir() == Some(true)
}

/// Whether this very process holds `daemon.lock`, which is what makes it the daemon (lesson 2).
pub(super) fn is_holder(meeting: &Meeting, process: &ProcessRef) -> bool {
    match probe(meeting.dir(), DAEMON_LOCK) {
        Probe::Held { by: Some(holder) } => {
            let holder = holder.process;
            holder.identity().same_process(process.identity())
        }
        Probe::Held { by: None } | Probe::Free => false,
    }
}
