//! Drives an election: carries out each step and passes its result to the engine.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use kennel_core::election::{
    self, DaemonReply, Election, ElectionResult, KnownDaemon, LockResult, StartResult, Step,
    StepResult, SuspectCheck, Target,
};
use kennel_core::time::Moment;
use kennel_sys::events::{self, Waker};
use kennel_sys::lock::{Lock, Mode, Probe, probe};
use kennel_sys::process::ProcessRef;

use super::connect::{self, ConnectAttempt, DaemonConnection};
use super::hello::{Answer, PendingReply};
use super::spawn::{self, StartOutcome, StartRequest};
use super::starting::StartingDaemon;
use super::stuck::{self, Patience, StuckCheck, Watch};
use super::{ElectionRequest, Outcome, SentHandshake, sleep};
use crate::key_dir::{DAEMON_LOCK, KeyDir, SPAWN_LOCK};

/// Carries out the steps of an election, and holds its locks and connections.
pub(super) struct ElectionDriver<'a> {
    election: Election,
    start: Instant,
    wanted: ElectionRequest,
    program: PathBuf,
    abandoned: &'a Waker,
    key_dir: Option<KeyDir>,
    /// `spawn.lock`, while this process holds it.
    lock: Option<Lock>,
    /// The connection to the daemon that was found or started.
    reached: Option<DaemonConnection>,
    /// The message that was sent to it, until the reply is received.
    asked: Option<PendingReply>,
    /// The generation of the daemon that accepted this client.
    generation: String,
    greeted: Option<SentHandshake>,
    /// The daemon that did not answer.
    suspect: Option<ProcessRef>,
    /// Checks the daemon that does not answer.
    watch: Option<Watch>,
    starting: StartingDaemon,
}

/// Why a step failed, for people.
type StepError = String;

