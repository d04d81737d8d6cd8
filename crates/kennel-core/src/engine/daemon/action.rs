//! Events and actions of the daemon's engine.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::hello::{BadHello, ClientHello, Control, Shares};
use crate::lifetime::{ClientId, Reason};
use crate::message::{Line, Owned, Scan};
use crate::mux::{Lane, MuxPolicy, Note};

/// The number of a server slot. Later slots have higher numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub u64);

/// A line that was read, without its newline.
pub enum InputLine<'a> {
    /// Borrowed from the reader's buffer.
    Lent(Line<'a>),
    /// A long line, and the result of scanning it. It is moved instead of copied.
    Moved(Owned, Box<Scan>),
}

impl InputLine<'_> {
    /// The line, for inspection.
    pub fn line(&self) -> Line<'_> {
        match self {
            InputLine::Lent(line) => *line,
            InputLine::Moved(line, scan) => Line::scanned(line, scan),
        }
    }
}

impl<'a> From<&'a [u8]> for InputLine<'a> {
    fn from(line: &'a [u8]) -> InputLine<'a> {
        InputLine::Lent(line.into())
    }
}

/// Facts about an admitted client that the engine needs.
#[derive(Debug, Clone)]
pub struct Introduction {
    /// The id of its session.
    pub session: String,
    /// Whether it sent no hello: then it gets no control messages.
    pub bare: bool,
    /// The classes that it may share.
    pub shares: Shares,
    /// The options of a server that is started for it.
    pub policy: MuxPolicy,
    /// How long a server of it must be idle before it hibernates.
    pub hibernate_after: Option<Duration>,
}

impl Introduction {
    /// Creates the introduction of a client with this hello.
    pub fn of_hello(hello: &ClientHello) -> Introduction {
        Introduction {
            session: hello.session.clone(),
            bare: false,
            shares: hello.shares,
            policy: MuxPolicy {
                cache: hello.spec.cache,
                in_turn: hello.spec.in_turn,
            },
            hibernate_after: hello.spec.hibernate.map(Duration::from_millis),
        }
    }

    /// Creates the introduction of a client without a hello, which shares the server of this hello. It would not
    /// understand that the server hibernates.
    pub fn of_bare(borrowed: &ClientHello) -> Introduction {
        Introduction {
            bare: true,
            hibernate_after: None,
            ..Introduction::of_hello(borrowed)
        }
    }
}

/// The first line of a connection.
#[derive(Debug)]
pub enum FirstLine {
    /// A check whether the daemon is running: answer `!pong` and disconnect.
    Ping,
    /// The hello of a session of `kennel run`, or the reason why it cannot be read.
    Hello(Box<Result<ClientHello, BadHello>>),
    /// The first MCP message of a client without a hello.
    Bare,
}

impl FirstLine {
    /// Classifies a first line.
    pub fn of(line: &[u8]) -> FirstLine {
        match ClientHello::parse(line) {
            Some(hello) => FirstLine::Hello(Box::new(hello)),
            None if Control::parse_from_client(line) == Some(Control::Ping) => FirstLine::Ping,
            None => FirstLine::Bare,
        }
    }
}

/// Why a server could not be started.
#[derive(Debug, Clone)]
pub struct StartFailure {
    /// The error, for people.
    pub detail: String,
    /// The exit code that a shell would use.
    pub exit: Option<u8>,
    /// Whether the daemon lacks resources for a start, such as descriptors.
    pub shortage: bool,
}

