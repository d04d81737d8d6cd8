//! Servers that nobody can talk to any more, whoever started them: the starter is gone, and so is every process that
//! could write to their stdin or read their stdout.
//!
//! A process is suspected if stdin and stdout are pipes or sockets, as a server on stdio has them, the kernel says that
//! no process can read its stdout, and its parent, or the parent of its launchers, adopted it. A suspect is an orphan
//! only if nothing in `doubts.rs` speaks for it: no process can write to its stdin either, and nobody can reach it, or
//! waits for it, in another way. Nor does it work between two looks (`work.rs`): a job needs no stdin. In doubt it is
//! shown, and never ended.

mod doubts;
mod shared;
mod state;
mod work;

use std::collections::HashSet;
use std::io;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::os::{self, Channel, FarEnd, Sockets};
use crate::process::{ProcessRef, is_reaper};
use crate::tree::{Children, Step, Walk, children_by_parent};
use doubts::{Judgement, Snapshot};
use work::Work;

/// How many launchers may stand before a server.
const MOST_LAUNCHERS: usize = 32;
/// How long one that lost its app may take to end by itself before it is called an orphan.
const SETTLING: Duration = Duration::from_millis(500);
/// After this long, what does not go on SIGKILL is left.
const LAST_RUNG: Duration = Duration::from_secs(5);

/// A server that nobody seems to be able to talk to, with everyone below it.
#[derive(Debug)]
pub struct Orphan {
    /// The server, or the launcher before it.
    pub process: ProcessRef,
    /// What is below it.
    pub below: Vec<ProcessRef>,
    /// What proves it.
    pub evidence: Evidence,
    /// Reasons to believe that somebody needs it nevertheless. With any of these it is never ended.
    pub doubts: Vec<String>,
    /// Whether one of the doubts is that this user may not look: root sees more.
    pub hidden: bool,
    /// What it was started as.
    pub command: Vec<String>,
    /// What all of it holds in memory, in bytes.
    pub memory: u64,
    /// How long ago it was started.
    pub age: Duration,
    /// The user whose processes these are: another one than ours if any of them is another's. None if hidden.
    pub user: Option<u32>,
    /// The process whose stdin and stdout were looked at.
    server: ProcessRef,
    /// What all of it had done when it was looked at.
    work: Work,
}

/// What proves that nobody can talk to a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Evidence {
    /// Who adopted it when its starter was gone.
    pub adopted_by: u32,
    /// Nobody can write to its stdin.
    pub no_writer: bool,
    /// Nobody can read its stdout.
    pub no_reader: bool,
}

/// What [`end`] did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ended {
    /// Processes that are gone.
    pub gone: usize,
    /// Processes that would not go.
    pub left: usize,
}

/// All suspects there are to see, orphans among them. `only`: those alone whose environment has this (`NAME=value`), for
/// callers that share the machine with others of the same user.
pub fn find(only: Option<&str>) -> io::Result<Vec<Orphan>> {
    let first = look(only)?;
    if first.is_empty() {
        return Ok(first);
    }
    // A server that lost its app a moment ago is about to exit: report those that stay.
    crate::events::sleep(&[], &[], Some(SETTLING))?;
    let snapshot = Snapshot::take(everyone_of(&first));
    let children = children_by_parent()?;
    let lasting = first.into_iter().filter_map(|before| {
        let mut now = before.judged_again(&snapshot, &children)?;
        now.doubts.extend(now.work.since(&before.work));
        now.hidden |= before.hidden;
        for doubt in before.doubts {
            if !now.doubts.contains(&doubt) {
                now.doubts.push(doubt);
            }
        }
        Some(now)
    });
    let mut found: Vec<Orphan> = lasting.collect();
    spare_partners(&mut found, &children);
    Ok(found)
}

/// Puts in doubt who shares something with a suspect that is in doubt itself: that one is not ended, and may need it.
fn spare_partners(found: &mut [Orphan], children: &Children) {
    let certain = |found: &[Orphan]| found.iter().filter(|orphan| orphan.is_certain()).count();
    let mut before = found.len();
    while certain(found) < before {
        before = certain(found);
        let orphans = found.iter().filter(|orphan| orphan.is_certain());
        let snapshot = Snapshot::take(everyone_of(orphans));
        for orphan in found.iter_mut().filter(|orphan| orphan.is_certain()) {
            let now = orphan.judged_again(&snapshot, children);
            orphan
                .doubts
                .extend(now.into_iter().flat_map(|now| now.doubts));
        }
    }
}

fn everyone_of<'a>(orphans: impl IntoIterator<Item = &'a Orphan>) -> HashSet<u32> {
    let everyone = orphans
        .into_iter()
        .flat_map(|orphan| orphan.below.iter().chain([&orphan.process]));
    everyone.map(ProcessRef::pid).collect()
}

