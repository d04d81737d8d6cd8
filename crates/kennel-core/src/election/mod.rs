//! How shims find the daemon of a key, or start it: one daemon per key, however many look at once (rule 1).
//!
//! The order is always the same:
//!
//! 1. connect: whoever answers is the daemon;
//! 2. take `spawn.lock`: whoever holds it is the only one that starts or ends a daemon;
//! 3. end the suspect, if there is one and it is stuck indeed;
//! 4. connect again: the one before us may have started it meanwhile;
//! 5. judge: is somebody still the daemon, and cannot be reached? One on its way out is let go;
//! 6. start a daemon, which is handed `spawn.lock` and gives it up when it is ready.
//!
//! [`Election`] says which [`Step`] is next; whoever obeys says which [`Fact`] came of it. Connections, locks and
//! processes stay with the one who obeys.

mod naps;
mod said;
mod step;
mod watch;

use std::time::Duration;

use crate::time::Moment;
use naps::Naps;

pub use said::Said;
pub use step::{Answer, Door, End, Fact, Started, Step, Suspect, Turn, Whom};
pub use watch::{Look, Patience, Watch, Work};

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

/// Why an election that nobody waits for ends.
pub const ABANDONED: &str = "nobody wants to know any more";
/// Why a daemon that was stuck is none.
pub const STUCK: &str = "one daemon after the other was stuck";
const BUSY: &str = "the daemon is busy without end";
const UNSEEN: &str = "the daemon does not answer, and nobody can see whether it is stuck";
const ENDING: &str = "the daemon is ending, or of an earlier build, and does not get done";
const HANGS_UP: &str = "the daemon hangs up instead of an answer; `kennel logs` may say why";
const CONFUSED: &str = "the election failed; please report it";

/// Whom the one who elects knows already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// Nobody.
    Nobody,
    /// A daemon that was said hello to, and has not answered yet.
    Greeted,
    /// A daemon that it is a client of, and that leaves it without an answer: the suspect.
    Suspect,
}

/// One election: [`step`](Self::step) says what to do, [`heard`](Self::heard) takes what came of it, until the step is
/// [`Step::Over`].
///
/// ```
/// use kennel_core::election::{Answer, Door, Election, End, Fact, Known, Step};
/// use kennel_core::time::Moment;
/// use std::time::Duration;
///
/// let now = Moment::START;
/// let mut election = Election::new(Known::Nobody, Duration::from_secs(5), now);
/// assert_eq!(election.step(), Step::Meet);
/// election.heard(Fact::Done, now);
/// assert_eq!(election.step(), Step::Knock);
/// election.heard(Fact::Door(Door::Open), now);
/// assert_eq!(election.step(), Step::Greet);
/// election.heard(Fact::Answer(Answer::Hello), now);
/// assert_eq!(election.step(), Step::Over(End::Connected));
/// ```
#[derive(Debug)]
pub struct Election {
    at: At,
    /// There is a daemon that did not answer, in this election or before it.
    suspect: bool,
    /// The shim is the suspect's client, and stays so if it answers.
    attached: bool,
    /// A daemon has worked for too long instead of an answer.
    overdue: bool,
    /// How many daemons it has started.
    starts: u32,
    /// What is known of the last that ended before it was ready.
    died: String,
    /// How often it got no answer but the end.
    hang_ups: u32,
    /// How long a daemon may take to be ready.
    start_timeout: Duration,
    /// Until when it may begin again.
    again_until: Moment,
    /// Until when it waits for whatever it waits for at present.
    until: Moment,
    rounds: Naps,
    naps: Naps,
}

/// Where it stands: what was said to be done, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
enum At {
    Meeting,
    Knocking(Why),
    Looking(Whom),
    TryingLock,
    EndingNewborn,
    InsistingOnLock,
    Proving,
    Asking,
    Ending,
    Probing,
    Accusing,
    Starting,
    Greeting,
    SeeingOut,
    Napping(Why, Duration),
    BeginningAgain(Duration),
    Over(End),
}

/// Why it knocks, or waits before it looks again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// To see whether a daemon is there.
    First,
    /// Another one has the turn, and its daemon may turn up.
    OthersTurn,
    /// To ask the suspect.
    Suspect,
    /// It is our turn, and the one before us may have started it.
    OurTurn,
    /// Nobody answers, and somebody holds `daemon.lock`.
    Held,
}

