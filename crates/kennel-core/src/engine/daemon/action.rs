//! What a driver hands to the engine of a daemon, and what it is to do.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::hello::{BadHello, ClientHello, Control, Shares};
use crate::lifetime::{ClientId, Reason};
use crate::message::{Line, Owned, Scan};
use crate::mux::{Lane, Note, Policy};

/// The number of a server slot. Later slots have higher numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub u64);

/// A line that was read, without its newline.
pub enum InputLine<'a> {
    /// It stays in the reader's buffer.
    Lent(Line<'a>),
    /// A long one, with what is known of it: it is moved on, and not copied.
    Moved(Owned, Box<Scan>),
}

impl InputLine<'_> {
    /// The line, to look at.
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

/// What the engine needs to know of a client that was admitted.
#[derive(Debug, Clone)]
pub struct Introduction {
    /// Its session.
    pub session: String,
    /// It sent no hello: it hears no control message.
    pub bare: bool,
    /// Which classes it shares.
    pub shares: Shares,
    /// How its server is shared.
    pub policy: Policy,
    /// After how much idle time its server may hibernate.
    pub hibernate_after: Option<Duration>,
}

impl Introduction {
    /// A client with this hello.
    pub fn of_hello(hello: &ClientHello) -> Introduction {
        Introduction {
            session: hello.session.clone(),
            bare: false,
            shares: hello.shares,
            policy: Policy {
                cache: hello.spec.cache,
                in_turn: hello.spec.in_turn,
            },
            hibernate_after: hello.spec.hibernate.map(Duration::from_millis),
        }
    }

    /// A client without a hello that gets what this one asks for. It would not understand that its server hibernates.
    pub fn of_bare(borrowed: &ClientHello) -> Introduction {
        Introduction {
            bare: true,
            hibernate_after: None,
            ..Introduction::of_hello(borrowed)
        }
    }
}

/// What the first line of a connection is.
#[derive(Debug)]
pub enum FirstLine {
    /// Somebody asks whether the daemon is there: answer `!pong` and disconnect.
    Ping,
    /// A session of `kennel run`; or why its hello cannot be understood.
    Hello(Box<Result<ClientHello, BadHello>>),
    /// A client without a hello: this is its first message.
    Bare,
}

impl FirstLine {
    /// What this line is.
    pub fn of(line: &[u8]) -> FirstLine {
        match ClientHello::parse(line) {
            Some(hello) => FirstLine::Hello(Box::new(hello)),
            None if Control::parse(line) == Some(Control::Ping) => FirstLine::Ping,
            None => FirstLine::Bare,
        }
    }
}

/// Why a server could not be started.
#[derive(Debug, Clone)]
pub struct StartFailure {
    /// For people.
    pub detail: String,
    /// The exit code that a shell has for it.
    pub exit: Option<u8>,
    /// The daemon lacks what a start takes, such as descriptors.
    pub shortage: bool,
}

