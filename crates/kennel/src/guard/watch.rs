//! The guard at work: one thread, one sleep on the server's warden, the owner, signals and time.
//!
//! While the owner lives nothing wakes it but what happens. Once it is gone, connections are looked at every
//! [`SWEEP`](sessions::SWEEP), or more rarely where a look is dear; what follows from them is decided by its [`Life`].

use std::io;
use std::time::{Duration, Instant};

use kennel_guard::Held;
use kennel_sys::events::Source;
use kennel_sys::lock::Lock;
use kennel_sys::process::ProcessRef;
use kennel_sys::program::thread_time;
use kennel_sys::signals::Signals;
use kennel_sys::tree::{self, Exit, Report, Tree};
use kennel_sys::{Signal, events};

use super::answer::{Answer, Status, Voice, on_ports};
use super::launch;
use super::life::Life;
use super::output::Output;
use super::record::Kept;
use super::sessions::{self, Seen, Sessions};
use super::start::Home;
use crate::start_error::{self, Attempt};

/// The signals that are caught. All but SIGCHLD are the server's, and reach it through us.
pub(super) const HEARD: [Signal; 8] = [
    Signal::CHILD,
    Signal::TERM,
    Signal::INT,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::WINCH,
];

/// One Ctrl-C often comes twice; a second one after so long is meant.
const IMPATIENT: Duration = Duration::from_secs(1);
/// A launcher that is done may leave a server that has yet to listen: so long it is waited for.
const SETTLING: Duration = Duration::from_secs(2);
/// Between two looks whether the server listens: no event tells that (rule 10 names it).
const FIRST_NAP: Duration = Duration::from_millis(5);
const LONGEST_NAP: Duration = Duration::from_millis(100);

/// A guarded server, with all that is held as long as it lives.
pub(super) struct Watch {
    pub(super) tree: Tree,
    pub(super) signals: Signals,
    pub(super) voice: Voice,
    pub(super) output: Option<Output>,
    pub(super) kept: Option<Kept>,
    pub(super) json: bool,
    pub(super) name: String,
    pub(super) named: Vec<u16>,
    /// How long the server may take to end by itself.
    pub(super) stop_after: Duration,
    pub(super) ready_timeout: Duration,
    /// Whose place was taken.
    pub(super) replaced: Option<u32>,
    /// Until the server listens, others that want its ports wait.
    pub(super) starting: Vec<Lock>,
    /// Keeps cleaners of temporary files away.
    pub(super) home: Option<Home>,
    pub(super) _held: Vec<Held>,
    pub(super) _legacy: Vec<Lock>,
    pub(super) life: Life,
    pub(super) sessions: Sessions,

    pub(super) server: Option<ProcessRef>,
    /// The signals that came before it was known who the server is; `None` once that was told.
    pub(super) early: Option<Vec<Signal>>,
    pub(super) exit: Option<Exit>,
    pub(super) stage: Stage,
    /// While it is waited for that the server listens.
    pub(super) awaited: Option<Await>,
    /// Whether it was ever seen to listen.
    pub(super) listened: bool,
    /// Why a detached server's record could not be written: it is ended.
    pub(super) unrecorded: Option<String>,
}

/// How far the end has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Serving,
    /// Its direct process is done, well, and its tree is not: it may have left a server behind.
    Settling {
        until: Instant,
    },
    /// It was passed a signal that asks it to end.
    Asked {
        since: Instant,
    },
    /// The warden ends it.
    Ladder,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Await {
    since: Instant,
    next: Instant,
    nap: Duration,
}

impl Await {
    pub(super) fn begin() -> Await {
        let now = Instant::now();
        Await {
            since: now,
            next: now,
            nap: FIRST_NAP,
        }
    }
}

