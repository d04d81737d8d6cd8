//! The kernel as a value: processes, pipes and sockets, two locks, one directory, and time.

mod pipes;
mod place;
mod trees;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use kennel_core::election::Work;
use kennel_core::lifetime::Sight;
use kennel_core::time::Moment;

use crate::books::Books;

pub(crate) type Pid = u32;

/// How many connections wait at a door before the next is told that it is busy: few, so that it happens.
const BACKLOG: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Status {
    Runs,
    /// Until it is thawed.
    Stopped,
    /// It lives, and does nothing any more.
    Hung,
    Dead,
}

#[derive(Debug)]
struct Process {
    name: String,
    status: Status,
    /// How many turns it had.
    turns: u64,
    /// It has something to do.
    ready: bool,
    /// When it was last stopped or thawed.
    changed: Moment,
}

/// One direction of a socket, or a pipe: whole lines, in order.
#[derive(Debug)]
struct Pipe {
    lines: VecDeque<Vec<u8>>,
    writer: Option<Pid>,
    reader: Option<Pid>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct PipeId(u32);

/// One end of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct End {
    pub(crate) read: PipeId,
    pub(crate) write: PipeId,
    /// Who is at the other one.
    pub(crate) peer: Pid,
}

pub(crate) enum Heard {
    Line(Vec<u8>),
    End,
    Nothing,
}

/// What a daemon writes down for those who look for it. It survives it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    pub(crate) pid: Pid,
    pub(crate) generation: u32,
}

pub(crate) enum Dialled {
    Connected(End),
    Busy,
    Refused,
}

#[derive(Debug)]
struct Door {
    pid: Pid,
    queue: VecDeque<End>,
}

/// What every daemon of this world is started with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct House {
    pub(crate) linger: Duration,
    pub(crate) grace: Duration,
    pub(crate) owner: Option<Pid>,
    /// Whether it can see its clients' processes.
    pub(crate) sight: Sight,
    /// Whether calls take turns.
    pub(crate) in_turn: bool,
    /// Whether sessions share a server.
    pub(crate) shared: bool,
    /// An idle server of a session's own stops after this time.
    pub(crate) hibernate: Option<Duration>,
}

/// What there is too little of, for a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shortage {
    /// No daemon can be started.
    Daemons,
    /// A daemon has no descriptors for another server.
    Servers,
}

/// A process that is to begin.
pub(crate) enum Birth {
    Daemon {
        pid: Pid,
        first: End,
        report: PipeId,
        alarm: Duration,
    },
    Server {
        pid: Pid,
        stdin: PipeId,
        stdout: PipeId,
    },
}

pub(crate) struct Kernel {
    pub(crate) now: Moment,
    processes: BTreeMap<Pid, Process>,
    pipes: BTreeMap<PipeId, Pipe>,
    next: u32,
    /// Who has the open file that `spawn.lock` is locked by.
    spawn_lock: BTreeSet<Pid>,
    daemon_lock: Option<Pid>,
    pub(crate) record: Option<Record>,
    doors: BTreeMap<u32, Door>,
    /// Trees: each server, and the process that it serves.
    trees: BTreeMap<Pid, Tree>,
    pub(crate) births: Vec<Birth>,
    pub(crate) house: House,
    pub(crate) books: Books,
    trace: Option<Vec<String>>,
    /// What there is too little of.
    pub(crate) shortage: Option<Shortage>,
    /// The first rule that was broken.
    pub(crate) broken: Option<String>,
}

/// A server under its warden.
#[derive(Debug)]
struct Tree {
    served: Pid,
    /// When the warden has climbed its ladder.
    ends: Option<Moment>,
    /// Of what there is one server at a time.
    slot: Option<String>,
}

impl Kernel {
    pub(crate) fn new(house: House, traced: bool) -> Kernel {
        Kernel {
            now: Moment::START,
            processes: BTreeMap::new(),
            pipes: BTreeMap::new(),
            next: 0,
            spawn_lock: BTreeSet::new(),
            daemon_lock: None,
            record: None,
            doors: BTreeMap::new(),
            trees: BTreeMap::new(),
            births: Vec::new(),
            house,
            books: Books::default(),
            trace: traced.then(Vec::new),
            shortage: None,
            broken: None,
        }
    }

