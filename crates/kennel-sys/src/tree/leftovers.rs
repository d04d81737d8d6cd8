//! After a disaster: what is left of trees whose warden and served process were both killed.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::daemons::{served_by_warden, tree_of_warden};
use super::kept::{self, Kept};
use super::mark::TreeMark;
use super::record::{self, Record};
use super::services::{self, Rules, Source};
use super::{descendants, members};
use crate::detached::Reason;
use crate::os;
use crate::process::{Identity, ProcessRef};

/// After this long, what does not go on SIGKILL is left: nobody waits for a stuck disk.
const LAST_RUNG: Duration = Duration::from_secs(5);
/// How long a warden that was stopped and continued has: two short rungs of its ladder, and the end of what is killed.
const CONTINUED: Duration = Duration::from_secs(4);
/// How often is looked whether it was stopped again.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Most trees inside one another that one call ends: each may be abandoned only when the one around it has ended.
const MOST_NESTED: usize = 4;

/// What [`end_leftovers`] did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ended {
    /// Trees of which nothing is left now.
    pub trees: usize,
    /// Processes that were still there, and are not any more.
    pub processes: usize,
    /// Trees that somebody is still in charge of, as far as can be told: left alone.
    pub attended: usize,
    /// Processes that would not go: out of our reach, or stuck in the kernel. Their tree stays on record.
    pub left: usize,
    /// What was left alone, each with the reason: files that are called like a record and cannot be read as one, and
    /// processes that have a copy of the cookie of a tree.
    pub skipped: Vec<String>,
}

/// Ends what is left of every tree on record in `dir` that nobody is in charge of any more:
/// SIGTERM, `after_term` for it to work, then SIGKILL until nobody is found.
///
/// Which processes are left over is what the kernel confirms (`members`): a record alone ends nobody. A file that is no
/// record, such as a link, is skipped, and named in [`Ended::skipped`].
pub fn end_leftovers(dir: impl AsFd, after_term: Duration) -> io::Result<Ended> {
    let dir = dir.as_fd();
    let mut ended = Ended {
        processes: end_stopped_wardens(dir)?,
        ..Ended::default()
    };
    let _ = kept::sweep(dir);
    for _ in 0..MOST_NESTED {
        let pass = end_abandoned(dir, after_term)?;
        // A tree inside another is in charge of a warden that was a member of that one: it may be abandoned only now.
        let again = pass.processes > 0 && pass.left == 0;
        ended = Ended {
            trees: ended.trees + pass.trees,
            processes: ended.processes + pass.processes,
            ..pass
        };
        if !again {
            break;
        }
    }
    Ok(ended)
}

