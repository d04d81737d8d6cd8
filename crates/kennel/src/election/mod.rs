//! Finding the daemon of a key, or starting it: one daemon per key, however many shims look at once (rule 1).
//!
//! The order is always the same, and each step is a function of [`Election`]:
//!
//! 1. [connect]: whoever answers is the daemon;
//! 2. take `spawn.lock`: whoever holds it is the only one that starts or ends a daemon;
//! 3. connect again: the one before us may have started it meanwhile;
//! 4. judge the record: a daemon that lives and is [stuck] is ended, one that is on its way out is let go;
//! 5. [start](spawn) a daemon, which is handed `spawn.lock` and gives it up when it is ready; one that is
//!    [stopped](newborn) before that is ended.
//!
//! What cannot be an event here, and is looked at again and again within a deadline (rule 10): a lock
//! others hold, a socket whose queue is full, a daemon that may be stuck. Therefore it happens on a thread of its
//! own, and the shim hears its app meanwhile. Only the first knock is the shim's: a daemon that is there
//! answers sooner than a thread begins.

mod connect;
mod hello;
mod newborn;
mod pause;
mod spawn;
pub(crate) mod stuck;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kennel_core::hello::ClientHello;
use kennel_sys::events::{self, Bell};
use kennel_sys::lock::{Lock, Mode, Probe, probe};
use kennel_sys::process::{Identity, ProcessRef};

use crate::meeting::{DAEMON_LOCK, Meeting, SPAWN_LOCK};
use connect::{Door, Reached};
use hello::{Answer, Asked};
use newborn::Newborn;
use pause::Pause;
use spawn::{Begun, Order};
use stuck::{Look, Patience, Watch};

/// How long the shim itself waits for a daemon that is there. The app does not notice.
const AT_ONCE: Duration = Duration::from_millis(10);

/// How long one election may begin again: a daemon that is going waits for its servers to end.
const AGAIN_FOR: Duration = Duration::from_secs(20);

/// How long a daemon that is going is waited for before another knock. One that moved stays.
const GOING: Duration = Duration::from_millis(100);

/// How many daemons one election starts: without a bound it would be a fork bomb (lesson 36).
const STARTS: u32 = 5;

/// How often a daemon may hang up on us: once, because it ended, is nothing.
const HANG_UPS: u32 = 10;

/// How long a daemon that holds its lock and cannot be reached has to be gone.
const ON_ITS_WAY_OUT: Duration = Duration::from_secs(2);

/// How long a shim waits for `spawn.lock` beyond the time a start may take: its holder may first have to
/// see an old daemon out.
const LOCK_MARGIN: Duration = Duration::from_secs(4);

const ABANDONED: &str = "nobody wants to know any more";
const BUSY: &str = "the daemon is busy without end";
const STUCK: &str = "one daemon after the other was stuck";
const UNSEEN: &str = "the daemon does not answer, and nobody can see whether it is stuck";

/// What a shim wants: a daemon, and to be its client.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// Which daemon.
    pub(crate) key: String,
    /// What to say to it first.
    pub(crate) hello: Arc<ClientHello>,
    /// How long it is to live, if it has to be started.
    pub(crate) policy: Policy,
    /// How long it may take to be ready, if it has to be started.
    pub(crate) start_timeout: Duration,
    /// A daemon that leaves this shim without an answer, longer than [`Watch`] allows. It is asked once
    /// more, and ended if it is stuck.
    pub(crate) suspect: Option<ProcessRef>,
    /// A daemon that was there and was [called](call) before.
    pub(crate) called: Option<Called>,
}

/// A daemon that was said hello to. It answers while whoever called it gets ready.
#[derive(Debug)]
pub(crate) struct Called {
    reached: Reached,
    asked: Asked,
}

/// Says hello to a daemon of this key, if one is there, and does not wait for its answer.
pub(crate) fn call(key: &str, hello: &ClientHello) -> Option<Called> {
    let meeting = Meeting::ensure(key).ok()?;
    let Door::Open(reached) = connect::knock(&meeting) else {
        return None;
    };
    let mut asked = Asked::hello(hello);
    asked.say(&reached.socket).ok()?;
    Some(Called { reached, asked })
}

