//! What a daemon knows of the era of its servers.

/// How many servers in a row must exit on `server/discover`, each before its first answer, for that to mean that they do not
/// know it. One alone may have failed to start.
const EXITS: u32 = 2;

/// Whether the servers of a daemon know the modern era, if one of them has shown it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct KnownEra {
    known: Option<bool>,
    exits: u32,
}

impl KnownEra {
    pub(super) fn restore(known: Option<bool>) -> KnownEra {
        KnownEra { known, exits: 0 }
    }

    pub(super) fn is_modern(self) -> Option<bool> {
        self.known
    }

    /// A server has shown that no server knows the modern era.
    pub(super) fn is_legacy(self) -> bool {
        self.known == Some(false)
    }

    /// A server has shown which it is. One that knew the modern era is not forgotten for another that was killed before
    /// it could show it.
    pub(super) fn saw(&mut self, modern: bool) {
        self.known = Some(modern || self.known == Some(true));
        self.exits = 0;
    }

    /// A server exited by itself before its first answer, asked for `server/discover`: whether that shows that it does not
    /// know it.
    pub(super) fn exited_on_discover(&mut self) -> bool {
        self.exits += 1;
        self.exits >= EXITS
    }

    /// The files of the servers changed: the next one may know what the last did not.
    pub(super) fn forget(&mut self) {
        *self = KnownEra::default();
    }
}