impl Watch {
    /// Guards the server until nothing is left of it. Returns the exit code.
    pub(super) fn run(mut self) -> u8 {
        loop {
            self.hear_signals();
            self.hear_output();
            if let Some(code) = self.hear_warden() {
                return code;
            }
            self.look_at_ports();
            self.look_at_life();
            self.climb();
            if self.sleep().is_err() {
                // No memory to sleep with: better a rest than to spin.
                let _ = events::sleep(&[], &[], Some(LONGEST_NAP));
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
        // Once the warden ends it, nobody's life changes anything.
        let life = match self.stage {
            Stage::Ladder => None,
            _ => self.life.due_in(),
        };
        let timeout = [stage, ports, life].into_iter().flatten().min();
        let mut sources: Vec<&dyn Source> = vec![&self.signals, &self.tree];
        sources.extend(self.output.iter().flat_map(Output::sources));
        let owner: Vec<&ProcessRef> = self.life.owner.iter().collect();
        events::wait(&sources, &owner, timeout)
    }

    fn hear_signals(&mut self) {
        while let Some(signal) = self.signals.next() {
            if signal == Signal::CHILD {
                // What children from before an exec leave becomes ours.
                tree::reap_kept(&[]);
                continue;
            }
            self.pass_on(signal);
            if !matches!(signal, Signal::TERM | Signal::INT) {
                continue;
            }
            match self.stage {
                Stage::Serving | Stage::Settling { .. } => {
                    let since = Instant::now();
                    self.stage = Stage::Asked { since };
                    self.note_ending();
                }
                Stage::Asked { since } if since.elapsed() > IMPATIENT => self.end("asked twice"),
                Stage::Asked { .. } | Stage::Ladder => {}
            }
        }
    }

    /// What a terminal sends goes to all who are at it, anything else to the one process that was meant.
    fn pass_on(&mut self, signal: Signal) {
        if matches!(signal, Signal::INT | Signal::QUIT) {
            for process in tree::below(self.tree.warden()).unwrap_or_default() {
                let _ = process.signal(signal);
            }
        } else if let Some(server) = &self.server {
            let _ = server.signal(signal);
        } else if let Some(early) = &mut self.early {
            early.push(signal);
        }
    }

    fn hear_output(&mut self) {
        if let Some(output) = &mut self.output {
            output.pass_on();
        }
    }

    /// What the warden reports. The exit code, once nothing is left.
    fn hear_warden(&mut self) -> Option<u8> {
        while events::is_readable(&self.tree) {
            match self.tree.next_report() {
                Ok(Some(Report::Started { pid, identity })) => {
                    let found = identity.and_then(|identity| ProcessRef::find(&identity).ok());
                    self.server = found.flatten();
                    for signal in self.early.take().into_iter().flatten() {
                        self.pass_on(signal);
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
                // The warden was killed: its child died with it, and the rest is ours to end.
                Ok(None) | Err(_) => {
                    let _ = self.tree.wait();
                    let trees = self.home.as_ref().map(|home| home.trees.handle());
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
        // A launcher may start a server and go, before that one listens or after.
        match (exit, self.stage) {
            (Exit::Code(0), Stage::Serving) if self.listens() => {}
            (Exit::Code(0), Stage::Serving) if !self.listened => {
                let until = Instant::now() + SETTLING;
                self.stage = Stage::Settling { until };
            }
            _ => self.end("its process ended"),
        }
    }

    fn listens(&mut self) -> bool {
        let listening = self.sessions.listening(self.tree.warden());
        listening.is_ok_and(|ports| !ports.is_empty())
    }

    /// Tells whoever waits, and those who want the same port, that the server listens; or that it does not yet.
    fn look_at_ports(&mut self) {
        let Some(awaited) = self.awaited else {
            return;
        };
        let now = Instant::now();
        if now < awaited.next {
            return;
        }
        // It may listen before we were told who it is; whoever waits is told both.
        let ready =
            self.early.is_none() && self.sessions.ready(self.tree.warden()).unwrap_or(false);
        self.listened |= ready;
        if !ready && awaited.since.elapsed() < self.ready_timeout {
            self.awaited = Some(Await {
                next: now + awaited.nap,
                nap: (awaited.nap * 2).min(LONGEST_NAP),
                ..awaited
            });
            return;
        }
        self.awaited = None;
        self.starting.clear();
        self.tell_whether_ready(ready);
    }

    fn tell_whether_ready(&mut self, ready: bool) {
        if !self.voice.is_awaited() {
            return;
        }
        let kept = self.kept.as_ref().filter(|kept| kept.is_in_place());
        let Some(entry) = kept.and_then(|kept| kept.record().look()) else {
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
        self.voice.tell(&answer);
    }

    /// Ends a detached server that nobody could find; whoever waits is told once it is gone. In the foreground it
    /// goes on: whoever started it can end it.
    fn not_recorded(&mut self, why: String) {
        if self.voice.is_awaited() {
            self.unrecorded.get_or_insert(why);
            self.awaited = None;
            self.end("its record cannot be written");
        }
    }

    /// The owner, and once it is gone, who is connected.
    fn look_at_life(&mut self) {
        if self
            .life
            .owner
            .as_ref()
            .is_some_and(|owner| !owner.is_alive())
        {
            self.life.owner_is_gone();
            self.log("the owner is gone: the server ends when nobody is connected for the grace");
        }
        let Some(looked) = self.life.looked else {
            return;
        };
        // Before a deadline is believed, everything that happened is handed in (rule 3).
        if self.life.due_in().is_none_or(|left| left.is_zero()) {
            let since = looked.elapsed();
            self.life.looked = Some(Instant::now());
            // What cannot be looked at is somebody.
            let before = thread_time();
            let seen = self.sessions.look(self.tree.warden(), since);
            self.life.sweep = sessions::next_sweep(thread_time().saturating_sub(before));
            self.life.saw(seen.unwrap_or(Seen::Connected));
            let now = self.life.now();
            self.life.lifetime.tick(now);
        }
    }

    /// Takes the next step to the end, if it is due.
    fn climb(&mut self) {
        if let Some(verdict) = self.life.lifetime.verdict() {
            self.end(&verdict.reason.to_string());
        }
        let now = Instant::now();
        match self.stage {
            Stage::Asked { since } if now >= since + self.stop_after => self.end("asked to end"),
            Stage::Settling { until } if now >= until => match self.listens() {
                // It is the server now. Its end is the tree's.
                true => self.stage = Stage::Serving,
                false => self.end("its process ended, and nothing of it listens"),
            },
            _ => {}
        }
    }

    /// Lets the warden end the tree: SIGTERM to everyone, and what is left after `stop_after` is killed.
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
        let path = std::env::var_os("PATH");
        let attempt = Attempt {
            program: command.as_ref(),
            cwd: None,
            path: path.as_deref(),
        };
        let (code, words) = start_error::explain(attempt, errno);
        self.close(&words);
        self.voice.tell(&Answer::failed(code, &words));
        code
    }

    fn ended(&mut self, lost: Option<&str>) -> u8 {
        let verdict = self.life.lifetime.verdict();
        let code = match (verdict, self.exit) {
            _ if self.unrecorded.is_some() => 1,
            // Nobody needed it any more: that is what was wanted.
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
        self.hear_output();
        let answer = self.last_answer(code, &why, lost);
        // Before anybody is told: who hears that it is gone finds no record of it.
        self.close(&why);
        if let Some(answer) = answer {
            self.voice.tell(&answer);
        }
        code
    }

    /// What is said when nothing is left of the server, if anything is.
    fn last_answer(&self, code: u8, why: &str, lost: Option<&str>) -> Option<Answer> {
        if let Some(why) = &self.unrecorded {
            let what = match self.early {
                Some(_) => "was not started",
                None => "was ended again",
            };
            return Some(launch::not_recorded(&self.name, what, why));
        }
        if self.voice.is_awaited() {
            let tail = self.output.as_ref().map_or_else(String::new, Output::tail);
            let words = format!("{} did not come to listen: {why}{tail}", self.name);
            return Some(Answer::failed(code.max(1), words));
        }
        match (lost, &self.voice) {
            (Some(lost), Voice::Here) => {
                Some(Answer::failed(code, format!("{}: {lost}", self.name)))
            }
            _ => None,
        }
    }

    fn close(&mut self, why: &str) {
        self.log(why);
        if let Some(kept) = self.kept.take() {
            match self.unrecorded {
                // There is no room to say that it ended.
                Some(_) => kept.discard(),
                None => kept.ended(why),
            }
        }
    }
}
