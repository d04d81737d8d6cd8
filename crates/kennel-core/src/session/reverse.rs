//! The server's requests to the app, and the ids the app knows them by.
//!
//! The first upstream's ids are shown as they are. Every later upstream begins to count anew, so an
//! answer that the app is still giving to the dead one's request 7 could be taken for the answer to
//! the new one's request 7. Therefore ids of later upstreams are replaced by minted ones, which are
//! never given twice: integers from [`MINTED`], small enough for every reader. Should the first
//! upstream use an id from there, it is replaced as well.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::message::reply::{IN_FLIGHT_LIMIT, SERVER_REQUESTS_LIMIT};
use crate::message::{Id, Key, only_same_number};

/// Where minted ids come from: a thousand million of them, each fit for 31 bits.
const MINTED: Range<i64> = 1 << 30..1 << 31;

/// How the app is to know a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Shown {
    AsItIs,
    As(Vec<u8>),
}

#[derive(Debug)]
struct ServerRequest {
    server_key: Key,
    /// As the server spelled it.
    server_id: Vec<u8>,
    shown: Shown,
}

impl ServerRequest {
    /// Its id as the app knows it.
    fn app_id(self) -> Vec<u8> {
        match self.shown {
            Shown::AsItIs => self.server_id,
            Shown::As(id) => id,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Reverse {
    /// By what the app knows it by.
    open: BTreeMap<Key, ServerRequest>,
    /// From what the server knows it by to what the app does.
    shown_as: BTreeMap<Key, Key>,
    /// Of all ids that are open.
    id_bytes: usize,
    upstreams: usize,
    minted: i64,
}

impl Reverse {
    /// Another upstream is there.
    pub(super) fn attached(&mut self) {
        self.upstreams += 1;
    }

    /// Whether the server waits for the answer to such a request.
    pub(super) fn is_open(&self, server_key: &Key) -> bool {
        self.shown_as.contains_key(server_key)
    }

    /// Whether the server waits for any answer.
    pub(super) fn any_is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Whether the server waits for so many answers that it may not ask more.
    pub(super) fn is_full(&self) -> bool {
        self.open.len() >= IN_FLIGHT_LIMIT || self.id_bytes >= SERVER_REQUESTS_LIMIT
    }

    /// The server asks something under an id that is not open.
    pub(super) fn ask(&mut self, id: &Id<'_>, server_key: Key) -> Shown {
        let (app_key, shown) = if self.upstreams <= 1 && !is_minted(&server_key) {
            (server_key.clone(), Shown::AsItIs)
        } else {
            let minted = MINTED.start + self.minted % (MINTED.end - MINTED.start);
            self.minted += 1;
            let shown = Shown::As(minted.to_string().into_bytes());
            (Key::Number(minted), shown)
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

    /// Forgets a request, by what the app knows it by.
    fn close(&mut self, app_key: &Key) -> Option<ServerRequest> {
        let request = self.open.remove(app_key)?;
        self.shown_as.remove(&request.server_key);
        self.id_bytes -= request.server_id.len();
        Some(request)
    }

    /// The app answers: the id the server waits for, which is [`Shown::AsItIs`] if it is the very
    /// one. `None`: nobody waits.
    pub(super) fn answer(&mut self, app_key: &Key) -> Option<Shown> {
        if let Some(request) = self.close(app_key) {
            return Some(match request.shown {
                Shown::AsItIs => Shown::AsItIs,
                Shown::As(_) => Shown::As(request.server_id),
            });
        }
        let meant = only_same_number(&self.open, app_key, |_| true)?.clone();
        let request = self.close(&meant)?;
        Some(Shown::As(request.server_id))
    }

    /// The server does not want the answer any more: how the app knows the request. `None`: it is
    /// answered already, or never was.
    pub(super) fn cancel(&mut self, server_key: &Key) -> Option<Shown> {
        if let Some(app_key) = self.shown_as.get(server_key).cloned() {
            return self.close(&app_key).map(|request| request.shown);
        }
        let meant = only_same_number(&self.shown_as, server_key, |_| true)?;
        let app_key = self.shown_as.get(meant)?.clone();
        let request = self.close(&app_key)?;
        Some(Shown::As(request.app_id()))
    }

    /// The ids of what died with the upstream, as the app knows them.
    pub(super) fn upstream_lost(&mut self) -> Vec<Vec<u8>> {
        self.shown_as.clear();
        self.id_bytes = 0;
        std::mem::take(&mut self.open)
            .into_values()
            .map(ServerRequest::app_id)
            .collect()
    }
}

fn is_minted(key: &Key) -> bool {
    matches!(key, Key::Number(number) if MINTED.contains(number))
}
