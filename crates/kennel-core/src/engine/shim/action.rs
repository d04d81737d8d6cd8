//! What a shim is told, what it does, and how it ends.

use crate::election::Work;
use crate::hello::Control;
use crate::session::Ending;

/// What happened. Lines are handed in by [`Shim::app_line`](super::Shim::app_line) and
/// [`Shim::upstream_line`](super::Shim::upstream_line).
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// The app closed its end of stdin.
    AppClosed,
    /// Answer to [`Action::CheckInput`]: whether the app closed its end of stdin, though that was not read yet.
    InputChecked {
        /// Nobody can write to stdin any more.
        closed: bool,
    },
    /// Answer to [`Action::StartServer`]: the server runs.
    ServerStarted,
    /// Answer to [`Action::StartServer`]: there is none.
    ServerNotStarted {
        /// Why, for people.
        why: String,
    },
    /// The server cannot be started at all: its program is missing, or may not be run.
    ServerRefused {
        /// The exit code that a shell has for it.
        code: u8,
    },
    /// The server's stdout ended, or [`Verdict::Abandon`](crate::session::Verdict::Abandon) was carried out. The driver has
    /// told its process tree to stop.
    ServerLost {
        /// How many of the last bytes that were written for it are known not to have been read.
        unread: usize,
        /// How its first process ended, if that is known.
        ending: Option<Ending>,
        /// The last lines of its stderr.
        stderr: String,
    },
    /// The server's first process ended. Others of its tree may go on.
    ServerExited {
        /// How it ended.
        ending: Ending,
        /// No process is left that could read the server's stdin.
        stdin_closed: bool,
    },
    /// Nothing is left of the server's process tree.
    ServerTreeEmpty,
    /// The files that the server was started from changed.
    ServerOutdated,
    /// A person stops the server of a session that [is dedicated for now](super::Shim::is_dedicated_for_now). The driver
    /// has told its process tree to stop.
    StopAsked {
        /// As in [`Event::ServerLost`].
        unread: usize,
    },
    /// Answer to [`Action::CheckStopped`].
    StoppedChecked {
        /// A stopped process of the server's.
        pid: Option<u32>,
    },
    /// Answer to [`Action::Elect`].
    Elected(Elected),
    /// The daemon closed the connection, or writing to it failed.
    DaemonClosed,
    /// Answer to [`Action::CheckDaemon`]: what the daemon's process does, if that can be seen.
    DaemonChecked(Option<Work>),
}

/// How an election ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Elected {
    /// There is a new connection to a daemon. The driver holds it until [`Action::UseConnection`] or
    /// [`Action::DropConnection`].
    Connected {
        /// The line of the session that went out together with the hello.
        greeting: Option<Vec<u8>>,
    },
    /// The daemon that was suspected to be stuck answers: its clients stay.
    NotStuck,
    /// No daemon can be had.
    NoDaemon {
        /// Why, for people.
        why: String,
    },
}

/// What is to be done, in this order.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Start a server of the session's own.
    StartServer,
    /// Treat the server as lost, though its stdout is open: what is left of it does not answer. [`Event::ServerLost`] follows.
    LoseServer,
    /// Close the server's stdin and stop its process tree. [`Event::ServerTreeEmpty`] follows.
    StopServer,
    /// Begin an election.
    Elect(Purpose),
    /// Drop the election that was begun.
    AbandonElection,
    /// Talk to the daemon of the new connection from now on; close the former connection.
    UseConnection,
    /// Close the new connection without having used it.
    DropConnection,
    /// Close the connection to the daemon.
    Disconnect,
    /// Send this to the daemon.
    Send(Control),
    /// Take the two pipes that came with the daemon's last line, or read from them from now on.
    TakePipes,
    /// See what the daemon's process does.
    CheckDaemon,
    /// See whether a process of the server is stopped.
    CheckStopped,
    /// Report the stopped process that was found.
    ReportStopped,
    /// See whether the app closed its end of stdin.
    CheckInput,
    /// Print this on stderr.
    Warn(String),
    /// Pass this line of a shared server's stderr on.
    PassStderr(String),
    /// Show the session in this way in `kennel ps`.
    List(Listing),
    /// A timer that had seconds to go is not needed any more.
    TimerCancelled,
}

/// What an election is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To find a daemon, or to start it.
    Attach,
    /// To find out whether the daemon of the present connection is stuck, and to replace it if it is.
    CheckSuspect,
    /// To share again, while the session has a server of its own for want of a daemon.
    Return,
}

/// How a session shows in `kennel ps`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listing {
    /// As a session whose server hibernates.
    Hibernating,
    /// Not by itself.
    Nothing,
    /// As before, with one restart more.
    Restarted,
}

/// How a session ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The app closed its input, and everything was answered.
    AppDone(Option<Ending>),
    /// The app closed its input and does not read the rest of its output, and its process is not watched.
    Unread,
    /// The server cannot be started at all.
    Refused {
        /// The exit code that a shell has for it.
        code: u8,
        /// What to print, unless that was printed already.
        why: Option<String>,
    },
}