fn end_abandoned(dir: BorrowedFd<'_>, after_term: Duration) -> io::Result<Ended> {
    let mut ended = Ended::default();
    // All are asked before the first is waited for: whoever starts waits for one rung, not for one a tree.
    let asked = Instant::now();
    // Counted from here on: most exit on this signal, and are gone before their tree's turn comes.
    let mut reached: HashMap<String, HashSet<Identity>> = HashMap::new();
    for cookie in record::cookies(dir)? {
        let Ok(Some(record)) = Record::read(dir, &cookie) else {
            continue;
        };
        if let Standing::Abandoned = standing(&record) {
            let Found { left, services } = find_members(dir, &cookie, &record, &HashSet::new())?;
            for (identity, reason) in services {
                // Without a record the next look finds the same again.
                let _ = Kept::now(identity, reason, &cookie).write(dir);
            }
            reached.insert(cookie, signal_all(&left, Signal::TERM).collect());
        }
    }
    for cookie in record::cookies(dir)? {
        let record = match Record::read(dir, &cookie) {
            Ok(record) => record,
            // Ended by somebody else at this moment.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            // A link, a socket, a file without permissions: no record of ours, and no reason to fail.
            Err(error) => {
                ended.skipped.push(format!("{cookie}: {error}"));
                continue;
            }
        };
        // Written by a later version, perhaps: nobody is ended on a record we cannot read.
        let Some(record) = record else {
            ended.attended += 1;
            continue;
        };
        match standing(&record) {
            Standing::Attended => {
                ended.attended += 1;
                continue;
            }
            // Its numbers mean nothing any more, and nobody of it survived the boot.
            Standing::EarlierBoot => {}
            Standing::Abandoned => {
                let rest = after_term.saturating_sub(asked.elapsed());
                let reached = reached.remove(&cookie).unwrap_or_default();
                let (gone, left) = end_tree(dir, &cookie, &record, reached, rest)?;
                ended.processes += gone;
                ended.left += left;
                if left > 0 {
                    continue;
                }
                for (pid, why) in members::copies(&cookie)? {
                    ended.skipped.push(format!(
                        "{cookie}: process {pid} has the cookie of this tree, and {why}"
                    ));
                }
            }
        }
        ended.trees += 1;
        match record::remove(dir, &cookie) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(ended)
}

/// What [`end_leftovers`] would end now.
pub fn find_leftovers(dir: impl AsFd) -> io::Result<Vec<ProcessRef>> {
    let dir = dir.as_fd();
    let mut found = Vec::new();
    for warden in orphaned_wardens(dir)?.into_iter().filter(is_stopped) {
        found.extend(descendants::below(&warden)?);
        found.push(warden);
    }
    for cookie in record::cookies(dir)? {
        let Ok(Some(record)) = Record::read(dir, &cookie) else {
            continue;
        };
        if let Standing::Abandoned = standing(&record) {
            found.extend(find_members(dir, &cookie, &record, &HashSet::new())?.left);
        }
    }
    Ok(found)
}

/// Waits for the wardens on record in `dir` whose served process is gone, at most as long as `most`: each is ending its
/// tree by itself. A caller that starts the same server again without that wait has two of it. Stopped wardens are not
/// waited for: [`end_leftovers`] continues them.
pub fn await_orphaned_wardens(dir: impl AsFd, most: Duration) -> io::Result<()> {
    let dir = dir.as_fd();
    let mut wardens = orphaned_wardens(dir)?;
    wardens.retain(|warden| !is_stopped(warden));
    wait_for_all(&wardens, most)
}

/// The living wardens on record in `dir` whose served process is gone. The record alone neither makes a process a warden
/// nor its served process gone: the arguments of the warden name the same tree, and whom it serves.
fn orphaned_wardens(dir: BorrowedFd<'_>) -> io::Result<Vec<ProcessRef>> {
    let mut wardens = Vec::new();
    for cookie in record::cookies(dir)? {
        let Ok(Some(record)) = Record::read(dir, &cookie) else {
            continue;
        };
        let warden = ProcessRef::find(&record.warden).ok().flatten();
        // What cannot be told is no reason to wait.
        let is_orphaned = |it: &ProcessRef| {
            let served = served_by_warden(it.pid()).map(|served| ProcessRef::find(&served));
            matches!(served, Some(Ok(None)))
                && tree_of_warden(it.pid()).is_some_and(|tree| tree == cookie)
                && it.is_alive()
        };
        wardens.extend(warden.filter(is_orphaned));
    }
    Ok(wardens)
}

fn is_stopped(process: &ProcessRef) -> bool {
    os::stat(process.pid()).is_ok_and(|stat| stat.stopped) && process.is_alive()
}

/// Continues the wardens that somebody stopped (SIGSTOP) and whose served process is gone: each then ends its tree. A
/// warden that is stopped again and again, or by a debugger, is killed; what was below it is killed too, but for
/// services that others use. Returns how many processes of theirs ended.
fn end_stopped_wardens(dir: BorrowedFd<'_>) -> io::Result<usize> {
    let mut ended = 0;
    let mut wardens = orphaned_wardens(dir)?;
    wardens.retain(is_stopped);
    let mut trees = Vec::new();
    for warden in wardens {
        let tree = descendants::below(&warden)?;
        warden.signal(Signal::CONT)?;
        trees.push((warden, tree));
    }
    let deadline = Instant::now() + CONTINUED;
    for (warden, tree) in trees {
        let mut stops = 0;
        while !warden.wait(Some(Duration::ZERO))? && Instant::now() < deadline {
            if is_stopped(&warden) {
                stops += 1;
                warden.signal(Signal::CONT)?;
            }
            warden.wait(Some(LOOK_AGAIN))?;
        }
        // One that was continued for good is still ending processes that do not go: it stays in charge.
        if stops > 0 && warden.is_alive() {
            kill_warden(dir, &warden, &tree)?;
        }
        ended += tree.iter().filter(|process| !process.is_alive()).count();
    }
    Ok(ended)
}

/// Kills a warden and what was below it, but for the services that it would have kept: those are of the tree that its
/// record is about, and are written down as [`end_abandoned`] does.
fn kill_warden(dir: BorrowedFd<'_>, warden: &ProcessRef, tree: &[ProcessRef]) -> io::Result<()> {
    let cookie = tree_of_warden(warden.pid()).unwrap_or_default();
    let record = Record::read(dir, &cookie).ok().flatten();
    let identities: Vec<Identity> = tree.iter().map(|it| *it.identity()).collect();
    let mut spared = HashSet::new();
    if let Some(record) = record {
        let rules = rules_of(&record);
        let mut kept = kept::confirmed(dir, &rules);
        for (identity, reason) in services::kept_among(&identities, &rules, false) {
            let _ = Kept::now(identity, reason, &cookie).write(dir);
            kept.push(identity);
        }
        spared = kept::spared(&kept);
    }
    warden.signal(Signal::KILL)?;
    for process in tree.iter().filter(|it| !spared.contains(&it.pid())) {
        // A process that changed its user cannot be signalled; the others can.
        let _ = process.signal(Signal::KILL);
    }
    wait_for_all(
        tree.iter().filter(|it| !spared.contains(&it.pid())),
        LAST_RUNG,
    )
}

/// Who is in charge of a tree.
enum Standing {
    /// Its warden lives and will end it, or the process it served does, and is the strays' subreaper; or
    /// it cannot be told, as from another pid namespace: ambiguous means alive.
    Attended,
    /// Nobody.
    Abandoned,
    /// It was written before the machine was started again.
    EarlierBoot,
}

fn standing(record: &Record) -> Standing {
    let other_boot = |boot| os::boot_id().is_some_and(|ours| ours != boot);
    if record.warden.boot.is_some_and(other_boot) {
        return Standing::EarlierBoot;
    }
    let alive = |identity| ProcessRef::find(identity).map_or(true, |found| found.is_some());
    match alive(&record.warden) || alive(&record.served) {
        true => Standing::Attended,
        false => Standing::Abandoned,
    }
}

/// Signals processes, and returns the identity of each that the signal reached.
fn signal_all(members: &[ProcessRef], signal: Signal) -> impl Iterator<Item = Identity> {
    // A process that changed its user cannot be signalled; the others can.
    let reached = move |process: &&ProcessRef| process.signal(signal).unwrap_or(false);
    members
        .iter()
        .filter(reached)
        .map(|process| *process.identity())
}

/// Ends a tree: how many are gone, and how many would not go. `reached`: members that were sent SIGTERM before. They do
/// not get it again: many programs take a second one for an order to end at once.
fn end_tree(
    dir: BorrowedFd<'_>,
    cookie: &str,
    record: &Record,
    mut reached: HashSet<Identity>,
    after_term: Duration,
) -> io::Result<(usize, usize)> {
    let mut signal_everyone = |signal| -> io::Result<Vec<ProcessRef>> {
        let mut members = find_members(dir, cookie, record, &reached)?.left;
        let (again, new): (Vec<ProcessRef>, Vec<ProcessRef>) = members
            .drain(..)
            .partition(|it| signal == Signal::TERM && reached.contains(it.identity()));
        members = again;
        reached.extend(signal_all(&new, signal));
        members.extend(new);
        Ok(members)
    };
    let mut members = signal_everyone(Signal::TERM)?;
    wait_for_all(&members, after_term)?;
    // What is being killed may fork meanwhile: look again until nobody is found.
    let deadline = Instant::now() + LAST_RUNG;
    while !members.is_empty() && Instant::now() < deadline {
        members = signal_everyone(Signal::KILL)?;
        wait_for_all(&members, Duration::from_secs(1))?;
    }
    let left = members.iter().filter(|process| process.is_alive()).count();
    Ok((reached.len().saturating_sub(left), left))
}

fn wait_for_all<'a>(
    processes: impl IntoIterator<Item = &'a ProcessRef>,
    most: Duration,
) -> io::Result<()> {
    let started = Instant::now();
    for process in processes {
        process.wait(Some(most.saturating_sub(started.elapsed())))?;
    }
    Ok(())
}

