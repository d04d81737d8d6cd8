//! The session's record for `kennel ps`. Nothing else depends on it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kennel_core::time::Moment;
use kennel_sys::tree::Exit;

use super::Shim;
use crate::daemon::Restart;
use crate::listing::{Entry, HIBERNATING, Mode, SoloRecord};

/// Minimum time between two updates of the record that change only its number of requests.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);

/// Statistics of the session so far.
#[derive(Debug)]
pub(super) struct SessionStats {
    /// In seconds since 1970.
    pub(super) since: u64,
    pub(super) requests: u64,
    pub(super) restarts: u64,
    pub(super) last_restart: Option<Restart>,
    /// The name that the app gives itself.
    pub(super) client: Option<String>,
}

impl SessionStats {
    pub(super) fn new() -> SessionStats {
        SessionStats {
            since: now(),
            requests: 0,
            restarts: 0,
            last_restart: None,
            client: None,
        }
    }
}

/// The session's record, and its content.
#[derive(Debug)]
pub(super) struct ListingRecord {
    record: SoloRecord,
    entry: Entry,
    written: Moment,
}

impl Shim {
    /// Records that the dedicated server runs.
    pub(super) fn list(&mut self, server: u32) {
        let sources = self.server.as_ref().map(|it| it.sources.clone());
        self.update_stats();
        let running = (server, sources.unwrap_or_default());
        let app = crate::run::find_app(&self.starter);
        let why = self.engine.why_dedicated().map(str::to_owned);
        let entry = self.spec.entry(Some(running), why, app, &self.stats);
        let dedicated_for_now = self.engine.is_dedicated_for_now();
        self.write_record(entry.map(|entry| Entry {
            dedicated_for_now,
            ..entry
        }));
    }

    /// Records that the server hibernates. The record of a shared session names it shared.
    pub(super) fn list_hibernating(&mut self) {
        self.update_stats();
        let shared = self.sharing.as_ref().filter(|_| self.engine.is_shared());
        let why = self
            .engine
            .why_dedicated()
            .map(str::to_owned)
            .filter(|_| shared.is_none());
        let app = crate::run::find_app(&self.starter);
        let entry = self.spec.entry(None, why, app, &self.stats);
        let entry = entry.map(|entry| match shared {
            Some(sharing) => Entry {
                mode: Mode::Shared,
                key: sharing.key.clone(),
                state: HIBERNATING.to_owned(),
                ..entry
            },
            None => Entry {
                state: HIBERNATING.to_owned(),
                ..entry
            },
        });
        self.write_record(entry);
    }

    fn update_stats(&mut self) {
        self.stats.requests = self.engine.session().requests();
        self.stats.client = self.engine.client_name().map(str::to_owned);
    }

    fn write_record(&mut self, entry: Option<Entry>) {
        let before = self.listed.take().map(|listed| listed.record);
        let Some((entry, records)) = entry.zip(self.records.get()) else {
            return;
        };
        let record = match before {
            Some(record) => record.rewrite(&entry).map(|()| record),
            None => SoloRecord::keep(&records.user, &entry),
        };
        self.listed = record.ok().map(|record| ListingRecord {
            record,
            entry,
            written: self.now,
        });
    }

    /// When the record's number of requests is to be updated, if it has changed.
    pub(super) fn next_record_update(&self) -> Option<Moment> {
        let listed = self.listed.as_ref()?;
        let server = listed.entry.servers.first()?;
        let changed = server.state.requests != self.engine.session().requests();
        changed.then(|| listed.written + COUNT_INTERVAL)
    }

    /// Updates the record's number of requests, if that is due.
    pub(super) fn update_record_if_due(&mut self) {
        if self.next_record_update().is_none_or(|at| self.now < at) {
            return;
        }
        self.update_stats();
        let requests = self.stats.requests;
        if let Some(listed) = &mut self.listed {
            for server in &mut listed.entry.servers {
                server.state.requests = requests;
            }
            for client in &mut listed.entry.clients {
                client.client.clone_from(&self.stats.client);
            }
            // An error, such as a full disk, affects only `kennel ps`.
            let _ = listed.record.rewrite(&listed.entry);
            listed.written = self.now;
        }
    }

    /// Records a restart for `kennel ps`.
    pub(super) fn record_restart(&mut self) {
        let listed = self.listed.as_ref();
        let server = listed.and_then(|listed| Some(listed.entry.servers.first()?.state.pid));
        let reason = match self.server.as_ref().and_then(|server| server.exit) {
            Some(Exit::Code(code)) => format!("it ended with exit code {code}"),
            Some(Exit::Signal(signal)) => format!("it was ended by signal {signal}"),
            None => "it is gone".to_owned(),
        };
        self.stats.restarts += 1;
        self.stats.last_restart = Some(Restart {
            at: now(),
            reason,
            server: server.unwrap_or_default(),
        });
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}
