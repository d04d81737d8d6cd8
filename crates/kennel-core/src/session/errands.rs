//! What the session asks the upstream on its own account. The app never hears of it.

use std::collections::BTreeMap;

use crate::message::Key;

/// Something that was asked.
#[derive(Debug)]
pub(super) struct Errand {
    pub(super) why: Why,
    /// What its progress is known by, if it has any.
    pub(super) token: Option<Key>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Why {
    /// To set up what stood at the upstream before.
    Restore,

    /// To see whether the tools are as they were.
    CompareTools,
}

#[derive(Debug, Default)]
pub(super) struct Errands {
    open: BTreeMap<Key, Errand>,
    minted: u64,
}

impl Errands {
    /// A new id, which the app does not use at present.
    pub(super) fn begin(&mut self, errand: Errand, is_taken: impl Fn(&Key) -> bool) -> String {
        loop {
            self.minted += 1;
            let name = format!("kennel-{}", self.minted);
            let key = Key::Text(name.as_str().into());
            if !is_taken(&key) {
                self.open.insert(key, errand);
                return format!("\"{name}\"");
            }
        }
    }

    /// Whether the app had better not use this id now.
    pub(super) fn is_open(&self, key: &Key) -> bool {
        self.open.contains_key(key)
    }

    /// The upstream answered.
    pub(super) fn end(&mut self, key: &Key) -> Option<Errand> {
        self.open.remove(key)
    }

    /// The upstream is lost, and its answers with it.
    pub(super) fn upstream_lost(&mut self) -> impl Iterator<Item = Errand> {
        std::mem::take(&mut self.open).into_values()
    }
}
