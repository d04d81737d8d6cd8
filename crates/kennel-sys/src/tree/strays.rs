//! Strays: processes that a killed warden leaves. They become children of the served process, which is a subreaper.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::BorrowedFd;
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Signal, WaitOptions};

use super::daemons::is_daemon;
use super::ending::wait_for_all;
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

/// Time for a killed stray to exit. A process that waits for a disk may take longer.
const AFTER_KILL: Duration = Duration::from_secs(2);

/// Time for strays to exit after SIGTERM. The caller serves no requests meanwhile.
const AFTER_TERM: Duration = Duration::from_millis(500);

/// Children from before the first warden, which this process started before an exec.
static CHILDREN_BEFORE_EXEC: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// Children that a part of this process waits for: wardens, and the intermediate children of [`crate::detach::spawn`].
static AWAITED: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// A child that only the owner of this value reaps, before it drops the value.
#[derive(Debug)]
pub(crate) struct Awaited(u32);

impl Awaited {
    /// Starts a child. Until it is registered here, no other thread reaps children.
    pub(crate) fn spawn(command: &mut Command) -> io::Result<(Child, Awaited)> {
        let mut awaited = awaited();
        let child = command.spawn()?;
        awaited.insert(child.id());
        let awaited = Awaited(child.id());
        Ok((child, awaited))
    }

    /// A child that was started before this process executed another program.
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

/// Makes this process the parent of its orphaned descendants, instead of init. Call it before the first start: the children
/// that exist by then are no strays (`helper & exec kennel …` leaves one).
pub fn become_subreaper() -> io::Result<()> {
    reap_children_ourselves();
    *CHILDREN_BEFORE_EXEC
        .lock()
        .unwrap_or_else(PoisonError::into_inner) =
        os::children_of_this_process().unwrap_or_default();
    os::set_subreaper(true)
}

/// The children from before the first warden, which are no strays.
pub(crate) fn children_before_exec() -> Vec<u32> {
    CHILDREN_BEFORE_EXEC
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone()
}

/// Like [`become_subreaper`], after an exec by a process that was a subreaper already. `children` are those from before
/// the exec.
pub(crate) fn remain_subreaper(children: Vec<u32>) -> io::Result<()> {
    reap_children_ourselves();
    *CHILDREN_BEFORE_EXEC
        .lock()
        .unwrap_or_else(PoisonError::into_inner) = children;
    os::set_subreaper(true)
}

/// Reaps the children of this process that have ended and that no part of it waits for: kept services, and children that
/// they or the children from before the exec leave. Does not reap the children from before the exec, wardens, and
/// `known`. Call it on each SIGCHLD.
pub fn reap_kept(known: &[u32]) {
    let children_before_exec = children_before_exec();
    // Locked meanwhile, so that a child which another thread starts is registered before it can be reaped.
    let awaited = awaited();
    let mut theirs = os::children_of_this_process().unwrap_or_default();
    theirs.retain(|pid| {
        !known.contains(pid) && !children_before_exec.contains(pid) && !awaited.contains(pid)
    });
    for pid in theirs {
        reap(pid);
    }
}

/// Ends and reaps every child of this process except `known` and those from before the exec, with their descendants: SIGTERM, then SIGKILL.
/// Returns their number. Call it when a warden exited without a report. Detached services that others use are spared: those
/// on record in `records`, with what they started, and those that the warden would have kept.
///
/// For a process whose only children are wardens: any other child is a stray. If it has children from before an exec, their orphans may have
/// become its children: then only a child that the kernel confirms as a member of one of our trees (`members`) is a stray.
/// Call it on the thread that starts the wardens. A child that cannot be killed (it changed its user) stays, and is not
/// waited for.
pub fn end_strays(known: &[u32], records: Option<BorrowedFd<'_>>) -> io::Result<usize> {
    let children_before_exec = children_before_exec();
    let (mut kept, kept_trees) = records.map(services_of_ended_trees).unwrap_or_default();
    let deadline = Instant::now() + AFTER_TERM + AFTER_KILL;
    let mut seen = BTreeSet::new();
    let mut asked = false;
    let mut was_empty = false;
    loop {
        let mut strays = {
            let awaited = awaited();
            let mut children = os::children_of_this_process()?;
            children.retain(|pid| !awaited.contains(pid));
            children
        };
        strays.retain(|pid| !known.contains(pid) && !children_before_exec.contains(pid));
        if !children_before_exec.is_empty() {
            // A dead process has no environment to confirm it.
            strays.retain(|&pid| !reap(pid));
            let members = records.map(members_of_abandoned_trees).unwrap_or_default();
            strays.retain(|pid| members.contains(pid));
        }
        strays.retain(|&pid| !descendants::is_spared(pid, &kept));
        // In each round: the children of a killed process are checked when they become ours.
        if let Some(dir) = records {
            kept.extend(kept_among(&strays, dir));
        }
        strays.retain(|&pid| !descendants::is_spared(pid, &kept));
        strays.retain(|&pid| !belongs_to_service(pid, &kept, &kept_trees));
        seen.extend(strays.iter().copied());
        if !std::mem::replace(&mut asked, true) {
            terminate(&strays, &kept)?;
            strays.retain(|&pid| !reap(pid));
            continue;
        }
        let mut strays = descendants::kill_children(strays);
        if strays.is_empty() {
            // The kernel may miss a child that became ours during the look.
            if std::mem::replace(&mut was_empty, true) {
                return Ok(seen.len());
            }
            continue;
        }
        was_empty = false;
        // On a busy machine a process may exit late: killed processes get their time in any case.
        let until = deadline.max(Instant::now() + AFTER_KILL);
        // Their children become ours as they exit: check again when they are gone.
        while !strays.is_empty() {
            strays.retain(|&pid| !reap(pid));
            if Instant::now() >= until && !strays.is_empty() {
                return Ok(seen.len() - strays.len());
            }
            if !strays.is_empty() {
                events::sleep(&[], &[], Some(Duration::from_millis(1)))?;
            }
        }
    }
}

/// Sends SIGTERM to strays and their descendants, except services in `kept`, and waits until they are gone or
/// [`AFTER_TERM`] is over.
fn terminate(strays: &[u32], kept: &[Identity]) -> io::Result<()> {
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
        // A process that changed its user cannot be signalled.
        let _ = process.signal(Signal::TERM);
    }
    wait_for_all(&asked, AFTER_TERM)
}

