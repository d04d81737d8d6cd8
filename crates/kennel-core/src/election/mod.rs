//! How shims find the daemon of a key, or start it: one daemon per key, however many shims try at once (rule 1).
//!
//! The order is always the same:
//!
//! 1. connect: a process that answers is the daemon;
//! 2. take `spawn.lock`: only its holder starts or kills a daemon;
//! 3. kill the suspect, if there is one and it is stuck;
//! 4. connect again: the previous holder of the lock may have started a daemon meanwhile;
//! 5. probe `daemon.lock`: wait for a daemon that is exiting, and report one that holds the lock but cannot be reached;
//! 6. start a daemon, which is handed `spawn.lock` and releases it when it is ready.
//!
//! [`Election`] returns the next [`Step`]; the driver carries it out and passes in the [`StepResult`]. Connections, locks
//! and processes belong to the driver.

mod backoff;
mod daemon_reply;
mod step;
mod stuck;

use std::time::Duration;

use crate::time::Moment;
use backoff::Backoff;

pub use daemon_reply::DaemonReply;
pub use step::{
    ConnectResult, ElectionResult, LockResult, Reply, StartResult, Step, StepResult, SuspectCheck,
    Target,
};
pub use stuck::{Activity, Patience, StuckCheck, StuckWatch};

/// How long an election may begin again: a daemon that is exiting waits for its servers.
const RETRY_FOR: Duration = Duration::from_secs(20);

/// Maximum wait for a daemon that is exiting before the next attempt to connect. A daemon whose runtime directory is gone
/// does not exit.
const EXIT_WAIT: Duration = Duration::from_millis(100);

/// Maximum number of daemons that one election starts (lesson 36: without a limit it would be a fork bomb).
const MAX_STARTS: u32 = 5;

/// Maximum number of connections that are closed without a reply. A few are normal: the daemon may have exited.
const MAX_CLOSED: u32 = 10;

/// How long a daemon that holds its lock and cannot be reached may take to exit.
const UNREACHABLE_WAIT: Duration = Duration::from_secs(2);

/// How long a shim waits for `spawn.lock` beyond the time that a start may take: its holder may first wait for an old
/// daemon to exit.
const LOCK_MARGIN: Duration = Duration::from_secs(4);

/// The reason of a cancelled election.
pub const CANCELLED: &str = "the election was cancelled";
/// The reason if one daemon after the other was stuck.
pub const STUCK: &str = "several daemons in a row were stuck";
const BUSY: &str = "timed out: the daemon is busy";
const UNKNOWN: &str = "the daemon does not answer, and its process cannot be examined";
const LEAVING: &str =
    "timed out waiting for the daemon, which is exiting or belongs to an earlier build";
const CLOSED: &str = "the daemon closes connections instead of answering; see `kennel logs`";
const UNEXPECTED: &str = "the election failed; please report it";

/// What the shim knows of the daemon before the election.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KnownDaemon {
    /// No daemon.
    None,
    /// It sent the daemon a hello, which is not answered yet.
    HelloSent,
    /// It is a client of a daemon that does not answer: the suspect.
    Suspect,
}

