//! The protocol era of a daemon's servers.

/// Number of servers in a row that must exit on `server/discover` before their first response, to count as legacy. A
/// single one may have failed to start.
const EXITS: u32 = 2;

/// Whether the servers of a daemon are modern, once one of them has shown it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct EraKnowledge {
    known: Option<bool>,
    exits: u32,
}

impl EraKnowledge {
    pub(super) fn restore(known: Option<bool>) -> EraKnowledge {
        EraKnowledge { known, exits: 0 }
    }

    pub(super) fn is_modern(self) -> Option<bool> {
        self.known
    }

    /// Whether the servers are known to be legacy.
    pub(super) fn is_legacy(self) -> bool {
        self.known == Some(false)
    }

    /// Records the era that a server has shown. A modern daemon stays modern, even if a later server was killed before it
    /// answered.
    pub(super) fn record(&mut self, modern: bool) {
        self.known = Some(modern || self.known == Some(true));
        self.exits = 0;
    }

    /// Records that a server exited on `server/discover` before its first response. Returns whether that shows that it
    /// is legacy.
    pub(super) fn exited_on_discover(&mut self) -> bool {
        self.exits += 1;
        self.exits >= EXITS
    }

    /// Forgets the era, because the server's files changed.
    pub(super) fn forget(&mut self) {
        *self = EraKnowledge::default();
    }
}
