//! The served process as its wardens' subreaper: what a killed warden leaves becomes its child.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Signal, WaitOptions};

use super::daemons::is_daemon;
use super::kept::{self, Kept};
use super::record::{self, Record};
use super::{COOKIE, descendants, members, services};
use crate::detached::Detached;
use crate::events;
use crate::linux as os;
use crate::process::{Identity, ProcessRef};
use crate::signals::reap_children_ourselves;

/// How long a killed stray may take to be gone. One in the middle of a disk's answer may take longer.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long strays have after SIGTERM. Whoever ends them serves nobody meanwhile.
const AFTER_TERM: Duration = Duration::from_millis(500);

/// Children that were there before any warden: started by whoever we were before an exec.
static ELDER: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// Makes orphans below this process its children instead of init's. Call it before the first start: the
/// children it has by then are no strays (`helper & exec kennel …` leaves us one).
pub fn become_subreaper() -> io::Result<()> {
    reap_children_ourselves();
    *ELDER.lock().unwrap_or_else(PoisonError::into_inner) =
        os::children_of_this_process().unwrap_or_default();
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    Ok(())
}

/// The children that are no strays.
pub(crate) fn elders() -> Vec<u32> {
    ELDER.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// As [`become_subreaper`] after an exec of one that was it already, with the elders it knew.
pub(crate) fn remain_subreaper(elders: Vec<u32>) -> io::Result<()> {
    reap_children_ourselves();
    *ELDER.lock().unwrap_or_else(PoisonError::into_inner) = elders;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    Ok(())
}

/// Reaps kept services that became children of this process and have ended: any child but `known` ones and those from
/// before. Not on another thread than the one that starts wardens.
pub fn reap_kept(known: &[u32]) {
    let elder = elders();
    let children = os::children_of_this_process().unwrap_or_default();
    let mut theirs = children;
    theirs.retain(|pid| !known.contains(pid) && !elder.contains(pid));
    for pid in theirs {
        is_reaped(pid);
    }
}

/// Ends and reaps every child of this process but `known` ones and those from before, with all that is
/// below them: SIGTERM, then SIGKILL. Returns how many that were. Due when a warden's exit was not announced by it.
/// Detached services that others use are spared: those on record in `records`, and those that the warden would have found.
///
/// For a process whose only children are wardens: any other child is a stray. Where it had children before it became
/// Kennel, theirs may have become its own: then only a child that the kernel confirms to be of one of our trees
/// (`members`) is a stray. Call it on the thread that starts them. One that cannot be killed (it changed its user) stays,
/// and is not waited for.
pub fn end_strays(known: &[u32], records: Option<BorrowedFd<'_>>) -> io::Result<usize> {
    let elder = elders();
    let mut kept = records.map(kept_before).unwrap_or_default();
    let deadline = Instant::now() + AFTER_TERM + PATIENCE;
    let mut ended = 0;
    let mut asked = false;
    loop {
        let mut strays = os::children_of_this_process()?;
        strays.retain(|pid| !known.contains(pid) && !elder.contains(pid));
        if !elder.is_empty() {
            // A dead one has nothing left that would confirm it.
            strays.retain(|&pid| !is_reaped(pid));
            let members = records.map(members_of_ours).unwrap_or_default();
            strays.retain(|pid| members.contains(pid));
        }
        strays.retain(|&pid| !descendants::is_spared(pid, &kept));
        // Of each round's own: what was below a killed one is looked at when it is ours.
        if let Some(dir) = records {
            kept.extend(kept_among(&strays, dir));
        }
        strays.retain(|&pid| !descendants::is_spared(pid, &kept));
        if !std::mem::replace(&mut asked, true) {
            ask_to_end(&strays, &kept)?;
            ended += strays.iter().filter(|&&pid| is_reaped(pid)).count();
            continue;
        }
        let mut strays = descendants::kill_children(strays);
        if strays.is_empty() {
            return Ok(ended);
        }
        let killed = strays.len();
        // What was below them becomes ours as they go: look again when they are gone.
        while !strays.is_empty() {
            strays.retain(|&pid| !is_reaped(pid));
            if Instant::now() >= deadline {
                return Ok(ended + killed - strays.len());
            }
            if !strays.is_empty() {
                events::sleep(&[], &[], Some(Duration::from_millis(1)))?;
            }
        }
        ended += killed;
    }
}
/// Sends SIGTERM to strays and to all below them but services in `kept`, and waits until they are gone or
/// [`AFTER_TERM`] is over.
fn ask_to_end(strays: &[u32], kept: &[Identity]) -> io::Result<()> {
    let spared = kept::spared(kept);
    let mut asked = Vec::new();
    for &pid in strays.iter().filter(|&&pid| !is_daemon(pid)) {
        if let Ok(process) = ProcessRef::open(pid) {
            asked.extend(descendants::below(&process)?);
            asked.push(process);
        }
    }
    asked.retain(|process| !spared.contains(&process.pid()));
    for process in &asked {
        // One that changed its user is out of reach.
        let _ = process.signal(Signal::TERM);
    }
    let started = Instant::now();
    for process in &asked {
        process.wait(Some(AFTER_TERM.saturating_sub(started.elapsed())))?;
    }
    Ok(())
}

/// The living members of our trees whose warden is gone, as the kernel confirms them.
fn members_of_ours(dir: BorrowedFd<'_>) -> Vec<u32> {
    let trees = Abandoned::on_record(dir).trees;
    let members = |(cookie, record): &(String, Record)| members::living(cookie, record);
    let members = trees
        .iter()
        .flat_map(|tree| members(tree).unwrap_or_default());
    members.map(|process| process.pid()).collect()
}

/// The trees of this process whose warden is gone, as their records say.
#[derive(Default)]
struct Abandoned {
    trees: Vec<(String, Record)>,
    sessions: Vec<u32>,
    policy: Option<Detached>,
}

impl Abandoned {
    fn on_record(dir: BorrowedFd<'_>) -> Abandoned {
        let mut abandoned = Abandoned::default();
        let Ok(me) = ProcessRef::my_identity() else {
            return abandoned;
        };
        for cookie in record::cookies(dir).unwrap_or_default() {
            let Ok(Some(record)) = Record::read(dir, &cookie) else {
                continue;
            };
            let warden_gone = matches!(ProcessRef::find(&record.warden), Ok(None));
            if record.served.same_process(&me) && warden_gone {
                abandoned.sessions.push(record.session);
                abandoned.policy.get_or_insert(record.detached);
                abandoned.trees.push((cookie, record));
            }
        }
        abandoned
    }

    /// The tree that a process was started in, as far as its environment tells.
    fn tree_of(&self, identity: &Identity) -> String {
        let mark = os::environ_value(identity.pid(), COOKIE).ok().flatten();
        let mark = mark.and_then(|mark| String::from_utf8(mark).ok());
        let mut cookies = self.trees.iter().map(|(cookie, _)| cookie);
        let mark = mark.filter(|mark| cookies.clone().any(|cookie| cookie == mark));
        mark.or_else(|| cookies.next().cloned()).unwrap_or_default()
    }
}

/// The services among the strays and what is below them, written down. Without a record of the warden's tree nobody can
/// say which session was the server's: then there are none.
fn kept_among(strays: &[u32], dir: BorrowedFd<'_>) -> Vec<Identity> {
    let abandoned = Abandoned::on_record(dir);
    let Some(policy) = abandoned.policy else {
        return Vec::new();
    };
    let mut members = Vec::new();
    for process in strays.iter().filter_map(|&pid| ProcessRef::open(pid).ok()) {
        let below = descendants::below(&process).unwrap_or_default();
        members.extend(below.iter().map(|it| *it.identity()));
        members.push(*process.identity());
    }
    let services = services::kept_among(&members, &abandoned.sessions, policy, true);
    for &(identity, reason) in &services {
        let _ = Kept::now(identity, reason, &abandoned.tree_of(&identity)).write(dir);
    }
    services.into_iter().map(|(identity, _)| identity).collect()
}

/// The services on record that this process inherited from trees that ended before.
fn kept_before(dir: BorrowedFd<'_>) -> Vec<Identity> {
    let abandoned = Abandoned::on_record(dir);
    kept::confirmed(
        dir,
        &abandoned.sessions,
        abandoned.policy.unwrap_or_default(),
    )
}

fn is_reaped(pid: u32) -> bool {
    let Ok(pid) = os::pid_of(pid) else {
        return true;
    };
    match rustix::process::waitpid(Some(pid), WaitOptions::NOHANG) {
        Ok(None) | Err(rustix::io::Errno::INTR) => false,
        Ok(Some(_)) | Err(_) => true,
    }
}
