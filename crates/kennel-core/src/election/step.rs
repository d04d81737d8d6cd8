//! The two halves of an election's talk with the world: what is to be done, and what came of it.

use std::time::Duration;

use super::watch::Look;

/// What is to be done next. Each says which [`Fact`] comes of it; [`Fact::Failed`] and [`Fact::Abandoned`] may come of any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Make sure of the place where the daemons of this key are met: [`Fact::Done`]. Every round does so: the
    /// directory may be gone since, and then they meet in another one.
    Meet,

    /// Knock at the daemon's door, once and without waiting: [`Fact::Door`]. What opens is kept.
    Knock,

    /// Look at a process that owes something: [`Fact::Looked`], or [`Suspect::Gone`]. One that is stuck is the suspect
    /// from now on.
    Look(Whom),

    /// Take `spawn.lock` if it is free: [`Fact::Lock`].
    TryLock,

    /// If whoever is about to be the daemon is stuck, end it: [`Fact::Done`], whether or not.
    EndNewborn,

    /// Take `spawn.lock`, or say who has it: [`Fact::Lock`], or it fails.
    InsistOnLock,

    /// See who the suspect is by now: [`Fact::Suspect`]. One that is in the way, and not proven to be the daemon, is
    /// a failure.
    Prove,

    /// Ask on the connection that is kept whether anybody is there: [`Fact::Answer`], or [`Suspect::Gone`]. It is asked
    /// with [`Patience::Last`](super::Patience::Last).
    Ask,

    /// End the suspect, if it is still proven to be the daemon: [`Fact::Done`].
    End,

    /// See whether anybody holds `daemon.lock`: [`Fact::Held`].
    Probe,

    /// Say who holds `daemon.lock`: that is a failure.
    Accuse,

    /// Start a daemon, which is handed `spawn.lock`, and wait until it is ready: [`Fact::Started`].
    Start,

    /// Give `spawn.lock` up if it is held, say hello on the connection that is kept, or was said already, and hear the
    /// answer: [`Fact::Answer`]. One that is stuck is the suspect.
    Greet,

    /// Wait for the end of whoever was greeted, but no longer than this: [`Fact::Done`].
    SeeOut(Duration),

    /// Wait so long: [`Fact::Done`].
    Nap(Duration),

    /// Let go of lock and connection, and wait so long: [`Fact::Done`].
    BeginAgain(Duration),

    /// Nothing: it is over. What is held is let go.
    Over(End),
}

/// At whom to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whom {
    /// The daemon on record, whose queue is full; with [`Patience::First`](super::Patience::First), since the first
    /// knock of the round.
    Busy,
    /// The suspect; with [`Patience::Last`](super::Patience::Last), since it was proven.
    Suspect,
}

/// What came of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fact {
    /// It is done.
    Done,
    /// What a knock said.
    Door(Door),
    /// What a look said.
    Looked(Look),
    /// Whose turn it is.
    Lock(Turn),
    /// Who the suspect is.
    Suspect(Suspect),
    /// Whether somebody holds `daemon.lock`.
    Held(bool),
    /// What a daemon answered.
    Answer(Answer),
    /// What became of a start.
    Started(Started),
    /// It cannot be done, for a reason that stays: no daemon can be had.
    Failed(String),
    /// Nobody wants to know any more.
    Abandoned,
}

/// What a knock says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// Somebody to be trusted is there.
    Open,
    /// Somebody is there, and its queue is full.
    Busy,
    /// Nobody is there, or nobody to be trusted.
    Absent,
}

/// Whose turn it is to start a daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Turn {
    /// Ours: `spawn.lock` is held.
    Ours,
    /// Somebody else's.
    Theirs,
    /// The lock was removed under us: there will be another place. Why it is out of reach.
    Lost(String),
}

/// Who a suspect is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suspect {
    /// It is not there any more, or another one took its place.
    Gone,
    /// The daemon on record.
    Proven,
}

/// What a daemon answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Hello.
    Hello,
    /// It is there.
    Pong,
    /// It takes no new clients.
    Leaving,
    /// It closed the connection.
    Gone,
    /// Nothing, and that is how it looks: anything but waiting.
    Silent(Look),
}

/// What became of a start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Started {
    /// A daemon is ready, and we are its first client.
    Ready,
    /// It ended without a word, or was stuck and was ended: the next one may fare better. What is known of it.
    Died(String),
}

/// How an election ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The daemon that was greeted took us for its client.
    Connected,
    /// The suspect answers: whoever is its client stays so.
    NotStuck,
    /// No daemon can be had: why.
    Solo(String),
}
