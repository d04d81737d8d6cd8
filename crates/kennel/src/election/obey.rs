//! An election in this world: each step is done with the kernel, and what came of it is told.

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

use super::connect::{self, Door, Reached};
use super::hello::{Answer, Asked};
use super::newborn::Newborn;
use super::spawn::{self, Begun, Order};
use super::stuck::{self, Patience, StuckCheck, Watch};
use super::{Greeted, Outcome, Wanted, pause};
use crate::key_dir::{DAEMON_LOCK, KeyDir, SPAWN_LOCK};

/// Does what an election says, and holds what comes of it.
pub(super) struct Obedient<'a> {
    election: Election,
    start: Instant,
    wanted: Wanted,
    program: PathBuf,
    abandoned: &'a Waker,
    key_dir: Option<KeyDir>,
    /// `spawn.lock`, while it is ours.
    lock: Option<Lock>,
    /// Who opened, or was started.
    reached: Option<Reached>,
    /// What was said to it already.
    asked: Option<Asked>,
    /// Which daemon of this key took us.
    generation: String,
    greeted: Option<Greeted>,
    /// The daemon that did not answer.
    suspect: Option<ProcessRef>,
    /// Of the one that is looked at.
    watch: Option<Watch>,
    newborn: Newborn,
}

/// Why a step cannot be done.
type Why = String;