/// One election: [`step`](Self::step) returns the next step, [`handle`](Self::handle) takes its result, until the step is
/// [`Step::Finish`].
///
/// ```
/// use kennel_core::election::{ConnectResult, Election, ElectionResult, KnownDaemon, Reply, Step, StepResult};
/// use kennel_core::time::Moment;
/// use std::time::Duration;
///
/// let now = Moment::START;
/// let mut election = Election::new(KnownDaemon::None, Duration::from_secs(5), now);
/// assert_eq!(election.step(), Step::OpenRuntimeDir);
/// election.handle(StepResult::Done, now);
/// assert_eq!(election.step(), Step::Connect);
/// election.handle(StepResult::Connect(ConnectResult::Connected), now);
/// assert_eq!(election.step(), Step::SendHello);
/// election.handle(StepResult::Reply(Reply::Hello), now);
/// assert_eq!(election.step(), Step::Finish(ElectionResult::Connected));
/// ```
#[derive(Debug)]
pub struct Election {
    step: Step,
    /// Why the election connects, or sleeps before it checks again.
    purpose: Purpose,
    /// Whether a daemon did not answer, in this election or before it.
    has_suspect: bool,
    /// Whether the shim is a client of the suspect, and stays one if it answers.
    is_attached: bool,
    /// Whether a daemon used CPU time for too long instead of answering.
    was_overdue: bool,
    /// Number of daemons that were started.
    starts: u32,
    /// Why the last daemon exited before it was ready.
    last_exit: String,
    /// Number of connections that were closed without a reply.
    closed: u32,
    /// How long a daemon may take to be ready.
    start_timeout: Duration,
    /// End of the time in which the election may begin again.
    retry_until: Moment,
    /// When the present wait times out.
    wait_until: Moment,
    round_backoff: Backoff,
    step_backoff: Backoff,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// To find a daemon.
    FindDaemon,
    /// Another shim holds `spawn.lock`: its daemon may be ready soon.
    AwaitOtherStart,
    /// To ask the suspect.
    AskSuspect,
    /// This shim holds `spawn.lock`: the previous holder may have started a daemon.
    FindUnderLock,
    /// A process holds `daemon.lock` and cannot be reached.
    AwaitExit,
}

impl Election {
    /// Begins an election. `start_timeout`: how long a daemon may take to be ready.
    pub fn new(known: KnownDaemon, start_timeout: Duration, now: Moment) -> Election {
        let has_suspect = known == KnownDaemon::Suspect;
        Election {
            step: match known {
                KnownDaemon::HelloSent => Step::SendHello,
                KnownDaemon::None | KnownDaemon::Suspect => Step::OpenRuntimeDir,
            },
            purpose: Purpose::FindDaemon,
            has_suspect,
            is_attached: has_suspect,
            was_overdue: false,
            starts: 0,
            last_exit: String::new(),
            closed: 0,
            start_timeout,
            retry_until: now + RETRY_FOR,
            wait_until: now,
            round_backoff: Backoff::new(),
            step_backoff: Backoff::new(),
        }
    }

    /// The step to carry out.
    pub fn step(&self) -> Step {
        self.step.clone()
    }

    /// Takes the result of the step.
    pub fn handle(&mut self, result: StepResult, now: Moment) {
        self.step = match result {
            StepResult::Failed(why) => no_daemon(&why),
            StepResult::Cancelled => no_daemon(CANCELLED),
            StepResult::Done => self.handle_done(now),
            StepResult::Connect(result) => self.handle_connect(result, now),
            StepResult::Check(result) => self.handle_check(result, now),
            StepResult::Lock(result) => self.handle_lock(result, now),
            StepResult::Suspect(result) => self.handle_suspect(result, now),
            StepResult::DaemonLockHeld(is_held) => self.handle_probe(is_held),
            StepResult::Reply(reply) => self.handle_reply(reply, now),
            StepResult::Started(result) => self.handle_start(result, now),
        };
    }

    fn handle_done(&mut self, now: Moment) -> Step {
        match &self.step {
            Step::OpenRuntimeDir if self.has_suspect => self.wait_for_lock(now),
            Step::OpenRuntimeDir => {
                self.step_backoff = Backoff::new();
                self.connect(Purpose::FindDaemon)
            }
            Step::KillStuckStart if now >= self.wait_until => Step::LockOrReportHolder,
            Step::KillStuckStart => self.sleep(Purpose::AwaitOtherStart),
            Step::KillSuspect => self.connect(Purpose::FindUnderLock),
            Step::WaitForExit(_) => self.begin_again(LEAVING, now),
            Step::Sleep(_) => match self.purpose {
                Purpose::FindDaemon => Step::Connect,
                Purpose::AwaitOtherStart => Step::TryLock,
                Purpose::AskSuspect => Step::CheckDaemon(Target::Suspect),
                Purpose::AwaitExit | Purpose::FindUnderLock => Step::ProbeDaemonLock,
            },
            Step::BeginAgain(_) => Step::OpenRuntimeDir,
            Step::Connect
            | Step::CheckDaemon(_)
            | Step::TryLock
            | Step::LockOrReportHolder
            | Step::VerifySuspect
            | Step::PingSuspect
            | Step::ProbeDaemonLock
            | Step::ReportLockHolder
            | Step::StartDaemon
            | Step::SendHello
            | Step::Finish(_) => no_daemon(UNEXPECTED),
        }
    }

