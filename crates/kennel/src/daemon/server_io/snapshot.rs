//! The snapshot of a server slot.

use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use kennel_core::engine::daemon::{CHUNK, Lanes, ServerSlot, SlotSnapshot};
use kennel_core::hello::ClientHello;
use kennel_core::mux::Mux;
use kennel_core::session::ServerExit;
use kennel_sys::tree::Exit;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::super::daemon_state::DaemonState;
use super::super::process::{self, ServerProcess};
use super::ServerIo;
use super::feed::Unwritten;
use crate::server_process::server_exit;
use crate::sources::Sources;
use kennel_sys::io::BufferSize;

/// A server slot in a snapshot.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::daemon) struct ServerIoSnapshot {
    hello: ClientHello,
    /// In milliseconds.
    starts_in: u64,
    mux: Box<RawValue>,
    lanes: Lanes,
    #[serde(rename = "cut")]
    unwritten: Option<Unwritten>,
    running: Option<process::ProcessSnapshot>,
    sources: Sources,
    /// In milliseconds.
    #[serde(rename = "deserted_for")]
    empty_for: Option<u64>,
    pid: Option<u32>,
    since: u64,
    /// How its first process ended, if it has.
    #[serde(default)]
    first_process: Option<ServerExit>,
}

impl ServerIoSnapshot {
    /// Its descriptors.
    pub(in crate::daemon) fn descriptors(&self) -> Vec<i32> {
        let running = self.running.iter();
        running.flat_map(|running| running.descriptors()).collect()
    }

    /// Whether this build can read its mux.
    pub(in crate::daemon) fn is_readable_mux(&self) -> serde_json::Result<()> {
        serde_json::from_str::<Mux>(self.mux.get()).map(drop)
    }
}

impl ServerIo {
    /// Its snapshot; `None` while it ends.
    pub(in crate::daemon) fn snapshot(
        &self,
        daemon: &DaemonState,
        slot: &ServerSlot,
    ) -> Option<ServerIoSnapshot> {
        let ServerIo {
            slot: _,
            hello,
            unwritten,
            running,
            sources,
            pid,
            since,
            exit,
            is_closing,
            is_lost,
            // Found again from the fields above, or from the class of the mux.
            class: _,
            width: _,
            warden: _,
            last_pid: _,
            stage: _,
            is_to_start: _,
            is_throttled: _,
            has_lines: _,
            has_stderr_lines: _,
            timeout: _,
            // Without a meaning between two events.
            printed_text: _,
            // These begin anew.
            notes: _,
            stderr_quota: _,
            printed: _,
            files_checked_at: _,
            hold_up: _,
            // A server with one of these has been stopped.
            is_given_up: _,
            warden_exit: _,
        } = self;
        // The loss of a server that is to be treated as lost would be forgotten.
        if is_closing.get() || is_lost.get() {
            return None;
        }
        let running = match &*running.borrow() {
            None => None,
            Some(running) => Some(running.snapshot()?),
        };
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let slot = slot.snapshot();
        let empty_for = |since| millis(daemon.now() - since);
        Some(ServerIoSnapshot {
            hello: ClientHello::clone(hello),
            starts_in: millis(slot.start_at - daemon.now()),
            mux: serde_json::value::to_raw_value(slot.mux).ok()?,
            lanes: slot.lanes.clone(),
            unwritten: unwritten.borrow().clone(),
            running,
            sources: sources.borrow().clone(),
            empty_for: slot.empty_since.map(empty_for),
            pid: pid.get(),
            since: since.get(),
            first_process: exit.get().map(server_exit),
        })
    }

    /// Continues with a slot of a snapshot. Its clients are restored later.
    pub(in crate::daemon) fn restore(
        daemon: &DaemonState,
        snapshot: ServerIoSnapshot,
    ) -> io::Result<ServerIo> {
        let mux: Mux = serde_json::from_str(snapshot.mux.get())?;
        let now = daemon.now();
        let class = mux.class().clone();
        let ago = |millis| {
            let earlier = Instant::now().checked_sub(Duration::from_millis(millis));
            earlier.map_or(now, |at| daemon.moment(at))
        };
        let slot = SlotSnapshot {
            mux,
            lanes: snapshot.lanes,
            running: snapshot.running.is_some(),
            writing: snapshot.unwritten.is_some(),
            start_at: now + Duration::from_millis(snapshot.starts_in),
            empty_since: snapshot.empty_for.map(ago),
            first_process: snapshot.first_process,
        };
        let mut engine = daemon.engine.borrow_mut();
        let hello = daemon.with_one_environment(snapshot.hello);
        let slot = engine.restore_slot(slot, &hello.session, now);
        let may_have_skipped = snapshot
            .running
            .as_ref()
            .is_some_and(process::ProcessSnapshot::may_have_skipped);
        let restore = |running| ServerProcess::restore(&daemon.reactor, slot, running);
        let running = snapshot.running.map(restore).transpose()?;
        let warden = running.as_ref().map(|running| running.tree.warden().pid());
        let mut server_io = ServerIo::new(slot, class, Rc::new(hello));
        // The pipe may be larger than usual.
        server_io.width = BufferSize::larger_than(CHUNK);
        server_io.unwritten.replace(snapshot.unwritten);
        server_io
            .exit
            .set(snapshot.first_process.map(|ending| match ending {
                ServerExit::Code(code) => Exit::Code(code),
                ServerExit::Signal(signal) => Exit::Signal(signal),
            }));
        server_io.running.replace(running.map(Rc::new));
        server_io.sources.replace(snapshot.sources);
        server_io.warden.set(warden);
        server_io.pid.set(snapshot.pid);
        server_io.last_pid.set(snapshot.pid.unwrap_or_default());
        if may_have_skipped {
            server_io.printed.borrow_mut().hide_next();
        }
        server_io.since.set(snapshot.since);
        Ok(server_io)
    }
}
