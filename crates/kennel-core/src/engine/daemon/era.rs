//! What a daemon knows of the era of its servers.

/// Whether the servers of a daemon know the modern era, if one of them has shown it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct KnownEra(Option<bool>);

impl KnownEra {
    pub(super) fn restore(known: Option<bool>) -> KnownEra {
        KnownEra(known)
    }

    pub(super) fn is_modern(self) -> Option<bool> {
        self.0
    }

    /// A server has shown that no server knows the modern era.
    pub(super) fn is_legacy(self) -> bool {
        self.0 == Some(false)
    }

    /// A server has shown which it is. One that knew the modern era is not forgotten for another that was killed before
    /// it could show it.
    pub(super) fn saw(&mut self, modern: bool) {
        self.0 = Some(modern || self.0 == Some(true));
    }
}
