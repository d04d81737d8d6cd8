//! The warden: starts one command, holds its process tree, and ends the tree when the served process is gone.
//!
//! It has one thread, which never ends early. So the death signal of its child (`PR_SET_PDEATHSIG`, bound to the thread
//! that forked) means the death of the warden and nothing else (lesson 23).

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use super::kept::Kept;
use super::record::Record;
use super::record_file;
use super::server_start::{ServerStart, WARDEN_NAME, shell_errno};
use super::services::{self, Rules, Source};
use super::start::{Exit, Report, STOP_AFTER_EOF};
use super::warden_args::{Recording, WardenArgs};
use super::{Ladder, descendants};
use crate::detach::{Kind, adopt};
use crate::detached::Detached;
use crate::events;
use crate::io::{Handle, Waitable};
use crate::os;
use crate::process::{Identity, ProcessRef};
use crate::signals::{Signals, ignore_file_size_signal};

/// Runs the warden. `arguments` are those that [`Launch`](super::Launch) passed after the program's own.
///
/// Returns the exit code of the process: 0 when the tree is empty, 126 or 127 if the server could not be started, 2 if the
/// arguments were not made by [`Launch`](super::Launch).
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let mut arguments = arguments.into_iter();
    let warden_args = arguments.next().and_then(|text| WardenArgs::parse(&text));
    let separator = arguments.next();
    let server: Vec<OsString> = arguments.collect();
    match (warden_args, separator) {
        (Some(warden_args), Some(dashes)) if dashes == "--" && !server.is_empty() => {
            Warden::serve(&warden_args, &server).unwrap_or(1)
        }
        _ => 2,
    }
}

/// The step of the stop ladder that the tree is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LadderStep {
    /// The server is to run.
    Serving,
    /// Its stdin was closed.
    Eof { until: Instant },
    /// All its processes were sent SIGTERM.
    Term { until: Instant },
    /// Its members are killed and reaped until none is left. The pause between two attempts grows while a kill reaches no
    /// new process.
    Kill { pause: Duration },
}

/// Maximum duration of each step once the served process is gone.
const MAX_STEP_WHEN_ABANDONED: Duration = Duration::from_secs(1);

/// The shortest and the longest pause. It ends early when a child ends.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause where every pid has to be tried, which costs more.
const MAX_SEARCH_PAUSE: Duration = Duration::from_secs(60);

struct Warden {
    /// `None` once the served process has closed its end.
    control: Option<OwnedFd>,
    served: ProcessRef,
    signals: Signals,
    ladder: Ladder,
    ladder_step: LadderStep,
    /// The first process of the tree: the server, or the child that is to become it.
    server: Pid,
    /// The start of the server, until its result is known.
    starting: Option<ServerStart>,
    /// The program of the server.
    program: OsString,
    /// The error number with which the server could not be executed.
    refused: Option<i32>,
    server_reaped: bool,
    /// The pids that the last kill reached.
    killed: Vec<u32>,
    /// Finds our children where `/proc` does not list them.
    search: os::ChildSearch,
    detached: Detached,
    record: TreeRecord,
    /// Detached services that outlive the tree: decided before the first step of the stop ladder.
    kept: Vec<Identity>,
}