/// How long a daemon lives, and for whom.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Policy {
    pub(crate) linger: Duration,
    pub(crate) grace: Duration,
    pub(crate) max_idle: Duration,
    pub(crate) owner: Option<Identity>,
}

/// How an election ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// A daemon took us for its client; both have said hello.
    Connected {
        /// Not blocking. What the daemon said behind its hello is still in it.
        socket: UnixStream,
        /// The daemon, where its process can be seen.
        daemon: Option<ProcessRef>,
        /// Which daemon of this key it is.
        #[cfg_attr(
            not(test),
            expect(dead_code, reason = "tests tell daemons apart by it")
        )]
        generation: String,
    },
    /// The suspect answers: whoever is its client stays so.
    NotStuck,
    /// No daemon can be had.
    Solo {
        /// Why, for the person who wonders.
        why: String,
    },
}

/// What comes of the wish for a daemon.
#[derive(Debug)]
pub(crate) enum Elected {
    /// One that was there has answered.
    AtOnce(Outcome),
    Pending(Pending),
}

/// An election under way. Readable once it is decided; dropping it abandons it, and frees what it holds.
#[derive(Debug)]
pub(crate) struct Pending {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    decided: Bell,
    abandoned: Bell,
    outcome: Mutex<Option<Outcome>>,
}

/// Looks for a daemon that is there; else begins an election, on a thread of its own.
pub(crate) fn elect(wanted: Wanted) -> io::Result<Elected> {
    elect_starting(wanted, "/proc/self/exe".into())
}

/// [`elect`], with another program to be the daemon.
fn elect_starting(mut wanted: Wanted, program: PathBuf) -> io::Result<Elected> {
    let begun = match at_once(&mut wanted) {
        AtOnce::Connected(outcome) => return Ok(Elected::AtOnce(outcome)),
        AtOnce::Begun(reached, asked) => Some((reached, asked)),
        AtOnce::Nobody => None,
    };
    let shared = Arc::new(Shared {
        decided: Bell::new()?,
        abandoned: Bell::new()?,
        outcome: Mutex::new(None),
    });
    let pending = Pending {
        shared: shared.clone(),
    };
    std::thread::Builder::new()
        .name("election".to_owned())
        .spawn(move || {
            let election = Election {
                begun,
                suspect: None,
                attached: false,
                starts: 0,
                died: String::new(),
                hang_ups: 0,
                wanted,
                program,
                abandoned: &shared.abandoned,
            };
            let outcome = catch_unwind(AssertUnwindSafe(|| election.run()));
            // The shim waits for an outcome, whatever happens here.
            let why = "the election failed; please report it".to_owned();
            let outcome = outcome.unwrap_or(Outcome::Solo { why });
            *shared.outcome.lock().expect("nobody panics holding it") = Some(outcome);
            shared.decided.ring();
        })?;
    Ok(Elected::Pending(pending))
}

/// What can be had without waiting long, and hence without a thread.
enum AtOnce {
    Connected(Outcome),
    /// Somebody is there, and has not answered yet.
    Begun(Reached, Asked),
    Nobody,
}

/// A daemon that is there answers sooner than a thread is made to wait for it.
fn at_once(wanted: &mut Wanted) -> AtOnce {
    if wanted.suspect.is_some() {
        return AtOnce::Nobody;
    }
    let called = wanted.called.take();
    let called = called.or_else(|| call(&wanted.key, &wanted.hello));
    let Some(Called { reached, mut asked }) = called else {
        return AtOnce::Nobody;
    };
    match asked.answer_within(&reached.socket, AT_ONCE) {
        Ok(Some(Answer::Hello(hello))) => AtOnce::Connected(Outcome::Connected {
            socket: reached.socket,
            daemon: reached.daemon,
            generation: hello.generation,
        }),
        Ok(None) => AtOnce::Begun(reached, asked),
        // Ending, or no daemon of ours: that takes longer.
        Ok(Some(_)) | Err(_) => AtOnce::Nobody,
    }
}

