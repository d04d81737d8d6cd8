//! What `wrap` keeps. A configuration that still points to Kennel needs its backup: the configurations themselves are
//! never touched here.

use std::path::PathBuf;

use super::inventory::Item;
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
    dir: Option<PathBuf>,
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
        let entries = std::fs::read_dir(records.dir());
        let entries = entries.into_iter().flatten().flatten();
        if !backups.pointing.is_empty() {
            backups.kept = entries.map(|entry| entry.path()).collect();
            backups.kept.sort();
            return backups;
        }
        backups.items = entries
            .map(|entry| Item {
                group: "backups of configurations",
                bytes: entry.metadata().map_or(0, |meta| meta.len()),
                path: entry.path(),
            })
            .collect();
        backups.dir = Some(records.dir().to_owned());
        backups
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
    }

    pub(super) fn remove(&self) {
        for item in &self.items {
            let _ = std::fs::remove_file(&item.path);
        }
        // Ours as well, if nothing else is in them.
        let dir = self.dir.as_deref();
        for dir in dir.into_iter().chain(dir.and_then(|dir| dir.parent())) {
            let _ = std::fs::remove_dir(dir);
        }
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