impl Warden {
    /// Starts the server and holds its tree until it is empty. Returns the exit code of this process.
    fn serve(warden_args: &WardenArgs, server: &[OsString]) -> io::Result<u8> {
        // The death signal was for the time before this program was executed: from here on, the end of the served process
        // starts the stop ladder.
        os::outlive_parent()?;
        // Started as `/proc/self/exe`, it would be shown with the name "exe".
        os::set_process_name(WARDEN_NAME);
        ignore_file_size_signal();
        let control = adopt(warden_args.control, Kind::Socket)?.into_inner();
        let record = new_record(warden_args)?;
        // The served process is our parent while it lives. A parent with another pid adopted us.
        let served = match ProcessRef::parent()? {
            Some(parent) if parent.pid() == warden_args.served.pid() => parent,
            // It was killed during our start: no process needs the server.
            _ => return Ok(0),
        };
        os::set_subreaper(true)?;
        let signals = Signals::catch(&[Signal::CHILD, Signal::TERM, Signal::INT, Signal::HUP])?;
        // Before the start, so that the cookie is on record whatever happens from here on.
        if let Err(error) = record.write()
            && record.required
        {
            record.remove();
            send_report(&control, &not_recorded(&error));
            send_report(&control, &Report::Empty);
            return Ok(1);
        }
        let program = server[0].clone();
        let starting = match start(server, &record) {
            Ok(starting) => starting,
            Err(error) => {
                record.remove();
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                send_report(&control, &Report::Refused(errno));
                return Ok(refusal_code(errno));
            }
        };
        let mut warden = Warden {
            control: Some(control),
            served,
            signals,
            ladder: warden_args.ladder,
            ladder_step: LadderStep::Serving,
            server: starting.pid(),
            starting: Some(starting),
            program,
            refused: None,
            server_reaped: false,
            killed: Vec::new(),
            search: os::ChildSearch::default(),
            detached: warden_args.detached,
            record,
            kept: Vec::new(),
        };
        while !warden.reap_ended_children()? {
            // If the system cannot block us (no memory), a short pause is better than to spin or to exit.
            if warden.sleep().is_err() {
                let _ = events::sleep(&[], &[], Some(FIRST_PAUSE));
            }
            warden.check_start();
            warden.advance();
        }
        warden.record.remove();
        match warden.refused {
            Some(errno) => {
                warden.report(&Report::Refused(errno));
                Ok(refusal_code(errno))
            }
            None => {
                warden.report(&Report::Empty);
                Ok(0)
            }
        }
    }

    /// Reports the result of the start once it is known.
    fn check_start(&mut self) {
        let result = self.starting.as_ref().and_then(ServerStart::result);
        let Some((result, start)) = result.zip(self.starting.take_if(|_| result.is_some())) else {
            return;
        };
        match result {
            Ok(()) => self.started(&start),
            Err(errno) => {
                self.refused = Some(shell_errno(&self.program, errno));
                // The child is about to exit, unless it is stopped.
                self.ladder_step = LadderStep::Kill { pause: FIRST_PAUSE };
            }
        }
    }

    /// Completes the record, and reports that the server runs.
    fn started(&mut self, start: &ServerStart) {
        let pid = self.server.as_raw_pid() as u32;
        let identity = start.identity();
        self.record.content.server = identity;
        self.record.content.session = pid;
        let report = Report::Started { pid, identity };
        if !self.record.required {
            // The served process does not wait for a file.
            self.report(&report);
            let _ = self.record.write();
            return;
        }
        // The served process learns first whether the record was written.
        if let Err(error) = self.record.write() {
            self.report(&not_recorded(&error));
            if self.ladder_step == LadderStep::Serving {
                self.ladder_step = LadderStep::Eof {
                    until: Instant::now() + self.ladder.after_eof,
                };
            }
        }
        self.report(&report);
    }