/// Ends orphans, each with everyone below it: SIGTERM, `after_term` for all of them to exit, then SIGKILL. An orphan
/// that is none any more, or is in doubt, is spared. Returns what became of each.
pub fn end(orphans: &[Orphan], after_term: Duration) -> io::Result<Vec<Ended>> {
    let snapshot = Snapshot::take(everyone_of(orphans));
    let children = children_by_parent()?;
    let condemned = |orphan: &Orphan| -> Vec<ProcessRef> {
        let now = orphan.judged_again(&snapshot, &children);
        let is_idle = |now: &Orphan| now.work.since(&orphan.work).is_empty();
        let is_certain = |now: &Orphan| now.is_certain() && is_idle(now);
        let certain = orphan.is_certain() && now.as_ref().is_some_and(is_certain);
        now.filter(|_| certain)
            .map(|now| now.below.into_iter().chain([now.process]).collect())
            .unwrap_or_default()
    };
    let trees: Vec<Vec<ProcessRef>> = orphans.iter().map(condemned).collect();
    let everyone = || trees.iter().flatten();
    for process in everyone() {
        // A process that changed its user cannot be signalled; the others can.
        let _ = process.signal(Signal::TERM);
    }
    wait_for_all(everyone(), after_term)?;
    for process in everyone().filter(|process| process.is_alive()) {
        let _ = process.signal(Signal::KILL);
    }
    wait_for_all(everyone(), LAST_RUNG)?;
    let ended = trees.iter().map(|tree| {
        let left = tree.iter().filter(|process| process.is_alive()).count();
        Ended {
            gone: tree.len() - left,
            left,
        }
    });
    Ok(ended.collect())
}

fn look(only: Option<&str>) -> io::Result<Vec<Orphan>> {
    let mut snapshot = Snapshot::take(HashSet::new());
    let children = children_by_parent()?;
    let mut suspects: Vec<Suspect> = Vec::new();
    let mut pids = os::processes()?;
    pids.sort_unstable();
    for pid in pids {
        let marked = only.is_none_or(|pair| os::environ_has(pid, pair));
        if !marked || pid == std::process::id() {
            continue;
        }
        let Some(suspect) = suspect(pid, &snapshot.sockets) else {
            continue;
        };
        let known = |known: &Suspect| known.top.pid() == suspect.top.pid();
        if !suspects.iter().any(known) {
            suspects.push(suspect);
        }
    }
    for suspect in &suspects {
        let (below, _) = below(&suspect.top, &children);
        let everyone = below.iter().chain([&suspect.top]);
        snapshot.suspects.extend(everyone.map(ProcessRef::pid));
    }
    let judged = suspects.into_iter();
    let mut found: Vec<Orphan> = judged
        .map(|suspect| Orphan::judge(suspect, &snapshot, &children))
        .collect();
    // What is below one that is found is found with it.
    let inside: HashSet<u32> = found
        .iter()
        .flat_map(|orphan| orphan.below.iter().map(ProcessRef::pid))
        .collect();
    found.retain(|orphan| !inside.contains(&orphan.process.pid()));
    Ok(found)
}

impl Orphan {
    /// Whether nothing speaks for it: only then it may be ended.
    pub fn is_certain(&self) -> bool {
        self.evidence.no_writer && self.evidence.no_reader && self.doubts.is_empty()
    }

    fn judge(suspect: Suspect, snapshot: &Snapshot, children: &Children) -> Orphan {
        let Suspect {
            server,
            top,
            evidence,
            unclear,
        } = suspect;
        let (below, kennel) = below(&top, children);
        let everyone: Vec<&ProcessRef> = [&top].into_iter().chain(&below).collect();
        let Judgement {
            mut doubts,
            hidden,
            work,
        } = snapshot.judge(&everyone);
        doubts.extend(unclear.map(str::to_owned));
        doubts.extend(
            kennel.map(|pid| format!("pid {pid} below it is Kennel's, and looks after a server")),
        );
        if !evidence.no_writer && doubts.is_empty() {
            doubts.push("another process may write to its stdin".to_owned());
        }
        let resident = |process: &&ProcessRef| os::resident(process.pid());
        Orphan {
            evidence,
            doubts,
            hidden,
            command: os::command_line(top.pid()).unwrap_or_default(),
            memory: everyone.iter().map(resident).sum(),
            age: os::age(top.pid()),
            user: user_of(&everyone),
            work,
            below,
            process: top,
            server,
        }
    }

    /// The same suspect as it is now; `None` if it is gone, or is none any more.
    fn judged_again(&self, snapshot: &Snapshot, children: &Children) -> Option<Orphan> {
        let now = suspect(self.server.pid(), &snapshot.sockets)?;
        let same = |one: &ProcessRef, other: &ProcessRef| {
            one.identity().same_process(other.identity()) && one.is_alive()
        };
        let same = same(&self.server, &now.server) && same(&self.process, &now.top);
        same.then(|| Orphan::judge(now, snapshot, children))
    }
}

/// The first user other than ours whose a process is, or ours.
fn user_of(everyone: &[&ProcessRef]) -> Option<u32> {
    let ours = Some(rustix::process::getuid().as_raw());
    let living = everyone.iter().filter(|process| process.is_alive());
    let users = living.map(|process| os::user_of(process.pid()).ok());
    users.fold(ours, |user, other| if user == ours { other } else { user })
}