/// What is to be done, in this order.
#[derive(Debug)]
pub enum Action {
    /// Write this line to the server: nothing is ahead of it. Hand what cannot be written now to
    /// [`queue_for_server`](super::Daemon::queue_for_server), or keep the rest and call
    /// [`set_writing`](super::Daemon::set_writing).
    ToServer {
        /// Whose server.
        slot: SlotId,
        /// What it may be written before and after.
        lane: Lane,
        /// Without the newline.
        line: Owned,
        /// Who sent it, if a client did.
        by: Option<ClientId>,
    },
    /// Queue this line for a client.
    ToClient {
        /// Which one.
        client: ClientId,
        /// Without the newline.
        line: Owned,
    },
    /// Queue this line for several clients.
    ToClients {
        /// Which ones.
        clients: Vec<ClientId>,
        /// Without the newline.
        line: Owned,
    },
    /// Send a control message. `!pong` and `!stderr` may be left out for a client that does not read.
    Tell {
        /// Whom.
        client: ClientId,
        /// What.
        control: Box<Control>,
    },
    /// Close the connection when all that is queued for it is written.
    Finish {
        /// Whose.
        client: ClientId,
    },
    /// Close the connection now.
    Disconnect {
        /// Whose.
        client: ClientId,
    },
    /// The client sends no more on its socket: read from the pipe that it was given.
    UsePipes {
        /// Which one.
        client: ClientId,
    },
    /// There is a new server slot, which runs what this client asks for.
    OpenSlot {
        /// Its number.
        slot: SlotId,
        /// Who opened it.
        client: ClientId,
    },
    /// Start its server: answer with [`server_started`](super::Daemon::server_started) or
    /// [`server_refused`](super::Daemon::server_refused). Before that,
    /// [`client_refused`](super::Daemon::client_refused) for each client that may not have one.
    StartServer {
        /// Whose.
        slot: SlotId,
    },
    /// Close its server's stdin and stop its process tree, or do not start it.
    /// [`slot_ended`](super::Daemon::slot_ended) follows.
    StopServer {
        /// Whose.
        slot: SlotId,
    },
    /// Treat its server as lost, though its stdout is open. [`server_lost`](super::Daemon::server_lost) follows.
    LoseServer {
        /// Whose.
        slot: SlotId,
    },
    /// See whether a process of its server is stopped, and call [`stopped_checked`](super::Daemon::stopped_checked).
    CheckStopped {
        /// Whose.
        slot: SlotId,
    },
    /// All that followed for this slot was polled: its timeout may be another.
    Settled {
        /// Which one.
        slot: SlotId,
    },
    /// Something odd that was dealt with.
    Note {
        /// Where.
        slot: SlotId,
        /// What.
        note: Note,
    },
    /// Write this to the log.
    Report(Report),
    /// End the process if it is not gone in time; once more from now, if that is so already.
    ArmWatchdog,
    /// The daemon does not end after all.
    DisarmWatchdog,
    /// Nobody is left: lock `spawn.lock` and see whether somebody waits to be accepted. Answer with
    /// [`leave_tried`](super::Daemon::leave_tried).
    TryToLeave,
    /// Remove the daemon's files and end.
    Leave,
}

/// What is worth a line in the log, or more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// A client goes dedicated.
    Dedicated {
        /// Which one.
        client: ClientId,
        /// When.
        when: Dedicated,
        /// For people.
        why: String,
    },
    /// A server is lost, and clients had it.
    ServerLost {
        /// Which one.
        slot: SlotId,
        /// Another one takes its place at once; else only on request.
        restarts: bool,
    },
    /// A server hibernates.
    Hibernates {
        /// Which one.
        slot: SlotId,
        /// How many clients it had.
        clients: usize,
    },
    /// The server's files changed, and it is replaced.
    Replaced {
        /// Which one.
        slot: SlotId,
        /// Whether clients had it.
        had_clients: bool,
    },
    /// The server's files changed: it is replaced when nobody waits for it.
    Outdated,
    /// The daemon ends.
    Ending(Reason),
}

/// When it turned out that a client goes dedicated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dedicated {
    /// It was about to join a server.
    AtJoin,
    /// It had a server.
    Later,
    /// A server was about to be started for it.
    AtStart,
}

/// How an attempt to leave went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaveTried {
    /// The daemon has left.
    Left,
    /// Somebody waited, and was accepted: [`client_arrived`](super::Daemon::client_arrived) was called.
    Arrivals,
    /// Somebody holds `spawn.lock`: they may be on their way.
    Contended,
}

/// Where a client's session stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientPlace {
    /// It has no server: its next request tells which.
    Opening,
    /// It has the server of the slot with this number, counted from 0 in order.
    At(usize),
    /// Its server was lost: what it sends is for that one, until it sends `!again` (rule 5).
    Lost,
}

/// What a newer build needs to know of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientSnapshot {
    /// Where it stands.
    pub place: ClientPlace,
    /// It sends no more, and waits for its answers.
    pub half_closed: bool,
    /// How many bytes of its lines were taken since its hello, or since it began again, if they were counted.
    pub heard: Option<u64>,
    /// What it calls itself.
    #[serde(default)]
    pub name: Option<String>,
}
