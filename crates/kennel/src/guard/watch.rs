//! The running guard: one thread, which waits for events of the warden and the owner, signals, and time.
//!
//! While the owner lives, only events wake it. Once the owner is gone, it counts connections every
//! [`COUNT_INTERVAL`](sessions::COUNT_INTERVAL), or less often if counting takes long; its [`Life`] decides what follows.

use std::io;
use std::time::{Duration, Instant};

use kennel_guard::Held;
use kennel_sys::io::Waitable;
use kennel_sys::lock::Lock;
use kennel_sys::process::ProcessRef;
use kennel_sys::program::thread_time;
use kennel_sys::signals::Signals;
use kennel_sys::tree::{self, Exit, Report, Tree};
use kennel_sys::{Signal, events};

use super::answer::{Answer, AnswerTo, Status, on_ports};
use super::launch;
use super::life::Life;
use super::output::Output;
use super::record::RecordFile;
use super::sessions::{self, Connections, Sessions};
use super::start::RuntimeDirs;
use crate::start_error;

/// The signals that are caught. All but SIGCHLD are meant for the server and forwarded to it.
pub(super) const CAUGHT_SIGNALS: [Signal; 8] = [
    Signal::CHILD,
    Signal::TERM,
    Signal::INT,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::WINCH,
];

/// Minimum time between two Ctrl-C: one key press often arrives twice.
const MIN_REPEAT: Duration = Duration::from_secs(1);
/// How long to wait for a server to listen after its launcher exited.
const LISTEN_AFTER_LAUNCHER: Duration = Duration::from_secs(2);
/// First interval at which the guard checks whether the server listens: no event reports that (rule 10 names it).
const FIRST_INTERVAL: Duration = Duration::from_millis(5);
const MAX_INTERVAL: Duration = Duration::from_millis(100);

/// A guarded server, with everything that is held while it runs.
pub(super) struct Watch {
    pub(super) tree: Tree,
    pub(super) signals: Signals,
    pub(super) answer_to: AnswerTo,
    pub(super) output: Option<Output>,
    pub(super) kept: Option<RecordFile>,
    pub(super) json: bool,
    pub(super) name: String,
    pub(super) named: Vec<u16>,
    /// How long the server may take to end by itself.
    pub(super) stop_after: Duration,
    pub(super) ready_timeout: Duration,
    /// The pid of the replaced server.
    pub(super) replaced: Option<u32>,
    /// Other starts that want its ports wait for these until the server listens.
    pub(super) starting: Vec<Lock>,
    /// Keeps cleaners of temporary files away.
    pub(super) dirs: Option<RuntimeDirs>,
    pub(super) _held: Vec<Held>,
    pub(super) _legacy: Vec<Lock>,
    pub(super) life: Life,
    pub(super) sessions: Sessions,

    pub(super) server: Option<ProcessRef>,
    /// Signals that arrived before the server's pid was known; `None` once it is.
    pub(super) pending_signals: Option<Vec<Signal>>,
    pub(super) exit: Option<Exit>,
    pub(super) stage: Stage,
    /// Set while the guard waits for the server to listen.
    pub(super) awaited: Option<Await>,
    /// Whether it was ever seen to listen.
    pub(super) listened: bool,
    /// Why a detached server's record could not be written: the server is ended.
    pub(super) unrecorded: Option<String>,
}

/// How far the server's end has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Serving,
    /// Its first process exited with code 0 and its tree is not empty: it may have left a server in the background.
    Settling {
        until: Instant,
    },
    /// A signal that asks it to end was forwarded.
    Asked {
        since: Instant,
    },
    /// The warden is ending it.
    Ladder,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Await {
    since: Instant,
    next: Instant,
    interval: Duration,
}

impl Await {
    pub(super) fn begin() -> Await {
        let now = Instant::now();
        Await {
            since: now,
            next: now,
            interval: FIRST_INTERVAL,
        }
    }
}

