//! The handshake, stored for later upstreams.

use crate::message::{Key, Part};

use super::features::{Features, List};

/// The app's handshake, and whether it was answered.
#[derive(Debug)]
pub(super) struct Handshake {
    key: Key,
    initialize: Vec<u8>,
    /// Once sent, it is part of every later handshake (lesson 37).
    initialized: Option<Vec<u8>>,
    /// The features in the response that the app got.
    features: Option<Features>,
}

impl Handshake {
    pub(super) fn begun(key: Key, initialize: &[u8]) -> Handshake {
        Handshake {
            key,
            initialize: initialize.to_vec(),
            initialized: None,
            features: None,
        }
    }

    pub(super) fn key(&self) -> &Key {
        &self.key
    }

    /// The `initialize` line.
    pub(super) fn request(&self) -> &[u8] {
        &self.initialize
    }

    /// The `initialized` line, if the app sent it.
    pub(super) fn confirmation(&self) -> Option<&[u8]> {
        self.initialized.as_deref()
    }

    /// Stores `initialized`. Returns `false` if the app sent it before.
    pub(super) fn confirm(&mut self, initialized: &[u8]) -> bool {
        let first = self.initialized.is_none();
        if first {
            self.initialized = Some(initialized.to_vec());
        }
        first
    }

    /// Whether the app has a result: it must not get another one.
    pub(super) fn is_answered(&self) -> bool {
        self.features.is_some()
    }

    pub(super) fn answer(&mut self, result: &Part<'_>) {
        self.features = Some(Features::of(result));
    }

    /// Records the response of another server. Returns the lists that may have changed, if the app expects to be
    /// notified.
    pub(super) fn answered_again(&mut self, result: &Part<'_>) -> Vec<List> {
        let changed = self
            .features
            .as_mut()
            .map(|features| features.renew(result));
        let mut changed = changed.unwrap_or_default();
        changed.retain(|list| self.announces(*list));
        changed
    }

    /// Whether the app expects to be notified when this list changes.
    pub(super) fn announces(&self, list: List) -> bool {
        let features = self.features.as_ref();
        self.initialized.is_some() && features.is_some_and(|features| features.announces(list))
    }
}
