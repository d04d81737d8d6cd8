//! The state of a configuration, which is only read.

use std::path::Path;

use super::entry::{Entry, Unreadable};
use super::places::FoundConfig;
use super::plan::{self, Proposal, Setting};
use super::undo::Records;
use super::{entries, is_skipped, shape_of, write};
use crate::sharing::ServersToml;

/// The state of a configuration, for `kennel doctor`.
pub(crate) struct ConfigStatus {
    pub(crate) entries: Vec<Entry>,
    /// The names of the servers that a plain `kennel wrap` would change.
    pub(crate) to_wrap: Vec<String>,
    /// Why it cannot change them, and what to do.
    pub(crate) obstacle: Option<String>,
}

/// Determines the state of a configuration, without changing it.
pub(crate) fn config_status(found: &FoundConfig, home: &Path) -> Result<ConfigStatus, String> {
    let source = write::read(&found.path)?;
    let shape = shape_of(found, &source)?;
    let words = |error: Unreadable| error.to_string();
    let entries = shape.entries(&source.text).map_err(words)?;
    let (config, _) = ServersToml::load_quietly();
    let setting = Setting {
        // Any name will do: nothing is written.
        program: "/kennel",
        home: Path::new("/"),
        config: &config,
    };
    let plan = plan::of(&source.text, shape, found, setting).map_err(words)?;
    let rows = plan.rows.into_iter();
    let to_change = rows.filter(|row| row.proposal != Proposal::Skip);
    let to_wrap = match is_skipped(found, &Records::of_user(home)) {
        true => Vec::new(),
        false => to_change.map(|row| row.name).collect(),
    };
    Ok(ConfigStatus {
        entries,
        to_wrap,
        obstacle: write::writable(&source.spot).err(),
    })
}

/// The servers of a configuration.
pub(crate) fn entries_of(found: &FoundConfig) -> Result<Vec<Entry>, String> {
    let source = write::read(&found.path)?;
    let shape = shape_of(found, &source)?;
    entries(shape, &source.text)
}
