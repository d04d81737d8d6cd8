//! The simulated kernel: processes, pipes and sockets, two locks, one directory, and time.

mod pipes;
mod sockets;
mod trees;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use kennel_core::election::Activity;
use kennel_core::lifetime::Liveness;
use kennel_core::time::Moment;

use crate::coverage::{Coverage, Situation};
use crate::request_log::RequestLog;

pub(crate) type Pid = u32;

/// Length of the accept queue: small, so that it is full at times.
const BACKLOG: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Status {
    Runs,
    /// Stopped until it is continued.
    Stopped,
    /// Alive, but does nothing any more.
    Hung,
    Dead,
}

#[derive(Debug)]
struct Process {
    name: String,
    status: Status,
    /// Number of turns that it got.
    turns: u64,
    /// Whether it has something to do.
    ready: bool,
    /// When its status last changed.
    changed: Moment,
}

/// One direction of a socket, or a pipe.
#[derive(Debug)]
struct Pipe {
    bytes: VecDeque<u8>,
    writer: Option<Pid>,
    reader: Option<Pid>,
    /// Ends of two pipes, passed with the byte at this position.
    passed: Option<(usize, [PipeId; 2])>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct PipeId(u32);

/// One end of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct End {
    pub(crate) read: PipeId,
    pub(crate) write: PipeId,
    /// The process at the other end.
    pub(crate) peer: Pid,
}

pub(crate) enum ReadResult {
    Bytes(Vec<u8>),
    End,
    WouldBlock,
}

/// What a daemon records for shims that look for it. The record outlives the daemon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    pub(crate) pid: Pid,
    pub(crate) generation: u32,
}

pub(crate) enum DialResult {
    Connected(End),
    Busy,
    Refused,
}

#[derive(Debug)]
struct Listener {
    pid: Pid,
    queue: VecDeque<End>,
}

/// The settings of all daemons and sessions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorldSettings {
    pub(crate) linger: Duration,
    pub(crate) grace: Duration,
    pub(crate) owner: Option<Pid>,
    /// Whether a daemon can watch its clients' processes.
    pub(crate) liveness: Liveness,
    /// Whether a server gets one tool call at a time.
    pub(crate) in_turn: bool,
    /// Whether sessions share a server.
    pub(crate) shared: bool,
    /// An idle server stops after this time.
    pub(crate) hibernate: Option<Duration>,
    /// Capacity of a pipe or socket in bytes.
    pub(crate) room: usize,
    /// Whether sessions support pipes beside their socket.
    pub(crate) pipes: bool,
}

/// A temporary shortage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shortage {
    /// No daemon can be started.
    Daemons,
    /// A daemon has no descriptors for another server.
    Servers,
    /// A session has no descriptors for a dedicated server, or for pipes.
    Sessions,
}

/// A process that is about to start.
pub(crate) enum NewProcess {
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
    /// The processes that share the open file that locks `spawn.lock`.
    spawn_lock: BTreeSet<Pid>,
    daemon_lock: Option<Pid>,
    pub(crate) record: Option<Record>,
    listeners: BTreeMap<u32, Listener>,
    /// Each server, and the process that it serves.
    trees: BTreeMap<Pid, Tree>,
    pub(crate) new_processes: Vec<NewProcess>,
    pub(crate) settings: WorldSettings,
    pub(crate) request_log: RequestLog,
    trace_lines: Option<Vec<String>>,
    /// The present shortage.
    pub(crate) shortage: Option<Shortage>,
    /// The first rule that was broken.
    pub(crate) broken: Option<String>,
    pub(crate) coverage: Coverage,
}

/// A server under its warden.
#[derive(Debug)]
struct Tree {
    served: Pid,
    /// When the stop ladder of the warden ends it.
    ends: Option<Moment>,
    /// The slot of which only one server may run.
    slot: Option<String>,
}

impl Kernel {
    pub(crate) fn new(settings: WorldSettings, is_traced: bool) -> Kernel {
        Kernel {
            now: Moment::START,
            processes: BTreeMap::new(),
            pipes: BTreeMap::new(),
            next: 0,
            spawn_lock: BTreeSet::new(),
            daemon_lock: None,
            record: None,
            listeners: BTreeMap::new(),
            trees: BTreeMap::new(),
            new_processes: Vec::new(),
            settings,
            request_log: RequestLog::default(),
            trace_lines: is_traced.then(Vec::new),
            shortage: None,
            broken: None,
            coverage: Coverage::default(),
        }
    }

    /// Adds a line to the trace: time in milliseconds, process, text.
    pub(crate) fn trace(&mut self, role: Pid, what: impl FnOnce() -> String) {
        let Some(trace) = &mut self.trace_lines else {
            return;
        };
        let process = self.processes.get(&role);
        let name = process.map_or("the schedule", |it| it.name.as_str());
        let micros = (self.now - Moment::START).as_micros();
        let (millis, rest) = (micros / 1000, micros % 1000);
        trace.push(format!("{millis:>9}.{rest:03}  {name:<12} {}", what()));
    }

    pub(crate) fn take_trace(&mut self) -> Vec<String> {
        self.trace_lines.take().unwrap_or_default()
    }

    /// Records a broken rule if `holds` is false.
    pub(crate) fn check(&mut self, holds: bool, rule: impl FnOnce() -> String) {
        if !holds && self.broken.is_none() {
            let rule = rule();
            self.trace(0, || format!("BROKEN: {rule}"));
            self.broken = Some(rule);
        }
    }

    pub(crate) fn occurred(&mut self, situation: Situation) {
        self.coverage.occurred(situation);
    }

    /// Creates a process.
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

    /// The highest pid so far.
    pub(crate) fn last_pid(&self) -> Pid {
        self.next
    }

    pub(crate) fn name(&self, pid: Pid) -> String {
        self.processes
            .get(&pid)
            .map_or_else(|| "no process".to_owned(), |it| it.name.clone())
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

    /// When the process was last stopped or continued.
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

    pub(crate) fn count_turn(&mut self, pid: Pid) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.turns += 1;
        }
    }

    /// Stores whether a process has something to do.
    pub(crate) fn set_ready(&mut self, pid: Pid, ready: bool) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.ready = ready;
        }
    }

    /// The activity that `/proc` would show.
    pub(crate) fn work(&self, pid: Pid) -> Option<Activity> {
        let process = self.processes.get(&pid)?;
        let state = match process.status {
            Status::Dead => return None,
            Status::Stopped => 'T',
            Status::Runs if process.ready => 'R',
            Status::Runs | Status::Hung => 'S',
        };
        Some(Activity {
            state,
            cpu: process.turns,
        })
    }

    /// Ends a process and releases everything it holds.
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
        self.listeners.retain(|_, listener| listener.pid != pid);
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
        // Each warden notices the exit of its served process, and takes up to a second for each of two steps.
        for (server, tree) in &mut self.trees {
            if tree.served == pid && tree.ends.is_none() {
                let delay = u64::from(*server) * 397 % 2000;
                tree.ends = Some(now + Duration::from_millis(delay));
            }
        }
    }
}
