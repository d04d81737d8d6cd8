//! The process that started us, and which processes to watch so that we end with it.
//!
//! EOF on stdin is not enough: another process may hold the pipe of a killed app (lesson 17). The parent alone is not enough
//! either: it may be a launcher (`sh -c`, `npm exec`, a script) that outlives its app. So:
//!
//! - the **parent** is watched;
//! - an ancestor with the same pipe or socket as its fd 0 only passed its stdin on; the first ancestor with another fd 0 is
//!   the **app**, and is watched too;
//! - if stdin is a Unix socket, the process at its **other end** is watched as well.
//!
//! If init is our parent it has adopted us, so the original parent is gone, unless init shares our stdio (an app may be pid 1
//! of its container) or `SYSTEMD_EXEC_PID` says that it started us. The same holds for any other parent in another session if
//! we did not leave ours: a `systemd --user`, or another subreaper.
//!
//! When one of them ends, the app may still live: perhaps a helper started us and exited. So the ancestors above the app are
//! recorded soon after the start, but not watched. Only when a watched process ends, descriptors are read: the nearest
//! ancestor **above** it that holds the far end of our stdin or stdout is the app, and is watched from then on. Other holders
//! do not count: a daemonized child of the app cannot be told from a helper that keeps a dead app's pipe open.
//!
//! If stdin is neither a pipe nor a socket, no app talks to us. Then a process that leads a session was detached on purpose,
//! and a child of init in init's session was started by init: no process is watched. Any other parent is watched.

use std::ffi::OsStr;
use std::io;
use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::fs::FileType;

use crate::backend::AccessMode;
use crate::os;
use crate::peer::Peer;
use crate::process::{Identity, ProcessRef};

/// Maximum number of launchers between an app and us.
const MAX_LAUNCHERS: usize = 32;

/// Maximum number of recorded ancestors above the app, in case it is not the app.
const MAX_ANCESTORS: usize = 6;

/// The height of a process that is not an ancestor: every ancestor is above it.
const NO_ANCESTOR: isize = -1;

/// Why a process is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// It is our parent.
    Parent,
    /// It is the first ancestor with another stdin than ours: the app behind the launchers.
    App,
    /// It made the socket that is our stdin.
    StdinPeer,
}

/// A process whose end ends this session.
#[derive(Debug)]
pub struct Watched {
    /// Why it is watched.
    pub role: Role,
    /// The process.
    pub process: Arc<ProcessRef>,
    /// Its height among our ancestors: 0 for the parent, [`NO_ANCESTOR`] for others.
    height: isize,
}

/// The watched processes, and the ancestors that may turn out to be the app.
#[derive(Debug)]
pub struct Origin {
    watched: Vec<Watched>,
    /// The ancestors above the app, nearest first, with their heights, once they were recorded. By identity: descriptors of
    /// all of them would double those of a session.
    ancestors: Option<Vec<(isize, Identity)>>,
}

impl Deref for Origin {
    type Target = [Watched];

    fn deref(&self) -> &[Watched] {
        &self.watched
    }
}

impl Origin {
    /// Records the ancestors above the app, once. Not part of [`capture`], which would take twice as long while the app
    /// waits.
    pub fn record_ancestors(&mut self) {
        if self.ancestors.is_none() {
            let watched = self.watched.iter().filter(|it| it.role != Role::StdinPeer);
            let top = watched.max_by_key(|it| it.height);
            self.ancestors =
                Some(top.map_or_else(Vec::new, |top| ancestors_above(&top.process, top.height)));
        }
    }

    /// Checks whether the app still lives after a watched process has ended. If an ancestor above that process holds the
    /// far end of our stdin or stdout, it is the app, and the only watched process from then on. Otherwise returns the role
    /// of the process that ended.
    pub fn outlive_ended(&mut self) -> Result<(), Role> {
        let ended = self.watched.iter().filter(|it| !it.process.is_alive());
        let Some((height, role)) = ended.map(|it| (it.height, it.role)).max_by_key(|it| it.0)
        else {
            return Ok(());
        };
        let far_ends = FarEnds::of_this_process();
        let watched = self.watched.iter();
        let mut candidates: Vec<(isize, Identity)> = watched
            .map(|it| (it.height, *it.process.identity()))
            .chain(self.ancestors.take().into_iter().flatten())
            .filter(|(at, _)| *at > height)
            .collect();
        candidates.sort_by_key(|(at, _)| *at);
        let holder = candidates.iter().enumerate().find_map(|(place, it)| {
            let process = ProcessRef::find(&it.1).ok().flatten()?;
            far_ends.are_held_by(&process).then_some((place, process))
        });
        let Some((place, process)) = holder else {
            return Err(role);
        };
        self.ancestors = Some(candidates.split_off(place + 1));
        self.watched = vec![Watched {
            role: Role::App,
            process: Arc::new(process),
            height: candidates[place].0,
        }];
        Ok(())
    }
}