    /// Reaps ended children; `true` when no child is left, and so no descendant either.
    fn reap_ended_children(&mut self) -> io::Result<bool> {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.server => {
                    self.server_reaped = true;
                    // It has ended, so the result of its start is known.
                    self.check_start();
                    if self.refused.is_none() {
                        self.report(&exit_report(status));
                    }
                }
                Ok(Some(_)) => {}
                Ok(None) => {
                    // If no service is kept, `wait` reports the end of the first steps.
                    let ending = match self.ladder_step {
                        LadderStep::Serving => false,
                        LadderStep::Eof { .. } | LadderStep::Term { .. } => !self.kept.is_empty(),
                        LadderStep::Kill { .. } => true,
                    };
                    return Ok(ending && descendants::only_spared_left(&self.kept));
                }
                Err(rustix::io::Errno::CHILD) => return Ok(true),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Blocks until a child ends, a signal or message arrives, the served process ends, or a step is over.
    fn sleep(&self) -> io::Result<()> {
        let mut sources: Vec<&dyn Waitable> = vec![&self.signals];
        sources.extend(self.starting.as_ref().map(|start| start as &dyn Waitable));
        let mut processes = Vec::new();
        // Once the ladder has started, messages and the end of the served process change nothing.
        if self.ladder_step == LadderStep::Serving {
            sources.extend(
                self.control
                    .as_ref()
                    .map(|control| control as &dyn Waitable),
            );
            processes.push(&self.served);
        }
        events::sleep(&sources, &processes, self.timeout())
    }

    fn timeout(&self) -> Option<Duration> {
        match self.ladder_step {
            LadderStep::Serving => None,
            LadderStep::Eof { until } | LadderStep::Term { until } => {
                Some(until.saturating_duration_since(Instant::now()))
            }
            LadderStep::Kill { pause } => Some(pause),
        }
    }

    /// Starts the next step if it is time.
    fn advance(&mut self) {
        let now = Instant::now();
        let asked = self.stop_signal_arrived() | self.stop_requested();
        // Decided before the first step, and again before each: a service whose parent ended during the search may have
        // been missed, and its clients are still there.
        let next_rung = match self.ladder_step {
            LadderStep::Serving => asked || !self.served.is_alive(),
            LadderStep::Eof { until } | LadderStep::Term { until } => now >= until,
            LadderStep::Kill { .. } => false,
        };
        if next_rung {
            self.keep_services();
        }
        self.ladder_step = match self.ladder_step {
            LadderStep::Serving if asked => LadderStep::Eof {
                until: now + self.ladder.after_eof,
            },
            LadderStep::Serving if !self.served.is_alive() => {
                self.shorten_ladder();
                LadderStep::Eof {
                    until: now + self.ladder.after_eof,
                }
            }
            LadderStep::Eof { until } if now >= until => {
                // The next step finds processes that this misses.
                if descendants::signal_all(Signal::TERM, &self.kept).is_err() {
                    self.signal_without_process_table(Signal::TERM);
                }
                LadderStep::Term {
                    until: now + self.ladder.after_term,
                }
            }
            LadderStep::Term { until } if now >= until => LadderStep::Kill { pause: FIRST_PAUSE },
            stay => stay,
        };
        if let LadderStep::Kill { pause } = self.ladder_step {
            let pause = match os::children_of_this_process() {
                Ok(mut children) => {
                    children.retain(|&pid| !descendants::is_spared(pid, &self.kept));
                    let killed = descendants::kill_children(children);
                    let same = killed == self.killed;
                    self.killed = killed;
                    match same {
                        true => (pause * 2).min(MAX_PAUSE),
                        false => FIRST_PAUSE,
                    }
                }
                Err(_) => match self.signal_without_process_table(Signal::KILL) {
                    true => (pause * 2).min(MAX_SEARCH_PAUSE),
                    false => FIRST_PAUSE,
                },
            };
            self.ladder_step = LadderStep::Kill { pause };
        }
    }

    /// Signals the server and its group, and the children that the next part of the search finds. Returns `true` if every
    /// pid was tried and no new child was found.
    fn signal_without_process_table(&mut self, signal: Signal) -> bool {
        let server = self.server;
        // If `/proc` is ours but unreadable at the moment, a later step can send_report kept services and daemons from the rest.
        // If it is not ours, it is unknown which processes left the server's session: with the policy to keep all of them,
        // none is ended.
        let searches = !os::has_own_proc() && self.detached != Detached::Keep;
        let mut children = match searches {
            true => self.search.step(),
            false => Vec::new(),
        };
        let is_kept = |pid: u32| self.kept.iter().any(|kept| kept.pid() == pid);
        children.retain(|&pid| pid != server.as_raw_pid() as u32 && !is_kept(pid));
        #[expect(
            clippy::disallowed_methods,
            reason = "unreaped children of ours, and the group that one leads: their numbers were not given away"
        )]
        {
            if !self.server_reaped {
                // If there is no such group, the server left it.
                if rustix::process::kill_process_group(server, signal).is_err() {
                    let _ = rustix::process::kill_process(server, signal);
                }
            }
            for pid in children.into_iter().filter_map(|pid| os::pid_of(pid).ok()) {
                let _ = rustix::process::kill_process(pid, signal);
            }
        }
        !searches || self.search.is_complete()
    }

    /// Finds the detached services that others use, and writes their records before a process of the tree is ended.
    fn keep_services(&mut self) {
        if self.detached == Detached::End {
            return;
        }
        // Without the process table, services cannot be told from other members.
        let Ok(members) = descendants::all(&self.kept) else {
            return;
        };
        let session = self.server.as_raw_pid() as u32;
        let rules = Rules {
            policy: self.detached,
            sessions: vec![session],
            trees: vec![self.record.cookie.clone()],
            source: Source::WardenArgs,
        };
        let services = services::kept_among(&members, &rules, self.server_reaped);
        for (identity, reason) in services {
            self.kept.push(identity);
            if let Some(dir) = &self.record.dir {
                // Without a record this warden keeps the service, but later cleanups may not.
                let _ = Kept::now(identity, reason, &self.record.cookie).write(dir.as_fd());
            }
        }
    }

    fn stop_signal_arrived(&self) -> bool {
        let mut asked = false;
        while let Some(signal) = self.signals.next() {
            asked |= signal != Signal::CHILD;
        }
        asked
    }

    /// Shortens the ladder: the served process is gone, and a successor may be waiting for the store.
    fn shorten_ladder(&mut self) {
        self.ladder.after_eof = self.ladder.after_eof.min(MAX_STEP_WHEN_ABANDONED);
        self.ladder.after_term = self.ladder.after_term.min(MAX_STEP_WHEN_ABANDONED);
    }

    /// Whether the served process sent a message, or its end closed without one: that happens when it is killed, before its
    /// death can be seen.
    fn stop_requested(&mut self) -> bool {
        let Some(control) = &self.control else {
            return false;
        };
        let mut word = [0u8; 16];
        match rustix::net::recv(control, &mut word, RecvFlags::DONTWAIT) {
            Ok((0, _)) | Err(rustix::io::Errno::CONNRESET) => {
                self.control = None;
                if self.ladder_step == LadderStep::Serving {
                    self.shorten_ladder();
                }
                true
            }
            Ok((length, _)) => {
                if word[..length].starts_with(STOP_AFTER_EOF) {
                    self.ladder.after_eof = Duration::ZERO;
                }
                true
            }
            Err(_) => false,
        }
    }

    fn report(&self, report: &Report) {
        if let Some(control) = &self.control {
            send_report(control, report);
        }
    }
}

