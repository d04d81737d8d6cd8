//! The backups that `wrap` keeps. A configuration that still starts servers through Kennel needs its backup; purge does
//! not change configurations.
//!
//! Removes only files that `wrap` writes, by their names, in a checked directory (`checked_dir.rs`).

use std::ffi::OsString;
use std::path::PathBuf;

use super::inventory::Item;
use crate::checked_dir::CheckedDir;
use crate::wrap::lock::{LOCK, NotLocked, RecordsLock};
use crate::wrap::places::Bases;
use crate::wrap::splice;
use crate::wrap::undo::Records;

const BACKUPS: &str = "backups of configurations";

#[derive(Debug, Default)]
pub(super) struct Backups {
    pub(super) items: Vec<Item>,
    /// The configurations that still start servers through Kennel.
    wrapping: Vec<PathBuf>,
    /// The files kept because of them.
    pub(super) kept: Vec<PathBuf>,
    /// Files in the directory of backups that are no backups.
    pub(super) unrelated: Vec<PathBuf>,
    /// Why the directory of backups is not touched.
    refusal: Option<String>,
    records: Option<Records>,
    /// The names of the backups.
    names: Vec<OsString>,
}

impl Backups {
    /// The backups of the user. The purge of one server removes none.
    pub(super) fn of_user(one_server: bool) -> Backups {
        let Some(bases) = Bases::of_user() else {
            return Backups::default();
        };
        let records = Records::of_user(&bases.home);
        let wrapping = wrapping_configurations(&bases, &records);
        let mut backups = Backups {
            wrapping,
            ..Backups::default()
        };
        if one_server {
            return backups;
        }
        match records.checked_dir() {
            Ok(Some((_, dir))) => backups.collect(&dir),
            Ok(None) => {}
            Err(why) => backups.refusal = Some(why),
        }
        if backups.wrapping.is_empty() {
            backups.items.extend(lock_file(&records));
        }
        backups.records = Some(records);
        backups
    }

    fn collect(&mut self, dir: &CheckedDir) {
        for name in dir.names().unwrap_or_default() {
            let path = dir.path().join(&name);
            match dir
                .own_file(&name)
                .filter(|_| Records::is_record_name(&name))
            {
                None => self.unrelated.push(path),
                Some(_) if !self.wrapping.is_empty() => self.kept.push(path),
                Some(bytes) => {
                    self.items.push(Item {
                        group: BACKUPS,
                        bytes,
                        path,
                    });
                    self.names.push(name);
                }
            }
        }
    }

    /// Prints what else to do to remove Kennel completely.
    pub(super) fn print_hints(&self) {
        if !self.wrapping.is_empty() {
            crate::warn(&format!(
                "these still start their servers through kennel: {}; `kennel unwrap` restores them",
                joined(&self.wrapping)
            ));
        }
        if !self.kept.is_empty() {
            crate::warn(&format!(
                "these backups are kept for `kennel unwrap`: {}",
                joined(&self.kept)
            ));
        }
        if !self.unrelated.is_empty() {
            crate::warn(&format!(
                "not files of kennel, so not removed: {}",
                joined(&self.unrelated)
            ));
        }
        if let Some(why) = &self.refusal {
            crate::warn(&format!(
                "backups of configurations are not removed: {why}; check it, and remove it yourself if it is yours"
            ));
        }
    }

    pub(super) fn remove(&self) -> Result<(), String> {
        let Some(records) = &self.records else {
            return Ok(());
        };
        // Opened and checked again: the user took time to answer.
        let Some(kennels) = records.kennels_dir()? else {
            return Ok(());
        };
        // Dropped last: it removes its own file.
        let _lock = match self.items.is_empty() {
            true => None,
            false => lock(records)?,
        };
        let Some((_, dir)) = records.checked_dir()? else {
            return Ok(());
        };
        if !self.names.is_empty() {
            let bases = Bases::of_user();
            let wrapping = bases.map(|bases| wrapping_configurations(&bases, records));
            if let Some(path) = wrapping.iter().flatten().next() {
                return Err(format!(
                    "{} was wrapped in the meantime, so the backups of configurations are kept",
                    path.display()
                ));
            }
        }
        for name in &self.names {
            dir.remove_own_file(name)?;
        }
        // Kennel's own directories too, if they are empty.
        Records::remove_dirs_if_empty(&kennels);
        Ok(())
    }
}

/// Excludes `wrap` and `unwrap`. `None` if the file of the lock cannot be used: no `wrap` can take it either.
fn lock(records: &Records) -> Result<Option<RecordsLock<'_>>, String> {
    match RecordsLock::take(records, "kennel purge") {
        Ok(lock) => Ok(Some(lock)),
        Err(NotLocked::Unusable(_)) => Ok(None),
        Err(error @ NotLocked::Held(_)) => Err(error.into_text()),
    }
}

/// The file of the lock, which a `wrap` that was killed, or the last one, leaves.
fn lock_file(records: &Records) -> Option<Item> {
    let kennels = records.kennels_dir().ok()??;
    let bytes = kennels.own_file(LOCK.as_ref())?;
    Some(Item {
        group: BACKUPS,
        bytes,
        path: kennels.path().join(LOCK),
    })
}

fn joined(paths: &[PathBuf]) -> String {
    let paths = paths.iter().map(|path| path.display().to_string());
    paths.collect::<Vec<_>>().join(", ")
}

fn wrapping_configurations(bases: &Bases, records: &Records) -> Vec<PathBuf> {
    let recorded = records
        .all()
        .into_iter()
        .map(|record| crate::wrap::places::FoundConfig {
            client: None,
            path: record.path,
            shape: None,
            project: true,
        });
    let mut paths: Vec<PathBuf> = Vec::new();
    for found in bases.find(&[]).into_iter().chain(recorded) {
        let entries = crate::wrap::entries_of(&found).unwrap_or_default();
        let behind = entries.iter().filter_map(|entry| entry.command());
        if behind
            .into_iter()
            .any(|command| splice::kennel_prefix(&command).is_some())
            && !paths.contains(&found.path)
        {
            paths.push(found.path);
        }
    }
    paths
}
