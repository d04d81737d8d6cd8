//! The snapshot: all that a newer build needs to continue as the daemon, in the same process and with the same descriptors.
//!
//! It is written to unnamed memory, because it contains the clients' environments.

use std::fs::File;
use std::io::{self, Read, Seek, Write};

use kennel_core::hello::ClientHello;
use kennel_core::lifetime::Policy;
use kennel_core::time::Moment;
use kennel_sys::handover;
use kennel_sys::io::number_of;
use serde::{Deserialize, Serialize};

use super::daemon_state::DaemonState;
use super::state::Restart;
use super::{client, server_io};

/// The number of the format. A field that may be missing does not change it; any other change does, also of the mux's
/// snapshot in `kennel-core`.
pub(super) const FORMAT: u32 = 2;
/// The formats that this build can read.
pub(super) const READABLE_FORMATS: [u32; 2] = [1, FORMAT];

/// The daemon's state. Restart limits, and how long unwatchable clients were silent, are not in it and begin anew.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Snapshot {
    pub(super) format: u32,
    /// The build that wrote it.
    pub(super) build: String,
    /// The state of `kennel-sys`.
    pub(super) system: String,
    pub(super) key: String,
    pub(super) generation: String,
    pub(super) policy: Policy,
    /// Maximum bytes of a line.
    #[serde(default)]
    pub(super) max_line: Option<usize>,
    /// The text of a process identity.
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
    #[serde(default, rename = "present_hash")]
    pub(super) key_hash: Option<String>,
    /// The key's version, of which it is the hash; `None` from builds before version 3.
    #[serde(default)]
    pub(super) key_version: Option<u32>,
    pub(super) lock: i32,
    /// Holds the runtime directory until the next build holds it, too.
    #[serde(default)]
    pub(super) hold: Option<i32>,
    pub(super) listener: i32,
    pub(super) clients: Vec<client::ConnSnapshot>,
    /// The server slots. The format has their former name.
    #[serde(rename = "stations")]
    pub(super) slots: Vec<server_io::ServerIoSnapshot>,
}

impl Snapshot {
    /// A snapshot of the daemon; `None` while a client, a server or the daemon ends.
    pub(super) fn pack(daemon: &DaemonState) -> Option<Snapshot> {
        let DaemonState {
            key_dir,
            lock,
            hold,
            generation,
            engine,
            owner,
            listener,
            servers,
            clients,
            first_hello,
            key_hash,
            restarts,
            last_restart,
            idle_since,
            // Opened again, set again, or counted again.
            log: _,
            replies: _,
            owner_watch: _,
            reactor: _,
            run_queue: _,
            timers: _,
            accepting: _,
            sweep: _,
            signals: _,
            children: _,
            clock: _,
            first_has_key: _,
            throttled_clients: _,
            throttled_servers: _,
            listing: _,
            dir_checked_at: _,
            memory: _,
            parsed_bytes: _,
            deliveries: _,
            // The newer build is not refused what this one is.
            upgrade: _,
            // A daemon that ends hands nothing over.
            watchdog: _,
            has_left: _,
        } = daemon;
        let engine = engine.borrow();
        let engine_state = engine.snapshot();
        let lock = lock.borrow();
        let slots = servers.borrow();
        let clients = clients.borrow();
        let clients = clients.iter();
        let clients = clients.map(|(id, conn)| conn.snapshot(*id, engine.client_snapshot(*id)?));
        let first_hello = first_hello.borrow();
        Some(Snapshot {
            format: FORMAT,
            build: crate::this_build::text(),
            system: kennel_sys::handover::state(),
            key: key_dir.key().to_owned(),
            generation: generation.clone(),
            policy: engine_state.lifetime,
            max_line: Some(crate::lines::max_line()),
            owner: owner.map(|owner| owner.to_string()),
            now: daemon.now(),
            restarts: restarts.get(),
            last_restart: last_restart.borrow().clone(),
            idle_since: idle_since.get(),
            modern: engine_state.modern,
            next_id: engine_state.next_client,
            first_hello: first_hello.as_deref().cloned(),
            key_hash: key_hash.borrow().clone(),
            key_version: Some(crate::key::VERSION),
            lock: number_of(lock.as_ref()?),
            hold: hold.as_ref().map(number_of),
            listener: number_of(listener),
            clients: clients.collect::<Option<_>>()?,
            slots: slots
                .values()
                .map(|server_io| server_io.snapshot(daemon, engine.slot(server_io.slot)?))
                .collect::<Option<_>>()?,
        })
    }

