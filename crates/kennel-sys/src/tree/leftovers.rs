//! Leftovers: processes of trees whose warden and served process were both killed.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::daemons::{served_by_warden, tree_of_warden};
use super::ending::{AFTER_KILL, wait_for_all};
use super::kept::{self, Kept};
use super::mark::TreeMark;
use super::record::{self, Record};
use super::record_file;
use super::services::{self, Rules, Source};
use super::{chain, descendants, members};
use crate::detached::Reason;
use crate::os;
use crate::process::{Identity, ProcessRef};

/// Time for a continued warden to end its tree: two shortened steps of the stop ladder, and SIGKILL.
const AFTER_CONTINUE: Duration = Duration::from_secs(4);
/// Interval for checking whether it was stopped again.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum depth of nested trees that one call ends. A tree may be abandoned only after the tree around it has ended.
const MAX_NESTED: usize = 4;

/// The result of [`end_leftovers`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ended {
    /// Number of trees that have no processes any more.
    pub trees: usize,
    /// Number of processes that ended.
    pub processes: usize,
    /// Number of trees left alone because a process is, or may be, in charge of them.
    pub attended: usize,
    /// Number of processes that did not end: another user's, stuck in the kernel, or faster in starting others than we are in
    /// ending them. Their tree stays on record.
    pub left: usize,
    /// Processes and files that were left alone, each with the reason: invalid files with the name of a record, and
    /// processes with a copy of a tree's cookie.
    pub skipped: Vec<String>,
}