/// A process whose output nobody can read, and whose starter is gone.
struct Suspect {
    server: ProcessRef,
    /// The outermost launcher before it, or itself.
    top: ProcessRef,
    evidence: Evidence,
    /// Why its starter may not be gone.
    unclear: Option<&'static str>,
}

/// The suspect that `pid` is or belongs to.
fn suspect(pid: u32, sockets: &Sockets) -> Option<Suspect> {
    let (input, output) = stdio(pid)?;
    let no_reader = os::readers(pid, output, sockets) == FarEnd::Abandoned;
    // Whatever became of its input: as long as somebody reads its output, it works for them.
    if !no_reader {
        return None;
    }
    let no_writer = os::writers(pid, input, sockets) == FarEnd::Abandoned;
    let server = ProcessRef::open(pid).ok()?;
    let (top, adopted_by) = adopted(ProcessRef::open(pid).ok()?, (input, output))?;
    let unclear = if shares_session_with_init(&top, adopted_by) {
        Some("it is in the session of pid 1, which may have started it")
    } else if !is_reaper(adopted_by) {
        Some("its parent may have started it, or supervise it")
    } else {
        None
    };
    // Asked again behind the reference: now the answer is about this very process (rule 6).
    let still = stdio(pid) == Some((input, output)) && top.is_alive() && server.is_alive();
    let evidence = Evidence {
        adopted_by,
        no_writer,
        no_reader,
    };
    still.then_some(Suspect {
        server,
        top,
        evidence,
        unclear,
    })
}

/// The init of a container starts programs itself, in its own session: those were not adopted.
fn shares_session_with_init(process: &ProcessRef, parent: u32) -> bool {
    let session = |pid| os::stat(pid).map(|stat| stat.session);
    parent == 1
        && match (session(process.pid()), session(1)) {
            (Ok(own), Ok(inits)) => own == inits,
            _ => true,
        }
}

fn stdio(pid: u32) -> Option<(Channel, Channel)> {
    Some((os::channel(pid, 0).ok()??, os::channel(pid, 1).ok()??))
}

/// The outermost launcher before a process, or itself, and who adopted that; `None` if nobody did.
fn adopted(process: ProcessRef, stdio: (Channel, Channel)) -> Option<(ProcessRef, u32)> {
    let input = os::fd_identity(process.pid(), 0).ok()?;
    let output = os::fd_identity(process.pid(), 1).ok()?;
    let mut top = process;
    for _ in 0..MOST_LAUNCHERS {
        let parent = ProcessRef::parent_of(&top).ok()??;
        let is_launcher =
            parent.pid() != 1 && os::channel(parent.pid(), 0).ok() == Some(Some(stdio.0));
        if is_launcher {
            top = parent;
            continue;
        }
        return came_by_adoption(&top, &parent, &[input, output]).then(|| (top, parent.pid()));
    }
    None
}

fn came_by_adoption(child: &ProcessRef, parent: &ProcessRef, files: &[(u64, u64)]) -> bool {
    // What is below Kennel has somebody who looks after it.
    if os::is_kennel(parent.pid()) || os::is_kennel(child.pid()) {
        return false;
    }
    let started_by_systemd = format!("SYSTEMD_EXEC_PID={}", child.pid());
    if os::environ_has(child.pid(), &started_by_systemd) {
        return false;
    }
    match os::holds_file(parent.pid(), files) {
        Ok(true) => return false,
        // The table of an init is closed to most; any other's that is closed may hold anything.
        Err(_) if parent.pid() != 1 => return false,
        Ok(false) | Err(_) => {}
    }
    if parent.pid() == 1 {
        return true;
    }
    // A parent in another session, though the child did not leave its own.
    match (os::session_of(child.pid()), os::session_of(parent.pid())) {
        (Some(own), Some(parents)) => own != parents && own != child.pid(),
        _ => false,
    }
}

/// Everyone below a process, each checked to be there while its parent was, but for Kennel's own processes and what is below
/// those. The pid of one of Kennel's that works for the process: not that of a daemon, which is nobody's.
fn below(process: &ProcessRef, children: &Children) -> (Vec<ProcessRef>, Option<u32>) {
    let mut kennel = None;
    let judge = |process: &ProcessRef, _: Option<&ProcessRef>| {
        let pid = process.pid();
        if !os::is_kennel(pid) {
            return Step::Collect;
        }
        let command = os::command_line(pid).unwrap_or_default();
        if command.get(1).is_none_or(|word| word != "daemon") {
            kennel = Some(pid);
        }
        Step::Skip
    };
    let mut everyone = Vec::new();
    Walk::new(children, judge, |process| everyone.push(process)).below(process);
    everyone.reverse();
    (everyone, kennel)
}

fn wait_for_all<'a>(
    processes: impl Iterator<Item = &'a ProcessRef>,
    most: Duration,
) -> io::Result<()> {
    let started = Instant::now();
    for process in processes {
        process.wait(Some(most.saturating_sub(started.elapsed())))?;
    }
    Ok(())
}
