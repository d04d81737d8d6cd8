//! The handshake, kept to be said again.

use crate::message::{Key, Part};

use super::offer::{List, Offer};

/// What the app said to begin its session, and whether it was answered.
#[derive(Debug)]
pub(super) struct Handshake {
    key: Key,
    initialize: Vec<u8>,
    /// Once sent, it is part of every later handshake (lesson 37).
    initialized: Option<Vec<u8>>,
    /// What the app was answered, as far as it matters.
    offer: Option<Offer>,
}

impl Handshake {
    pub(super) fn begun(key: Key, initialize: &[u8]) -> Handshake {
        Handshake {
            key,
            initialize: initialize.to_vec(),
            initialized: None,
            offer: None,
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

    /// The app sent `initialized`. `false`: not for the first time.
    pub(super) fn confirm(&mut self, initialized: &[u8]) -> bool {
        let first = self.initialized.is_none();
        if first {
            self.initialized = Some(initialized.to_vec());
        }
        first
    }

    /// Whether the app has a result: another would be one too many.
    pub(super) fn is_answered(&self) -> bool {
        self.offer.is_some()
    }

    pub(super) fn answer(&mut self, result: &Part<'_>) {
        self.offer = Some(Offer::of(result));
    }

    /// Another server answered it. Gives the lists that may be others than the app knows, and that it
    /// expects to hear of.
    pub(super) fn answered_again(&mut self, result: &Part<'_>) -> Vec<List> {
        let changed = self.offer.as_mut().map(|offer| offer.renew(result));
        let mut changed = changed.unwrap_or_default();
        changed.retain(|list| self.announces(*list));
        changed
    }

    /// Whether the app expects to hear when this list changes.
    pub(super) fn announces(&self, list: List) -> bool {
        let offer = self.offer.as_ref();
        self.initialized.is_some() && offer.is_some_and(|offer| offer.announces(list))
    }
}
