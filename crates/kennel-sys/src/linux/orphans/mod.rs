//! Finding servers that no process can talk to any more.
//!
//! A process is suspected if stdin and stdout are pipes or sockets, as those of a stdio server are, the kernel says that no
//! process can read its stdout, and its parent, or the parent of its launchers, adopted it. A suspect is an orphan only if
//! there is no doubt (`doubts.rs`): no process can write to its stdin either, or use it or wait for it in another way. It
//! must also be idle between two looks (`work.rs`), because a job needs no stdin. A suspect in doubt is shown, and never
//! ended.

mod bonds;
mod doubts;
mod shared;
mod state;
mod work;

use std::collections::HashSet;
use std::io;
use std::time::Duration;

use crate::orphans::{Ended, Evidence, Orphan};
use crate::os::{self, Channel, FarEnd, Sockets};
use crate::process::ProcessRef;
use crate::tree::{ProcessTable, Step, end_all};
use doubts::{Judgement, Snapshot};
use work::Work;

/// Maximum number of launchers before a server.
const MAX_LAUNCHERS: usize = 32;
/// Time for a server that lost its app to exit by itself before it is called an orphan.
const EXIT_GRACE: Duration = Duration::from_millis(500);
/// Facts about a suspect from its last examination.
#[derive(Debug)]
pub(crate) struct OrphanFacts {
    /// The process whose stdin and stdout were examined.
    server: ProcessRef,
    /// The work of the whole tree up to then.
    work: Work,
}

/// [`crate::orphans::find`].
pub(crate) fn find(only: Option<&str>) -> io::Result<Vec<Orphan>> {
    let first = look(only)?;
    if first.is_empty() {
        return Ok(first);
    }
    // A server that lost its app a moment ago may be about to exit: only those that stay are reported.
    crate::events::sleep(&[], &[], Some(EXIT_GRACE))?;
    let snapshot = Snapshot::take(pids_of(&first));
    let table = ProcessTable::now()?;
    let lasting = first.into_iter().filter_map(|before| {
        let mut now = before.reexamine(&snapshot, &table)?;
        now.doubts
            .extend(now.facts.work.difference(&before.facts.work));
        now.hidden |= before.hidden;
        for doubt in before.doubts {
            if !now.doubts.contains(&doubt) {
                now.doubts.push(doubt);
            }
        }
        Some(now)
    });
    let mut found: Vec<Orphan> = lasting.collect();
    add_doubts_of_partners(&mut found, &table);
    Ok(found)
}

/// Adds a doubt to orphans that share something with a suspect in doubt: that one is not ended, and may need them.
fn add_doubts_of_partners(found: &mut [Orphan], table: &ProcessTable) {
    let certain = |found: &[Orphan]| found.iter().filter(|orphan| orphan.is_certain()).count();
    let mut before = found.len();
    while certain(found) < before {
        before = certain(found);
        let orphans = found.iter().filter(|orphan| orphan.is_certain());
        let snapshot = Snapshot::take(pids_of(orphans));
        for orphan in found.iter_mut().filter(|orphan| orphan.is_certain()) {
            let now = orphan.reexamine(&snapshot, table);
            orphan
                .doubts
                .extend(now.into_iter().flat_map(|now| now.doubts));
        }
    }
}

fn pids_of<'a>(orphans: impl IntoIterator<Item = &'a Orphan>) -> HashSet<u32> {
    let members = orphans
        .into_iter()
        .flat_map(|orphan| orphan.below.iter().chain([&orphan.process]));
    members.map(ProcessRef::pid).collect()
}

/// [`crate::orphans::end`].
pub(crate) fn end(orphans: &[Orphan], after_term: Duration) -> io::Result<Vec<Ended>> {
    let snapshot = Snapshot::take(pids_of(orphans));
    let table = ProcessTable::now()?;
    let condemned = |orphan: &Orphan| -> Vec<ProcessRef> {
        let now = orphan.reexamine(&snapshot, &table);
        let is_idle = |now: &Orphan| now.facts.work.difference(&orphan.facts.work).is_empty();
        let is_certain = |now: &Orphan| now.is_certain() && is_idle(now);
        let certain = orphan.is_certain() && now.as_ref().is_some_and(is_certain);
        now.filter(|_| certain)
            .map(|now| now.below.into_iter().chain([now.process]).collect())
            .unwrap_or_default()
    };
    let trees: Vec<Vec<ProcessRef>> = orphans.iter().map(condemned).collect();
    end_all(trees.iter().flatten(), after_term)?;
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
    let table = ProcessTable::now()?;
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
        let (below, _) = descendants_of(&suspect.top, &table);
        let members = below.iter().chain([&suspect.top]);
        snapshot.suspects.extend(members.map(ProcessRef::pid));
    }
    let judged = suspects.into_iter();
    let mut found: Vec<Orphan> = judged
        .map(|suspect| Orphan::judge(suspect, &snapshot, &table))
        .collect();
    // A descendant of a suspect is reported with it.
    let inside: HashSet<u32> = found
        .iter()
        .flat_map(|orphan| orphan.below.iter().map(ProcessRef::pid))
        .collect();
    found.retain(|orphan| !inside.contains(&orphan.process.pid()));
    Ok(found)
}

