//! The whole daemon on its way to another program: same process, same descriptors, and this to go on with.
//!
//! It is written to memory that has no name, for it holds the environments of the clients.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, RawFd};

use kennel_core::hello::ClientHello;
use kennel_core::lifetime::Policy;
use kennel_core::time::Moment;
use rustix::fs::MemfdFlags;
use serde::{Deserialize, Serialize};

use super::daemon_state::DaemonState;
use super::state::Restart;
use super::{client, server_io};

/// The number of this format: whoever reads it can go on with what is written today. A field that can be left out does
/// not change it; anything else does, here and in what `kennel-core` writes down of a mux.
pub(super) const FORMAT: u32 = 2;
/// Those that can be read.
pub(super) const READS: [u32; 2] = [1, FORMAT];

/// Everything the daemon must know to go on. Caches of the mux are part of it; what is left out begins anew: budgets of
/// restarts, and how long a client that cannot be seen was silent.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Carried {
    pub(super) format: u32,
    /// Which build wrote it.
    pub(super) build: String,
    /// What `kennel-sys` wants to know.
    pub(super) system: String,
    pub(super) key: String,
    pub(super) generation: String,
    pub(super) policy: Policy,
    /// The longest line that it takes.
    #[serde(default)]
    pub(super) max_line: Option<usize>,
    /// The text of an identity.
    pub(super) owner: Option<String>,
    pub(super) now: Moment,
    pub(super) restarts: u64,
    #[serde(default)]
    pub(super) last_restart: Option<Restart>,
    #[serde(default)]
    pub(super) idle_since: Option<u64>,
    pub(super) modern: Option<bool>,
    pub(super) next_id: u64,
    pub(super) first_hello: Option<ClientHello>,
    #[serde(default)]
    pub(super) present_hash: Option<String>,
    /// The version of the key that it is the hash of; none of builds before version 3.
    #[serde(default)]
    pub(super) key_version: Option<u32>,
    pub(super) lock: RawFd,
    /// The runtime directory, held: until the next build holds it itself, too.
    #[serde(default)]
    pub(super) hold: Option<RawFd>,
    pub(super) listener: RawFd,
    pub(super) clients: Vec<client::Carried>,
    /// The server slots; the name is that of the format.
    pub(super) stations: Vec<server_io::Carried>,
}

impl Carried {
    /// All of it as it is now; `None` if somebody is on the way out, or everybody.
    pub(super) fn pack(daemon: &DaemonState) -> Option<Carried> {
        let engine = daemon.engine.borrow();
        let lock = daemon.lock.borrow();
        let stations = daemon.servers.borrow();
        let clients = daemon.clients.borrow();
        let clients = clients.iter();
        let clients = clients.map(|(id, link)| link.carried(*id, engine.client_snapshot(*id)?));
        let first_hello = daemon.first_hello.borrow();
        Some(Carried {
            format: FORMAT,
            build: crate::this_build::text(),
            system: kennel_sys::handover::carried(),
            key: daemon.meeting.key().to_owned(),
            generation: daemon.generation.clone(),
            policy: engine.lifetime_policy(),
            max_line: Some(crate::shim::lines::max_line()),
            owner: daemon.owner.map(|owner| owner.to_string()),
            now: daemon.now(),
            restarts: daemon.restarts.get(),
            last_restart: daemon.last_restart.borrow().clone(),
            idle_since: daemon.idle_since.get(),
            modern: engine.knows_modern(),
            next_id: engine.next_client(),
            first_hello: first_hello.as_deref().cloned(),
            present_hash: daemon.present_hash.borrow().clone(),
            key_version: Some(crate::key::VERSION),
            lock: lock.as_ref()?.as_fd().as_raw_fd(),
            hold: daemon.hold.as_ref().map(|hold| hold.as_fd().as_raw_fd()),
            listener: daemon.listener.as_raw_fd(),
            clients: clients.collect::<Option<_>>()?,
            stations: stations
                .values()
                .map(|server_io| server_io.carried(daemon, engine.slot(server_io.slot)?))
                .collect::<Option<_>>()?,
        })
    }

    /// The whole hash of the key that all clients have. One of another formula is no client's any more: the next one says
    /// what all have.
    pub(super) fn hash_of_this_version(&self) -> Option<String> {
        hash_of_this_version(self.present_hash.as_ref(), self.key_version)
    }

    /// Every descriptor that goes along.
    pub(super) fn descriptors(&self) -> Vec<RawFd> {
        let clients = self.clients.iter().flat_map(|it| it.descriptors());
        let stations = self.stations.iter().flat_map(|it| it.descriptors());
        let own = [self.lock, self.listener];
        let own = own.into_iter().chain(self.hold);
        own.chain(clients).chain(stations).collect()
    }

    /// In memory, to be read from its start.
    pub(super) fn written(&self) -> io::Result<File> {
        let memory = rustix::fs::memfd_create("kennel-daemon", MemfdFlags::CLOEXEC)?;
        let mut file = File::from(memory);
        let mut buffered = io::BufWriter::new(&mut file);
        serde_json::to_writer(&mut buffered, self)?;
        buffered.flush()?;
        drop(buffered);
        file.rewind()?;
        Ok(file)
    }

    /// What was written by a build whose format is understood; why not, for people.
    pub(super) fn read(mut from: impl Read) -> Result<Carried, String> {
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        let mut text = Vec::new();
        let read = from.read_to_end(&mut text);
        read.map_err(|error| format!("the state cannot be read: {error}"))?;
        // The content stays out of it: it may hold secrets.
        let what = |error: serde_json::Error| {
            let place = error.column();
            format!("the state cannot be understood at byte {place}")
        };
        let head: Head = serde_json::from_slice(&text).map_err(what)?;
        if !READS.contains(&head.format) {
            let format = head.format;
            return Err(format!(
                "the state is of format {format}, and {READS:?} is read"
            ));
        }
        let carried: Carried = serde_json::from_slice(&text).map_err(what)?;
        for server_io in &carried.stations {
            server_io.is_understood().map_err(what)?;
        }
        Ok(carried)
    }
}

fn hash_of_this_version(hash: Option<&String>, version: Option<u32>) -> Option<String> {
    let is_present = version == Some(crate::key::VERSION);
    hash.filter(|_| is_present).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_of_another_format_is_refused_by_its_number_and_no_secret_shows() {
        let refused = Carried::read(&br#"{"format":999,"anything":"s3cret"}"#[..]);
        let why = refused.unwrap_err();
        assert!(why.contains("999"), "{why}");
        let broken = Carried::read(&br#"{"format":1,"key":{"s3cret":1}}"#[..]);
        assert!(!broken.unwrap_err().contains("s3cret"));
    }

    #[test]
    fn the_hash_of_a_key_of_another_version_is_not_taken_for_that_of_the_clients() {
        let hash = Some("4f".to_owned());
        let taken = |version| hash_of_this_version(hash.as_ref(), version);
        assert_eq!(taken(Some(crate::key::VERSION)), hash);
        assert_eq!(taken(Some(crate::key::VERSION - 1)), None);
        assert_eq!(taken(None), None, "builds before version 3 do not say it");
    }
}
