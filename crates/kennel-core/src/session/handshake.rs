//! The handshake, kept to be said again.

use crate::message::Key;

/// What the app said to begin its session, and whether it was answered.
#[derive(Debug)]
pub(super) struct Handshake {
    key: Key,
    initialize: Vec<u8>,
    /// Once sent, it is part of every later handshake (lesson 37).
    initialized: Option<Vec<u8>>,
    answered: bool,
}

impl Handshake {
    pub(super) fn begun(key: Key, initialize: &[u8]) -> Handshake {
        Handshake {
            key,
            initialize: initialize.to_vec(),
            initialized: None,
            answered: false,
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
        self.answered
    }

    pub(super) fn answer(&mut self) {
        self.answered = true;
    }
}
