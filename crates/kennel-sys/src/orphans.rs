//! Servers that nobody can talk to any more, whoever started them: the starter is gone, and so is whoever could
//! write to their stdin or read their stdout.
//!
//! Accused is only who is proven to be one. It has a pipe or a socket as stdin and as stdout, as a server on stdio
//! has; the kernel says that the far end of one of them is held by no process at all; and its parent, or that
//! of the launchers before it, came to it by adoption. What cannot be seen is not accused.

use std::collections::HashSet;
use std::io;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::linux::{self as os, Channel, FarEnd, Sockets};
use crate::process::ProcessRef;
use crate::tree::children_by_parent;

/// How many launchers may stand before a server.
const MOST_LAUNCHERS: usize = 32;
/// How long one that lost its app may take to end by itself before it is called an orphan.
const SETTLING: Duration = Duration::from_millis(500);
/// After this long, what does not go on SIGKILL is left.
const LAST_RUNG: Duration = Duration::from_secs(5);

/// A server nobody can talk to, with everyone below it.
#[derive(Debug)]
pub struct Orphan {
    /// The server, or the launcher before it.
    pub process: ProcessRef,
    /// What is below it.
    pub below: Vec<ProcessRef>,
    /// What proves it.
    pub evidence: Evidence,
    /// What it was started as.
    pub command: Vec<String>,
    /// What all of it holds in memory, in bytes.
    pub memory: u64,
    /// How long ago it was started.
    pub age: Duration,
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

/// What [`Orphan::end`] did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ended {
    /// Processes that are gone.
    pub gone: usize,
    /// Processes that would not go.
    pub left: usize,
}

/// All orphans there are to see. `only`: those alone whose environment has this (`NAME=value`), for whoever wants to
/// keep to what is theirs.
pub fn find(only: Option<&str>) -> io::Result<Vec<Orphan>> {
    let first = look(only)?;
    if first.is_empty() {
        return Ok(first);
    }
    // One that lost its app a moment ago is on its way out: believed is who is still there, and still alone.
    crate::events::sleep(&[], &[], Some(SETTLING))?;
    let lasting = first.into_iter().filter(|orphan| orphan.is_still_one());
    Ok(lasting.collect())
}

fn look(only: Option<&str>) -> io::Result<Vec<Orphan>> {
    let sockets = Sockets::all();
    let children = children_by_parent()?;
    let mut found: Vec<Orphan> = Vec::new();
    let mut pids = os::processes()?;
    pids.sort_unstable();
    for pid in pids {
        let marked = only.is_none_or(|pair| os::environ_has(pid, pair));
        if !marked || pid == std::process::id() {
            continue;
        }
        let Some((process, evidence)) = judge(pid, &sockets) else {
            continue;
        };
        if found
            .iter()
            .any(|known| known.process.pid() == process.pid())
        {
            continue;
        }
        let below = below(&process, &children);
        let everyone = below.iter().chain([&process]);
        found.push(Orphan {
            evidence,
            command: os::command_line(process.pid()).unwrap_or_default(),
            memory: everyone.map(|process| os::resident(process.pid())).sum(),
            age: os::age(process.pid()),
            below,
            process,
        });
    }
    // What is below one that is found is found with it.
    let inside: HashSet<u32> = found
        .iter()
        .flat_map(|orphan| orphan.below.iter().map(ProcessRef::pid))
        .collect();
    found.retain(|orphan| !inside.contains(&orphan.process.pid()));
    Ok(found)
}

impl Orphan {
    /// Whether what proved it still holds, of this very process.
    pub fn is_still_one(&self) -> bool {
        let now = judge(self.process.pid(), &Sockets::all());
        let same = |process: &ProcessRef| process.identity().same_process(self.process.identity());
        now.is_some_and(|(process, _)| same(&process)) && self.process.is_alive()
    }

    /// Ends it and all that is below it: SIGTERM, `after_term` for it to work, then SIGKILL. One that is no orphan any
    /// more is spared.
    pub fn end(&self, after_term: Duration) -> io::Result<Ended> {
        if !self.is_still_one() {
            return Ok(Ended::default());
        }
        let mut everyone: Vec<ProcessRef> = below(&self.process, &children_by_parent()?);
        everyone.push(ProcessRef::open(self.process.pid())?);
        for process in &everyone {
            // One that changed its user is out of reach, and no reason to spare the others.
            let _ = process.signal(Signal::TERM);
        }
        wait_for_all(&everyone, after_term)?;
        let deadline = Instant::now() + LAST_RUNG;
        for process in everyone.iter().filter(|process| process.is_alive()) {
            let _ = process.signal(Signal::KILL);
        }
        wait_for_all(
            &everyone,
            deadline.saturating_duration_since(Instant::now()),
        )?;
        let left = everyone.iter().filter(|process| process.is_alive()).count();
        Ok(Ended {
            gone: everyone.len() - left,
            left,
        })
    }
}

/// The orphan that `pid` is or belongs to, with what proves it.
fn judge(pid: u32, sockets: &Sockets) -> Option<(ProcessRef, Evidence)> {
    let (input, output) = stdio(pid)?;
    let no_writer = os::writers(pid, input, sockets) == FarEnd::Abandoned;
    let no_reader = os::readers(pid, output, sockets) == FarEnd::Abandoned;
    if !no_writer && !no_reader {
        return None;
    }
    let process = ProcessRef::open(pid).ok()?;
    let (top, adopted_by) = adopted(process, (input, output))?;
    // Asked again behind the reference: now the answer is about this very process (rule 6).
    let still = stdio(pid) == Some((input, output)) && top.is_alive();
    let evidence = Evidence {
        adopted_by,
        no_writer,
        no_reader,
    };
    still.then_some((top, evidence))
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

/// Everyone below a process, each checked to be there while its parent was.
fn below(
    process: &ProcessRef,
    children: &std::collections::HashMap<u32, Vec<u32>>,
) -> Vec<ProcessRef> {
    let mut everyone: Vec<ProcessRef> = Vec::new();
    let mut parents = vec![process.pid()];
    while let Some(parent) = parents.pop() {
        for &pid in children.get(&parent).into_iter().flatten() {
            let Ok(child) = ProcessRef::open(pid) else {
                continue;
            };
            let is_child = os::stat(pid).is_ok_and(|stat| stat.parent == parent);
            // A daemon that was first needed below it is nobody's.
            if is_child && child.is_alive() && !os::is_kennel(pid) {
                parents.push(pid);
                everyone.push(child);
            }
        }
    }
    everyone
}

fn wait_for_all(processes: &[ProcessRef], most: Duration) -> io::Result<()> {
    let started = Instant::now();
    for process in processes {
        process.wait(Some(most.saturating_sub(started.elapsed())))?;
    }
    Ok(())
}