    /// The full hash of all clients' key. `None` if the key's version was another one: then the next client defines it.
    pub(super) fn current_key_hash(&self) -> Option<String> {
        current_key_hash(self.key_hash.as_ref(), self.key_version)
    }

    /// All descriptors that the next build needs.
    pub(super) fn descriptors(&self) -> Vec<i32> {
        let clients = self.clients.iter().flat_map(|it| it.descriptors());
        let slots = self.slots.iter().flat_map(|it| it.descriptors());
        let own = [self.lock, self.listener];
        let own = own.into_iter().chain(self.hold);
        own.chain(clients).chain(slots).collect()
    }

    /// Writes it to unnamed memory; returns that, to be read from its start.
    pub(super) fn written(&self) -> io::Result<File> {
        let mut file = handover::state_file("kennel-daemon")?;
        let mut buffered = io::BufWriter::new(&mut file);
        serde_json::to_writer(&mut buffered, self)?;
        buffered.flush()?;
        drop(buffered);
        file.rewind()?;
        Ok(file)
    }

    /// Whether the [`written`](Self::written) snapshot takes at most `max_bytes`. Counting stops at that limit.
    pub(super) fn is_within(&self, max_bytes: usize) -> bool {
        serde_json::to_writer(CountingWriter(max_bytes), self).is_ok()
    }

    /// Reads a snapshot. `Err`: why not, for people.
    pub(super) fn read(from: impl Read) -> Result<Snapshot, String> {
        let state = Self::read_if_any(from)?;
        state.ok_or_else(|| "the snapshot is empty".to_owned())
    }

    /// The same; `None` if nothing was written.
    pub(super) fn read_if_any(mut from: impl Read) -> Result<Option<Snapshot>, String> {
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        let mut text = Vec::new();
        let read = from.read_to_end(&mut text);
        read.map_err(|error| format!("the snapshot cannot be read: {error}"))?;
        if text.is_empty() {
            return Ok(None);
        }
        // Without its content, which may contain secrets.
        let what = |error: serde_json::Error| {
            let place = error.column();
            format!("the snapshot is invalid at byte {place}")
        };
        let head: Head = serde_json::from_slice(&text).map_err(what)?;
        if !READABLE_FORMATS.contains(&head.format) {
            let format = head.format;
            return Err(format!(
                "the snapshot has format {format}, but this build reads {READABLE_FORMATS:?}"
            ));
        }
        let snapshot: Snapshot = serde_json::from_slice(&text).map_err(what)?;
        for server_io in &snapshot.slots {
            server_io.is_readable_mux().map_err(what)?;
        }
        Ok(Some(snapshot))
    }
}

/// A writer that counts and discards the bytes, and fails above the limit.
struct CountingWriter(usize);

impl Write for CountingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.0.checked_sub(bytes.len());
        self.0 = left.ok_or(io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn current_key_hash(hash: Option<&String>, version: Option<u32>) -> Option<String> {
    let is_present = version == Some(crate::key::VERSION);
    hash.filter(|_| is_present).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_of_another_format_is_refused_by_its_number_and_no_secret_shows() {
        let refused = Snapshot::read(&br#"{"format":999,"anything":"s3cret"}"#[..]);
        let why = refused.unwrap_err();
        assert!(why.contains("999"), "{why}");
        let broken = Snapshot::read(&br#"{"format":1,"key":{"s3cret":1}}"#[..]);
        assert!(!broken.unwrap_err().contains("s3cret"));
    }

    #[test]
    fn counting_stops_at_the_limit() {
        let count = |limit| serde_json::to_writer(CountingWriter(limit), "\u{1}\u{1}");
        assert!(count(14).is_ok());
        assert!(count(13).is_err());
    }

    #[test]
    fn the_hash_of_a_key_of_another_version_is_not_taken_for_that_of_the_clients() {
        let hash = Some("4f".to_owned());
        let taken = |version| current_key_hash(hash.as_ref(), version);
        assert_eq!(taken(Some(crate::key::VERSION)), hash);
        assert_eq!(taken(Some(crate::key::VERSION - 1)), None);
        assert_eq!(taken(None), None, "builds before version 3 do not say it");
    }
}
