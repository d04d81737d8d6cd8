//! Who started us, and whom to watch so that we end when it does.
//!
//! EOF on stdin is not enough: another process may hold the pipe of a killed app (lesson 17). Nor is
//! the parent alone: it may be a launcher (`sh -c`, `npm exec`, a script) that outlives its app. So:
//!
//! - the **parent** is watched;
//! - ancestors are looked through while their fd 0 is the same pipe or socket as ours, for such a one
//!   only passed its stdin on; the first whose fd 0 differs is the **app**, and is watched too;
//! - where stdin is a unix socket, the process at its **other end** is watched as well.
//!
//! A parent that is init has adopted us, which means that the real one is gone, unless it can be seen
//! to share our stdio with us (an app may be pid 1 of its container) or `SYSTEMD_EXEC_PID` says that
//! it started us. So with any other parent whose session is not ours, though we did not leave it: a
//! `systemd --user`, or another subreaper.
//!
//! When one of them ends, the app may live on: a helper started us, and exits. So ancestors above the app are recorded soon
//! after the start, and not watched. At the end of a watched process, and only then, descriptors are looked at: the nearest
//! ancestor **above** it that holds the far end of our stdin or stdout is the app, and is watched from then on. Nobody else
//! who holds it counts: a daemonized child of the app cannot be told from a helper that keeps a dead app's pipe open.
//!
//! With neither a pipe nor a socket on stdin nobody talks to us. Then a process that leads a session of
//! its own was detached on purpose, and a child of init in init's own session was started by it: nobody
//! is watched. Any other parent is.

use std::ffi::OsStr;
use std::io;
use std::ops::Deref;
use std::os::fd::BorrowedFd;

use rustix::fs::FileType;

use crate::os;
use crate::peer::Peer;
use crate::process::{Identity, ProcessRef};

/// How many launchers may stand between an app and us.
const MOST_LAUNCHERS: usize = 32;

/// How many ancestors above the app are recorded, in case it is not the app.
const MOST_ANCESTORS: usize = 6;

/// Below all of them: any ancestor may outlive it as the app, and it outlives nobody as such.
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

/// A process whose end is our end.
#[derive(Debug)]
pub struct Watched {
    /// Why it is watched.
    pub role: Role,
    /// The process.
    pub process: ProcessRef,
    /// How far it is above us among our ancestors: 0 for the parent, [`NO_ANCESTOR`] for others.
    height: isize,
}

/// Who is watched, and who may turn out to be the app.
#[derive(Debug)]
pub struct Origin {
    watched: Vec<Watched>,
    /// The ancestors above the app, nearest first, with their heights, once they were looked for. By identity: descriptors
    /// of all of them would be as many again as a session has.
    ancestors: Option<Vec<(isize, Identity)>>,
}

impl Deref for Origin {
    type Target = [Watched];

    fn deref(&self) -> &[Watched] {
        &self.watched
    }
}

impl Origin {
    /// Records the ancestors above the app, unless that was done. Not by [`capture`]: it takes as long as all the rest of it,
    /// and an app that starts us is to be served first.
    pub fn record_ancestors(&mut self) {
        if self.ancestors.is_none() {
            let watched = self.watched.iter().filter(|it| it.role != Role::StdinPeer);
            let top = watched.max_by_key(|it| it.height);
            self.ancestors = Some(top.map_or_else(Vec::new, |top| above(&top.process, top.height)));
        }
    }

    /// Looks whether the app lives on though a watched process has ended. If an ancestor above that one holds the far end
    /// of our stdin or stdout, it is the app, and alone is watched from now on. An error names the role of the one whose
    /// end is our end.
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
            process,
            height: candidates[place].0,
        }];
        Ok(())
    }
}

/// The other ends of our stdin and stdout.
struct FarEnds {
    /// Pipes, and what a descriptor of the far end may do: write into our stdin, read from our stdout.
    pipes: Vec<((u64, u64), os::Access)>,
    /// The inodes of sockets.
    sockets: Vec<u64>,
}

