//! Kennel's files in the runtime directory, by group, and the declared state of servers. A file whose name `names.rs`
//! does not know is not Kennel's, and stays.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use kennel_guard::Declared;
use kennel_sys::runtime_dir::{DirError, RuntimeDir};
use serde::Serialize;

use crate::checked_dir::CheckedDir;
use crate::daemon::{LOG, MAX_LOG_READ, OLDER_LOG};
use crate::guard::record as guards;
use crate::key_dir::KeyDir;
use crate::purge::names::{is_directory_of_kennel, is_file_of_kennel};
use crate::purge::plain_state::more_than_state;

pub(super) const STORES: &str = "stores";
/// Directories with a directory for each key or store, each with a lock.
pub(super) const NESTED: &[&str] = &["daemons", "guards", STORES];
/// Directories of files.
pub(super) const FILE_DIRECTORIES: &[(&str, &str)] = &[
    ("solo", RUNTIME),
    ("starting", RUNTIME),
    ("trees", RUNTIME),
    ("eras", CACHES),
];

const RUNTIME: &str = "runtime";
const LOGS: &str = "logs";
const CACHES: &str = "caches";
const STATE: &str = "state that was declared with --state";

/// A file to remove, or a directory of state with all its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Item {
    pub(super) group: &'static str,
    #[serde(serialize_with = "crate::stdout::path_in_json")]
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
}

/// Why there is no inventory.
#[derive(Debug)]
pub(super) enum NoInventory {
    Failed(DirError),
    /// Several keys begin with the name.
    Ambiguous(Vec<KeyDir>),
}

impl From<DirError> for NoInventory {
    fn from(error: DirError) -> NoInventory {
        NoInventory::Failed(error)
    }
}

/// Everything to remove.
#[derive(Debug, Default)]
pub(super) struct Inventory {
    pub(super) items: Vec<Item>,
    /// The state of servers, by the store's name. Only states that a person approved are removed (`states.rs`), none
    /// that is declared later.
    pub(super) states: BTreeMap<OsString, Item>,
    /// Declared states that are kept because they may contain more than state, with the reason.
    pub(super) too_broad: Vec<(PathBuf, String)>,
    /// Files in Kennel's directories that are not Kennel's.
    pub(super) unrelated: Vec<PathBuf>,
    /// The files to remove, by kind and name; all files if no name was given.
    meant: Option<BTreeSet<(&'static str, OsString)>>,
}

impl Inventory {
    /// The inventory of everything, or of the server called `name`.
    pub(super) fn of(
        user: Option<&RuntimeDir>,
        name: Option<&str>,
    ) -> Result<Inventory, NoInventory> {
        let Some(user) = user else {
            return Ok(Inventory::default());
        };
        let mut inventory = Inventory {
            meant: name.map(|name| files_of_server(user, name)).transpose()?,
            ..Inventory::default()
        };
        for kind in NESTED {
            inventory.nested(user, kind)?;
        }
        for (kind, group) in FILE_DIRECTORIES {
            inventory.flat(user, kind, group)?;
        }
        if inventory.is_everything() {
            inventory.empty(user)?;
        }
        inventory.items.sort_by(|one, other| {
            (order(one.group), &one.path).cmp(&(order(other.group), &other.path))
        });
        Ok(inventory)
    }

    pub(super) fn is_everything(&self) -> bool {
        self.meant.is_none()
    }

    /// Whether to remove this key, or a file named after it. Files without a key are removed only with everything.
    pub(super) fn means(&self, kind: &str, name: &OsStr) -> bool {
        let is_it = |(other, named): &(&str, OsString)| *other == kind && named == name;
        self.meant
            .as_ref()
            .is_none_or(|meant| meant.iter().any(is_it))
    }

    fn nested(&mut self, user: &RuntimeDir, kind: &str) -> Result<(), DirError> {
        let Some(dir) = self.directory(user, OsStr::new(kind)) else {
            return Ok(());
        };
        for name in dir.entries()? {
            if !self.means(kind, &name) {
                continue;
            }
            if !is_directory_of_kennel(kind, &name) {
                self.unrelated.push(dir.path().join(&name));
                continue;
            }
            let Some(own) = self.directory(&dir, &name) else {
                continue;
            };
            let files = own.entries()?;
            for file in &files {
                let group = match file.to_str() {
                    Some(LOG | OLDER_LOG) => LOGS,
                    _ => RUNTIME,
                };
                self.entry(group, kind, &own, file);
            }
            if files.is_empty() {
                self.item(RUNTIME, own.path().to_owned());
            }
            if kind == STORES {
                self.state(name, &own);
            }
        }
        Ok(())
    }

