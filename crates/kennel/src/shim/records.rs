//! The runtime directory, with the records of process trees.

use std::cell::OnceCell;

use kennel_sys::runtime_dir::{Hold, RuntimeDir};

/// The records, opened when they are first needed.
#[derive(Default)]
pub(super) struct LazyRecords(OnceCell<Option<Records>>);

impl LazyRecords {
    pub(super) fn get(&self) -> Option<&Records> {
        self.0.get_or_init(Records::open).as_ref()
    }
}

/// The runtime directory of the user, and its directory of tree records.
pub(super) struct Records {
    pub(super) user: RuntimeDir,
    pub(super) trees: RuntimeDir,
    _hold: Hold,
}

impl Records {
    /// Opens them; `None`, with a warning, if there is no usable runtime directory.
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
            .map_err(|error| crate::warn(&format!("running without a runtime directory: {error}")))
            .ok()
    }
}