impl Watch {
    /// Guards the server until its tree is empty. Returns the exit code.
    pub(super) fn run(mut self) -> u8 {
        loop {
            self.handle_signals();
            self.read_output();
            if let Some(code) = self.handle_reports() {
                return code;
            }
            self.check_ports();
            self.check_need();
            self.take_next_step();
            if self.sleep().is_err() {
                // Out of memory: pause rather than spin.
                let _ = events::sleep(&[], &[], Some(MAX_INTERVAL));
            }
        }
    }

    fn sleep(&self) -> io::Result<()> {
        let now = Instant::now();
        let until = |at: Instant| at.saturating_duration_since(now);
        let stage = match self.stage {
            Stage::Serving | Stage::Ladder => None,
            Stage::Settling { until: at } => Some(until(at)),
            Stage::Asked { since } => Some(until(since + self.stop_after)),
        };
        let ports = self.awaited.map(|awaited| until(awaited.next));
        // Once the warden ends it, neither owner nor connections matter.
        let life = match self.stage {
            Stage::Ladder => None,
            _ => self.life.time_left(),
        };
        let timeout = [stage, ports, life].into_iter().flatten().min();
        let mut sources: Vec<&dyn Waitable> = vec![&self.signals, &self.tree];
        sources.extend(self.output.iter().flat_map(Output::sources));
        let owner: Vec<&ProcessRef> = self.life.owner.iter().collect();
        events::sleep(&sources, &owner, timeout)
    }

    fn handle_signals(&mut self) {
        while let Some(signal) = self.signals.next() {
            if signal == Signal::CHILD {
                // Reaps orphaned children of processes from before an exec.
                tree::reap_kept(&[]);
                continue;
            }
            self.forward(signal);
            if !matches!(signal, Signal::TERM | Signal::INT) {
                continue;
            }
            match self.stage {
                Stage::Serving | Stage::Settling { .. } => {
                    let since = Instant::now();
                    self.stage = Stage::Asked { since };
                    self.note_ending();
                }
                Stage::Asked { since } if since.elapsed() > MIN_REPEAT => self.end("asked twice"),
                Stage::Asked { .. } | Stage::Ladder => {}
            }
        }
    }

    /// Forwards a signal. A terminal's signals go to all processes at it, all others only to the server's first
    /// process.
    fn forward(&mut self, signal: Signal) {
        if matches!(signal, Signal::INT | Signal::QUIT) {
            for process in tree::below(self.tree.warden()).unwrap_or_default() {
                let _ = process.signal(signal);
            }
        } else if let Some(server) = &self.server {
            let _ = server.signal(signal);
        } else if let Some(pending_signals) = &mut self.pending_signals {
            pending_signals.push(signal);
        }
    }

    fn read_output(&mut self) {
        if let Some(output) = &mut self.output {
            output.log_available();
        }
    }

    /// Handles the warden's reports. Returns the exit code once the tree is empty.
    fn handle_reports(&mut self) -> Option<u8> {
        while events::is_readable(&self.tree) {
            match self.tree.next_report() {
                Ok(Some(Report::Started { pid, identity })) => {
                    let found = identity.and_then(|identity| ProcessRef::find(&identity).ok());
                    self.server = found.flatten();
                    for signal in self.pending_signals.take().into_iter().flatten() {
                        self.forward(signal);
                    }
                    if let Some(Err(error)) = self.kept.as_mut().map(|kept| kept.started(pid)) {
                        self.not_recorded(error.to_string());
                    }
                }
                Ok(Some(Report::NotRecorded(errno))) => {
                    self.not_recorded(io::Error::from_raw_os_error(errno).to_string());
                }
                Ok(Some(Report::Refused(errno))) => {
                    let _ = self.tree.wait();
                    return Some(self.refused(errno));
                }
                Ok(Some(Report::Exited(exit))) => self.exited(exit),
                Ok(Some(Report::Empty)) => {
                    let _ = self.tree.wait();
                    return Some(self.ended(None));
                }
                // The warden was killed: the kernel killed its child, and the guard ends the rest.
                Ok(None) | Err(_) => {
                    let _ = self.tree.wait();
                    let trees = self.dirs.as_ref().map(|dirs| dirs.trees.handle());
                    let _ = tree::end_strays(&[], trees);
                    return Some(self.ended(Some("its warden was killed")));
                }
            }
        }
        None
    }

