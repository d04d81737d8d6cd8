//! Counts how often each situation occurred that a run must cover.

use std::fmt;

/// A situation in a schedule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Situation {
    /// A session's own server hibernates.
    HibernatesDedicated,
    /// A shared server hibernates.
    HibernatesShared,
    /// A hibernating server is started again for a request.
    Wakes,
    /// A client and its daemon both use the pipes beside their socket.
    UsesPipes,
    /// The pipes that a daemon offered are lost on the way.
    LosesPipes,
    /// The beginning of a long line is sent before its end is read.
    SentAhead,
    /// A line whose beginning was sent is aborted.
    Aborted,
    /// A daemon lacks descriptors for a server.
    DaemonLacks,
    /// A session lacks descriptors for a dedicated server.
    SessionLacks,
    /// A session becomes dedicated because there is no daemon.
    DedicatedForNow,
    /// A session returns from its dedicated server to a shared one.
    Returns,
    /// A daemon is restored from its snapshot.
    HandsOver,
    /// A daemon hands over while a request is pending.
    HandsOverBusy,
    /// A daemon hands over with half a line of a client or a server.
    HandsOverHalfLine,
    /// A daemon hands over with bytes that are not written to a client or a server.
    HandsOverUnwritten,
    /// A daemon hands over with a client that uses pipes.
    HandsOverPipes,
    /// A snapshot is taken, and the new build does not start.
    HandOverFails,
    /// A write takes only a part of the bytes.
    PartialWrite,
    /// A read gives a part of a line.
    PartialRead,
    /// A session's first line is sent together with its hello.
    Greets,
}

impl Situation {
    /// All situations.
    pub const ALL: [Situation; 20] = [
        Situation::HibernatesDedicated,
        Situation::HibernatesShared,
        Situation::Wakes,
        Situation::UsesPipes,
        Situation::LosesPipes,
        Situation::SentAhead,
        Situation::Aborted,
        Situation::DaemonLacks,
        Situation::SessionLacks,
        Situation::DedicatedForNow,
        Situation::Returns,
        Situation::HandsOver,
        Situation::HandsOverBusy,
        Situation::HandsOverHalfLine,
        Situation::HandsOverUnwritten,
        Situation::HandsOverPipes,
        Situation::HandOverFails,
        Situation::PartialWrite,
        Situation::PartialRead,
        Situation::Greets,
    ];

    fn description(self) -> &'static str {
        match self {
            Situation::HibernatesDedicated => "a dedicated server hibernates",
            Situation::HibernatesShared => "a shared server hibernates",
            Situation::Wakes => "a request starts a hibernating server",
            Situation::UsesPipes => "a client and its daemon use pipes",
            Situation::LosesPipes => "offered pipes are lost",
            Situation::SentAhead => "the beginning of a line is sent ahead",
            Situation::Aborted => "a line that was sent in part is aborted",
            Situation::DaemonLacks => "a daemon lacks descriptors",
            Situation::SessionLacks => "a session lacks descriptors",
            Situation::DedicatedForNow => "a session becomes dedicated for now",
            Situation::Returns => "a session returns to sharing",
            Situation::HandsOver => "a daemon hands over to a newer build",
            Situation::HandsOverBusy => "… with a pending request",
            Situation::HandsOverHalfLine => "… with half a line",
            Situation::HandsOverUnwritten => "… with unwritten bytes",
            Situation::HandsOverPipes => "… with pipes in use",
            Situation::HandOverFails => "… and the newer build does not start",
            Situation::PartialWrite => "a write is partial",
            Situation::PartialRead => "a read ends within a line",
            Situation::Greets => "a first line is sent with the hello",
        }
    }
}

/// How often each situation occurred, and in how many schedules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    times: [u64; Situation::ALL.len()],
    schedules: [u64; Situation::ALL.len()],
}

impl Coverage {
    pub(crate) fn occurred(&mut self, situation: Situation) {
        self.times[situation as usize] += 1;
        self.schedules[situation as usize] = 1;
    }

    /// Adds the counts of another schedule.
    pub fn add(&mut self, other: &Coverage) {
        for nth in 0..Situation::ALL.len() {
            self.times[nth] += other.times[nth];
            self.schedules[nth] += other.schedules[nth];
        }
    }

    /// Number of schedules in which it occurred.
    pub fn schedules(&self, situation: Situation) -> u64 {
        self.schedules[situation as usize]
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:>10} {:>12}  situation", "schedules", "times")?;
        for situation in Situation::ALL {
            let (schedules, times) = (
                self.schedules[situation as usize],
                self.times[situation as usize],
            );
            writeln!(
                f,
                "{schedules:>10} {times:>12}  {}",
                situation.description()
            )?;
        }
        Ok(())
    }
}
