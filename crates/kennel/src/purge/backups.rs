//! What `wrap` keeps. A configuration that still points to Kennel needs its backup: the configurations themselves are
//! never touched here.
//!
//! Only files that `wrap` writes are removed, by their names, in a directory that is judged (`judged_dir.rs`).

use std::ffi::OsString;
use std::path::PathBuf;

use super::inventory::Item;
use crate::judged_dir::JudgedDir;
use crate::wrap::places::Bases;
use crate::wrap::splice;
use crate::wrap::undo::Records;

#[derive(Debug, Default)]
pub(super) struct Backups {
    pub(super) items: Vec<Item>,
    /// The configurations that still have Kennel before their servers.
    pointing: Vec<PathBuf>,
    /// What stays for their sake.
    pub(super) kept: Vec<PathBuf>,
    /// What is in the directory of backups and is none.
    pub(super) unrelated: Vec<PathBuf>,
    /// Why the directory of backups is left alone.
    refusal: Option<String>,
    records: Option<Records>,
    /// The backups, by their names in the directory.
    names: Vec<OsString>,
}

impl Backups {
    /// Those of the user. One server alone has none of its own.
    pub(super) fn of_user(one_server: bool) -> Backups {
        let Some(bases) = Bases::of_user() else {
            return Backups::default();
        };
        let records = Records::of_user(&bases.home);
        let pointing = pointing(&bases, &records);
        let mut backups = Backups {
            pointing,
            ..Backups::default()
        };
        if one_server {
            return backups;
        }
        match records.judged_dir() {
            Ok(Some((_, dir))) => backups.look(&dir),
            Ok(None) => {}
            Err(why) => backups.refusal = Some(why),
        }
        backups.records = Some(records);
        backups
    }

    fn look(&mut self, dir: &JudgedDir) {
        for name in dir.names().unwrap_or_default() {
            let path = dir.path().join(&name);
            match dir.own_file(&name).filter(|_| Records::wrote(&name)) {
                None => self.unrelated.push(path),
                Some(_) if !self.pointing.is_empty() => self.kept.push(path),
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

    /// Says what else is to be done, if Kennel is to go for good.
    pub(super) fn say(&self) {
        if !self.pointing.is_empty() {
            crate::warn(&format!(
                "these still start their servers behind kennel: {}; `kennel unwrap` gives them back",
                joined(&self.pointing)
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
                "these are not kennel's, and are left: {}",
                joined(&self.unrelated)
            ));
        }
        if let Some(why) = &self.refusal {
            crate::warn(&format!(
                "backups of configurations are left alone: {why}; look at it, and remove it yourself if it is yours"
            ));
        }
    }

    pub(super) fn remove(&self) -> Result<(), String> {
        // Opened and judged again: a question takes its time.
        let judged = self.records.as_ref().map(Records::judged_dir);
        let Some((kennels, dir)) = judged.transpose()?.flatten() else {
            return Ok(());
        };
        for name in &self.names {
            dir.remove_own_file(name)?;
        }
        // Ours as well, if nothing else is in them.
        Records::remove_dirs_if_empty(&kennels);
        Ok(())
    }
}

fn joined(paths: &[PathBuf]) -> String {
    let paths = paths.iter().map(|path| path.display().to_string());
    paths.collect::<Vec<_>>().join(", ")
}

fn pointing(bases: &Bases, records: &Records) -> Vec<PathBuf> {
    let recorded = records
        .all()
        .into_iter()
        .map(|record| crate::wrap::places::Found {
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
            .any(|command| splice::behind(&command).is_some())
            && !paths.contains(&found.path)
        {
            paths.push(found.path);
        }
    }
    paths
}