    fn exited(&mut self, exit: Exit) {
        self.exit = Some(exit);
        self.server = None;
        // A launcher may start a server and exit before the server listens, or after.
        match (exit, self.stage) {
            (Exit::Code(0), Stage::Serving) if self.listens() => {}
            (Exit::Code(0), Stage::Serving) if !self.listened => {
                let until = Instant::now() + LISTEN_AFTER_LAUNCHER;
                self.stage = Stage::Settling { until };
            }
            _ => self.end("its process ended"),
        }
    }

    fn listens(&mut self) -> bool {
        let listening = self.sessions.listening(self.tree.warden());
        listening.is_ok_and(|ports| !ports.is_empty())
    }

    /// Tells the waiting process, and other starts for the same ports, that the server listens or did not in time.
    fn check_ports(&mut self) {
        let Some(awaited) = self.awaited else {
            return;
        };
        let now = Instant::now();
        if now < awaited.next {
            return;
        }
        // It may listen before its pid is known here; the waiting process is told both.
        let ready = self.pending_signals.is_none()
            && self.sessions.ready(self.tree.warden()).unwrap_or(false);
        self.listened |= ready;
        if !ready && awaited.since.elapsed() < self.ready_timeout {
            self.awaited = Some(Await {
                next: now + awaited.interval,
                interval: (awaited.interval * 2).min(MAX_INTERVAL),
                ..awaited
            });
            return;
        }
        self.awaited = None;
        self.starting.clear();
        self.report_readiness(ready);
    }

    fn report_readiness(&mut self, ready: bool) {
        if !self.answer_to.is_awaited() {
            return;
        }
        let kept = self.kept.as_ref().filter(|kept| kept.exists_at_path());
        let Some(entry) = kept.and_then(|kept| kept.record().inspect()) else {
            return self.not_recorded("the runtime directory was removed".to_owned());
        };
        let replaced = self.replaced;
        let mut answer = Answer::running(&entry, Status::Started { ready, replaced }, self.json);
        if !ready {
            answer.code = 1;
            answer.out = answer.out.filter(|_| self.json);
            let (name, key, timeout) = (&self.name, &entry.key, self.ready_timeout);
            let ports = on_ports(&self.named).replacen(',', " on", 1);
            answer.err = Some(format!(
                "{name} does not listen{ports} after {timeout:?} (--ready-timeout), and goes on; \
                 see `kennel logs {key}`, or end it with `kennel stop {key}`"
            ));
        }
        self.answer_to.tell(&answer);
    }

    /// Ends a detached server that `ps` and `stop` could not find, and reports that to the waiting process. A server in
    /// the foreground continues to run: the process that started it can end it.
    fn not_recorded(&mut self, why: String) {
        if self.answer_to.is_awaited() {
            self.unrecorded.get_or_insert(why);
            self.awaited = None;
            self.end("its record cannot be written");
        }
    }

    /// Checks the owner and, once it is gone, the connections.
    fn check_need(&mut self) {
        if self
            .life
            .owner
            .as_ref()
            .is_some_and(|owner| !owner.is_alive())
        {
            self.life.owner_is_gone();
            self.log("the owner is gone: the server ends when no client is connected for --grace");
        }
        let Some(looked) = self.life.counted_at else {
            return;
        };
        // All pending events are handled before a deadline counts (rule 3).
        if self.life.time_left().is_none_or(|left| left.is_zero()) {
            let since = looked.elapsed();
            self.life.counted_at = Some(Instant::now());
            // If connections cannot be counted, assume one.
            let before = thread_time();
            let seen = self.sessions.inspect(self.tree.warden(), since);
            self.life.interval = sessions::next_count(thread_time().saturating_sub(before));
            self.life
                .record_connections(seen.unwrap_or(Connections::Connected));
            let now = self.life.now();
            self.life.lifetime.advance(now);
        }
    }