impl Pending {
    /// The outcome, once: `None` while it is undecided, and after it was taken.
    pub(crate) fn take(&self) -> Option<Outcome> {
        let mut outcome = self
            .shared
            .outcome
            .lock()
            .expect("nobody panics holding it");
        outcome.take().inspect(|_| self.shared.decided.quiet())
    }
}

impl AsFd for Pending {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.decided.as_fd()
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.shared.abandoned.ring();
    }
}

struct Election<'a> {
    wanted: Wanted,
    /// Whom the shim has said hello to already.
    begun: Option<(Reached, Asked)>,
    /// The daemon that did not answer in this election or before it.
    suspect: Option<ProcessRef>,
    /// The shim is the suspect's client, and stays so if it answers.
    attached: bool,
    /// How many daemons it has started.
    starts: u32,
    /// What is known of the last that ended before it was ready.
    died: String,
    /// How often it got no answer but the end.
    hang_ups: u32,
    program: PathBuf,
    abandoned: &'a Bell,
}

/// How one walk through the steps ended, if it did not fail for good.
enum Round {
    Done(Outcome),
    /// Begin again; why, for the case that it is one time too many.
    Again(String),
}

/// Why no daemon can be had.
type Why = String;

impl Election<'_> {
    fn run(mut self) -> Outcome {
        self.suspect = self.wanted.suspect.take();
        self.attached = self.suspect.is_some();
        let deadline = Instant::now() + AGAIN_FOR;
        let mut pause = Pause::new(self.abandoned);
        loop {
            let why = match self.round() {
                Ok(Round::Done(outcome)) => return outcome,
                Ok(Round::Again(why)) if Instant::now() < deadline => why,
                Ok(Round::Again(why)) | Err(why) => return Outcome::Solo { why },
            };
            if !pause.nap() {
                return Outcome::Solo { why };
            }
        }
    }

    fn round(&mut self) -> Result<Round, Why> {
        if let Some((reached, asked)) = self.begun.take() {
            return self.hear_out(reached, asked, Patience::First);
        }
        // Every time: the directory may be gone since, and then daemons meet in another one.
        let meeting = Meeting::ensure(&self.wanted.key).map_err(|error| error.to_string())?;
        if self.suspect.is_none()
            && let Some(reached) = self.connect(&meeting)?
        {
            return self.greet(reached, Patience::First);
        }
        let lock = match self.spawn_lock(&meeting)? {
            Turn::Ours(lock) => lock,
            Turn::Served(reached) => return self.greet(reached, Patience::First),
            // Removed under us: there will be another place. Else it is an error that stays (lesson 12).
            Turn::Lost(why) if !meeting.dir().is_at_its_path() => return Ok(Round::Again(why)),
            Turn::Lost(why) => return Err(why),
        };
        if let Some(suspect) = self.suspect.take() {
            match self.end_stuck(&meeting, suspect)? {
                None => {}
                Some(answered) => return Ok(answered),
            }
        }
        match connect::knock(&meeting) {
            Door::Open(reached) => {
                lock.release();
                return self.greet(reached, Patience::First);
            }
            // Waited for without the lock.
            Door::Busy => return Ok(Round::Again(BUSY.to_owned())),
            Door::Absent => {}
        }
        if let Some(reached) = self.judge(&meeting)? {
            lock.release();
            return self.greet(reached, Patience::First);
        }
        self.start(&meeting, lock)
    }

    /// A connection to the daemon, if there is one; waits while it is too busy to take another.
    fn connect(&mut self, meeting: &Meeting) -> Result<Option<Reached>, Why> {
        let mut pause = Pause::new(self.abandoned);
        let mut watch: Option<Watch> = None;
        loop {
            match connect::knock(meeting) {
                Door::Open(reached) => return Ok(Some(reached)),
                Door::Absent => return Ok(None),
                Door::Busy => {}
            }
            let watch = watch.get_or_insert_with(|| {
                let daemon = meeting.record().and_then(|record| record.process());
                Watch::new(daemon, Patience::First)
            });
            match watch.look() {
                Look::Waiting | Look::Works => {}
                Look::Stuck => {
                    self.suspect = watch.take_process();
                    return Ok(None);
                }
                Look::Unseen => return Err(UNSEEN.to_owned()),
            }
            if !pause.nap() {
                return Err(ABANDONED.to_owned());
            }
        }
    }

    /// The turn to start a daemon. While another one has it, its daemon may turn up.
    fn spawn_lock(&mut self, meeting: &Meeting) -> Result<Turn, Why> {
        let deadline = Instant::now() + self.wanted.start_timeout + LOCK_MARGIN;
        let mut pause = Pause::new(self.abandoned);
        let mut newborn = Newborn::of(meeting);
        loop {
            match Lock::try_acquire(meeting.dir(), SPAWN_LOCK, Mode::Exclusive) {
                Ok(Some(lock)) => return Ok(Turn::Ours(lock)),
                Ok(None) => {}
                Err(error) => return Ok(Turn::Lost(error.to_string())),
            }
            if self.suspect.is_none()
                && let Door::Open(reached) = connect::knock(meeting)
            {
                return Ok(Turn::Served(reached));
            }
            newborn.end_if_stuck()?;
            if Instant::now() >= deadline {
                return match Lock::acquire(meeting.dir(), SPAWN_LOCK, Mode::Exclusive) {
                    Ok(lock) => Ok(Turn::Ours(lock)),
                    Err(held) => Err(format!(
                        "somebody else starts the daemon, and does not get done: {held}"
                    )),
                };
            }
            if !pause.nap() {
                return Err(ABANDONED.to_owned());
            }
        }
    }

    /// Says hello. A daemon that is going, or is gone, is no daemon; one that keeps silent is suspect.
    fn greet(&mut self, reached: Reached, patience: Patience) -> Result<Round, Why> {
        let asked = Asked::hello(&self.wanted.hello);
        self.hear_out(reached, asked, patience)
    }

    fn hear_out(
        &mut self,
        reached: Reached,
        mut asked: Asked,
        patience: Patience,
    ) -> Result<Round, Why> {
        let Reached { socket, daemon } = reached;
        let mut watch = Watch::new(daemon, patience);
        let answer = asked
            .answer(&socket, &mut watch, self.abandoned)
            .map_err(|error| format!("cannot speak with the daemon: {error}"))?;
        let why = match answer {
            Answer::Hello(hello) => {
                return Ok(Round::Done(Outcome::Connected {
                    socket,
                    daemon: watch.take_process(),
                    generation: hello.generation,
                }));
            }
            Answer::Abandoned => return Err(ABANDONED.to_owned()),
            // It was not asked that.
            Answer::Pong => BUSY,
            Answer::Leaving => {
                let daemon = watch.take_process();
                let until = [self.abandoned.as_fd()];
                // Whether it waits or not, the next round looks for itself.
                let _ = events::sleep(&until, &daemon.iter().collect::<Vec<_>>(), Some(GOING));
                "the daemon is ending and does not get done"
            }
            Answer::Gone => {
                self.hang_ups += 1;
                let why = "the daemon hangs up instead of an answer; `kennel logs` may say why";
                if self.hang_ups == HANG_UPS {
                    return Err(why.to_owned());
                }
                why
            }
            Answer::Silent(Look::Stuck) => {
                self.suspect = watch.take_process();
                STUCK
            }
            Answer::Silent(Look::Works | Look::Waiting) => BUSY,
            Answer::Silent(Look::Unseen) => return Err(UNSEEN.to_owned()),
        };
        Ok(Round::Again(why.to_owned()))
    }

    /// Ends a stuck daemon, under `spawn.lock`: asked once more, proven to be the one, killed by reference
    /// (rule 6). What it says instead, if it answers; `None` when it is no longer in the way.
    fn end_stuck(&mut self, meeting: &Meeting, suspect: ProcessRef) -> Result<Option<Round>, Why> {
        if !suspect.is_alive() {
            return Ok(None);
        }
        if !stuck::is_recorded(meeting, &suspect) {
            // Another daemon took its place; or it is the one, and its record is not.
            let in_the_way = connect::is_holder(meeting, &suspect);
            return if in_the_way {
                Err(stuck::unproven(meeting, &suspect))
            } else {
                Ok(None)
            };
        }
        let answer = match connect::knock(meeting) {
            Door::Open(reached) => self.ask(reached)?,
            Door::Busy | Door::Absent => self.watch_on(&suspect)?,
        };
        if self.suspect.take().is_none() {
            let stays = self.attached && suspect.is_alive();
            return Ok(Some(if stays {
                Round::Done(Outcome::NotStuck)
            } else {
                answer
            }));
        }
        stuck::end(meeting, &suspect)?;
        Ok(None)
    }

    /// Asks a suspect on a connection of its own: on the one we may have, the question could be behind lines
    /// that its server does not take, or the answer behind lines that our app does not.
    fn ask(&mut self, reached: Reached) -> Result<Round, Why> {
        let mut watch = Watch::new(reached.daemon, Patience::Last);
        let answer = Asked::ping()
            .answer(&reached.socket, &mut watch, self.abandoned)
            .map_err(|error| format!("cannot speak with the daemon: {error}"))?;
        match answer {
            Answer::Abandoned => Err(ABANDONED.to_owned()),
            Answer::Silent(Look::Unseen) => Err(UNSEEN.to_owned()),
            Answer::Silent(Look::Stuck) => {
                self.suspect = watch.take_process();
                Ok(Round::Again(STUCK.to_owned()))
            }
            _ => Ok(Round::Again(BUSY.to_owned())),
        }
    }

    /// A suspect that cannot even be asked: one that works meanwhile is none.
    fn watch_on(&mut self, suspect: &ProcessRef) -> Result<Round, Why> {
        let again = ProcessRef::find(suspect.identity()).map_err(|error| error.to_string())?;
        let mut watch = Watch::new(again, Patience::Last);
        let mut pause = Pause::new(self.abandoned);
        while pause.nap() {
            match watch.look() {
                Look::Waiting => {}
                Look::Works => return Ok(Round::Again(BUSY.to_owned())),
                Look::Unseen => return Err(UNSEEN.to_owned()),
                Look::Stuck => {
                    self.suspect = watch.take_process();
                    return Ok(Round::Again(STUCK.to_owned()));
                }
            }
        }
        Err(ABANDONED.to_owned())
    }

    /// Nobody answers, and it is our turn: is somebody still the daemon? One on its way out is waited for.
    fn judge(&mut self, meeting: &Meeting) -> Result<Option<Reached>, Why> {
        let deadline = Instant::now() + ON_ITS_WAY_OUT;
        let mut pause = Pause::new(self.abandoned);
        loop {
            let found = probe(meeting.dir(), DAEMON_LOCK);
            let Probe::Held { .. } = found else {
                return Ok(None);
            };
            if let Door::Open(reached) = connect::knock(meeting) {
                return Ok(Some(reached));
            }
            if Instant::now() >= deadline {
                let path = meeting.dir().path().join(DAEMON_LOCK);
                let by = found.by_whom(&path).unwrap_or_default();
                return Err(format!(
                    "a daemon that cannot be reached holds {}: it is {by}; end it, and the next session gets a new one",
                    path.display()
                ));
            }
            if !pause.nap() {
                return Err(ABANDONED.to_owned());
            }
        }
    }

    /// Starts a daemon, and is its first client.
    fn start(&mut self, meeting: &Meeting, lock: Lock) -> Result<Round, Why> {
        if self.starts == STARTS {
            let last = &self.died;
            return Err(format!(
                "{STARTS} daemons were started, and each ended before it answered: {last}"
            ));
        }
        self.starts += 1;
        let order = Order {
            program: &self.program,
            wanted: &self.wanted,
            abandoned: self.abandoned,
        };
        match spawn::start(&order, meeting, lock)? {
            Begun::Ready(started) => self.greet(started, Patience::First),
            Begun::Died(why) => {
                self.died = why.clone();
                Ok(Round::Again(why))
            }
        }
    }
}

/// Whose turn it is to start a daemon.
enum Turn {
    Ours(Lock),
    /// Nobody's: there is one now.
    Served(Reached),
    /// The lock is out of reach.
    Lost(String),
}