impl Election {
    /// Begins. `start_timeout` is how long a daemon may take to be ready.
    pub fn new(known: Known, start_timeout: Duration, now: Moment) -> Election {
        let suspect = known == Known::Suspect;
        Election {
            at: match known {
                Known::Greeted => At::Greeting,
                Known::Nobody | Known::Suspect => At::Meeting,
            },
            suspect,
            attached: suspect,
            overdue: false,
            starts: 0,
            died: String::new(),
            hang_ups: 0,
            start_timeout,
            again_until: now + AGAIN_FOR,
            until: now,
            rounds: Naps::new(),
            naps: Naps::new(),
        }
    }

    /// What is to be done.
    pub fn step(&self) -> Step {
        match &self.at {
            At::Meeting => Step::Meet,
            At::Knocking(_) => Step::Knock,
            At::Looking(whom) => Step::Look(*whom),
            At::TryingLock => Step::TryLock,
            At::EndingNewborn => Step::EndNewborn,
            At::InsistingOnLock => Step::InsistOnLock,
            At::Proving => Step::Prove,
            At::Asking => Step::Ask,
            At::Ending => Step::End,
            At::Probing => Step::Probe,
            At::Accusing => Step::Accuse,
            At::Starting => Step::Start,
            At::Greeting => Step::Greet,
            At::SeeingOut => Step::SeeOut(GOING),
            At::Napping(_, nap) => Step::Nap(*nap),
            At::BeginningAgain(nap) => Step::BeginAgain(*nap),
            At::Over(end) => Step::Over(end.clone()),
        }
    }

    /// What came of the present step.
    pub fn heard(&mut self, fact: Fact, now: Moment) {
        self.at = match fact {
            Fact::Failed(why) => solo(&why),
            Fact::Abandoned => solo(ABANDONED),
            Fact::Done => self.done(now),
            Fact::Door(door) => self.knocked(door, now),
            Fact::Looked(look) => self.looked(look, now),
            Fact::Lock(turn) => self.tried_lock(turn, now),
            Fact::Suspect(suspect) => self.proved(suspect, now),
            Fact::Held(held) => self.probed(held),
            Fact::Answer(answer) => self.answered(answer, now),
            Fact::Started(started) => self.started(started, now),
        };
    }

    fn done(&mut self, now: Moment) -> At {
        match &self.at {
            At::Meeting if self.suspect => self.queue_up(now),
            At::Meeting => {
                self.naps = Naps::new();
                At::Knocking(Why::First)
            }
            At::EndingNewborn if now >= self.until => At::InsistingOnLock,
            At::EndingNewborn => self.nap(Why::OthersTurn),
            At::Ending => At::Knocking(Why::OurTurn),
            At::SeeingOut => self.again(ENDING, now),
            At::Napping(why, _) => match why {
                Why::First => At::Knocking(Why::First),
                Why::OthersTurn => At::TryingLock,
                Why::Suspect => At::Looking(Whom::Suspect),
                Why::Held | Why::OurTurn => At::Probing,
            },
            At::BeginningAgain(_) => At::Meeting,
            At::Knocking(_)
            | At::Looking(_)
            | At::TryingLock
            | At::InsistingOnLock
            | At::Proving
            | At::Asking
            | At::Probing
            | At::Accusing
            | At::Starting
            | At::Greeting
            | At::Over(_) => solo(CONFUSED),
        }
    }

    fn knocked(&mut self, door: Door, now: Moment) -> At {
        let At::Knocking(why) = self.at else {
            return solo(CONFUSED);
        };
        match (why, door) {
            (Why::Suspect, Door::Open) => At::Asking,
            (Why::Suspect, Door::Busy | Door::Absent) => {
                self.naps = Naps::new();
                self.nap(Why::Suspect)
            }
            (_, Door::Open) => At::Greeting,
            (Why::First, Door::Busy) => At::Looking(Whom::Busy),
            (Why::First, Door::Absent) => self.queue_up(now),
            (Why::OthersTurn, Door::Busy | Door::Absent) => At::EndingNewborn,
            // Waited for without the lock.
            (Why::OurTurn, Door::Busy) => self.again(BUSY, now),
            (Why::OurTurn, Door::Absent) => {
                self.until = now + ON_ITS_WAY_OUT;
                self.naps = Naps::new();
                At::Probing
            }
            (Why::Held, Door::Busy | Door::Absent) if now >= self.until => At::Accusing,
            (Why::Held, Door::Busy | Door::Absent) => self.nap(Why::Held),
        }
    }

