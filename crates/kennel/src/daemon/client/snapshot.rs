//! The snapshot of a client.

use std::cell::{Cell, OnceCell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Instant;

use kennel_core::engine::daemon::{CLOSE_TIMEOUT, ClientSnapshot, Introduction, hello_bytes};
use kennel_core::hello::{ClientHello, Text};
use kennel_core::lifetime::ClientId;
use kennel_sys::detach::{Kind, adopt};
use kennel_sys::peer::Peer;
use kennel_sys::process::ProcessRef;
use kennel_sys::user::UserId;
use serde::{Deserialize, Serialize};

use super::super::daemon_state::DaemonState;
use super::super::queue::Queue;
use super::super::socket::{self, Socket};
use super::super::timers::Timer;
use super::admission::{ArrivalCheck, ArrivalSnapshot};
use super::{ClientConn, Phase};
use crate::lines::{Inbox, SkippedLines};

/// A client in a snapshot.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::daemon) struct ConnSnapshot {
    pub(in crate::daemon) id: ClientId,
    pid: u32,
    since: u64,
    #[serde(flatten)]
    socket: socket::SocketSnapshot,
    unfinished: Text,
    /// `None` from builds before version 0.4.
    #[serde(default)]
    skipped: Option<SkippedLines>,
    /// The same.
    #[serde(default)]
    phase: Option<PhaseSnapshot>,
    peer: Option<ProcessRefSnapshot>,
    announced: Option<ProcessRefSnapshot>,
    #[serde(rename = "wish")]
    launch: Option<ClientHello>,
    bare: bool,
    unwritten: Text,
    ended: bool,
    #[serde(rename = "left")]
    is_leaving: bool,
    #[serde(flatten)]
    engine: ClientSnapshot,
}

/// A [`Phase`] in a snapshot.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PhaseSnapshot {
    New,
    Unintroduced(ArrivalSnapshot),
    Refused(String),
    Served,
}

#[derive(Debug, Serialize, Deserialize)]
struct ProcessRefSnapshot {
    identity: String,
    handle: Option<i32>,
}

impl ConnSnapshot {
    /// Its descriptors.
    pub(in crate::daemon) fn descriptors(&self) -> Vec<i32> {
        let processes = self.peer.iter().chain(&self.announced);
        let handles = processes.filter_map(|process| process.handle);
        handles.chain(self.socket.descriptors()).collect()
    }
}

impl ProcessRefSnapshot {
    fn restore(self) -> io::Result<ProcessRef> {
        let identity = self.identity.parse().map_err(io::Error::other)?;
        let handle = self.handle.map(|fd| adopt(fd, Kind::Process)).transpose()?;
        Ok(ProcessRef::taken_over(identity, handle))
    }
}

impl ClientConn {
    /// Its snapshot; `None` once its connection is closed.
    pub(in crate::daemon) fn snapshot(
        &self,
        id: ClientId,
        engine: ClientSnapshot,
    ) -> Option<ConnSnapshot> {
        let ClientConn {
            id: _,
            pid,
            since,
            socket,
            inbox,
            peer,
            announced,
            hello: _,
            launch,
            to_client,
            is_leaving,
            phase,
            // Found again from the fields above.
            run_queue: _,
            hello_bytes: _,
            reading: _,
            has_lines: _,
            is_blocked: _,
            exits: _,
            // These times begin anew.
            last_read_at: _,
            half_line_started: _,
            read_at: _,
            unread_before: _,
        } = self;
        let process = |process: &Rc<ProcessRef>| ProcessRefSnapshot {
            identity: process.identity().to_string(),
            handle: process.exit_number(),
        };
        let hello = |hello: &Rc<ClientHello>| ClientHello::clone(hello);
        let inbox = inbox.borrow();
        let (unfinished, skipped) = inbox.snapshot();
        Some(ConnSnapshot {
            id,
            pid: *pid,
            since: *since,
            socket: socket.borrow().as_ref()?.snapshot(),
            unfinished: Text::from(unfinished),
            skipped: Some(skipped),
            phase: Some(phase.borrow().snapshot()?),
            peer: peer.as_ref().map(process),
            announced: announced.get().map(process),
            launch: launch.get().map(hello),
            bare: self.is_bare(),
            unwritten: Text::from(&to_client.unwritten()[..]),
            ended: to_client.is_ended(),
            is_leaving: is_leaving.get(),
            engine,
        })
    }

