//! The backups that `wrap` keeps. A configuration that still starts servers through Kennel needs its backup; purge does
//! not change configurations.
//!
//! Removes only files that `wrap` writes, by their names, in a checked directory (`checked_dir.rs`).

use std::ffi::OsString;
use std::path::PathBuf;

use super::inventory::Item;
use crate::checked_dir::CheckedDir;
use crate::wrap::places::Bases;
use crate::wrap::splice;
use crate::wrap::undo::Records;

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
                        group: "backups of configurations",
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
        // Opened and checked again: the user took time to answer.
        let judged = self.records.as_ref().map(Records::checked_dir);
        let Some((kennels, dir)) = judged.transpose()?.flatten() else {
            return Ok(());
        };
        for name in &self.names {
            dir.remove_own_file(name)?;
        }
        // Kennel's own directories too, if they are empty.
        Records::remove_dirs_if_empty(&kennels);
        Ok(())
    }
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
