//! The place where trees are on record.

use std::cell::OnceCell;

use kennel_sys::runtime_dir::{Hold, RuntimeDir};

/// The same, checked for when there is something to write down.
#[derive(Default)]
pub(super) struct LazyRecords(OnceCell<Option<Records>>);

impl LazyRecords {
    pub(super) fn get(&self) -> Option<&Records> {
        self.0.get_or_init(Records::open).as_ref()
    }
}

/// The place where trees are on record.
pub(super) struct Records {
    pub(super) user: RuntimeDir,
    pub(super) trees: RuntimeDir,
    _hold: Hold,
}

impl Records {
    /// `None`, with one line of warning, where no runtime directory can be had.
    fn open() -> Option<Records> {
        let opened = RuntimeDir::of_user().and_then(|dir| {
            let trees = dir.subdir("trees")?;
            let _hold = dir.hold()?;
            Ok(Records {
                user: dir,
                trees,
                _hold,
            })
        });
        opened
            .map_err(|error| crate::warn(&format!("without a runtime directory: {error}")))
            .ok()
    }
}
