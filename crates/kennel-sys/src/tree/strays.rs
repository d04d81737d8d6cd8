//! The served process as its wardens' subreaper: what a killed warden leaves becomes its child.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::BorrowedFd;
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Signal, WaitOptions};

use super::daemons::is_daemon;
use super::kept::{self, Kept};
use super::mark::TreeMark;
use super::record::{self, Record};
use super::services::{self, Rules, Source};
use super::{descendants, members};
use crate::detached::Detached;
use crate::events;
use crate::os;
use crate::process::{Identity, ProcessRef};
use crate::signals::reap_children_ourselves;

/// How long a killed stray may take to be gone. One in the middle of a disk's answer may take longer.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long strays have after SIGTERM. Whoever ends them serves nobody meanwhile.
const AFTER_TERM: Duration = Duration::from_millis(500);

/// Children that were there before any warden: started by whoever we were before an exec.
static ELDER: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// Children that somebody here waits for: wardens, and what [`crate::detach::spawn`] starts on its way.
static AWAITED: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// A child that nobody reaps but the owner of this, who reaps it before it is dropped.
#[derive(Debug)]
pub(crate) struct Awaited(u32);

impl Awaited {
    /// Starts a child. Until it is known as one that is waited for, no other thread reaps anybody.
    pub(crate) fn spawn(command: &mut Command) -> io::Result<(Child, Awaited)> {
        let mut awaited = awaited();
        let child = command.spawn()?;
        awaited.insert(child.id());
        let awaited = Awaited(child.id());
        Ok((child, awaited))
    }

    /// One that was started before this process became another program.
    pub(crate) fn taken_over(pid: u32) -> Awaited {
        awaited().insert(pid);
        Awaited(pid)
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        awaited().remove(&self.0);
    }
}

fn awaited() -> MutexGuard<'static, BTreeSet<u32>> {
    AWAITED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes orphans below this process its children instead of init's. Call it before the first start: the
/// children it has by then are no strays (`helper & exec kennel …` leaves us one).
pub fn become_subreaper() -> io::Result<()> {
    reap_children_ourselves();
    *ELDER.lock().unwrap_or_else(PoisonError::into_inner) =
        os::children_of_this_process().unwrap_or_default();
    os::set_subreaper(true)
}