/// The living members of a tree nobody is in charge of.
struct Found {
    left: Vec<ProcessRef>,
    /// Those that others use, and that stay: decided as its warden would have.
    services: Vec<(Identity, Reason)>,
}

fn rules_of(record: &Record) -> Rules {
    Rules {
        policy: record.detached,
        sessions: vec![record.session],
        source: Source::Record,
    }
}

/// The rules for members whose environment does not tell: those of another member of the tree; of the record, if an earlier
/// build started all of them.
fn rules_for(members: &[ProcessRef], cookie: &str, record: &Record) -> Rules {
    let marks = members.iter().filter_map(|it| TreeMark::of(it.pid()));
    let mut terms = marks.filter(|mark| mark.cookie == cookie);
    let told = terms.find_map(|mark| mark.terms).map(Rules::from);
    told.unwrap_or_else(|| rules_of(record))
}

/// `known`: members that the kernel confirmed before. What confirmed them may be gone: the leader of their session, or a
/// process that they were below.
fn find_members(
    dir: BorrowedFd<'_>,
    cookie: &str,
    record: &Record,
    known: &HashSet<Identity>,
) -> io::Result<Found> {
    let mut left = members::living(cookie)?;
    for identity in known {
        if !left.iter().any(|it| it.identity().same_process(identity)) {
            left.extend(ProcessRef::find(identity).ok().flatten());
        }
    }
    if left.is_empty() {
        let services = Vec::new();
        return Ok(Found { left, services });
    }
    let rules = rules_for(&left, cookie, record);
    let on_record = kept::confirmed(dir, &rules);
    let spared = kept::spared(&on_record);
    left.retain(|process| !spared.contains(&process.pid()));
    let identities: Vec<Identity> = left.iter().map(|it| *it.identity()).collect();
    let services = services::kept_among(&identities, &rules, true);
    let found: Vec<Identity> = services.iter().map(|(identity, _)| *identity).collect();
    let spared = kept::spared(&found);
    left.retain(|process| !spared.contains(&process.pid()));
    Ok(Found { left, services })
}