    /// Opens a subdirectory if it exists. A refused one may not be Kennel's, and stays.
    fn directory(&mut self, parent: &RuntimeDir, name: &OsStr) -> Option<RuntimeDir> {
        parent.existing_subdir(name).unwrap_or_else(|_| {
            self.unrelated.push(parent.path().join(name));
            None
        })
    }

    fn state(&mut self, store: OsString, own: &RuntimeDir) {
        let Some(Declared { path, .. }) = Declared::at(own) else {
            return;
        };
        if path.symlink_metadata().is_err() {
            return;
        }
        if let Some(why) = more_than_state(&path).or_else(|| foreign_owner(&path)) {
            return self.too_broad.push((path, why));
        }
        let state = Item {
            group: STATE,
            bytes: size(&path),
            path,
        };
        self.states.insert(store, state);
    }

    fn flat(&mut self, user: &RuntimeDir, kind: &str, group: &'static str) -> Result<(), DirError> {
        let Some(dir) = self.directory(user, OsStr::new(kind)) else {
            return Ok(());
        };
        for name in dir.entries()? {
            if self.means(kind, &name) {
                self.entry(group, kind, &dir, &name);
            }
        }
        Ok(())
    }

    /// Adds directories of Kennel that sessions left empty.
    fn empty(&mut self, user: &RuntimeDir) -> Result<(), DirError> {
        for kind in NESTED
            .iter()
            .chain(FILE_DIRECTORIES.iter().map(|(kind, _)| kind))
        {
            if let Ok(Some(dir)) = user.existing_subdir(kind)
                && dir.entries()?.is_empty()
            {
                self.item(RUNTIME, dir.path().to_owned());
            }
        }
        Ok(())
    }

    fn entry(&mut self, group: &'static str, kind: &str, dir: &RuntimeDir, name: &OsStr) {
        match is_file_of_kennel(kind, dir, name) {
            true => self.item(group, dir.path().join(name)),
            false => self.unrelated.push(dir.path().join(name)),
        }
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

/// The size of everything below a path, without following links.
fn size(path: &Path) -> u64 {
    let Ok(meta) = path.symlink_metadata() else {
        return 0;
    };
    if !meta.is_dir() {
        return meta.len();
    }
    let inside = std::fs::read_dir(path).into_iter().flatten().flatten();
    inside.map(|entry| size(&entry.path())).sum()
}

/// Why a state cannot be removed safely: it, or a directory above it, belongs to another user.
fn foreign_owner(path: &Path) -> Option<String> {
    let (parent, name) = (path.parent()?, path.file_name()?);
    match CheckedDir::open(parent) {
        Err(why) => Some(why),
        Ok(parent) => {
            let parent = parent?;
            parent
                .own_file(name)
                .map_or_else(|| parent.subdir(name).err(), |_| None)
        }
    }
}

/// The files of the server called `name`. The name may be the first letters of a key only if no server is called so, as
/// for `kennel logs`.
fn files_of_server(
    user: &RuntimeDir,
    name: &str,
) -> Result<BTreeSet<(&'static str, OsString)>, NoInventory> {
    let mut meant = BTreeSet::new();
    let of_key = |key: &str| ["daemons", "eras"].map(|kind| (kind, key.into()));
    for key_dir in KeyDir::all()? {
        let named = key_dir.record().is_some_and(|record| record.name == name);
        if named || key_dir.key() == name || has_served(&key_dir, name) {
            meant.extend(of_key(key_dir.key()));
        }
    }
    let guards = guards::dirs_of(user, name);
    meant.extend(guards.into_iter().map(|place| ("guards", place)));
    if let Ok(Some(stores)) = user.existing_subdir(STORES) {
        for store in stores.entries()? {
            let own = stores.existing_subdir(&store).ok().flatten();
            let declared = own.as_ref().and_then(Declared::at);
            if declared.is_some_and(|declared| declared.name == name) {
                meant.insert((STORES, store));
            }
        }
    }
    if meant.is_empty() {
        let short = KeyDir::beginning_with(name)?;
        if short.len() > 1 {
            return Err(NoInventory::Ambiguous(short));
        }
        meant.extend(short.iter().flat_map(|key_dir| of_key(key_dir.key())));
    }
    Ok(meant)
}

/// Whether the log of this key's daemon says that it served `name`. Lines of its servers are marked, and do not count.
pub(crate) fn has_served(key_dir: &KeyDir, name: &str) -> bool {
    let said = |line: &str| {
        let words = line.split_once(' ').map(|(_, words)| words);
        words.and_then(|words| words.strip_prefix("serves ")) == Some(name)
    };
    [LOG, OLDER_LOG].iter().any(|log| {
        let text = key_dir
            .dir()
            .read_small(log, MAX_LOG_READ as usize)
            .ok()
            .flatten();
        let text = text.unwrap_or_default();
        String::from_utf8_lossy(&text).lines().any(said)
    })
}
