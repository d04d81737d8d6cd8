//! The steps of an election, and their results.

use std::time::Duration;

use super::stuck::StuckCheck;

/// What the driver does next. Each step names its result; [`StepResult::Failed`] and [`StepResult::Cancelled`] are
/// possible for every step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Make sure that the runtime directory of this key exists: [`StepResult::Done`]. Every round does so, because the
    /// directory may have been removed and made anew elsewhere.
    OpenRuntimeDir,

    /// Connect to the daemon's socket once, without waiting: [`StepResult::Connect`]. Keep the connection.
    Connect,

    /// Check a silent daemon: [`StepResult::Check`], or [`SuspectCheck::Gone`]. A daemon that is stuck becomes the
    /// suspect.
    CheckDaemon(Target),

    /// Take `spawn.lock` if it is free: [`StepResult::Lock`].
    TryLock,

    /// Kill the process that is becoming the daemon if it is stuck: [`StepResult::Done`] in either case.
    KillStuckStart,

    /// Take `spawn.lock`, or fail with the name of its holder: [`StepResult::Lock`].
    LockOrReportHolder,

    /// Find out whether the suspect is still the daemon: [`StepResult::Suspect`]. Fails if it holds the daemon's lock but
    /// cannot be verified.
    VerifySuspect,

    /// Send `!ping` on the connection: [`StepResult::Reply`], or [`SuspectCheck::Gone`]. Wait with
    /// [`Patience::Last`](super::Patience::Last).
    PingSuspect,

    /// Kill the suspect if it is still verified: [`StepResult::Done`].
    KillSuspect,

    /// Find out whether a process holds `daemon.lock`: [`StepResult::DaemonLockHeld`].
    ProbeDaemonLock,

    /// Fail with the name of the process that holds `daemon.lock`.
    ReportLockHolder,

    /// Start a daemon, hand it `spawn.lock`, and wait until it is ready: [`StepResult::Started`].
    StartDaemon,

    /// Release `spawn.lock` if it is held, send the hello on the connection unless it was sent before, and read the
    /// reply: [`StepResult::Reply`]. A daemon that is stuck becomes the suspect.
    SendHello,

    /// Wait until the daemon of the connection exits, at most for this time: [`StepResult::Done`].
    WaitForExit(Duration),

    /// Sleep for this time: [`StepResult::Done`].
    Sleep(Duration),

    /// Release lock and connection, and sleep for this time: [`StepResult::Done`].
    BeginAgain(Duration),

    /// Nothing: the election has ended. Release what is held.
    Finish(ElectionResult),
}

/// The daemon to check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The daemon on record, whose accept queue is full; with [`Patience::First`](super::Patience::First), since the
    /// first connection attempt of the round.
    Busy,
    /// The suspect; with [`Patience::Last`](super::Patience::Last), since it was verified.
    Suspect,
}

/// The result of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepResult {
    /// The step is done.
    Done,
    /// Result of [`Step::Connect`].
    Connect(ConnectResult),
    /// Result of [`Step::CheckDaemon`].
    Check(StuckCheck),
    /// Result of [`Step::TryLock`] and [`Step::LockOrReportHolder`].
    Lock(LockResult),
    /// Result of [`Step::VerifySuspect`].
    Suspect(SuspectCheck),
    /// Result of [`Step::ProbeDaemonLock`].
    DaemonLockHeld(bool),
    /// Result of [`Step::SendHello`] and [`Step::PingSuspect`].
    Reply(Reply),
    /// Result of [`Step::StartDaemon`].
    Started(StartResult),
    /// The step failed for a permanent reason: no daemon can be had.
    Failed(String),
    /// The shim does not need the election any more.
    Cancelled,
}

/// The result of an attempt to connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectResult {
    /// Connected to a trusted process.
    Connected,
    /// A process listens, but its accept queue is full.
    Busy,
    /// No process listens, or none that can be trusted.
    Absent,
}

/// The result of an attempt to take `spawn.lock`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockResult {
    /// This shim holds the lock.
    Acquired,
    /// Another process holds it.
    HeldByOther,
    /// The lock file was removed meanwhile: the next round finds another. Why it cannot be reached.
    Removed(String),
}

/// Whether the suspect is still the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SuspectCheck {
    /// It exited, or another process took its place.
    Gone,
    /// It is the daemon on record.
    Verified,
}

/// The kind of a daemon's reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// The daemon accepted this client.
    Hello,
    /// The daemon is running.
    Pong,
    /// The daemon takes no new clients.
    Leaving,
    /// The connection was closed.
    Closed,
    /// No reply; the result of the check, which is not [`StuckCheck::Undecided`].
    Silent(StuckCheck),
}

/// The result of starting a daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartResult {
    /// The daemon is ready, and this shim is its first client.
    Ready,
    /// It exited without a message, or was stuck and was killed: another attempt may succeed. With the reason.
    Exited(String),
}

/// The result of an election.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ElectionResult {
    /// The daemon accepted this client.
    Connected,
    /// The suspect answers: its clients stay connected.
    NotStuck,
    /// No daemon can be had, for this reason.
    NoDaemon(String),
}