/// The children that are no strays.
pub(crate) fn elders() -> Vec<u32> {
    ELDER.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// As [`become_subreaper`] after an exec of one that was it already, with the elders it knew.
pub(crate) fn remain_subreaper(elders: Vec<u32>) -> io::Result<()> {
    reap_children_ourselves();
    *ELDER.lock().unwrap_or_else(PoisonError::into_inner) = elders;
    os::set_subreaper(true)
}

/// Reaps the children of this process that have ended and that nobody waits for: kept services, and whatever these and
/// children from before leave to it. Not those from before, wardens and `known`. Due on each SIGCHLD.
pub fn reap_kept(known: &[u32]) {
    let elder = elders();
    // Held meanwhile: a child that another thread starts is not reaped before it is known.
    let awaited = awaited();
    let mut theirs = os::children_of_this_process().unwrap_or_default();
    theirs.retain(|pid| !known.contains(pid) && !elder.contains(pid) && !awaited.contains(pid));
    for pid in theirs {
        is_reaped(pid);
    }
}

/// Ends and reaps every child of this process but `known` ones and those from before, with all that is
/// below them: SIGTERM, then SIGKILL. Returns how many that were. Due when a warden's exit was not announced by it.
/// Detached services that others use are spared: those on record in `records` with what they started, and those that the
/// warden would have found.
///
/// For a process whose only children are wardens: any other child is a stray. Where it had children before it became
/// Kennel, theirs may have become its own: then only a child that the kernel confirms to be of one of our trees
/// (`members`) is a stray. Call it on the thread that starts them. One that cannot be killed (it changed its user) stays,
/// and is not waited for.
pub fn end_strays(known: &[u32], records: Option<BorrowedFd<'_>>) -> io::Result<usize> {
    let elder = elders();
    let (mut kept, kept_trees) = records.map(kept_before).unwrap_or_default();
    let deadline = Instant::now() + AFTER_TERM + PATIENCE;
    let mut seen = BTreeSet::new();
    let mut asked = false;
    loop {
        let mut strays = {
            let awaited = awaited();
            let mut children = os::children_of_this_process()?;
            children.retain(|pid| !awaited.contains(pid));
            children
        };
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
        strays.retain(|&pid| !is_of_a_service(pid, &kept, &kept_trees));
        seen.extend(strays.iter().copied());
        if !std::mem::replace(&mut asked, true) {
            ask_to_end(&strays, &kept)?;
            strays.retain(|&pid| !is_reaped(pid));
            continue;
        }
        let mut strays = descendants::kill_children(strays);
        if strays.is_empty() {
            return Ok(seen.len());
        }
        // On a busy machine the end may come late: killed ones are waited for in any case.
        let until = deadline.max(Instant::now() + PATIENCE);
        // What was below them becomes ours as they go: look again when they are gone.
        while !strays.is_empty() {
            strays.retain(|&pid| !is_reaped(pid));
            if Instant::now() >= until && !strays.is_empty() {
                return Ok(seen.len() - strays.len());
            }
            if !strays.is_empty() {
                events::sleep(&[], &[], Some(Duration::from_millis(1)))?;
            }
        }
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
    let members = trees
        .iter()
        .flat_map(|(cookie, _)| members::living(cookie).unwrap_or_default());
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

    fn rules(&self) -> Rules {
        Rules {
            policy: self.policy.unwrap_or_default(),
            sessions: self.sessions.clone(),
            source: Source::Record,
        }
    }

    /// The tree that a process was started in, as far as its environment tells.
    fn tree_of(&self, identity: &Identity) -> String {
        let mark = TreeMark::of(identity.pid()).map(|mark| mark.cookie);
        let mut cookies = self.trees.iter().map(|(cookie, _)| cookie);
        let mark = mark.filter(|mark| cookies.clone().any(|cookie| cookie == mark));
        mark.or_else(|| cookies.next().cloned()).unwrap_or_default()
    }
}

/// The services among the strays and what is below them, written down. Without a record of the warden's tree nobody can
/// say which session was the server's: then there are none.
fn kept_among(strays: &[u32], dir: BorrowedFd<'_>) -> Vec<Identity> {
    let abandoned = Abandoned::on_record(dir);
    if abandoned.trees.is_empty() {
        return Vec::new();
    }
    let mut members = Vec::new();
    for process in strays.iter().filter_map(|&pid| ProcessRef::open(pid).ok()) {
        let below = descendants::below(&process).unwrap_or_default();
        members.extend(below.iter().map(|it| *it.identity()));
        members.push(*process.identity());
    }
    let services = services::kept_among(&members, &abandoned.rules(), true);
    for &(identity, reason) in &services {
        let _ = Kept::now(identity, reason, &abandoned.tree_of(&identity)).write(dir);
    }
    services.into_iter().map(|(identity, _)| identity).collect()
}

/// The services on record that this process inherited from trees that ended before, and those trees.
fn kept_before(dir: BorrowedFd<'_>) -> (Vec<Identity>, Vec<String>) {
    let abandoned = Abandoned::on_record(dir);
    let services = kept::confirmed_records(dir, &abandoned.rules());
    let is_abandoned = |tree: &String| abandoned.trees.iter().any(|(cookie, _)| cookie == tree);
    let mut trees: Vec<String> = services.iter().filter_map(|it| it.tree.clone()).collect();
    trees.retain(|tree| !is_abandoned(tree));
    let identities = services.into_iter().map(|it| it.identity);
    (identities.collect(), trees)
}

/// Whether a child is of a service that was kept, and was left to us by the process that started it: it is in the session
/// of one, or has the cookie of a tree that ended before and left one.
fn is_of_a_service(pid: u32, kept: &[Identity], trees: &[String]) -> bool {
    let session = |pid: u32| os::stat(pid).ok().map(|stat| stat.session);
    let own = session(pid);
    let is_in_it = |service: &Identity| {
        session(service.pid()) == own && matches!(ProcessRef::find(service), Ok(Some(_)))
    };
    let has_cookie = |mark: TreeMark| trees.contains(&mark.cookie);
    own.is_some() && (kept.iter().any(is_in_it) || TreeMark::of(pid).is_some_and(has_cookie))
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

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{BufRead, BufReader};
    use std::os::fd::AsFd;
    use std::process::Stdio;

    use kennel_testkit::{DEADLINE, Scope, wait_for};

    use super::*;
    use crate::detached::Reason;
    use crate::signals::Signals;
    use crate::tree::COOKIE;

    #[test]
    fn each_child_that_nobody_waits_for_is_reaped_when_it_ends_and_no_other() {
        let signals = Signals::catch(&[Signal::CHILD]).expect("a handler");
        become_subreaper().expect("a subreaper");
        let (mut known, _awaited) =
            Awaited::spawn(Command::new("sleep").arg("0")).expect("a child");
        // Its child ends after it, as a child of ours.
        let mut starter = Command::new("sh")
            .args(["-c", "sleep 0.2 & sleep 0.1 & echo $!"])
            .spawn()
            .expect("a shell");
        starter.wait().expect("our child");
        wait_for("nobody but the one that is waited for", || {
            events::sleep(&[signals.as_fd()], &[], Some(DEADLINE)).expect("an event");
            while signals.next().is_some() {}
            reap_kept(&[]);
            (os::children_of_this_process().ok()? == [known.id()]).then_some(())
        });
        assert!(known.wait().expect("nobody else reaped it").success());
    }

    #[test]
    fn what_a_kept_service_started_is_no_stray() {
        let scope = Scope::new("workers");
        become_subreaper().expect("a subreaper");
        // Known to be shared by its name.
        std::fs::copy("/bin/sh", scope.path("adb")).expect("a copy");
        // Their parents end at once: then they are our children. The second one leaves the session.
        let workers = "(sleep 1000 & echo $!); (setsid sleep 1000 & echo $!); sleep 1000; true";
        let mut service = scope
            .command("setsid")
            .arg(scope.path("adb"))
            .args(["-c", workers])
            .env(COOKIE, "0f".repeat(16))
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let lines = BufReader::new(service.stdout.take().expect("a pipe")).lines();
        let workers: Vec<u32> = lines
            .take(2)
            .map(|line| line.expect("a line").parse().expect("a pid"))
            .collect();
        for &pid in &workers {
            wait_for("a worker that is our child", || {
                let ours = os::stat(pid).ok()?.parent == std::process::id();
                (ours && os::command_name(pid)? == "sleep").then_some(())
            });
        }
        let identity = ProcessRef::open(service.id()).expect("it runs");
        let dir = File::open(scope.dir()).expect("a directory");
        let kept = Kept::now(*identity.identity(), Reason::Known, &"0f".repeat(16));
        kept.write(dir.as_fd()).expect("a record");
        let mut stray = scope.command("sleep").arg("1000").spawn().expect("a child");

        let ended = end_strays(&[], Some(dir.as_fd())).expect("strays can be ended");
        let alive = workers.iter().filter(|&&pid| !is_reaped(pid)).count();
        let everyone = descendants::below(&identity).expect("the process table");
        for &pid in &workers {
            descendants::kill_children(vec![pid]);
        }
        service.kill().expect("our child");
        service.wait().expect("our child");
        for process in everyone {
            let _ = process.signal(Signal::KILL);
        }
        assert_eq!((ended, alive), (1, 2));
        assert!(stray.wait().is_err(), "it was reaped");
    }
}