impl FarEnds {
    fn of_this_process() -> FarEnds {
        let ours = [
            (rustix::stdio::stdin(), os::Access::Write),
            (rustix::stdio::stdout(), os::Access::Read),
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

    /// Whether a process has one of them open. One whose descriptors may not be seen has not.
    fn are_held_by(&self, process: &ProcessRef) -> bool {
        let pid = process.pid();
        let pipe = |(pipe, access): &((u64, u64), os::Access)| {
            os::holds_file_with(pid, *pipe, *access).unwrap_or(false)
        };
        let held = self.pipes.iter().any(pipe) || {
            let theirs = os::sockets_of(pid).unwrap_or_default();
            self.sockets.iter().any(|inode| theirs.contains(inode))
        };
        held && process.is_alive()
    }
}

/// What a look at our origin found.
#[derive(Debug)]
pub enum Starter {
    /// Watch these: the end of any one of them means that the app is gone.
    Watch(Origin),
    /// The process of this role was gone already when we looked.
    Gone(Role),
    /// There is nobody to watch: only EOF on stdin counts.
    Nobody,
}

/// Finds out who started us. Call it first thing in `main`, before the answer can change.
pub fn capture() -> io::Result<Starter> {
    let stdio = Stdio::of_this_process();
    let peer = Peer::of_stdin().ok().flatten();
    let Some(parent) = ProcessRef::parent()? else {
        return Ok(match stdin_maker(peer, &[], &[]) {
            Some(maker) => Starter::Watch(Origin {
                watched: vec![maker],
                ancestors: None,
            }),
            None => Starter::Nobody,
        });
    };
    let me = ProcessRef::me()?;
    if !stdio.is_conversation() && is_on_its_own(&me, &parent) {
        return Ok(Starter::Nobody);
    }
    if adopted(&me, &parent, &stdio, peer.as_ref()) {
        return Ok(Starter::Gone(Role::Parent));
    }

    let mut line = vec![parent];
    let app_gone = loop {
        let youngest = line.last().expect("starts with the parent");
        if line.len() > MOST_LAUNCHERS || !stdio.passed_on_by(youngest) {
            break false;
        }
        // A launcher that ends under our eyes is the parent's exit event, or soon an adoption.
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
    // The maker of a socket may be one of them.
    let ancestors = peer.is_some().then(|| above(&line[line.len() - 1], top));
    let maker = stdin_maker(peer, &line, ancestors.as_deref().unwrap_or_default());
    let mut watched = Vec::new();
    let app = if top > 0 { line.pop() } else { None };
    let parent = line.into_iter().next();
    watched.extend(parent.map(|process| Watched {
        role: Role::Parent,
        process,
        height: 0,
    }));
    watched.extend(app.map(|process| Watched {
        role: Role::App,
        process,
        height: top,
    }));
    watched.extend(maker);
    Ok(Starter::Watch(Origin { watched, ancestors }))
}

/// The ancestors above a process of this height, with their heights.
fn above(process: &ProcessRef, height: isize) -> Vec<(isize, Identity)> {
    let above = ProcessRef::ancestors_of(process, MOST_ANCESTORS);
    (height + 1..).zip(above).collect()
}

/// Whether the switch leaves the watch on: one that is off ([`crate::env::switch`]) disarms it; any other value, or
/// none, does not.
pub fn watch_enabled(switch: Option<&OsStr>) -> bool {
    switch.and_then(crate::env::switch).unwrap_or(true)
}

/// The pipes and sockets we were given to talk through, as (device, inode).
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

    /// Whether somebody talks to us. A pipe on stdout alone may be a logger's.
    fn is_conversation(&self) -> bool {
        self.input.is_some()
    }

    /// Whether `ancestor` merely handed its own stdin down. A tty or a file never tells: everyone has it.
    fn passed_on_by(&self, ancestor: &ProcessRef) -> bool {
        let Some(ours) = self.input else {
            return false;
        };
        // Unreadable (another user's launcher): as far as we can see, that one is the app.
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

/// What the sessions of a process and its parent say. The kernel tells, whatever `/proc` hides.
struct Sessions {
    /// The child leads a session of its own: it left its parent's.
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

/// Whether we were detached on purpose, or started by init, with nobody to talk to us.
fn is_on_its_own(me: &ProcessRef, parent: &ProcessRef) -> bool {
    match Sessions::of(me, parent) {
        Some(sessions) => sessions.left || (parent.pid() == 1 && sessions.shared),
        None => parent.pid() == 1,
    }
}

/// Whether `parent` came to `child` only because the real parent is gone.
fn adopted(child: &ProcessRef, parent: &ProcessRef, stdio: &Stdio, peer: Option<&Peer>) -> bool {
    let sessions = Sessions::of(child, parent);
    let same_session = sessions.as_ref().is_some_and(|sessions| sessions.shared);
    let proves_nothing = sessions.is_none_or(|sessions| sessions.shared || sessions.left);
    if parent.pid() != 1 && proves_nothing {
        return false;
    }
    if started_by_systemd(child) {
        return false;
    }
    let made_our_stdin = peer
        .and_then(|peer| peer.process.as_ref())
        .is_some_and(|maker| maker.identity().same_process(parent.identity()));
    match os::holds_file(parent.pid(), &stdio.files()) {
        Ok(shares_our_stdio) => !shares_our_stdio && !made_our_stdin,
        // Its table is closed to us. In our own session it may well be the app: ambiguous means alive.
        Err(_) => !same_session && !made_our_stdin,
    }
}

/// By its own environment, not ours: a launcher in between may have changed that.
fn started_by_systemd(process: &ProcessRef) -> bool {
    os::environ_has(
        process.pid(),
        &format!("SYSTEMD_EXEC_PID={}", process.pid()),
    )
}

/// The living maker of our stdin. One that is gone already is no evidence: a helper may have made
/// the pair and left. Known by pid alone it counts only as one of our ancestors: a number may have
/// changed hands since.
fn stdin_maker(
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
        process,
        height,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_switch_is_off_only_for_the_four_words_in_any_case() {
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