/// The other ends of our stdin and stdout.
struct FarEnds {
    /// Pipes, with the access mode of the far end: write for our stdin, read for our stdout.
    pipes: Vec<((u64, u64), AccessMode)>,
    /// The inodes of sockets.
    sockets: Vec<u64>,
}

impl FarEnds {
    fn of_this_process() -> FarEnds {
        let ours = [
            (rustix::stdio::stdin(), AccessMode::Write),
            (rustix::stdio::stdout(), AccessMode::Read),
        ];
        let mut ends = FarEnds {
            pipes: Vec::new(),
            sockets: Vec::new(),
        };
        for (fd, access) in ours {
            let Ok(stat) = rustix::fs::fstat(fd) else {
                continue;
            };
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Fifo => ends.pipes.push(((stat.st_dev, stat.st_ino), access)),
                FileType::Socket => {
                    let peer = os::Connections::now().ok();
                    ends.sockets
                        .extend(peer.and_then(|all| all.unix_peer_of(stat.st_ino)));
                }
                _ => {}
            }
        }
        ends
    }

    /// Whether a process has one of them open. A process with hidden descriptors counts as not having them.
    fn are_held_by(&self, process: &ProcessRef) -> bool {
        let pid = process.pid();
        let pipe = |(pipe, access): &((u64, u64), AccessMode)| {
            os::holds_file_with(pid, *pipe, *access).unwrap_or(false)
        };
        let held = self.pipes.iter().any(pipe) || {
            let theirs = os::sockets_of(pid).unwrap_or_default();
            self.sockets.iter().any(|inode| theirs.contains(inode))
        };
        held && process.is_alive()
    }
}

/// The result of [`capture`].
#[derive(Debug)]
pub enum Starter {
    /// Watch these processes: the end of any of them means that the app is gone.
    Watch(Origin),
    /// The process with this role was already gone.
    Gone(Role),
    /// There is no process to watch: only EOF on stdin counts.
    NoProcess,
}

/// Finds the process that started us. Call it first in `main`, before the answer can change.
pub fn capture() -> io::Result<Starter> {
    let stdio = Stdio::of_this_process();
    let peer = Peer::of_stdin().ok().flatten();
    let Some(parent) = ProcessRef::parent()? else {
        return Ok(match stdin_creator(peer, &[], &[]) {
            Some(creator) => Starter::Watch(Origin {
                watched: vec![creator],
                ancestors: None,
            }),
            None => Starter::NoProcess,
        });
    };
    let me = ProcessRef::me()?;
    if !stdio.is_from_an_app() && is_detached(&me, &parent) {
        return Ok(Starter::NoProcess);
    }
    if adopted(&me, &parent, &stdio, peer.as_ref()) {
        return Ok(Starter::Gone(Role::Parent));
    }

    let mut line = vec![parent];
    let app_gone = loop {
        let youngest = line.last().expect("starts with the parent");
        if line.len() > MAX_LAUNCHERS || !stdio.inherited_from(youngest) {
            break false;
        }
        // If a launcher ends at this moment, its exit event or an adoption follows.
        let Ok(Some(ancestor)) = ProcessRef::parent_of(youngest) else {
            break false;
        };
        if adopted(youngest, &ancestor, &stdio, peer.as_ref()) {
            break true;
        }
        line.push(ancestor);
    };
    if app_gone {
        return Ok(Starter::Gone(Role::App));
    }

    let top = line.len() as isize - 1;
    // The creator of the socket may be one of them.
    let ancestors = peer
        .is_some()
        .then(|| ancestors_above(&line[line.len() - 1], top));
    let creator = stdin_creator(peer, &line, ancestors.as_deref().unwrap_or_default());
    let mut watched = Vec::new();
    let app = if top > 0 { line.pop() } else { None };
    let parent = line.into_iter().next();
    watched.extend(parent.map(|process| Watched {
        role: Role::Parent,
        process: Arc::new(process),
        height: 0,
    }));
    watched.extend(app.map(|process| Watched {
        role: Role::App,
        process: Arc::new(process),
        height: top,
    }));
    watched.extend(creator);
    Ok(Starter::Watch(Origin { watched, ancestors }))
}

/// The ancestors above a process of this height, with their heights.
fn ancestors_above(process: &ProcessRef, height: isize) -> Vec<(isize, Identity)> {
    let above = ProcessRef::ancestors_of(process, MAX_ANCESTORS);
    (height + 1..).zip(above).collect()
}

/// Whether the watch is enabled: a value that means "off" ([`crate::env::switch`]) disables it; any other value, or none,
/// does not.
pub fn watch_enabled(switch: Option<&OsStr>) -> bool {
    switch.and_then(crate::env::switch).unwrap_or(true)
}