    fn looked(&mut self, look: Look, now: Moment) -> At {
        match (&self.at, look) {
            (At::Looking(_), Look::Unseen) => solo(UNSEEN),
            (At::Looking(Whom::Busy), Look::Waiting | Look::Works) => self.nap(Why::First),
            (At::Looking(Whom::Busy), Look::Stuck | Look::Overdue) => {
                self.suspect = true;
                self.queue_up(now)
            }
            (At::Looking(Whom::Suspect), Look::Waiting) => self.nap(Why::Suspect),
            (At::Looking(Whom::Suspect), Look::Works) => self.not_stuck(now),
            (At::Looking(Whom::Suspect), Look::Stuck) => At::Ending,
            _ => solo(CONFUSED),
        }
    }

    /// For the turn to start or end a daemon.
    fn queue_up(&mut self, now: Moment) -> At {
        self.until = now + self.start_timeout + LOCK_MARGIN;
        self.naps = Naps::new();
        At::TryingLock
    }

    fn tried_lock(&mut self, turn: Turn, now: Moment) -> At {
        match (&self.at, turn) {
            (At::TryingLock | At::InsistingOnLock, Turn::Ours) if self.suspect => {
                self.suspect = false;
                At::Proving
            }
            (At::TryingLock | At::InsistingOnLock, Turn::Ours) => At::Knocking(Why::OurTurn),
            (At::TryingLock, Turn::Theirs) if self.suspect => At::EndingNewborn,
            (At::TryingLock, Turn::Theirs) => At::Knocking(Why::OthersTurn),
            (At::TryingLock | At::InsistingOnLock, Turn::Lost(why)) => self.again(&why, now),
            _ => solo(CONFUSED),
        }
    }

    fn proved(&mut self, suspect: Suspect, now: Moment) -> At {
        match (&self.at, suspect) {
            // Gone while it was asked: no client of it stays.
            (At::Asking | At::Looking(Whom::Suspect), Suspect::Gone) => self.again(BUSY, now),
            (At::Proving, Suspect::Gone) => At::Knocking(Why::OurTurn),
            (At::Proving, Suspect::Proven) => At::Knocking(Why::Suspect),
            _ => solo(CONFUSED),
        }
    }

    fn probed(&mut self, held: bool) -> At {
        match (&self.at, held) {
            (At::Probing, true) => At::Knocking(Why::Held),
            (At::Probing, false) if self.starts == STARTS => solo(&format!(
                "{STARTS} daemons were started, and each ended before it answered: {}",
                self.died
            )),
            (At::Probing, false) => {
                self.starts += 1;
                At::Starting
            }
            _ => solo(CONFUSED),
        }
    }

    fn answered(&mut self, answer: Answer, now: Moment) -> At {
        match (&self.at, answer) {
            (At::Asking | At::Greeting, Answer::Silent(Look::Unseen)) => solo(UNSEEN),
            (At::Asking, Answer::Silent(Look::Stuck)) => At::Ending,
            (At::Asking, _) => self.not_stuck(now),
            (At::Greeting, Answer::Hello) => At::Over(End::Connected),
            // It was not asked that.
            (At::Greeting, Answer::Pong) => self.again(BUSY, now),
            (At::Greeting, Answer::Leaving) => At::SeeingOut,
            (At::Greeting, Answer::Gone) => {
                self.hang_ups += 1;
                match self.hang_ups {
                    HANG_UPS => solo(HANGS_UP),
                    _ => self.again(HANGS_UP, now),
                }
            }
            // That took long, and the next round decides.
            (At::Greeting, Answer::Silent(Look::Overdue)) if !self.overdue => {
                (self.suspect, self.overdue) = (true, true);
                At::BeginningAgain(self.rounds.next())
            }
            (At::Greeting, Answer::Silent(Look::Stuck | Look::Overdue)) => {
                self.suspect = true;
                self.again(STUCK, now)
            }
            (At::Greeting, Answer::Silent(Look::Works | Look::Waiting)) => self.again(BUSY, now),
            _ => solo(CONFUSED),
        }
    }

    fn not_stuck(&mut self, now: Moment) -> At {
        match self.attached {
            true => At::Over(End::NotStuck),
            false => self.again(BUSY, now),
        }
    }

    fn started(&mut self, started: Started, now: Moment) -> At {
        match (&self.at, started) {
            (At::Starting, Started::Ready) => At::Greeting,
            (At::Starting, Started::Died(why)) => {
                let next = self.again(&why, now);
                self.died = why;
                next
            }
            _ => solo(CONFUSED),
        }
    }

    fn nap(&mut self, why: Why) -> At {
        At::Napping(why, self.naps.next())
    }

    /// Begins again, unless this is one time too many.
    fn again(&mut self, why: &str, now: Moment) -> At {
        match now < self.again_until {
            true => At::BeginningAgain(self.rounds.next()),
            false => solo(why),
        }
    }
}

fn solo(why: &str) -> At {
    At::Over(End::Solo(why.to_owned()))
}