    fn handle_connect(&mut self, result: ConnectResult, now: Moment) -> Step {
        use ConnectResult::{Absent, Busy, Connected};

        if self.step != Step::Connect {
            return no_daemon(UNEXPECTED);
        }
        match (self.purpose, result) {
            (Purpose::AskSuspect, Connected) => Step::PingSuspect,
            (Purpose::AskSuspect, Busy | Absent) => {
                self.step_backoff = Backoff::new();
                self.sleep(Purpose::AskSuspect)
            }
            (_, Connected) => Step::SendHello,
            (Purpose::FindDaemon, Busy) => Step::CheckDaemon(Target::Busy),
            (Purpose::FindDaemon, Absent) => self.wait_for_lock(now),
            (Purpose::AwaitOtherStart, Busy | Absent) => Step::KillStuckStart,
            // The wait needs no lock.
            (Purpose::FindUnderLock, Busy) => self.begin_again(BUSY, now),
            (Purpose::FindUnderLock, Absent) => {
                self.wait_until = now + UNREACHABLE_WAIT;
                self.step_backoff = Backoff::new();
                Step::ProbeDaemonLock
            }
            (Purpose::AwaitExit, Busy | Absent) if now >= self.wait_until => Step::ReportLockHolder,
            (Purpose::AwaitExit, Busy | Absent) => self.sleep(Purpose::AwaitExit),
        }
    }

    fn handle_check(&mut self, result: StuckCheck, now: Moment) -> Step {
        use StuckCheck::{NotStuck, Overdue, Stuck, Undecided, Unknown};

        match (&self.step, result) {
            (Step::CheckDaemon(_), Unknown) => no_daemon(UNKNOWN),
            (Step::CheckDaemon(Target::Busy), Undecided | NotStuck) => {
                self.sleep(Purpose::FindDaemon)
            }
            (Step::CheckDaemon(Target::Busy), Stuck | Overdue) => {
                self.has_suspect = true;
                self.wait_for_lock(now)
            }
            (Step::CheckDaemon(Target::Suspect), Undecided) => self.sleep(Purpose::AskSuspect),
            (Step::CheckDaemon(Target::Suspect), NotStuck) => self.suspect_answers(now),
            (Step::CheckDaemon(Target::Suspect), Stuck) => Step::KillSuspect,
            _ => no_daemon(UNEXPECTED),
        }
    }

    /// Waits for `spawn.lock`, which allows to start or kill a daemon.
    fn wait_for_lock(&mut self, now: Moment) -> Step {
        self.wait_until = now + self.start_timeout + LOCK_MARGIN;
        self.step_backoff = Backoff::new();
        Step::TryLock
    }

    fn handle_lock(&mut self, result: LockResult, now: Moment) -> Step {
        match (&self.step, result) {
            (Step::TryLock | Step::LockOrReportHolder, LockResult::Acquired) => {
                match std::mem::take(&mut self.has_suspect) {
                    true => Step::VerifySuspect,
                    false => self.connect(Purpose::FindUnderLock),
                }
            }
            (Step::TryLock, LockResult::HeldByOther) if self.has_suspect => Step::KillStuckStart,
            (Step::TryLock, LockResult::HeldByOther) => self.connect(Purpose::AwaitOtherStart),
            (Step::TryLock | Step::LockOrReportHolder, LockResult::Removed(why)) => {
                self.begin_again(&why, now)
            }
            _ => no_daemon(UNEXPECTED),
        }
    }