/// Our stdin and stdout if they are pipes or sockets, as (device, inode).
struct Stdio {
    input: Option<(u64, u64)>,
    output: Option<(u64, u64)>,
}

impl Stdio {
    fn of_this_process() -> Stdio {
        Stdio {
            input: pipe_or_socket(rustix::stdio::stdin()),
            output: pipe_or_socket(rustix::stdio::stdout()),
        }
    }

    /// Whether an app talks to us. A pipe on stdout alone may lead to a logger.
    fn is_from_an_app(&self) -> bool {
        self.input.is_some()
    }

    /// Whether `ancestor` has the same stdin, and only passed it on. A terminal or a file proves nothing: many processes
    /// have it.
    fn inherited_from(&self, ancestor: &ProcessRef) -> bool {
        let Some(ours) = self.input else {
            return false;
        };
        // If it cannot be read (a launcher of another user), that process counts as the app.
        let same = os::fd_identity(ancestor.pid(), 0).is_ok_and(|theirs| theirs == ours);
        same && ancestor.is_alive()
    }

    fn files(&self) -> Vec<(u64, u64)> {
        [self.input, self.output].into_iter().flatten().collect()
    }
}

fn pipe_or_socket(fd: BorrowedFd<'_>) -> Option<(u64, u64)> {
    let stat = rustix::fs::fstat(fd).ok()?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    matches!(kind, FileType::Fifo | FileType::Socket).then_some((stat.st_dev, stat.st_ino))
}

/// The sessions of a process and its parent compared. The kernel answers even if `/proc` hides them.
struct Sessions {
    /// The child leads a session, so it left its parent's.
    left: bool,
    /// Both are in one session.
    shared: bool,
}

impl Sessions {
    fn of(child: &ProcessRef, parent: &ProcessRef) -> Option<Sessions> {
        let (own, parents) = (os::session_of(child.pid())?, os::session_of(parent.pid())?);
        Some(Sessions {
            left: own == child.pid(),
            shared: own == parents,
        })
    }
}

/// Whether we were detached on purpose, or started by init, without an app.
fn is_detached(me: &ProcessRef, parent: &ProcessRef) -> bool {
    match Sessions::of(me, parent) {
        Some(sessions) => sessions.left || (parent.pid() == 1 && sessions.shared),
        None => parent.pid() == 1,
    }
}

/// Whether `parent` adopted `child` because its original parent is gone.
fn adopted(child: &ProcessRef, parent: &ProcessRef, stdio: &Stdio, peer: Option<&Peer>) -> bool {
    let sessions = Sessions::of(child, parent);
    let same_session = sessions.as_ref().is_some_and(|sessions| sessions.shared);
    let proves_nothing = sessions.is_none_or(|sessions| sessions.shared || sessions.left);
    if parent.pid() != 1 && proves_nothing {
        return false;
    }
    if os::started_by_service_manager(child.pid()) {
        return false;
    }
    let created_our_stdin = peer
        .and_then(|peer| peer.process.as_ref())
        .is_some_and(|maker| maker.identity().same_process(parent.identity()));
    match os::holds_file(parent.pid(), &stdio.files()) {
        Ok(shares_our_stdio) => !shares_our_stdio && !created_our_stdin,
        // Its descriptors are hidden. In our own session it may be the app: then it counts as that.
        Err(_) => !same_session && !created_our_stdin,
    }
}

/// The living creator of our stdin. If it is gone, that proves nothing: a helper may have created the pair and exited. If
/// only its pid is known, it counts only if it is one of our ancestors, because the pid may have been reused.
fn stdin_creator(
    peer: Option<Peer>,
    line: &[ProcessRef],
    above: &[(isize, Identity)],
) -> Option<Watched> {
    let process = peer?.process?;
    let is_it = |it: &Identity| it.same_process(process.identity());
    let place = line.iter().position(|it| is_it(it.identity()));
    let believed = crate::kernel::features().peer_pidfd || place.is_some();
    let myself = process.pid() == std::process::id();
    let place = place.map(|place| place as isize);
    let place = place.or_else(|| above.iter().find(|(_, it)| is_it(it)).map(|it| it.0));
    let height = place.unwrap_or(NO_ANCESTOR);
    (believed && !myself).then_some(Watched {
        role: Role::StdinPeer,
        process: Arc::new(process),
        height,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_switch_is_off_only_for_four_words_in_any_case() {
        for off in [
            "off", "OFF", "Off", "0", "false", "False", "FALSE", "no", "No", "NO",
        ] {
            assert!(!watch_enabled(Some(OsStr::new(off))), "{off}");
        }
        for on in [
            "", "on", "1", "true", "yes", "offf", " off", "none", "garbage", "00",
        ] {
            assert!(watch_enabled(Some(OsStr::new(on))), "{on}");
        }
        assert!(watch_enabled(None));
    }
}