/// The living members of our trees whose warden is gone, as the kernel confirms them.
fn members_of_abandoned_trees(dir: BorrowedFd<'_>) -> Vec<u32> {
    let trees = Abandoned::on_record(dir).trees;
    let members = trees
        .iter()
        .flat_map(|(cookie, _)| members::living(cookie).unwrap_or_default());
    members.map(|process| process.pid()).collect()
}

/// The trees of this process whose warden is gone, according to their records.
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

    /// The rules for their processes. `without_record`: the policy for a process that no mark and no record tells of.
    fn rules(&self, without_record: Detached) -> Rules {
        Rules {
            policy: self.policy.unwrap_or(without_record),
            sessions: self.sessions.clone(),
            trees: self
                .trees
                .iter()
                .map(|(cookie, _)| cookie.clone())
                .collect(),
            source: Source::Record,
        }
    }

    /// The tree that a process was started in, according to its environment.
    fn tree_of(&self, identity: &Identity) -> String {
        let mark = TreeMark::of(identity.pid()).map(|mark| mark.cookie);
        let mut cookies = self.trees.iter().map(|(cookie, _)| cookie);
        let is_known =
            |mark: &String| self.trees.is_empty() || cookies.clone().any(|it| it == mark);
        let mark = mark.filter(is_known);
        mark.or_else(|| cookies.next().cloned()).unwrap_or_default()
    }
}

/// The services among the strays and their descendants. Writes their records. Without a record of the warden's tree, as on a
/// full disk, only their marks tell the session of the server: a process without one is no service then.
fn kept_among(strays: &[u32], dir: BorrowedFd<'_>) -> Vec<Identity> {
    let abandoned = Abandoned::on_record(dir);
    let mut members = Vec::new();
    for process in strays.iter().filter_map(|&pid| ProcessRef::open(pid).ok()) {
        let below = descendants::below(&process).unwrap_or_default();
        members.extend(below.iter().map(|it| *it.identity()));
        members.push(*process.identity());
    }
    let services = services::kept_among(&members, &abandoned.rules(Detached::End), true);
    for &(identity, reason) in &services {
        let _ = Kept::now(identity, reason, &abandoned.tree_of(&identity)).write(dir);
    }
    services.into_iter().map(|(identity, _)| identity).collect()
}

/// The services on record from trees that ended before, and those trees.
fn services_of_ended_trees(dir: BorrowedFd<'_>) -> (Vec<Identity>, Vec<String>) {
    let abandoned = Abandoned::on_record(dir);
    let services = kept::confirmed_records(dir, &abandoned.rules(Detached::default()));
    let is_abandoned = |tree: &String| abandoned.trees.iter().any(|(cookie, _)| cookie == tree);
    let mut trees: Vec<String> = services.iter().filter_map(|it| it.tree.clone()).collect();
    trees.retain(|tree| !is_abandoned(tree));
    let identities = services.into_iter().map(|it| it.identity);
    (identities.collect(), trees)
}

/// Whether a child belongs to a kept service, and the process that started it has ended: it is in the session of one, or
/// has the cookie of a tree that ended before and left one.
fn belongs_to_service(pid: u32, kept: &[Identity], trees: &[String]) -> bool {
    let session = |pid: u32| os::stat(pid).ok().map(|stat| stat.session);
    let own = session(pid);
    let is_in_it = |service: &Identity| {
        session(service.pid()) == own && matches!(ProcessRef::find(service), Ok(Some(_)))
    };
    let has_cookie = |mark: TreeMark| trees.contains(&mark.cookie);
    own.is_some() && (kept.iter().any(is_in_it) || TreeMark::of(pid).is_some_and(has_cookie))
}

fn reap(pid: u32) -> bool {
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
    #[ignore = "needs a process without other tests: cargo xtask test"]
    fn only_children_that_nothing_waits_for_are_reaped() {
        let signals = Signals::catch(&[Signal::CHILD]).expect("a handler");
        become_subreaper().expect("a subreaper");
        let (mut known, _awaited) =
            Awaited::spawn(Command::new("sleep").arg("0")).expect("a child");
        // Its child outlives it, as a child of ours.
        let mut starter = Command::new("sh")
            .args(["-c", "sleep 0.2 & sleep 0.1 & echo $!"])
            .spawn()
            .expect("a shell");
        starter.wait().expect("our child");
        wait_for("nobody but the one that is waited for", || {
            events::sleep(&[&signals], &[], Some(DEADLINE)).expect("an event");
            while signals.next().is_some() {}
            reap_kept(&[]);
            (os::children_of_this_process().ok()? == [known.id()]).then_some(())
        });
        assert!(known.wait().expect("nobody else reaped it").success());
    }

    #[test]
    #[ignore = "needs a process without other tests: cargo xtask test"]
    fn processes_started_by_a_kept_service_are_no_strays() {
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
        let alive = workers.iter().filter(|&&pid| !reap(pid)).count();
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