    /// A line of the trace: the time in milliseconds, who, what.
    pub(crate) fn say(&mut self, who: Pid, what: impl FnOnce() -> String) {
        let Some(trace) = &mut self.trace else {
            return;
        };
        let process = self.processes.get(&who);
        let name = process.map_or("the schedule", |it| it.name.as_str());
        let micros = (self.now - Moment::START).as_micros();
        let (millis, rest) = (micros / 1000, micros % 1000);
        trace.push(format!("{millis:>9}.{rest:03}  {name:<12} {}", what()));
    }

    pub(crate) fn take_trace(&mut self) -> Vec<String> {
        self.trace.take().unwrap_or_default()
    }

    pub(crate) fn must(&mut self, holds: bool, rule: impl FnOnce() -> String) {
        if !holds && self.broken.is_none() {
            let rule = rule();
            self.say(0, || format!("BROKEN: {rule}"));
            self.broken = Some(rule);
        }
    }

    pub(crate) fn begin(&mut self, kind: &str) -> Pid {
        self.next += 1;
        let process = Process {
            name: format!("{kind} {}", self.next),
            status: Status::Runs,
            turns: 0,
            ready: false,
            changed: Moment::START,
        };
        self.processes.insert(self.next, process);
        self.next
    }

    /// Nobody who is there has a higher one.
    pub(crate) fn last_pid(&self) -> Pid {
        self.next
    }

    pub(crate) fn name(&self, pid: Pid) -> String {
        self.processes
            .get(&pid)
            .map_or_else(|| "nobody".to_owned(), |it| it.name.clone())
    }

    pub(crate) fn status(&self, pid: Pid) -> Status {
        self.processes
            .get(&pid)
            .map_or(Status::Dead, |it| it.status)
    }

    pub(crate) fn alive(&self, pid: Pid) -> bool {
        self.status(pid) != Status::Dead
    }

    pub(crate) fn runs(&self, pid: Pid) -> bool {
        self.status(pid) == Status::Runs
    }

    pub(crate) fn changed(&self, pid: Pid) -> Moment {
        self.processes
            .get(&pid)
            .map_or(Moment::START, |it| it.changed)
    }

    pub(crate) fn set(&mut self, pid: Pid, status: Status) {
        let now = self.now;
        if let Some(process) = self.processes.get_mut(&pid)
            && process.status != Status::Dead
        {
            process.status = status;
            process.changed = now;
        }
    }

    pub(crate) fn had_a_turn(&mut self, pid: Pid) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.turns += 1;
        }
    }

    pub(crate) fn is_ready(&mut self, pid: Pid, ready: bool) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.ready = ready;
        }
    }

    /// What `/proc` says of it.
    pub(crate) fn work(&self, pid: Pid) -> Option<Work> {
        let process = self.processes.get(&pid)?;
        let state = match process.status {
            Status::Dead => return None,
            Status::Stopped => 'T',
            Status::Runs if process.ready => 'R',
            Status::Runs | Status::Hung => 'S',
        };
        Some(Work {
            state,
            cpu: process.turns,
        })
    }

    /// The end of a process, and of all that it holds.
    pub(crate) fn end(&mut self, pid: Pid) {
        let now = self.now;
        let Some(process) = self.processes.get_mut(&pid) else {
            return;
        };
        if process.status == Status::Dead {
            return;
        }
        process.status = Status::Dead;
        self.spawn_lock.remove(&pid);
        if self.daemon_lock == Some(pid) {
            self.daemon_lock = None;
        }
        self.doors.retain(|_, door| door.pid != pid);
        self.pipes.retain(|_, pipe| {
            if pipe.writer == Some(pid) {
                pipe.writer = None;
            }
            if pipe.reader == Some(pid) {
                pipe.reader = None;
            }
            pipe.writer.is_some() || pipe.reader.is_some()
        });
        self.trees.remove(&pid);
        // Each warden sees the end of the one it serves, and has a second for each of two rungs.
        for (server, tree) in &mut self.trees {
            if tree.served == pid && tree.ends.is_none() {
                let rung = u64::from(*server) * 397 % 2000;
                tree.ends = Some(now + Duration::from_millis(rung));
            }
        }
    }
}