/// An action for the driver. Carry out actions in order.
#[derive(Debug)]
pub enum Action {
    /// Write this line to the server: no other line is ahead of it, unless that of an action before it was written in part.
    /// If it cannot be written now, pass it to [`queue_for_server`](super::Daemon::queue_for_server); if it is written in
    /// part, call [`set_writing`](super::Daemon::set_writing).
    ToServer {
        /// The slot of the server.
        slot: SlotId,
        /// The queue that the line belongs to.
        lane: Lane,
        /// The line, without the newline.
        line: Owned,
        /// The client that sent it, if any.
        by: Option<ClientId>,
    },
    /// Queue this line for a client.
    ToClient {
        /// The recipient.
        client: ClientId,
        /// The line, without the newline.
        line: Owned,
    },
    /// Queue this line for several clients.
    ToClients {
        /// The recipients.
        clients: Vec<ClientId>,
        /// The line, without the newline.
        line: Owned,
    },
    /// Send a control message. It may be left out for a client that does not read if it
    /// [is optional](Control::is_optional).
    Tell {
        /// The recipient.
        client: ClientId,
        /// The message.
        control: Box<Control>,
    },
    /// Close the connection once everything queued for it is written.
    Finish {
        /// The client to disconnect.
        client: ClientId,
    },
    /// Close the connection now.
    Disconnect {
        /// The client to disconnect.
        client: ClientId,
    },
    /// Read the client's next lines from its pipe instead of the socket.
    UsePipes {
        /// The client that uses its pipes.
        client: ClientId,
    },
    /// Create the driver's part of a new server slot, which runs the command of this client.
    OpenSlot {
        /// The new slot.
        slot: SlotId,
        /// The client that needs it.
        client: ClientId,
    },
    /// Start the slot's server. Before that, call [`handle_client_refused`](super::Daemon::handle_client_refused) for
    /// each client that must not have a server of this daemon. Then call
    /// [`handle_server_started`](super::Daemon::handle_server_started) or
    /// [`handle_start_failure`](super::Daemon::handle_start_failure).
    StartServer {
        /// The slot of the server.
        slot: SlotId,
    },
    /// Close the server's stdin and stop its process tree, or do not start it. Then call
    /// [`handle_slot_ended`](super::Daemon::handle_slot_ended).
    StopServer {
        /// The slot of the server.
        slot: SlotId,
    },
    /// Treat the server as lost though its stdout is open: call
    /// [`handle_server_lost`](super::Daemon::handle_server_lost).
    DeclareServerLost {
        /// The slot of the server.
        slot: SlotId,
    },
    /// Check whether a process of the server is stopped, and call
    /// [`handle_stopped_check`](super::Daemon::handle_stopped_check).
    CheckStopped {
        /// The slot of the server.
        slot: SlotId,
    },
    /// Clients joined or left this slot: decide again whether its server and its clients are read.
    ClientsChanged {
        /// The slot whose clients changed.
        slot: SlotId,
    },
    /// All actions of this slot were polled: set its timer again.
    UpdateTimer {
        /// The slot whose timer may have changed.
        slot: SlotId,
    },
    /// Log an anomaly that was handled.
    Note {
        /// The slot in which it occurred.
        slot: SlotId,
        /// The anomaly.
        note: Note,
    },
    /// Write this report to the log.
    Report(Report),
    /// Kill the process if it has not exited in time; starts the time again if it runs already.
    ArmWatchdog,
    /// Stop the watchdog: the daemon goes on.
    DisarmWatchdog,
    /// Lock `spawn.lock` and check for connections that wait to be accepted, because no client is left. Then call
    /// [`handle_exit_attempt`](super::Daemon::handle_exit_attempt).
    TryToExit,
    /// Remove the daemon's files and exit.
    Exit,
}

/// An event for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// A client goes dedicated.
    Dedicated {
        /// The client.
        client: ClientId,
        /// The moment of its session.
        when: Dedicated,
        /// The reason, for people.
        why: String,
    },
    /// A server with clients is lost.
    ServerLost {
        /// The slot of the server.
        slot: SlotId,
        /// Whether another server starts at once; otherwise it starts at the next request.
        restarts: bool,
    },
    /// A server hibernates.
    Hibernates {
        /// The slot of the server.
        slot: SlotId,
        /// Number of its clients.
        clients: usize,
    },
    /// A server is replaced because its files changed.
    Replaced {
        /// The slot of the server.
        slot: SlotId,
        /// Whether it had clients.
        had_clients: bool,
    },
    /// A server's files changed: it is replaced when no request is pending.
    Outdated,
    /// The daemon ends.
    Ending(Reason),
}

/// When a client was told to use a dedicated server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dedicated {
    /// Before it joined a server.
    AtJoin,
    /// While it had a server.
    Later,
    /// Before a server was started for it.
    AtStart,
}

/// The result of [`Action::TryToExit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitAttempt {
    /// The daemon's files are removed.
    Exited,
    /// Clients were waiting: they were accepted with [`handle_client_arrived`](super::Daemon::handle_client_arrived).
    ClientsArrived,
    /// Another process holds `spawn.lock`, perhaps to connect.
    LockHeld,
}

/// The state of a client's session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientPlace {
    /// It has no server: its next request decides which it gets.
    Opening,
    /// It has the server of this slot, counted from 0 in order.
    #[serde(rename = "At")]
    InSlot(usize),
    /// Its server was lost: its lines are for that server until it sends `!again` (rule 5).
    Lost,
}

/// The state of a client that a newer build restores.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientSnapshot {
    /// The state of its session.
    pub place: ClientPlace,
    /// Whether it closed its sending half and waits for responses.
    pub half_closed: bool,
    /// Bytes of its lines received since its hello or its last `!again`. `None`: they cannot be counted.
    #[serde(rename = "heard")]
    pub received: Option<u64>,
    /// The name in its `initialize`.
    #[serde(default)]
    pub name: Option<String>,
}
