//! Records in the runtime directory: small JSON files, replaced atomically (lesson 4).

use std::ffi::OsStr;

use kennel_sys::runtime_dir::{DirError, RuntimeDir};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Maximum length of a record, in bytes.
pub(crate) const MAX_RECORD: usize = 1 << 20;

/// Reads a record; `None` if there is no readable one.
pub(crate) fn read<T: DeserializeOwned>(dir: &RuntimeDir, name: impl AsRef<OsStr>) -> Option<T> {
    let text = dir.read_small(name.as_ref(), MAX_RECORD).ok()??;
    serde_json::from_slice(&text).ok()
}

/// Replaces a record: readers see the old or the new one.
pub(crate) fn write(
    dir: &RuntimeDir,
    name: impl AsRef<OsStr>,
    record: &impl Serialize,
) -> Result<(), DirError> {
    let text = serde_json::to_vec(record).expect("strings and numbers can be serialized");
    dir.write_whole(name.as_ref(), &text)
}
