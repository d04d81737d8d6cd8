//! A station on its way to another program: what that one needs to go on with it.

use std::io;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use kennel_core::engine::daemon::{CHUNK, Lanes};
use kennel_core::hello::ClientHello;
use kennel_core::mux::Mux;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::super::house::House;
use super::super::running::{self, Running};
use super::Station;
use super::feed::Unwritten;
use crate::shim::width::Width;
use crate::sources::Sources;

/// A station, to go on with after an exec.
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

impl Station {
    /// What another program needs to go on with it; `None` while it is on its way out.
    pub(in crate::daemon) fn carried(&self, house: &House) -> Option<Carried> {
        let running = match &*self.running.borrow() {
            None => None,
            Some(running) => Some(running.carried()?),
        };
        if self.closing.is_up() {
            return None;
        }
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let slot = self.slot.borrow();
        let mux = serde_json::value::to_raw_value(slot.mux()).ok()?;
        let deserted = slot.deserted_since();
        Some(Carried {
            hello: ClientHello::clone(&self.hello),
            starts_in: millis(self.start_at.saturating_duration_since(Instant::now())),
            mux,
            lanes: slot.lanes().clone(),
            cut: self.cut.borrow().clone(),
            running,
            sources: self.sources.borrow().clone(),
            deserted_for: deserted.map(|since| millis(house.now() - since)),
            pid: self.pid.get(),
            since: self.since.get(),
        })
    }

    /// Goes on with what another program had. Its clients come back by themselves.
    pub(in crate::daemon) fn resume(house: &House, carried: Carried) -> io::Result<Station> {
        let mux: Mux = serde_json::from_str(carried.mux.get())?;
        let now = Instant::now();
        let hello = Rc::new(carried.hello);
        let start_at = now + Duration::from_millis(carried.starts_in);
        let mut station = Station::new(house, mux.class().clone(), hello, start_at);
        let running = carried.running.map(Running::resume).transpose()?;
        let warden = running.as_ref().map(|running| running.tree.warden().pid());
        let ago = |millis| {
            now.checked_sub(Duration::from_millis(millis))
                .unwrap_or(now)
        };
        let writing = carried.cut.is_some();
        let deserted = carried.deserted_for.map(ago);
        let deserted = deserted.map(|at| house.moment(at));
        let slot = station.slot.get_mut();
        slot.restore(mux, carried.lanes, writing, deserted);
        if running.is_some() {
            slot.started();
        }
        // It may have been given a wider pipe, which is to be narrow again.
        station.width = Width::wider_than(CHUNK);
        station.cut.replace(carried.cut);
        station.running.replace(running.map(Rc::new));
        station.sources.replace(carried.sources);
        station.warden.set(warden);
        station.pid.set(carried.pid);
        station.since.set(carried.since);
        Ok(station)
    }
}
