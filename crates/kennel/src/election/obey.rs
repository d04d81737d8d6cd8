//! An election in this world: each step is done with the kernel, and what came of it is told.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use kennel_core::election::{
    self, Election, End, Fact, Known, Said, Started, Step, Suspect, Turn, Whom,
};
use kennel_core::time::Moment;
use kennel_sys::events::{self, Bell};
use kennel_sys::lock::{Lock, Mode, Probe, probe};
use kennel_sys::process::ProcessRef;

use super::connect::{self, Door, Reached};
use super::hello::{Answer, Asked};
use super::newborn::Newborn;
use super::spawn::{self, Begun, Order};
use super::stuck::{self, Look, Patience, Watch};
use super::{Greeted, Outcome, Wanted, pause};
use crate::meeting::{DAEMON_LOCK, Meeting, SPAWN_LOCK};

/// Does what an election says, and holds what comes of it.
pub(super) struct Obedient<'a> {
    election: Election,
    start: Instant,
    wanted: Wanted,
    program: PathBuf,
    abandoned: &'a Bell,
    meeting: Option<Meeting>,
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
        abandoned: &'a Bell,
    ) -> Obedient<'a> {
        let suspect = wanted.suspect.take();
        let known = match (&begun, &suspect) {
            (Some(_), _) => Known::Greeted,
            (None, Some(_)) => Known::Suspect,
            (None, None) => Known::Nobody,
        };
        let (reached, asked) = begun.unzip();
        Obedient {
            election: Election::new(known, wanted.start_timeout, Moment::START),
            start: Instant::now(),
            wanted,
            program,
            abandoned,
            meeting: None,
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
            if let Step::Over(end) = step {
                return self.over(end);
            }
            let fact = self.obey(&step).unwrap_or_else(Fact::Failed);
            let now = Moment::START + self.start.elapsed();
            self.election.heard(fact, now);
        }
    }

    fn over(self, end: End) -> Outcome {
        match (end, self.reached) {
            (End::Connected, Some(Reached { socket, daemon })) => Outcome::Connected {
                socket,
                daemon,
                greeted: self.greeted,
                generation: self.generation,
            },
            (End::Connected, None) => Outcome::Solo {
                why: "a daemon answered, and is not there".to_owned(),
            },
            (End::NotStuck, _) => Outcome::NotStuck,
            (End::Solo(why), _) => Outcome::Solo { why },
        }
    }

    fn obey(&mut self, step: &Step) -> Result<Fact, Why> {
        match step {
            Step::Meet => {
                let meeting = Meeting::ensure(&self.wanted.key);
                self.meeting = Some(meeting.map_err(|error| error.to_string())?);
                self.watch = None;
                self.newborn = Newborn::new();
                Ok(Fact::Done)
            }
            Step::Knock => self.knock(),
            Step::Look(Whom::Busy) => self.look_at_the_recorded(),
            Step::Look(Whom::Suspect) => self.look_at_the_suspect(),
            Step::TryLock => self.try_lock(),
            Step::EndNewborn => {
                let meeting = met(&self.meeting)?;
                self.newborn.end_if_stuck(meeting).map(|_| Fact::Done)
            }
            Step::InsistOnLock => self.insist_on_lock(),
            Step::Prove => self.prove(),
            Step::Ask => self.ask(),
            Step::End => {
                let suspect = self.suspect.take().ok_or(NOBODY)?;
                stuck::end(met(&self.meeting)?, &suspect).map(|()| Fact::Done)
            }
            Step::Probe => {
                let found = probe(met(&self.meeting)?.dir(), DAEMON_LOCK);
                Ok(Fact::Held(matches!(found, Probe::Held { .. })))
            }
            Step::Accuse => self.accuse(),
            Step::Start => self.start(),
            Step::Greet => self.greet(),
            Step::SeeOut(length) => {
                let daemon = self.reached.take().and_then(|reached| reached.daemon);
                let until = [self.abandoned.as_fd()];
                // Whether it waits or not, the next round looks for itself.
                let _ = events::sleep(&until, &daemon.iter().collect::<Vec<_>>(), Some(*length));
                Ok(Fact::Done)
            }
            Step::Nap(length) => Ok(self.nap(*length)),
            Step::BeginAgain(length) => {
                self.lock = None;
                self.reached = None;
                Ok(self.nap(*length))
            }
            Step::Over(_) => Err(NOBODY.to_owned()),
        }
    }

    fn nap(&self, length: Duration) -> Fact {
        match pause::nap(length, self.abandoned) {
            true => Fact::Done,
            false => Fact::Abandoned,
        }
    }

    fn knock(&mut self) -> Result<Fact, Why> {
        let door = match connect::knock(met(&self.meeting)?) {
            Door::Open(reached) => {
                self.reached = Some(reached);
                election::Door::Open
            }
            Door::Busy => election::Door::Busy,
            Door::Absent => election::Door::Absent,
        };
        Ok(Fact::Door(door))
    }

    /// One that is too busy to take another.
    fn look_at_the_recorded(&mut self) -> Result<Fact, Why> {
        let meeting = met(&self.meeting)?;
        let watch = self.watch.get_or_insert_with(|| {
            let daemon = meeting.record().and_then(|record| record.process());
            Watch::new(daemon, Patience::First)
        });
        let look = match watch.look() {
            // The record may name a socket that is not this daemon's, and whose queue is full. A daemon for which no connection
            // waits is not stuck: it is idle.
            Look::Stuck | Look::Overdue if !watch.process().is_some_and(lets_wait) => Look::Works,
            look => look,
        };
        if matches!(look, Look::Stuck | Look::Overdue) {
            self.suspect = watch.take_process();
        }
        Ok(Fact::Looked(look))
    }

    /// One that cannot even be asked: if it works meanwhile, it is not stuck.
    fn look_at_the_suspect(&mut self) -> Result<Fact, Why> {
        let suspect = self.suspect.as_ref().ok_or(NOBODY)?;
        if self.watch.is_none() {
            let again = ProcessRef::find(suspect.identity()).map_err(|error| error.to_string())?;
            self.watch = Some(Watch::new(again, Patience::Last));
        }
        let look = self.watch.as_mut().map_or(Look::Unseen, Watch::look);
        let stays = look != Look::Works || suspect.is_alive();
        Ok(match stays {
            true => Fact::Looked(look),
            false => Fact::Suspect(Suspect::Gone),
        })
    }

    fn try_lock(&mut self) -> Result<Fact, Why> {
        let dir = met(&self.meeting)?.dir();
        let turn = match Lock::try_acquire(dir, SPAWN_LOCK, Mode::Exclusive) {
            Ok(Some(lock)) => {
                self.lock = Some(lock);
                Turn::Ours
            }
            Ok(None) => Turn::Theirs,
            // Removed under us: there will be another place. Else it is an error that stays (lesson 12).
            Err(error) if !dir.is_at_its_path() => Turn::Lost(error.to_string()),
            Err(error) => return Err(error.to_string()),
        };
        Ok(Fact::Lock(turn))
    }

    fn insist_on_lock(&mut self) -> Result<Fact, Why> {
        let dir = met(&self.meeting)?.dir();
        match Lock::acquire(dir, SPAWN_LOCK, Mode::Exclusive) {
            Ok(lock) => {
                self.lock = Some(lock);
                Ok(Fact::Lock(Turn::Ours))
            }
            Err(held) => Err(format!(
                "somebody else starts the daemon, and does not get done: {held}"
            )),
        }
    }

    fn prove(&mut self) -> Result<Fact, Why> {
        let (meeting, suspect) = (met(&self.meeting)?, self.suspect.as_ref().ok_or(NOBODY)?);
        self.watch = None;
        if !suspect.is_alive() {
            return Ok(Fact::Suspect(Suspect::Gone));
        }
        if stuck::is_recorded(meeting, suspect) {
            return Ok(Fact::Suspect(Suspect::Proven));
        }
        // Another daemon took its place; or it is the one, and its record is not.
        match connect::is_holder(meeting, suspect) {
            true => Err(stuck::unproven(meeting, suspect)),
            false => Ok(Fact::Suspect(Suspect::Gone)),
        }
    }

    /// Asks a suspect on a connection of its own: on the one we may have, the question could be behind lines
    /// that its server does not take, or the answer behind lines that our app does not.
    fn ask(&mut self) -> Result<Fact, Why> {
        let reached = self.reached.take().ok_or(NOBODY)?;
        let mut watch = Watch::new(reached.daemon, Patience::Last);
        let answer = Asked::ping().answer(&reached.socket, &mut watch, self.abandoned);
        let fact = fact_of(&answer.map_err(|error| cannot_speak(&error))?);
        let is_stuck = fact == Fact::Answer(election::Answer::Silent(Look::Stuck));
        let is_there = self.suspect.as_ref().is_some_and(ProcessRef::is_alive);
        Ok(match is_stuck || is_there {
            true => fact,
            false => Fact::Suspect(Suspect::Gone),
        })
    }

    fn accuse(&mut self) -> Result<Fact, Why> {
        let dir = met(&self.meeting)?.dir();
        let path = dir.path().join(DAEMON_LOCK);
        let by = probe(dir, DAEMON_LOCK).by_whom(&path).unwrap_or_default();
        Err(format!(
            "a daemon that cannot be reached holds {}: it is {by}; end it, and the next session gets a new one",
            path.display()
        ))
    }

    /// Starts a daemon, to be its first client.
    fn start(&mut self) -> Result<Fact, Why> {
        let lock = self.lock.take().ok_or(NOBODY)?;
        let order = Order {
            program: &self.program,
            wanted: &self.wanted,
            abandoned: self.abandoned,
        };
        Ok(Fact::Started(
            match spawn::start(&order, met(&self.meeting)?, lock)? {
                Begun::Ready(started) => {
                    self.reached = Some(started);
                    Started::Ready
                }
                Begun::Died(why) => Started::Died(why),
            },
        ))
    }

    /// Says hello. A daemon that is going, or is gone, is no daemon; one that keeps silent is suspect.
    fn greet(&mut self) -> Result<Fact, Why> {
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
            (Answer::Silent(Look::Stuck | Look::Overdue), process) => self.suspect = process,
            (Answer::Said(Said::Hello(hello)), process) => {
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

fn met(meeting: &Option<Meeting>) -> Result<&Meeting, Why> {
    meeting.as_ref().ok_or_else(|| NOBODY.to_owned())
}

fn cannot_speak(error: &std::io::Error) -> Why {
    format!("cannot speak with the daemon: {error}")
}

fn fact_of(answer: &Answer) -> Fact {
    Fact::Answer(match answer {
        Answer::Said(said) => said.answer(),
        Answer::Silent(look) => election::Answer::Silent(*look),
        Answer::Abandoned => return Fact::Abandoned,
    })
}

/// Whether connections to a process wait to be taken; `false` where that cannot be seen.
fn lets_wait(process: &ProcessRef) -> bool {
    kennel_sys::net::unix_connections_wait(process).unwrap_or(false)
}