    /// Takes the next step towards the end, if it is due.
    fn take_next_step(&mut self) {
        if let Some(verdict) = self.life.lifetime.verdict() {
            self.end(&verdict.reason.to_string());
        }
        let now = Instant::now();
        match self.stage {
            Stage::Asked { since } if now >= since + self.stop_after => self.end("asked to end"),
            Stage::Settling { until } if now >= until => match self.listens() {
                // The process that listens is the server: the tree goes on until it ends.
                true => self.stage = Stage::Serving,
                false => self.end("its process ended, and nothing of it listens"),
            },
            _ => {}
        }
    }

    /// Tells the warden to end the tree: SIGTERM to all processes, and SIGKILL to those left after `stop_after`.
    fn end(&mut self, why: &str) {
        if self.stage == Stage::Ladder {
            return;
        }
        self.stage = Stage::Ladder;
        self.note_ending();
        self.log(&format!("ending the server: {why}"));
        let _ = self.tree.stop();
    }

    fn note_ending(&mut self) {
        if let Some(kept) = &mut self.kept {
            kept.ending();
        }
    }

    fn log(&self, words: &str) {
        if let Some(output) = &self.output {
            output.note(words);
        }
    }

    fn refused(&mut self, errno: i32) -> u8 {
        let command = self
            .kept
            .as_ref()
            .map(|kept| kept.record().entry.command[0].clone());
        let command = command.unwrap_or_else(|| self.name.clone());
        let (code, words) = start_error::explain_here(command.as_ref(), None, errno);
        self.close(&words);
        self.answer_to.tell(&Answer::failed(code, &words));
        code
    }

    fn ended(&mut self, lost: Option<&str>) -> u8 {
        let verdict = self.life.lifetime.verdict();
        let code = match (verdict, self.exit) {
            _ if self.unrecorded.is_some() => 1,
            // The server was no longer needed: that is a success.
            (Some(_), _) => 0,
            (None, Some(Exit::Code(code))) => u8::try_from(code).unwrap_or(1),
            (None, Some(Exit::Signal(signal))) => 128u8.wrapping_add(signal as u8),
            (None, None) => 1,
        };
        let why = match (verdict, self.exit, lost) {
            _ if self.unrecorded.is_some() => "its record could not be written".to_owned(),
            (Some(verdict), ..) => verdict.reason.to_string(),
            (None, _, Some(lost)) => lost.to_owned(),
            (None, Some(Exit::Code(code)), None) => format!("the server ended with code {code}"),
            (None, Some(Exit::Signal(signal)), None) => {
                format!("the server was ended by signal {signal}")
            }
            (None, None, None) => "the server ended".to_owned(),
        };
        self.read_output();
        let answer = self.last_answer(code, &why, lost);
        // Before the result is sent: a process that learns of the end finds no record.
        self.close(&why);
        if let Some(answer) = answer {
            self.answer_to.tell(&answer);
        }
        code
    }

    /// The result to send once the tree is empty, if there is one.
    fn last_answer(&self, code: u8, why: &str, lost: Option<&str>) -> Option<Answer> {
        if let Some(why) = &self.unrecorded {
            let what = match self.pending_signals {
                Some(_) => "was not started",
                None => "was ended again",
            };
            return Some(launch::not_recorded(&self.name, what, why));
        }
        if self.answer_to.is_awaited() {
            let tail = self.output.as_ref().map_or_else(String::new, Output::tail);
            let words = format!("{} did not start to listen: {why}{tail}", self.name);
            return Some(Answer::failed(code.max(1), words));
        }
        match (lost, &self.answer_to) {
            (Some(lost), AnswerTo::Stdio) => {
                Some(Answer::failed(code, format!("{}: {lost}", self.name)))
            }
            _ => None,
        }
    }

    fn close(&mut self, why: &str) {
        self.log(why);
        if let Some(kept) = self.kept.take() {
            match self.unrecorded {
                // The record could not be updated: remove it.
                Some(_) => kept.discard(),
                None => kept.ended(why),
            }
        }
    }
}
