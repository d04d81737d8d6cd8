//! What there is of Kennel's in the runtime directory, by group. What is not listed here is not Kennel's, and stays.

use std::ffi::OsString;
use std::path::PathBuf;

use kennel_sys::runtime_dir::{DirError, RuntimeDir};
use serde::Serialize;

use crate::daemon::{LOG, OLDER_LOG};
use crate::meeting::Meeting;

/// Directories of directories: one for each key or store, with a lock in each.
pub(super) const NESTED: &[&str] = &["daemons", "guards", "stores"];
/// Directories of files.
pub(super) const FLAT: &[(&str, &str)] = &[
    ("solo", RUNTIME),
    ("starting", RUNTIME),
    ("trees", RUNTIME),
    ("eras", CACHES),
];

const RUNTIME: &str = "runtime";
const LOGS: &str = "logs";
const CACHES: &str = "caches";

/// No log is longer.
const LONGEST_LOG: usize = 64 << 20;

/// A file that would go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Item {
    pub(super) group: &'static str,
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
}

/// What would go.
#[derive(Debug, Default)]
pub(super) struct Inventory {
    pub(super) items: Vec<Item>,
    /// The only keys that are meant; all if there are none named.
    pub(super) keys: Option<Vec<String>>,
}

impl Inventory {
    /// Everything, or what belongs to the server that `name` names.
    pub(super) fn of(user: Option<&RuntimeDir>, name: Option<&str>) -> Result<Inventory, DirError> {
        let Some(user) = user else {
            return Ok(Inventory::default());
        };
        let keys = match name {
            Some(name) => Some(keys_of(name)?),
            None => None,
        };
        let mut inventory = Inventory {
            items: Vec::new(),
            keys,
        };
        for kind in NESTED {
            inventory.nested(user, kind)?;
        }
        for (kind, group) in FLAT {
            inventory.flat(user, kind, group)?;
        }
        inventory.items.sort_by(|one, other| {
            (order(one.group), &one.path).cmp(&(order(other.group), &other.path))
        });
        Ok(inventory)
    }

    /// Whether a key, or a file called like one, is meant. What has no key is meant only with everything.
    pub(super) fn means(&self, kind: &str, name: &OsString) -> bool {
        match &self.keys {
            None => true,
            Some(keys) => {
                let keyed = matches!(kind, "daemons" | "eras");
                keyed && keys.iter().any(|key| name.to_str() == Some(key))
            }
        }
    }

    fn nested(&mut self, user: &RuntimeDir, kind: &str) -> Result<(), DirError> {
        let Some(dir) = user.existing_subdir(kind)? else {
            return Ok(());
        };
        for name in dir.entries()? {
            if !self.means(kind, &name) {
                continue;
            }
            let Some(own) = dir.existing_subdir(&name)? else {
                continue;
            };
            let before = self.items.len();
            for file in own.entries()? {
                let group = match file.to_str() {
                    Some(LOG | OLDER_LOG) => LOGS,
                    _ => RUNTIME,
                };
                self.item(group, own.path().join(file));
            }
            if self.items.len() == before {
                self.item(RUNTIME, own.path().to_owned());
            }
        }
        Ok(())
    }

    fn flat(&mut self, user: &RuntimeDir, kind: &str, group: &'static str) -> Result<(), DirError> {
        let Some(dir) = user.existing_subdir(kind)? else {
            return Ok(());
        };
        for name in dir.entries()? {
            if self.means(kind, &name) {
                self.item(group, dir.path().join(name));
            }
        }
        Ok(())
    }

    fn item(&mut self, group: &'static str, path: PathBuf) {
        let bytes = path.symlink_metadata().map_or(0, |meta| meta.len());
        self.items.push(Item { group, path, bytes });
    }
}

fn order(group: &str) -> usize {
    let groups = [RUNTIME, LOGS, CACHES];
    groups
        .iter()
        .position(|known| *known == group)
        .unwrap_or(groups.len())
}

/// The keys of the server that a person means.
fn keys_of(name: &str) -> Result<Vec<String>, DirError> {
    let is_called = |meeting: &&Meeting| {
        let named =
            meeting.record().is_some_and(|record| record.name == name) || has_served(meeting, name);
        named || meeting.key() == name || (name.len() >= 4 && meeting.key().starts_with(name))
    };
    let meetings = Meeting::all()?;
    let keys = meetings.iter().filter(is_called);
    Ok(keys.map(|meeting| meeting.key().to_owned()).collect())
}

/// Whether the daemon of this key said that it serves `name`. What its servers say is marked as theirs.
fn has_served(meeting: &Meeting, name: &str) -> bool {
    let said = |line: &str| {
        let words = line.split_once(' ').map(|(_, words)| words);
        words.and_then(|words| words.strip_prefix("serves ")) == Some(name)
    };
    [LOG, OLDER_LOG].iter().any(|log| {
        let text = meeting.dir().read_small(log, LONGEST_LOG).ok().flatten();
        let text = text.unwrap_or_default();
        String::from_utf8_lossy(&text).lines().any(said)
    })
}