/// The record of the tree, and where it is kept.
struct TreeRecord {
    /// The directory of records, if there is one.
    dir: Option<OwnedFd>,
    cookie: String,
    /// Whether the server may only run if its record is written.
    required: bool,
    content: Record,
}

impl TreeRecord {
    fn write(&self) -> io::Result<()> {
        match &self.dir {
            Some(dir) => self.content.write(dir.as_fd(), &self.cookie),
            None => Ok(()),
        }
    }

    fn remove(&self) {
        if let Some(dir) = &self.dir {
            // The next start removes a record that stays.
            let _ = record_file::remove(dir.as_fd(), &self.cookie);
        }
    }
}

/// The record of the tree of this warden, not written yet.
fn new_record(warden_args: &WardenArgs) -> io::Result<TreeRecord> {
    let adopt_dir = |fd| adopt(fd, Kind::Directory).map(Handle::into_inner);
    let me = ProcessRef::me()?;
    Ok(TreeRecord {
        dir: warden_args.place.records.map(adopt_dir).transpose()?,
        cookie: warden_args.place.cookie.clone(),
        required: warden_args.recording == Recording::Required,
        content: Record::new(warden_args.served, *me.identity(), warden_args.detached),
    })
}

/// Starts the server with our stdio, which becomes `/dev/null` for us.
fn start(server: &[OsString], record: &TreeRecord) -> io::Result<ServerStart> {
    let null = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    let start = ServerStart::fork(server, &record.cookie, record.content.detached)?;
    replace_stdio(&null)?;
    Ok(start)
}

/// The exit code of a shell that could not start a program.
fn refusal_code(errno: i32) -> u8 {
    if errno == libc::ENOENT { 127 } else { 126 }
}

/// Replaces our stdio with `/dev/null`: our copies would keep the pipes of the server open after its end.
fn replace_stdio(null: &std::fs::File) -> io::Result<()> {
    rustix::stdio::dup2_stdin(null)?;
    rustix::stdio::dup2_stdout(null)?;
    rustix::stdio::dup2_stderr(null)?;
    Ok(())
}

fn send_report(control: &OwnedFd, report: &Report) {
    // A served process that is gone needs no report.
    let _ = os::send(
        control.as_fd(),
        report.text().as_bytes(),
        SendFlags::DONTWAIT,
    );
}

fn not_recorded(error: &io::Error) -> Report {
    Report::NotRecorded(error.raw_os_error().unwrap_or(libc::EIO))
}

fn exit_report(status: WaitStatus) -> Report {
    Report::Exited(match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, Some(signal)) => Exit::Signal(signal),
        (None, None) => Exit::Code(-1),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_another_program_start_nothing() {
        assert_eq!(main([]), 2);
        assert_eq!(main(["for=1".into(), "--".into(), "true".into()]), 2);
        assert_eq!(main(["".into(), "--".into()]), 2);
    }
}
