//! Server requests, and their ids at the app.
//!
//! The ids of the first upstream's requests stay. Every later upstream counts from the beginning again, so a late
//! response of the app to request 7 of the lost one could be taken for the response to request 7 of the new one.
//! Therefore ids of later upstreams are replaced by ids that are never reused: integers from [`ASSIGNED_IDS`], small
//! enough for every reader. If the first upstream uses an id of that range, it is replaced, too.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::message::reply::{IN_FLIGHT_LIMIT, SERVER_REQUESTS_LIMIT};
use crate::message::{Id, Key, only_same_number};

/// The range of replaced ids: a thousand million, each of at most 31 bits.
const ASSIGNED_IDS: Range<i64> = 1 << 30..1 << 31;

/// The id of a server request at the app.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum AppId {
    Unchanged,
    Replaced(Vec<u8>),
}

#[derive(Debug)]
struct ServerRequest {
    server_key: Key,
    /// The id as the server spelled it.
    server_id: Vec<u8>,
    shown: AppId,
}

impl ServerRequest {
    /// The id that the app sees.
    fn app_id(self) -> Vec<u8> {
        match self.shown {
            AppId::Unchanged => self.server_id,
            AppId::Replaced(id) => id,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct ServerRequests {
    /// Open requests by the id that the app sees.
    open: BTreeMap<Key, ServerRequest>,
    /// The ids that the app sees, by the server's id.
    shown_as: BTreeMap<Key, Key>,
    /// Bytes of all ids of open requests.
    id_bytes: usize,
    upstreams: usize,
    last_assigned: i64,
}

impl ServerRequests {
    /// Records a new upstream.
    pub(super) fn attached(&mut self) {
        self.upstreams += 1;
    }

    /// Whether a server request with this id is open.
    pub(super) fn is_open(&self, server_key: &Key) -> bool {
        self.shown_as.contains_key(server_key)
    }

    /// Whether any server request is open.
    pub(super) fn any_is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Whether the maximum number of open server requests is reached.
    pub(super) fn is_full(&self) -> bool {
        self.open.len() >= IN_FLIGHT_LIMIT || self.id_bytes >= SERVER_REQUESTS_LIMIT
    }

    /// Adds a server request whose id is not in use.
    pub(super) fn ask(&mut self, id: &Id<'_>, server_key: Key) -> AppId {
        let (app_key, shown) = if self.upstreams <= 1 && !is_assigned(&server_key) {
            (server_key.clone(), AppId::Unchanged)
        } else {
            let last_assigned =
                ASSIGNED_IDS.start + self.last_assigned % (ASSIGNED_IDS.end - ASSIGNED_IDS.start);
            self.last_assigned += 1;
            let shown = AppId::Replaced(last_assigned.to_string().into_bytes());
            (Key::Number(last_assigned), shown)
        };
        self.shown_as.insert(server_key.clone(), app_key.clone());
        let request = ServerRequest {
            server_key,
            server_id: id.raw().to_vec(),
            shown: shown.clone(),
        };
        self.id_bytes += request.server_id.len();
        self.open.insert(app_key, request);
        shown
    }

    /// Removes a request by the id at the app.
    fn close(&mut self, app_key: &Key) -> Option<ServerRequest> {
        let request = self.open.remove(app_key)?;
        self.shown_as.remove(&request.server_key);
        self.id_bytes -= request.server_id.len();
        Some(request)
    }

    /// Removes the request that the app answers, and returns the server's id, which is [`AppId::Unchanged`] if it is
    /// the same. `None`: no such request is open.
    pub(super) fn answer(&mut self, app_key: &Key) -> Option<AppId> {
        if let Some(request) = self.close(app_key) {
            return Some(match request.shown {
                AppId::Unchanged => AppId::Unchanged,
                AppId::Replaced(_) => AppId::Replaced(request.server_id),
            });
        }
        let meant = only_same_number(&self.open, app_key, |_| true)?.clone();
        let request = self.close(&meant)?;
        Some(AppId::Replaced(request.server_id))
    }

    /// Removes a request that the server cancelled, and returns the id at the app. `None`: it was answered, or never
    /// existed.
    pub(super) fn cancel(&mut self, server_key: &Key) -> Option<AppId> {
        if let Some(app_key) = self.shown_as.get(server_key).cloned() {
            return self.close(&app_key).map(|request| request.shown);
        }
        let meant = only_same_number(&self.shown_as, server_key, |_| true)?;
        let app_key = self.shown_as.get(meant)?.clone();
        let request = self.close(&app_key)?;
        Some(AppId::Replaced(request.app_id()))
    }

    /// Removes the requests of a lost upstream, and returns their ids at the app.
    pub(super) fn upstream_lost(&mut self) -> Vec<Vec<u8>> {
        self.shown_as.clear();
        self.id_bytes = 0;
        std::mem::take(&mut self.open)
            .into_values()
            .map(ServerRequest::app_id)
            .collect()
    }
}

fn is_assigned(key: &Key) -> bool {
    matches!(key, Key::Number(number) if ASSIGNED_IDS.contains(number))
}