impl<'a> ElectionDriver<'a> {
    /// `begun`: a daemon to which the shim has sent its hello already.
    pub(super) fn new(
        mut wanted: ElectionRequest,
        begun: Option<(DaemonConnection, PendingReply)>,
        program: PathBuf,
        abandoned: &'a Waker,
    ) -> ElectionDriver<'a> {
        let suspect = wanted.suspect.take();
        let known = match (&begun, &suspect) {
            (Some(_), _) => KnownDaemon::HelloSent,
            (None, Some(_)) => KnownDaemon::Suspect,
            (None, None) => KnownDaemon::None,
        };
        let (reached, asked) = begun.unzip();
        ElectionDriver {
            election: Election::new(known, wanted.start_timeout, Moment::START),
            start: Instant::now(),
            wanted,
            program,
            abandoned,
            key_dir: None,
            lock: None,
            reached,
            asked,
            generation: String::new(),
            greeted: None,
            suspect,
            watch: None,
            starting: StartingDaemon::new(),
        }
    }

    pub(super) fn run(mut self) -> Outcome {
        loop {
            let step = self.election.step();
            if let Step::Finish(end) = step {
                return self.into_outcome(end);
            }
            let result = self.carry_out(&step).unwrap_or_else(StepResult::Failed);
            let now = Moment::START + self.start.elapsed();
            self.election.handle(result, now);
        }
    }

    fn into_outcome(self, end: ElectionResult) -> Outcome {
        match (end, self.reached) {
            (ElectionResult::Connected, Some(DaemonConnection { socket, daemon })) => {
                Outcome::Connected {
                    socket,
                    daemon,
                    greeted: self.greeted,
                    generation: self.generation,
                }
            }
            (ElectionResult::Connected, None) => Outcome::Solo {
                why: "a daemon answered, but its connection is missing; please report it"
                    .to_owned(),
            },
            (ElectionResult::NotStuck, _) => Outcome::NotStuck,
            (ElectionResult::NoDaemon(why), _) => Outcome::Solo { why },
        }
    }

    fn carry_out(&mut self, step: &Step) -> Result<StepResult, StepError> {
        match step {
            Step::OpenRuntimeDir => {
                let key_dir = KeyDir::ensure(&self.wanted.key);
                self.key_dir = Some(key_dir.map_err(|error| error.to_string())?);
                self.watch = None;
                self.starting = StartingDaemon::new();
                Ok(StepResult::Done)
            }
            Step::Connect => self.try_connect(),
            Step::CheckDaemon(Target::Busy) => self.check_recorded_daemon(),
            Step::CheckDaemon(Target::Suspect) => self.check_suspect(),
            Step::TryLock => self.try_lock(),
            Step::KillStuckStart => {
                let key_dir = require_key_dir(&self.key_dir)?;
                self.starting
                    .kill_if_stuck(key_dir)
                    .map(|_| StepResult::Done)
            }
            Step::LockOrReportHolder => self.lock_or_report_holder(),
            Step::VerifySuspect => self.verify_suspect(),
            Step::PingSuspect => self.ping_suspect(),
            Step::KillSuspect => {
                let suspect = self.suspect.take().ok_or(MISSING_STATE)?;
                stuck::kill_if_verified(require_key_dir(&self.key_dir)?, &suspect)
                    .map(|()| StepResult::Done)
            }
            Step::ProbeDaemonLock => {
                let found = probe(require_key_dir(&self.key_dir)?.dir(), DAEMON_LOCK);
                Ok(StepResult::DaemonLockHeld(matches!(
                    found,
                    Probe::Held { .. }
                )))
            }
            Step::ReportLockHolder => self.report_lock_holder(),
            Step::StartDaemon => self.start_daemon(),
            Step::SendHello => self.send_hello(),
            Step::WaitForExit(length) => {
                let daemon = self.reached.take().and_then(|reached| reached.daemon);
                let processes: Vec<&ProcessRef> = daemon.iter().collect();
                // The result does not matter: the election connects again in any case.
                let _ = events::sleep(&[self.abandoned], &processes, Some(*length));
                Ok(StepResult::Done)
            }
            Step::Sleep(length) => Ok(self.sleep(*length)),
            Step::BeginAgain(length) => {
                self.lock = None;
                self.reached = None;
                Ok(self.sleep(*length))
            }
            Step::Finish(_) => Err(MISSING_STATE.to_owned()),
        }
    }

    fn sleep(&self, length: Duration) -> StepResult {
        match sleep::sleep_unless_abandoned(length, self.abandoned) {
            true => StepResult::Done,
            false => StepResult::Cancelled,
        }
    }

    fn try_connect(&mut self) -> Result<StepResult, StepError> {
        let result = match connect::try_connect(require_key_dir(&self.key_dir)?) {
            ConnectAttempt::Connected(reached) => {
                self.reached = Some(reached);
                election::ConnectResult::Connected
            }
            ConnectAttempt::Busy => election::ConnectResult::Busy,
            ConnectAttempt::Absent => election::ConnectResult::Absent,
        };
        Ok(StepResult::Connect(result))
    }

    /// Checks the daemon on record, whose queue is full.
    fn check_recorded_daemon(&mut self) -> Result<StepResult, StepError> {
        let key_dir = require_key_dir(&self.key_dir)?;
        let watch = self.watch.get_or_insert_with(|| {
            let daemon = key_dir.record().and_then(|record| record.process());
            Watch::new(daemon, Patience::First)
        });
        let check = match watch.check() {
            // The full queue may be that of another process's socket, which the record names. A daemon without waiting
            // connections is not stuck: it is idle.
            StuckCheck::Stuck | StuckCheck::Overdue
                if !watch.process().is_some_and(has_waiting_connections) =>
            {
                StuckCheck::NotStuck
            }
            check => check,
        };
        if matches!(check, StuckCheck::Stuck | StuckCheck::Overdue) {
            self.suspect = watch.take_process();
        }
        Ok(StepResult::Check(check))
    }

    /// Checks a suspect that cannot be pinged: if it works meanwhile, it is not stuck.
    fn check_suspect(&mut self) -> Result<StepResult, StepError> {
        let suspect = self.suspect.as_ref().ok_or(MISSING_STATE)?;
        if self.watch.is_none() {
            let again = ProcessRef::find(suspect.identity()).map_err(|error| error.to_string())?;
            self.watch = Some(Watch::new(again, Patience::Last));
        }
        let check = self
            .watch
            .as_mut()
            .map_or(StuckCheck::Unknown, Watch::check);
        let stays = check != StuckCheck::NotStuck || suspect.is_alive();
        Ok(match stays {
            true => StepResult::Check(check),
            false => StepResult::Suspect(SuspectCheck::Gone),
        })
    }

    fn try_lock(&mut self) -> Result<StepResult, StepError> {
        let dir = require_key_dir(&self.key_dir)?.dir();
        let result = match Lock::try_acquire(dir, SPAWN_LOCK, Mode::Exclusive) {
            Ok(Some(lock)) => {
                self.lock = Some(lock);
                LockResult::Acquired
            }
            Ok(None) => LockResult::HeldByOther,
            // The directory was removed: it is created again. Any other error is permanent (lesson 12).
            Err(error) if !dir.is_at_its_path() => LockResult::Removed(error.to_string()),
            Err(error) => return Err(error.to_string()),
        };
        Ok(StepResult::Lock(result))
    }

    fn lock_or_report_holder(&mut self) -> Result<StepResult, StepError> {
        let dir = require_key_dir(&self.key_dir)?.dir();
        match Lock::acquire(dir, SPAWN_LOCK, Mode::Exclusive) {
            Ok(lock) => {
                self.lock = Some(lock);
                Ok(StepResult::Lock(LockResult::Acquired))
            }
            Err(held) => Err(format!(
                "timed out waiting for another process to start the daemon: {held}"
            )),
        }
    }

    fn verify_suspect(&mut self) -> Result<StepResult, StepError> {
        let (key_dir, suspect) = (
            require_key_dir(&self.key_dir)?,
            self.suspect.as_ref().ok_or(MISSING_STATE)?,
        );
        self.watch = None;
        if !suspect.is_alive() {
            return Ok(StepResult::Suspect(SuspectCheck::Gone));
        }
        if stuck::is_recorded(key_dir, suspect) {
            return Ok(StepResult::Suspect(SuspectCheck::Verified));
        }
        // Either another daemon replaced it, or it is the daemon and its record is wrong.
        match connect::is_holder(key_dir, suspect) {
            true => Err(stuck::not_verified(key_dir, suspect)),
            false => Ok(StepResult::Suspect(SuspectCheck::Gone)),
        }
    }

    /// Pings a suspect on a separate connection: on the session's connection, the ping could wait behind lines that its server
    /// does not read, or the reply behind lines that the app does not read.
    fn ping_suspect(&mut self) -> Result<StepResult, StepError> {
        let reached = self.reached.take().ok_or(MISSING_STATE)?;
        let mut watch = Watch::new(reached.daemon, Patience::Last);
        let answer = PendingReply::ping().answer(&reached.socket, &mut watch, self.abandoned);
        let result = step_result(&answer.map_err(|error| connection_error(&error))?);
        let is_stuck = result == StepResult::Reply(election::Reply::Silent(StuckCheck::Stuck));
        let is_alive = self.suspect.as_ref().is_some_and(ProcessRef::is_alive);
        Ok(match is_stuck || is_alive {
            true => result,
            false => StepResult::Suspect(SuspectCheck::Gone),
        })
    }

    fn report_lock_holder(&mut self) -> Result<StepResult, StepError> {
        let dir = require_key_dir(&self.key_dir)?.dir();
        let path = dir.path().join(DAEMON_LOCK);
        let by = probe(dir, DAEMON_LOCK)
            .holder_text(&path)
            .unwrap_or_default();
        Err(format!(
            "{} is held by a daemon that cannot be reached: {by}; stop it, and the next session starts a new one",
            path.display()
        ))
    }

    /// Starts a daemon with this session as its first client.
    fn start_daemon(&mut self) -> Result<StepResult, StepError> {
        let lock = self.lock.take().ok_or(MISSING_STATE)?;
        let order = StartRequest {
            program: &self.program,
            wanted: &self.wanted,
            abandoned: self.abandoned,
        };
        Ok(StepResult::Started(
            match spawn::start(&order, require_key_dir(&self.key_dir)?, lock)? {
                StartOutcome::Ready(started) => {
                    self.reached = Some(started);
                    StartResult::Ready
                }
                StartOutcome::Exited(why) => StartResult::Exited(why),
            },
        ))
    }

    /// Sends the hello and waits for the reply. A daemon that does not answer becomes the suspect.
    fn send_hello(&mut self) -> Result<StepResult, StepError> {
        if let Some(lock) = self.lock.take() {
            lock.release();
        }
        let reached = self.reached.as_mut().ok_or(MISSING_STATE)?;
        let asked = self.asked.take();
        let mut asked = asked.unwrap_or_else(|| self.wanted.first_message());
        let mut watch = Watch::new(reached.daemon.take(), Patience::First);
        let answer = asked
            .answer(&reached.socket, &mut watch, self.abandoned)
            .map_err(|error| connection_error(&error))?;
        let result = step_result(&answer);
        match (answer, watch.take_process()) {
            (Answer::Silent(StuckCheck::Stuck | StuckCheck::Overdue), process) => {
                self.suspect = process
            }
            (Answer::Reply(DaemonReply::Hello(hello)), process) => {
                self.generation = hello.generation;
                self.greeted = asked.greeted();
                reached.daemon = process;
            }
            (_, process) => reached.daemon = process,
        }
        Ok(result)
    }
}

/// The error of a step that needs a lock or connection which the election does not have.
const MISSING_STATE: &str =
    "the election lacks a lock or connection for its next step; please report it";

fn require_key_dir(key_dir: &Option<KeyDir>) -> Result<&KeyDir, StepError> {
    key_dir.as_ref().ok_or_else(|| MISSING_STATE.to_owned())
}

fn connection_error(error: &std::io::Error) -> StepError {
    format!("cannot exchange messages with the daemon: {error}")
}

fn step_result(answer: &Answer) -> StepResult {
    StepResult::Reply(match answer {
        Answer::Reply(reply) => reply.kind(),
        Answer::Silent(check) => election::Reply::Silent(*check),
        Answer::Abandoned => return StepResult::Cancelled,
    })
}

/// Whether connections wait to be accepted by a process; `false` if that is unknown.
fn has_waiting_connections(process: &ProcessRef) -> bool {
    kennel_sys::net::unix_connections_wait(process).unwrap_or(false)
}