    fn handle_suspect(&mut self, result: SuspectCheck, now: Moment) -> Step {
        match (&self.step, result) {
            // It exited during the check: its clients are disconnected.
            (Step::PingSuspect | Step::CheckDaemon(Target::Suspect), SuspectCheck::Gone) => {
                self.begin_again(BUSY, now)
            }
            (Step::VerifySuspect, SuspectCheck::Gone) => self.connect(Purpose::FindUnderLock),
            (Step::VerifySuspect, SuspectCheck::Verified) => self.connect(Purpose::AskSuspect),
            _ => no_daemon(UNEXPECTED),
        }
    }

    fn handle_probe(&mut self, is_held: bool) -> Step {
        match (&self.step, is_held) {
            (Step::ProbeDaemonLock, true) => self.connect(Purpose::AwaitExit),
            (Step::ProbeDaemonLock, false) if self.starts == MAX_STARTS => no_daemon(&format!(
                "{MAX_STARTS} daemons were started, and each exited before it answered: {}",
                self.last_exit
            )),
            (Step::ProbeDaemonLock, false) => {
                self.starts += 1;
                Step::StartDaemon
            }
            _ => no_daemon(UNEXPECTED),
        }
    }

    fn handle_reply(&mut self, reply: Reply, now: Moment) -> Step {
        use StuckCheck::{NotStuck, Overdue, Stuck, Undecided, Unknown};

        match (&self.step, reply) {
            (Step::PingSuspect | Step::SendHello, Reply::Silent(Unknown)) => no_daemon(UNKNOWN),
            (Step::PingSuspect, Reply::Silent(Stuck)) => Step::KillSuspect,
            (Step::PingSuspect, _) => self.suspect_answers(now),
            (Step::SendHello, Reply::Hello) => Step::Finish(ElectionResult::Connected),
            // No `!ping` was sent.
            (Step::SendHello, Reply::Pong) => self.begin_again(BUSY, now),
            (Step::SendHello, Reply::Leaving) => Step::WaitForExit(EXIT_WAIT),
            (Step::SendHello, Reply::Closed) => {
                self.closed += 1;
                match self.closed {
                    MAX_CLOSED => no_daemon(CLOSED),
                    _ => self.begin_again(CLOSED, now),
                }
            }
            // That took long: the next round decides, whatever the time limit.
            (Step::SendHello, Reply::Silent(Overdue)) if !self.was_overdue => {
                (self.has_suspect, self.was_overdue) = (true, true);
                Step::BeginAgain(self.round_backoff.next_delay())
            }
            (Step::SendHello, Reply::Silent(Stuck | Overdue)) => {
                self.has_suspect = true;
                self.begin_again(STUCK, now)
            }
            (Step::SendHello, Reply::Silent(NotStuck | Undecided)) => self.begin_again(BUSY, now),
            _ => no_daemon(UNEXPECTED),
        }
    }

    fn suspect_answers(&mut self, now: Moment) -> Step {
        match self.is_attached {
            true => Step::Finish(ElectionResult::NotStuck),
            false => self.begin_again(BUSY, now),
        }
    }

    fn handle_start(&mut self, result: StartResult, now: Moment) -> Step {
        match (&self.step, result) {
            (Step::StartDaemon, StartResult::Ready) => Step::SendHello,
            (Step::StartDaemon, StartResult::Exited(why)) => {
                let next = self.begin_again(&why, now);
                self.last_exit = why;
                next
            }
            _ => no_daemon(UNEXPECTED),
        }
    }

    fn connect(&mut self, purpose: Purpose) -> Step {
        self.purpose = purpose;
        Step::Connect
    }

    fn sleep(&mut self, purpose: Purpose) -> Step {
        self.purpose = purpose;
        Step::Sleep(self.step_backoff.next_delay())
    }

    /// Begins again, or gives up with this reason once the time for that is over.
    fn begin_again(&mut self, why: &str, now: Moment) -> Step {
        match now < self.retry_until {
            true => Step::BeginAgain(self.round_backoff.next_delay()),
            false => no_daemon(why),
        }
    }
}

fn no_daemon(why: &str) -> Step {
    Step::Finish(ElectionResult::NoDaemon(why.to_owned()))
}
