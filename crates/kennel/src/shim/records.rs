//! The place where trees are on record.

use kennel_sys::runtime_dir::{Hold, RuntimeDir};

/// The place where trees are on record.
pub(super) struct Records {
    pub(super) user: RuntimeDir,
    pub(super) trees: RuntimeDir,
    _hold: Hold,
}

impl Records {
    /// `None`, with one line of warning, where no runtime directory can be had.
    pub(super) fn open() -> Option<Records> {
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
