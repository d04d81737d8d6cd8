//! Events, actions and ends of the shim's engine.

use crate::election::Activity;
use crate::hello::Control;
use crate::session::ServerExit;

/// An event. Lines are passed in by [`Shim::handle_app_line`](super::Shim::handle_app_line) and
/// [`Shim::handle_upstream_line`](super::Shim::handle_upstream_line).
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// The app closed stdin.
    AppClosed,
    /// Result of [`Action::CheckInput`]: whether the app closed stdin, although not all of it was read.
    InputChecked {
        /// No process can write to stdin any more.
        closed: bool,
    },
    /// Answer to [`Action::StartServer`]: the server runs.
    ServerStarted,
    /// Result of [`Action::StartServer`]: no server was started.
    ServerNotStarted {
        /// The reason, for people.
        why: String,
    },
    /// The server cannot be started at all: its program is missing or not executable.
    ServerRefused {
        /// The exit code that a shell would use.
        code: u8,
    },
    /// The server's stdout ended, or [`Verdict::Abandon`](crate::session::Verdict::Abandon) was carried out. The driver has
    /// told its process tree to stop.
    ServerLost {
        /// Number of the last bytes written for it that it has certainly not read.
        unread: usize,
        /// How its first process ended, if known.
        ending: Option<ServerExit>,
        /// The last lines of its stderr.
        stderr: String,
    },
    /// The server's first process ended. Other processes of its tree may go on.
    ServerExited {
        /// How it ended.
        ending: ServerExit,
        /// No process is left that could read the server's stdin.
        stdin_closed: bool,
    },
    /// The server's process tree is empty.
    ServerTreeEmpty,
    /// The server's files changed.
    ServerOutdated,
    /// A person stops the server of a session that [is dedicated for now](super::Shim::is_dedicated_for_now). The
    /// driver has told its process tree to stop.
    StopRequested {
        /// As in [`Event::ServerLost`].
        unread: usize,
    },
    /// Result of [`Action::CheckStopped`].
    StoppedChecked {
        /// A stopped process of the server.
        pid: Option<u32>,
    },
    /// Result of [`Action::Elect`].
    Elected(Elected),
    /// The daemon closed the connection, or writing to it failed.
    DaemonClosed {
        /// Number of the last bytes for it that were certainly not written.
        unwritten: usize,
    },
    /// Result of [`Action::CheckDaemon`]: the activity of the daemon's process. `None`: it cannot be examined.
    DaemonChecked(Option<Activity>),
}

/// The result of an election.
#[derive(Debug, PartialEq, Eq)]
pub enum Elected {
    /// A new connection to a daemon. The driver keeps it until [`Action::UseConnection`] or [`Action::DropConnection`].
    Connected {
        /// The line of the session that was sent together with the hello.
        handshake: Option<Vec<u8>>,
    },
    /// The suspected daemon answers: its clients stay connected.
    NotStuck,
    /// No daemon can be had.
    NoDaemon {
        /// The reason, for people.
        why: String,
    },
}

/// An action for the driver. Carry out actions in order.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Start a dedicated server.
    StartServer,
    /// Treat the server as lost though its stdout is open: the remaining processes do not answer. [`Event::ServerLost`]
    /// follows.
    DeclareServerLost,
    /// Close the server's stdin and stop its process tree. [`Event::ServerTreeEmpty`] follows.
    StopServer,
    /// Start an election.
    Elect(Purpose),
    /// Cancel the election.
    AbandonElection,
    /// Switch to the new connection, and close the old one.
    UseConnection,
    /// Close the new connection without using it.
    DropConnection,
    /// Close the connection to the daemon.
    Disconnect,
    /// Send a control message to the daemon.
    Send(Control),
    /// Take the two pipes that came with the daemon's last line, or read from the pipe from now on.
    TakePipes,
    /// Examine the activity of the daemon's process.
    CheckDaemon,
    /// Check whether a process of the server is stopped.
    CheckStopped,
    /// Report the stopped process.
    ReportStopped,
    /// Check whether the app closed stdin.
    CheckInput,
    /// Print this on stderr.
    Warn(String),
    /// Print a line of a shared server's stderr.
    PassStderr(String),
    /// Change how `kennel ps` lists the session.
    List(Listing),
    /// Clear a timer of several seconds.
    TimerCancelled,
}

/// The purpose of an election.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Find a daemon, or start one.
    Attach,
    /// Find out whether the daemon of this connection is stuck, and replace it if it is.
    CheckSuspect,
    /// Share again, after the session went dedicated because there was no daemon.
    Return,
}

/// How `kennel ps` lists a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listing {
    /// With a hibernating server.
    Hibernating,
    /// Without a record of its own.
    Nothing,
    /// The server was restarted once more.
    Restarted,
}

/// The end of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The app closed its input, and every request is answered.
    AppDone(Option<ServerExit>),
    /// The app closed its input and does not read the remaining output, and its process cannot be watched.
    Unread,
    /// The server cannot be started at all.
    Refused {
        /// The exit code that a shell would use.
        code: u8,
        /// The message to print, unless it was printed before.
        why: Option<String>,
    },
}
