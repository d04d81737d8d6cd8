//! A server slot on its way to another program: what that one needs to go on with it.

use std::io;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use kennel_core::engine::daemon::{CHUNK, Lanes, ServerSlot, SlotSnapshot};
use kennel_core::hello::ClientHello;
use kennel_core::mux::Mux;
use kennel_core::session::Ending;
use kennel_sys::tree::Exit;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::super::daemon_state::DaemonState;
use super::super::running::{self, Running};
use super::ServerIo;
use super::feed::Unwritten;
use crate::shim::ending;
use crate::shim::width::Width;
use crate::sources::Sources;

/// A server slot, to go on with after an exec.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::daemon) struct Carried {
    hello: ClientHello,
    /// In milliseconds.
    starts_in: u64,
    mux: Box<RawValue>,
    lanes: Lanes,
    cut: Option<Unwritten>,
    running: Option<running::Carried>,
    sources: Sources,
    /// In milliseconds.
    deserted_for: Option<u64>,
    pid: Option<u32>,
    since: u64,
    /// How its first process ended, if it has.
    #[serde(default)]
    first_process: Option<Ending>,
}

impl Carried {
    /// The descriptors it comes with.
    pub(in crate::daemon) fn descriptors(&self) -> Vec<RawFd> {
        let running = self.running.iter();
        running.flat_map(|running| running.descriptors()).collect()
    }

    /// Whether its mux can be read here.
    pub(in crate::daemon) fn is_understood(&self) -> serde_json::Result<()> {
        serde_json::from_str::<Mux>(self.mux.get()).map(drop)
    }
}

impl ServerIo {
    /// What another program needs to go on with it; `None` while it is on its way out.
    pub(in crate::daemon) fn carried(
        &self,
        daemon: &DaemonState,
        slot: &ServerSlot,
    ) -> Option<Carried> {
        let running = match &*self.running.borrow() {
            None => None,
            Some(running) => Some(running.carried()?),
        };
        if self.closing.is_up() {
            return None;
        }
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let mux = serde_json::value::to_raw_value(slot.mux()).ok()?;
        let deserted = slot.deserted_since();
        Some(Carried {
            hello: ClientHello::clone(&self.hello),
            starts_in: millis(slot.start_at() - daemon.now()),
            mux,
            lanes: slot.lanes().clone(),
            cut: self.cut.borrow().clone(),
            running,
            sources: self.sources.borrow().clone(),
            deserted_for: deserted.map(|since| millis(daemon.now() - since)),
            pid: self.pid.get(),
            since: self.since.get(),
            first_process: self.exit.get().map(ending),
        })
    }

    /// Goes on with what another program had. Its clients come back by themselves.
    pub(in crate::daemon) fn resume(
        daemon: &DaemonState,
        carried: Carried,
    ) -> io::Result<ServerIo> {
        let mux: Mux = serde_json::from_str(carried.mux.get())?;
        let now = daemon.now();
        let class = mux.class().clone();
        let running = carried.running.map(Running::resume).transpose()?;
        let warden = running.as_ref().map(|running| running.tree.warden().pid());
        let ago = |millis| {
            let earlier = Instant::now().checked_sub(Duration::from_millis(millis));
            earlier.map_or(now, |at| daemon.moment(at))
        };
        let snapshot = SlotSnapshot {
            mux,
            lanes: carried.lanes,
            running: running.is_some(),
            writing: carried.cut.is_some(),
            start_at: now + Duration::from_millis(carried.starts_in),
            deserted_since: carried.deserted_for.map(ago),
            first_process: carried.first_process,
        };
        let mut engine = daemon.engine.borrow_mut();
        let hello = daemon.with_one_environment(carried.hello);
        let slot = engine.restore_slot(snapshot, &hello.session, now);
        let mut server_io = ServerIo::new(slot, class, Rc::new(hello));
        // It may have been given a wider pipe, which is to be narrow again.
        server_io.width = Width::wider_than(CHUNK);
        server_io.cut.replace(carried.cut);
        server_io
            .exit
            .set(carried.first_process.map(|ending| match ending {
                Ending::Code(code) => Exit::Code(code),
                Ending::Signal(signal) => Exit::Signal(signal),
            }));
        server_io.running.replace(running.map(Rc::new));
        server_io.sources.replace(carried.sources);
        server_io.warden.set(warden);
        server_io.pid.set(carried.pid);
        server_io.since.set(carried.since);
        Ok(server_io)
    }
}