/// Ends the processes of every tree on record in `dir` that no process is in charge of any more: SIGTERM, `after_term` for
/// them to exit, then SIGKILL until none is found.
///
/// The kernel confirms which processes belong to a tree (`members`): a record alone is not enough. A file that is not a
/// record, such as a link, is skipped and named in [`Ended::skipped`].
pub fn end_leftovers(dir: impl AsFd, after_term: Duration) -> io::Result<Ended> {
    let dir = dir.as_fd();
    let mut ended = Ended {
        processes: end_stopped_wardens(dir)?,
        ..Ended::default()
    };
    let _ = kept::sweep(dir);
    for _ in 0..MAX_NESTED {
        let pass = end_abandoned(dir, after_term)?;
        // A tree inside another one has a warden that was a member of the outer tree: it may be abandoned only now.
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
    // All trees are signalled before the first wait, so that the caller waits once and not once per tree.
    let asked = Instant::now();
    // Counted from here on: most processes exit on this signal, before the turn of their tree.
    let mut reached: HashMap<String, HashSet<Identity>> = HashMap::new();
    for cookie in record::cookies(dir)? {
        let Ok(Some(record)) = Record::read(dir, &cookie) else {
            continue;
        };
        if let Charge::Abandoned = charge_of(&record) {
            let Found { left, services } = find_members(dir, &cookie, &record, &HashSet::new())?;
            for (identity, reason) in services {
                // Without a record the next search finds the service again.
                let _ = Kept::now(identity, reason, &cookie).write(dir);
            }
            reached.insert(cookie, signal_all(&left, Signal::TERM).collect());
        }
    }
    for cookie in record::cookies(dir)? {
        let record = match Record::read(dir, &cookie) {
            Ok(record) => record,
            // Another process removed it at this moment.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            // A link, a socket, or a file without permissions: not a record of ours, and no reason to fail.
            Err(error) => {
                ended.skipped.push(format!("{cookie}: {error}"));
                continue;
            }
        };
        // A later version may have written it. A record that cannot be read ends no process.
        let Some(record) = record else {
            ended.attended += 1;
            continue;
        };
        match charge_of(&record) {
            Charge::Attended => {
                ended.attended += 1;
                continue;
            }
            // Its pids are out of date, and no process of the tree survived the boot.
            Charge::EarlierBoot => {}
            Charge::Abandoned => {
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
        match record_file::remove(dir, &cookie) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(ended)
}

/// The processes that [`end_leftovers`] would end now.
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
        if let Charge::Abandoned = charge_of(&record) {
            found.extend(find_members(dir, &cookie, &record, &HashSet::new())?.left);
        }
    }
    Ok(found)
}

/// Waits up to `most` for the wardens on record in `dir` whose served process is gone: each is ending its tree. A caller
/// that starts the same server without this wait may have two of it. Stopped wardens are not waited for: [`end_leftovers`]
/// continues them.
pub fn await_orphaned_wardens(dir: impl AsFd, most: Duration) -> io::Result<()> {
    let dir = dir.as_fd();
    let mut wardens = orphaned_wardens(dir)?;
    wardens.retain(|warden| !is_stopped(warden));
    wait_for_all(&wardens, most)
}

/// The living wardens on record in `dir` whose served process is gone. A record alone proves neither: the arguments of the
/// warden must name the same tree and the served process.
fn orphaned_wardens(dir: BorrowedFd<'_>) -> io::Result<Vec<ProcessRef>> {
    let mut wardens = Vec::new();
    for cookie in record::cookies(dir)? {
        let Ok(Some(record)) = Record::read(dir, &cookie) else {
            continue;
        };
        let warden = ProcessRef::find(&record.warden).ok().flatten();
        // If that is unknown, there is no reason to wait.
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

/// Continues stopped wardens (SIGSTOP) whose served process is gone: each then ends its tree. A warden that is stopped
/// again, or by a debugger, is killed with its descendants, except services that others use. Returns the number of their
/// processes that ended.
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
    let deadline = Instant::now() + AFTER_CONTINUE;
    for (warden, tree) in trees {
        let mut stops = 0;
        while !warden.wait(Some(Duration::ZERO))? && Instant::now() < deadline {
            if is_stopped(&warden) {
                stops += 1;
                warden.signal(Signal::CONT)?;
            }
            warden.wait(Some(CHECK_INTERVAL))?;
        }
        // A warden that was not stopped again is still ending processes that are slow to exit: it stays in charge.
        if stops > 0 && warden.is_alive() {
            kill_warden(dir, &warden, &tree)?;
        }
        ended += tree.iter().filter(|process| !process.is_alive()).count();
    }
    Ok(ended)
}

/// Kills a warden and its descendants, except the services that it would have kept. These are written to records, as
/// [`end_abandoned`] does.
fn kill_warden(dir: BorrowedFd<'_>, warden: &ProcessRef, tree: &[ProcessRef]) -> io::Result<()> {
    let cookie = tree_of_warden(warden.pid()).unwrap_or_default();
    let record = Record::read(dir, &cookie).ok().flatten();
    let identities: Vec<Identity> = tree.iter().map(|it| *it.identity()).collect();
    let mut spared = HashSet::new();
    if let Some(record) = record {
        let rules = rules_of(&cookie, &record);
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
        AFTER_KILL,
    )
}

/// Whether a process is in charge of a tree.
enum Charge {
    /// Its warden lives and will end it, or its served process lives and is the subreaper of its strays. Also if that is
    /// unknown, as from another pid namespace.
    Attended,
    /// No process is in charge.
    Abandoned,
    /// The record is from an earlier boot.
    EarlierBoot,
}

fn charge_of(record: &Record) -> Charge {
    let other_boot = |boot| os::boot_id().is_some_and(|ours| ours != boot);
    if record.warden.boot.is_some_and(other_boot) {
        return Charge::EarlierBoot;
    }
    let alive = |identity| ProcessRef::find(identity).map_or(true, |found| found.is_some());
    match alive(&record.warden) || alive(&record.served) {
        true => Charge::Attended,
        false => Charge::Abandoned,
    }
}

/// Signals processes, and returns the identities of those that got the signal.
fn signal_all(members: &[ProcessRef], signal: Signal) -> impl Iterator<Item = Identity> {
    // A process that changed its user cannot be signalled; the others can.
    let reached = move |process: &&ProcessRef| process.signal(signal).unwrap_or(false);
    members
        .iter()
        .filter(reached)
        .map(|process| *process.identity())
}

/// Ends a tree. Returns the number of processes that are gone and that did not end. `reached` are members that already got
/// SIGTERM. They do not get it again: many programs exit at once on the second one.
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
    // What a kept service of the tree starts is not chased.
    let chases = !keeps_services(dir, cookie, record);
    let mut chased = HashSet::new();
    let deadline = Instant::now() + AFTER_KILL;
    let left = loop {
        // A process may fork before it is killed: repeat until none is found.
        while !members.is_empty() && Instant::now() < deadline {
            members = signal_everyone(Signal::KILL)?;
            wait_for_all(&members, Duration::from_secs(1))?;
        }
        let left = members.iter().filter(|process| process.is_alive()).count();
        if left > 0 || !chases {
            break left;
        }
        // A process may have forked and ended during the look that found none.
        let chase = chain::end(cookie)?;
        chased.extend(chase.killed);
        members = signal_everyone(Signal::KILL)?;
        let is_over = chase.is_over && members.is_empty();
        if is_over || Instant::now() >= deadline {
            break usize::from(!is_over);
        }
    };
    let ended = reached.union(&chased).count();
    Ok((ended.saturating_sub(left), left))
}

/// Whether a living service of a tree is kept.
fn keeps_services(dir: BorrowedFd<'_>, cookie: &str, record: &Record) -> bool {
    !kept::spared(&kept::confirmed(dir, &rules_of(cookie, record))).is_empty()
}

/// The living members of an abandoned tree.
struct Found {
    left: Vec<ProcessRef>,
    /// The services among them that others use, which are kept by the rules of the warden.
    services: Vec<(Identity, Reason)>,
}

fn rules_of(cookie: &str, record: &Record) -> Rules {
    Rules {
        policy: record.detached,
        sessions: vec![record.session],
        trees: vec![cookie.to_owned()],
        source: Source::Record,
    }
}

/// The rules for members whose environment has none: those of another member of the tree, or of the record if an earlier
/// build started all of them.
fn rules_for(members: &[ProcessRef], cookie: &str, record: &Record) -> Rules {
    let marks = members.iter().filter_map(|it| TreeMark::of(it.pid()));
    let mut terms = marks.filter(|mark| mark.cookie == cookie);
    let told = terms.find_map(|mark| mark.terms).map(Rules::from);
    let trees = vec![cookie.to_owned()];
    told.map_or_else(|| rules_of(cookie, record), |told| Rules { trees, ..told })
}

/// `known` are members that the kernel confirmed before. The proof may be gone: the leader of their session, or their
/// ancestor.
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