impl Orphan {
    fn judge(suspect: Suspect, snapshot: &Snapshot, table: &ProcessTable) -> Orphan {
        let Suspect {
            server,
            top,
            evidence,
            starter_doubt,
        } = suspect;
        let (below, kennel) = descendants_of(&top, table);
        let members: Vec<&ProcessRef> = [&top].into_iter().chain(&below).collect();
        let Judgement {
            mut doubts,
            hidden,
            work,
        } = snapshot.judge(&members);
        doubts.extend(starter_doubt.map(str::to_owned));
        doubts.extend(kennel.map(|pid| {
            format!("its descendant with pid {pid} is a Kennel process in charge of a server")
        }));
        if !evidence.no_writer && doubts.is_empty() {
            doubts.push("another process may write to its stdin".to_owned());
        }
        let resident = |process: &&ProcessRef| os::resident(process.pid());
        Orphan {
            evidence,
            doubts,
            hidden,
            command: os::command_line(top.pid()).unwrap_or_default(),
            memory: members.iter().map(resident).sum(),
            age: os::age(top.pid()),
            user: user_of(&members),
            facts: OrphanFacts { server, work },
            below,
            process: top,
        }
    }

    /// Examines the suspect again; `None` if it is gone or no suspect any more.
    fn reexamine(&self, snapshot: &Snapshot, table: &ProcessTable) -> Option<Orphan> {
        let now = suspect(self.facts.server.pid(), &snapshot.sockets)?;
        let same = |one: &ProcessRef, other: &ProcessRef| {
            one.identity().same_process(other.identity()) && one.is_alive()
        };
        let same = same(&self.facts.server, &now.server) && same(&self.process, &now.top);
        same.then(|| Orphan::judge(now, snapshot, table))
    }
}

/// The first user other than ours among the processes, or ours.
fn user_of(members: &[&ProcessRef]) -> Option<u32> {
    let ours = Some(rustix::process::getuid().as_raw());
    let living = members.iter().filter(|process| process.is_alive());
    let users = living.map(|process| os::user_of(process.pid()).ok());
    users.fold(ours, |user, other| if user == ours { other } else { user })
}

/// A process whose stdout no process can read, and whose starter is gone.
struct Suspect {
    server: ProcessRef,
    /// The outermost launcher before it, or the process itself.
    top: ProcessRef,
    evidence: Evidence,
    /// Why its starter may still live.
    starter_doubt: Option<&'static str>,
}

/// The suspect that `pid` is, or whose launcher it is.
fn suspect(pid: u32, sockets: &Sockets) -> Option<Suspect> {
    let (input, output) = stdio(pid)?;
    let no_reader = os::readers(pid, output, sockets) == FarEnd::Abandoned;
    // While a process reads its output, it works for that process, even without input.
    if !no_reader {
        return None;
    }
    let no_writer = os::writers(pid, input, sockets) == FarEnd::Abandoned;
    let server = ProcessRef::open(pid).ok()?;
    let (top, adopted_by) = adopted(ProcessRef::open(pid).ok()?, (input, output))?;
    let starter_doubt = if shares_session_with_init(&top, adopted_by) {
        Some("it is in the session of pid 1, which may have started it")
    } else if !os::is_reaper(adopted_by) {
        Some("its parent may have started it, or supervise it")
    } else {
        None
    };
    // Checked again after the process was opened, so the facts are about it (rule 6).
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
        starter_doubt,
    })
}

/// Whether a process is in the session of init. The init of a container starts programs in its own session: those were not
/// adopted.
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

/// The outermost launcher before a process, or itself, and the pid that adopted it; `None` if it was not adopted.
fn adopted(process: ProcessRef, stdio: (Channel, Channel)) -> Option<(ProcessRef, u32)> {
    let input = os::fd_identity(process.pid(), 0).ok()?;
    let output = os::fd_identity(process.pid(), 1).ok()?;
    let mut top = process;
    for _ in 0..MAX_LAUNCHERS {
        let parent = ProcessRef::parent_of(&top).ok()??;
        let is_launcher =
            parent.pid() != 1 && os::channel(parent.pid(), 0).ok() == Some(Some(stdio.0));
        if is_launcher {
            top = parent;
            continue;
        }
        return was_adopted(&top, &parent, &[input, output]).then(|| (top, parent.pid()));
    }
    None
}

fn was_adopted(child: &ProcessRef, parent: &ProcessRef, files: &[(u64, u64)]) -> bool {
    // Kennel is in charge of its descendants.
    if os::is_kennel(parent.pid()) || os::is_kennel(child.pid()) {
        return false;
    }
    if os::started_by_service_manager(child.pid()) {
        return false;
    }
    match os::holds_file(parent.pid(), files) {
        Ok(true) => return false,
        // The descriptors of an init are hidden from most users. Another parent with hidden descriptors may hold the files.
        Err(_) if parent.pid() != 1 => return false,
        Ok(false) | Err(_) => {}
    }
    if parent.pid() == 1 {
        return true;
    }
    // A parent in another session, though the child did not leave its own session.
    match (os::session_of(child.pid()), os::session_of(parent.pid())) {
        (Some(own), Some(parents)) => own != parents && own != child.pid(),
        _ => false,
    }
}

/// The descendants of a process, except Kennel's processes and their descendants. Also returns the pid of a Kennel process
/// that works for it. A daemon does not count: it works for any session.
fn descendants_of(process: &ProcessRef, table: &ProcessTable) -> (Vec<ProcessRef>, Option<u32>) {
    let mut kennel = None;
    let judge = |process: &ProcessRef, _: &ProcessRef| {
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
    (table.descendants(process, judge), kennel)
}