impl<'a> Obedient<'a> {
    /// `begun`: whom the shim has said hello to already.
    pub(super) fn new(
        mut wanted: Wanted,
        begun: Option<(Reached, Asked)>,
        program: PathBuf,
        abandoned: &'a Waker,
    ) -> Obedient<'a> {
        let suspect = wanted.suspect.take();
        let known = match (&begun, &suspect) {
            (Some(_), _) => KnownDaemon::HelloSent,
            (None, Some(_)) => KnownDaemon::Suspect,
            (None, None) => KnownDaemon::None,
        };
        let (reached, asked) = begun.unzip();
        Obedient {
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
            newborn: Newborn::new(),
        }
    }

    pub(super) fn run(mut self) -> Outcome {
        loop {
            let step = self.election.step();
            if let Step::Finish(end) = step {
                return self.over(end);
            }
            let fact = self.obey(&step).unwrap_or_else(StepResult::Failed);
            let now = Moment::START + self.start.elapsed();
            self.election.handle(fact, now);
        }
    }

    fn over(self, end: ElectionResult) -> Outcome {
        match (end, self.reached) {
            (ElectionResult::Connected, Some(Reached { socket, daemon })) => Outcome::Connected {
                socket,
                daemon,
                greeted: self.greeted,
                generation: self.generation,
            },
            (ElectionResult::Connected, None) => Outcome::Solo {
                why: "a daemon answered, and is not there".to_owned(),
            },
            (ElectionResult::NotStuck, _) => Outcome::NotStuck,
            (ElectionResult::NoDaemon(why), _) => Outcome::Solo { why },
        }
    }

    fn obey(&mut self, step: &Step) -> Result<StepResult, Why> {
        match step {
            Step::OpenRuntimeDir => {
                let key_dir = KeyDir::ensure(&self.wanted.key);
                self.key_dir = Some(key_dir.map_err(|error| error.to_string())?);
                self.watch = None;
                self.newborn = Newborn::new();
                Ok(StepResult::Done)
            }
            Step::Connect => self.knock(),
            Step::CheckDaemon(Target::Busy) => self.look_at_the_recorded(),
            Step::CheckDaemon(Target::Suspect) => self.look_at_the_suspect(),
            Step::TryLock => self.try_lock(),
            Step::KillStuckStart => {
                let key_dir = met(&self.key_dir)?;
                self.newborn.end_if_stuck(key_dir).map(|_| StepResult::Done)
            }
            Step::LockOrReportHolder => self.insist_on_lock(),
            Step::VerifySuspect => self.prove(),
            Step::PingSuspect => self.ask(),
            Step::KillSuspect => {
                let suspect = self.suspect.take().ok_or(NOBODY)?;
                stuck::end(met(&self.key_dir)?, &suspect).map(|()| StepResult::Done)
            }
            Step::ProbeDaemonLock => {
                let found = probe(met(&self.key_dir)?.dir(), DAEMON_LOCK);
                Ok(StepResult::DaemonLockHeld(matches!(
                    found,
                    Probe::Held { .. }
                )))
            }
            Step::ReportLockHolder => self.accuse(),
            Step::StartDaemon => self.start(),
            Step::SendHello => self.greet(),
            Step::WaitForExit(length) => {
                let daemon = self.reached.take().and_then(|reached| reached.daemon);
                let processes: Vec<&ProcessRef> = daemon.iter().collect();
                // Whether it waits or not, the next round looks for itself.
                let _ = events::sleep(&[self.abandoned], &processes, Some(*length));
                Ok(StepResult::Done)
            }
            Step::Sleep(length) => Ok(self.nap(*length)),
            Step::BeginAgain(length) => {
                self.lock = None;
                self.reached = None;
                Ok(self.nap(*length))
            }
            Step::Finish(_) => Err(NOBODY.to_owned()),
        }
    }

    fn nap(&self, length: Duration) -> StepResult {
        match pause::nap(length, self.abandoned) {
            true => StepResult::Done,
            false => StepResult::Cancelled,
        }
    }

    fn knock(&mut self) -> Result<StepResult, Why> {
        let door = match connect::knock(met(&self.key_dir)?) {
            Door::Open(reached) => {
                self.reached = Some(reached);
                election::ConnectResult::Connected
            }
            Door::Busy => election::ConnectResult::Busy,
            Door::Absent => election::ConnectResult::Absent,
        };
        Ok(StepResult::Connect(door))
    }

    /// One that is too busy to take another.
    fn look_at_the_recorded(&mut self) -> Result<StepResult, Why> {
        let key_dir = met(&self.key_dir)?;
        let watch = self.watch.get_or_insert_with(|| {
            let daemon = key_dir.record().and_then(|record| record.process());
            Watch::new(daemon, Patience::First)
        });
        let look = match watch.look() {
            // The record may name a socket that is not this daemon's, and whose queue is full. A daemon for which no connection
            // waits is not stuck: it is idle.
            StuckCheck::Stuck | StuckCheck::Overdue if !watch.process().is_some_and(lets_wait) => {
                StuckCheck::NotStuck
            }
            look => look,
        };
        if matches!(look, StuckCheck::Stuck | StuckCheck::Overdue) {
            self.suspect = watch.take_process();
        }
        Ok(StepResult::Check(look))
    }

    /// One that cannot even be asked: if it works meanwhile, it is not stuck.
    fn look_at_the_suspect(&mut self) -> Result<StepResult, Why> {
        let suspect = self.suspect.as_ref().ok_or(NOBODY)?;
        if self.watch.is_none() {
            let again = ProcessRef::find(suspect.identity()).map_err(|error| error.to_string())?;
            self.watch = Some(Watch::new(again, Patience::Last));
        }
        let look = self.watch.as_mut().map_or(StuckCheck::Unknown, Watch::look);
        let stays = look != StuckCheck::NotStuck || suspect.is_alive();
        Ok(match stays {
            true => StepResult::Check(look),
            false => StepResult::Suspect(SuspectCheck::Gone),
        })
    }

    fn try_lock(&mut self) -> Result<StepResult, Why> {
        let dir = met(&self.key_dir)?.dir();
        let turn = match Lock::try_acquire(dir, SPAWN_LOCK, Mode::Exclusive) {
            Ok(Some(lock)) => {
                self.lock = Some(lock);
                LockResult::Acquired
            }
            Ok(None) => LockResult::HeldByOther,
            // Removed under us: there will be another place. Else it is an error that stays (lesson 12).
            Err(error) if !dir.is_at_its_path() => LockResult::Removed(error.to_string()),
            Err(error) => return Err(error.to_string()),
        };
        Ok(StepResult::Lock(turn))
    }

    fn insist_on_lock(&mut self) -> Result<StepResult, Why> {
        let dir = met(&self.key_dir)?.dir();
        match Lock::acquire(dir, SPAWN_LOCK, Mode::Exclusive) {
            Ok(lock) => {
                self.lock = Some(lock);
                Ok(StepResult::Lock(LockResult::Acquired))
            }
            Err(held) => Err(format!(
                "somebody else starts the daemon, and does not get done: {held}"
            )),
        }
    }

    fn prove(&mut self) -> Result<StepResult, Why> {
        let (key_dir, suspect) = (met(&self.key_dir)?, self.suspect.as_ref().ok_or(NOBODY)?);
        self.watch = None;
        if !suspect.is_alive() {
            return Ok(StepResult::Suspect(SuspectCheck::Gone));
        }
        if stuck::is_recorded(key_dir, suspect) {
            return Ok(StepResult::Suspect(SuspectCheck::Verified));
        }
        // Another daemon took its place; or it is the one, and its record is not.
        match connect::is_holder(key_dir, suspect) {
            true => Err(stuck::unproven(key_dir, suspect)),
            false => Ok(StepResult::Suspect(SuspectCheck::Gone)),
        }
    }

    /// Asks a suspect on a connection of its own: on the one we may have, the question could be behind lines
    /// that its server does not take, or the answer behind lines that our app does not.
    fn ask(&mut self) -> Result<StepResult, Why> {
        let reached = self.reached.take().ok_or(NOBODY)?;
        let mut watch = Watch::new(reached.daemon, Patience::Last);
        let answer = Asked::ping().answer(&reached.socket, &mut watch, self.abandoned);
        let fact = fact_of(&answer.map_err(|error| cannot_speak(&error))?);
        let is_stuck = fact == StepResult::Reply(election::Reply::Silent(StuckCheck::Stuck));
        let is_there = self.suspect.as_ref().is_some_and(ProcessRef::is_alive);
        Ok(match is_stuck || is_there {
            true => fact,
            false => StepResult::Suspect(SuspectCheck::Gone),
        })
    }

    fn accuse(&mut self) -> Result<StepResult, Why> {
        let dir = met(&self.key_dir)?.dir();
        let path = dir.path().join(DAEMON_LOCK);
        let by = probe(dir, DAEMON_LOCK).by_whom(&path).unwrap_or_default();
        Err(format!(
            "a daemon that cannot be reached holds {}: it is {by}; end it, and the next session gets a new one",
            path.display()
        ))
    }

    /// Starts a daemon, to be its first client.
    fn start(&mut self) -> Result<StepResult, Why> {
        let lock = self.lock.take().ok_or(NOBODY)?;
        let order = Order {
            program: &self.program,
            wanted: &self.wanted,
            abandoned: self.abandoned,
        };
        Ok(StepResult::Started(
            match spawn::start(&order, met(&self.key_dir)?, lock)? {
                Begun::Ready(started) => {
                    self.reached = Some(started);
                    StartResult::Ready
                }
                Begun::Died(why) => StartResult::Exited(why),
            },
        ))
    }

    /// Says hello. A daemon that is going, or is gone, is no daemon; one that keeps silent is suspect.
    fn greet(&mut self) -> Result<StepResult, Why> {
        if let Some(lock) = self.lock.take() {
            lock.release();
        }
        let reached = self.reached.as_mut().ok_or(NOBODY)?;
        let asked = self.asked.take();
        let mut asked = asked.unwrap_or_else(|| self.wanted.words());
        let mut watch = Watch::new(reached.daemon.take(), Patience::First);
        let answer = asked
            .answer(&reached.socket, &mut watch, self.abandoned)
            .map_err(|error| cannot_speak(&error))?;
        let fact = fact_of(&answer);
        match (answer, watch.take_process()) {
            (Answer::Silent(StuckCheck::Stuck | StuckCheck::Overdue), process) => {
                self.suspect = process
            }
            (Answer::Said(DaemonReply::Hello(hello)), process) => {
                self.generation = hello.generation;
                self.greeted = asked.greeted();
                reached.daemon = process;
            }
            (_, process) => reached.daemon = process,
        }
        Ok(fact)
    }
}

/// Only said where an election asks for what it has not got.
const NOBODY: &str = "the election asks for what is not there; please report it";

fn met(key_dir: &Option<KeyDir>) -> Result<&KeyDir, Why> {
    key_dir.as_ref().ok_or_else(|| NOBODY.to_owned())
}

fn cannot_speak(error: &std::io::Error) -> Why {
    format!("cannot speak with the daemon: {error}")
}

fn fact_of(answer: &Answer) -> StepResult {
    StepResult::Reply(match answer {
        Answer::Said(said) => said.kind(),
        Answer::Silent(look) => election::Reply::Silent(*look),
        Answer::Abandoned => return StepResult::Cancelled,
    })
}

/// Whether connections to a process wait to be taken; `false` where that cannot be seen.
fn lets_wait(process: &ProcessRef) -> bool {
    kennel_sys::net::unix_connections_wait(process).unwrap_or(false)
}
