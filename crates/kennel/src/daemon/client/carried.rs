//! A client on its way to another program: what that one needs to go on with it.

use std::cell::{Cell, OnceCell, RefCell};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::rc::Rc;

use kennel_core::engine::daemon::{ClientSnapshot, Introduction};
use kennel_core::hello::{ClientHello, Text};
use kennel_core::lifetime::ClientId;
use kennel_sys::detach::{Kind, adopt};
use kennel_sys::peer::Peer;
use kennel_sys::process::ProcessRef;
use serde::{Deserialize, Serialize};

use super::super::daemon_state::DaemonState;
use super::super::queue::Queue;
use super::super::socket::{self, Socket};
use super::{ClientConn, wish_bytes};
use crate::shim::lines::Inbox;

/// A client, to go on with after an exec.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::daemon) struct Carried {
    pub(in crate::daemon) id: ClientId,
    pid: u32,
    since: u64,
    #[serde(flatten)]
    socket: socket::Carried,
    unfinished: Text,
    peer: Option<CarriedProcess>,
    announced: Option<CarriedProcess>,
    wish: Option<ClientHello>,
    bare: bool,
    unwritten: Text,
    ended: bool,
    left: bool,
    #[serde(flatten)]
    engine: ClientSnapshot,
}

#[derive(Debug, Serialize, Deserialize)]
struct CarriedProcess {
    identity: String,
    handle: Option<RawFd>,
}

impl Carried {
    /// The descriptors it comes with.
    pub(in crate::daemon) fn descriptors(&self) -> Vec<RawFd> {
        let processes = self.peer.iter().chain(&self.announced);
        let handles = processes.filter_map(|process| process.handle);
        handles.chain(self.socket.descriptors()).collect()
    }
}

impl CarriedProcess {
    fn resume(self) -> io::Result<ProcessRef> {
        let identity = self.identity.parse().map_err(io::Error::other)?;
        let handle = self.handle.map(|fd| adopt(fd, Kind::Process)).transpose()?;
        Ok(ProcessRef::taken_over(identity, handle))
    }
}

impl ClientConn {
    /// What another program needs to go on with it; `None` once it has left.
    pub(in crate::daemon) fn carried(
        &self,
        id: ClientId,
        engine: ClientSnapshot,
    ) -> Option<Carried> {
        let process = |process: &ProcessRef| CarriedProcess {
            identity: process.identity().to_string(),
            handle: process.exit_fd().map(|fd| fd.as_raw_fd()),
        };
        let hello = |hello: &Rc<ClientHello>| ClientHello::clone(hello);
        Some(Carried {
            id,
            pid: self.pid,
            since: self.since,
            socket: self.socket.borrow().as_ref()?.carried(),
            unfinished: Text::from(self.inbox.borrow().unfinished()),
            peer: self.peer.as_ref().map(process),
            announced: self.announced.get().map(process),
            wish: self.wish.get().map(hello),
            bare: self.is_bare(),
            unwritten: Text::from(&self.to_client.unwritten()[..]),
            ended: self.to_client.is_ended(),
            left: self.left.is_up(),
            engine,
        })
    }

    /// Goes on with what another program had, after all servers.
    pub(in crate::daemon) fn resume(
        daemon: &DaemonState,
        carried: Carried,
    ) -> io::Result<Rc<ClientConn>> {
        let process =
            |carried: Option<CarriedProcess>| carried.map(CarriedProcess::resume).transpose();
        let peer = Peer {
            uid: rustix::process::geteuid().as_raw(),
            pid: carried.pid,
            process: process(carried.peer)?,
        };
        let announced = process(carried.announced)?;
        let unwritten = carried.unwritten.as_bytes().to_vec();
        let shared = |wish| Rc::new(daemon.with_one_environment(wish));
        let wish = carried.wish.map(shared);
        let introduction = wish.as_deref().map(|wish| match carried.bare {
            true => Introduction::of_bare(wish),
            false => Introduction::of_hello(wish),
        });
        let link = Rc::new(ClientConn {
            since: carried.since,
            inbox: RefCell::new(Inbox::with(carried.unfinished.as_bytes().to_vec())),
            announced: announced.map_or_else(OnceCell::new, OnceCell::from),
            hello: match &wish {
                Some(hello) if !carried.bare => OnceCell::from(Rc::clone(hello)),
                _ => OnceCell::new(),
            },
            wish_bytes: Cell::new(wish.as_deref().map_or(0, wish_bytes)),
            wish: wish.map_or_else(OnceCell::new, OnceCell::from),
            to_client: Queue::resumed(unwritten, carried.ended),
            ..ClientConn::new(Socket::resume(carried.socket)?, peer)
        });
        if carried.left {
            link.left.raise();
        }
        let (sight, now) = (link.sight(), daemon.now());
        let mut engine = daemon.engine.borrow_mut();
        let restored = engine.restore_client(carried.id, carried.engine, introduction, sight, now);
        restored.ok_or(io::ErrorKind::InvalidData)?;
        Ok(link)
    }
}