    /// Continues with a client of a snapshot, after all servers.
    pub(in crate::daemon) fn restore(
        daemon: &DaemonState,
        snapshot: ConnSnapshot,
    ) -> io::Result<Rc<ClientConn>> {
        let process = |snapshot: Option<ProcessRefSnapshot>| {
            snapshot.map(ProcessRefSnapshot::restore).transpose()
        };
        let peer = Peer {
            uid: UserId::current().number(),
            pid: snapshot.pid,
            process: process(snapshot.peer)?,
        };
        let announced = process(snapshot.announced)?;
        let id = snapshot.id;
        let socket = Socket::restore(&daemon.reactor, id, snapshot.socket)?;
        let unwritten = snapshot.unwritten.as_bytes().to_vec();
        let shared = |launch| Rc::new(daemon.with_one_environment(launch));
        let launch = snapshot.launch.map(shared);
        let introduction = launch.as_deref().map(|launch| match snapshot.bare {
            true => Introduction::of_bare(launch),
            false => Introduction::of_hello(launch),
        });
        let conn = Rc::new(ClientConn {
            since: snapshot.since,
            inbox: RefCell::new(Inbox::restored(
                snapshot.unfinished.as_bytes().to_vec(),
                snapshot.skipped.unwrap_or_default(),
            )),
            phase: RefCell::new(Phase::restore(snapshot.phase)),
            announced: announced.map_or_else(OnceCell::new, |it| OnceCell::from(Rc::new(it))),
            hello: match &launch {
                Some(hello) if !snapshot.bare => OnceCell::from(Rc::clone(hello)),
                _ => OnceCell::new(),
            },
            hello_bytes: Cell::new(launch.as_deref().map_or(0, hello_bytes)),
            launch: launch.map_or_else(OnceCell::new, OnceCell::from),
            to_client: Queue::of(Rc::clone(&daemon.run_queue), id)
                .restored(unwritten, snapshot.ended),
            ..ClientConn::new(id, &daemon.run_queue, socket, peer)
        });
        if snapshot.is_leaving {
            conn.disconnect();
        }
        if let Phase::Refused(_) = &*conn.phase.borrow() {
            daemon.set_timer(Timer::Client(id), Some(Instant::now() + CLOSE_TIMEOUT));
        }
        let (sight, now) = (conn.liveness(), daemon.now());
        let mut engine = daemon.engine.borrow_mut();
        let restored = engine.restore_client(id, snapshot.engine, introduction, sight, now);
        restored.ok_or(io::ErrorKind::InvalidData)?;
        Ok(conn)
    }
}

impl Phase {
    /// Its snapshot; `None` once the connection is closed.
    fn snapshot(&self) -> Option<PhaseSnapshot> {
        Some(match self {
            Phase::New(None) => PhaseSnapshot::New,
            Phase::New(Some(on_arrival)) | Phase::Unintroduced(on_arrival) => {
                PhaseSnapshot::Unintroduced(on_arrival.snapshot())
            }
            Phase::Refused(why) => PhaseSnapshot::Refused(why.clone()),
            Phase::Served => PhaseSnapshot::Served,
            Phase::Closed => return None,
        })
    }

    /// Continues with the phase of a snapshot. A served client begins again, and is recognised by its hello.
    fn restore(snapshot: Option<PhaseSnapshot>) -> Phase {
        match snapshot {
            None => Phase::New(Some(Box::new(ArrivalCheck::unknown()))),
            Some(PhaseSnapshot::Unintroduced(on_arrival)) => {
                Phase::New(Some(Box::new(ArrivalCheck::restore(on_arrival))))
            }
            Some(PhaseSnapshot::New | PhaseSnapshot::Served) => Phase::New(None),
            Some(PhaseSnapshot::Refused(why)) => Phase::Refused(why),
        }
    }
}
