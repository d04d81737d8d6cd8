//! Removes files while holding all their locks.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use kennel_guard::Declared;
use kennel_sys::lock::{self, Lock, Mode};
use kennel_sys::runtime_dir::{DirError, RuntimeDir};
use kennel_sys::tree;

use super::inventory::{FILE_DIRECTORIES, Inventory, Item, NESTED, STORES};
use super::names::{is_directory_of_kennel, is_file_of_kennel, is_name_of_kennel};
use super::plain_state::more_than_state;
use crate::checked_dir::CheckedDir;
use crate::key_dir::{DAEMON_LOCK, SPAWN_LOCK};
use crate::ps::words::printable;

/// The locks of a key or store, in the order in which every process takes them.
const LOCKS: &[&str] = &[SPAWN_LOCK, DAEMON_LOCK, "lock"];

/// A directory of a key or store, with its locks held.
struct LockedDir {
    kind: &'static str,
    parent: RuntimeDir,
    name: std::ffi::OsString,
    own: RuntimeDir,
    locks: Vec<Lock>,
}

/// Why a purge did not remove everything.
#[derive(Debug)]
pub(super) enum Failure {
    /// Nothing was removed: a process is in the way.
    Refused(String),
    /// The other files may be gone.
    Partial(String),
}

/// Removes the files of the inventory. Of the declared states, removes only those in `approved`.
pub(super) fn remove(
    user: &RuntimeDir,
    inventory: &Inventory,
    approved: &[PathBuf],
) -> Result<(), Failure> {
    let everything = inventory.is_everything();
    // Every process of Kennel holds the directory: once it is seized, none runs and none can start.
    let seized = match everything {
        true => Some(lock::seize(user).map_err(|error| Failure::Refused(error.to_string()))?),
        false => None,
    };
    if everything {
        check_no_leftovers(user).map_err(Failure::Refused)?;
    }
    let locked = take_locks(user, inventory).map_err(Failure::Refused)?;
    let overlapping =
        take_overlapping_locks(user, inventory, approved).map_err(Failure::Refused)?;
    let removed = clear(user, inventory, approved, locked);
    drop((seized, overlapping));
    removed.map_err(Failure::Partial)
}

/// Records of trees are needed to find their processes again.
fn check_no_leftovers(user: &RuntimeDir) -> Result<(), String> {
    let trees = user
        .existing_subdir("trees")
        .map_err(|error| error.to_string())?;
    let mut kept = crate::kept::living(user);
    // Any process can write a record; an unconfirmed one does not prevent a purge.
    kept.retain(tree::Kept::is_confirmed);
    if !kept.is_empty() {
        let services: Vec<String> = kept
            .iter()
            .map(|it| format!("{} (pid {})", printable(&it.command), it.identity.pid()))
            .collect();
        return Err(format!(
            "services that outlived their server are running: {}; run `kennel stop --all` first",
            services.join(", ")
        ));
    }
    let left = trees.map(|trees| tree::find_leftovers(&trees));
    match left {
        None => Ok(()),
        Some(Ok(left)) if left.is_empty() => Ok(()),
        Some(Ok(left)) => Err(format!(
            "{} processes of killed servers are still running; run `kennel reap` first",
            left.len()
        )),
        Some(Err(error)) => Err(error.to_string()),
    }
}

/// Takes all locks before anything is removed.
fn take_locks(user: &RuntimeDir, inventory: &Inventory) -> Result<Vec<LockedDir>, String> {
    let mut locked = Vec::new();
    let message = |error: DirError| error.to_string();
    for kind in NESTED {
        // A refused directory stays; the inventory names it.
        let Ok(Some(parent)) = user.existing_subdir(kind) else {
            continue;
        };
        for name in parent.entries().map_err(message)? {
            if !inventory.means(kind, &name) || !is_directory_of_kennel(kind, &name) {
                continue;
            }
            let Ok(Some(own)) = parent.existing_subdir(&name) else {
                continue;
            };
            let present = own.entries().map_err(message)?;
            let mut locks = Vec::new();
            for lock in LOCKS
                .iter()
                .filter(|lock| is_name_of_kennel(kind, lock))
                .filter(|lock| present.iter().any(|name| name == **lock))
            {
                let lock = Lock::acquire(&own, lock, Mode::Exclusive);
                locks.push(lock.map_err(|error| error.to_string())?);
            }
            let parent = user.existing_subdir(kind).map_err(message)?;
            locked.extend(parent.map(|parent| LockedDir {
                kind,
                parent,
                name,
                own,
                locks,
            }));
        }
    }
    Ok(locked)
}

/// Takes the locks of other servers whose store is in an approved state, or contains one: files they have open must
/// stay.
fn take_overlapping_locks(
    user: &RuntimeDir,
    inventory: &Inventory,
    approved: &[PathBuf],
) -> Result<Vec<Lock>, String> {
    let message = |error: DirError| error.to_string();
    let mut locks = Vec::new();
    if approved.is_empty() {
        return Ok(locks);
    }
    // A refused directory is an error here: it may contain the lock of such a store.
    let Some(stores) = user.existing_subdir(STORES).map_err(message)? else {
        return Ok(locks);
    };
    // A store that was not declared is known only by its key.
    let keys: BTreeSet<String> = approved.iter().flat_map(|path| keys_around(path)).collect();
    let near = |declared: Declared| {
        let overlaps =
            |path: &PathBuf| path.starts_with(&declared.path) || declared.path.starts_with(path);
        approved.iter().any(overlaps)
    };
    for name in stores.entries().map_err(message)? {
        if inventory.means(STORES, &name) {
            continue;
        }
        let Some(own) = stores.existing_subdir(&name).map_err(message)? else {
            continue;
        };
        let has_lock = own
            .entries()
            .map_err(message)?
            .iter()
            .any(|it| it == "lock");
        let by_key = name.to_str().is_some_and(|name| keys.contains(name));
        if has_lock && (by_key || Declared::at(&own).is_some_and(near)) {
            let lock = Lock::acquire(&own, "lock", Mode::Exclusive);
            locks.push(lock.map_err(|error| {
                format!("another server uses a state inside it or above it: {error}")
            })?);
        }
    }
    Ok(locks)
}

/// The keys that stores at the directories above a path, and at everything below it, would have.
fn keys_around(path: &Path) -> Vec<String> {
    let above = path.ancestors().skip(1).map(kennel_guard::store_key);
    let mut keys: Vec<String> = above.collect();
    let mut dirs = vec![path.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            keys.push(kennel_guard::store_key(&entry.path()));
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                dirs.push(entry.path());
            }
        }
    }
    keys
}

/// Removes a state only if it was shown and approved, and is still declared now that its lock is held.
fn remove_state(
    inventory: &Inventory,
    approved: &[PathBuf],
    store: &OsStr,
    own: &RuntimeDir,
) -> Result<(), String> {
    let Some(Item { path, .. }) = inventory.states.get(store) else {
        return Ok(());
    };
    if !approved.contains(path) {
        return Ok(());
    }
    let still = Declared::at(own).is_some_and(|declared| declared.path == *path);
    // Another process may have put a link in its place, or in the place of a directory above it.
    let there = kennel_guard::real_path(path).is_ok_and(|real| real == *path);
    if !still || !there {
        let why = match still {
            true => {
                "it or a parent directory was replaced by a link since it was declared; \
                 check its target and remove it yourself"
            }
            false => "another state was declared in the meantime; try again",
        };
        return Err(format!("{} is kept: {why}", path.display()));
    }
    // Checked again: the user took time to answer, and it may contain a work tree by now.
    if let Some(why) = more_than_state(path) {
        return Err(format!("{} is kept: {why}", path.display()));
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(());
    };
    let Some(parent) = CheckedDir::open(parent)? else {
        return Ok(());
    };
    match path.symlink_metadata() {
        Ok(meta) if meta.is_dir() => parent.remove_tree(name),
        _ => parent.remove_own_file(name),
    }
}

fn clear(
    user: &RuntimeDir,
    inventory: &Inventory,
    approved: &[PathBuf],
    locked: Vec<LockedDir>,
) -> Result<(), String> {
    let everything = inventory.is_everything();
    let message = |error: DirError| error.to_string();
    for LockedDir {
        kind,
        parent,
        name,
        own,
        locks,
    } in locked
    {
        if kind == STORES {
            remove_state(inventory, approved, &name, &own)?;
        }
        for file in own.entries().map_err(message)? {
            if !LOCKS.iter().any(|lock| file == *lock) && is_file_of_kennel(kind, &own, &file) {
                own.unlink(&file).map_err(message)?;
            }
        }
        for lock in locks {
            lock.remove(&own).map_err(|error| error.to_string())?;
        }
        parent.remove_subdir_if_empty(&name).map_err(message)?;
    }
    for (kind, _) in FILE_DIRECTORIES {
        let Ok(Some(dir)) = user.existing_subdir(kind) else {
            continue;
        };
        for name in dir.entries().map_err(message)? {
            if inventory.means(kind, &name) && is_file_of_kennel(kind, &dir, &name) {
                dir.unlink(&name).map_err(message)?;
            }
        }
    }
    if everything {
        for kind in NESTED
            .iter()
            .chain(FILE_DIRECTORIES.iter().map(|(kind, _)| kind))
        {
            // An entry that is not Kennel's, such as a file or a link, stays.
            let _ = user.remove_subdir_if_empty(kind);
        }
        // The directory stays if it contains anything else.
        if user.is_at_its_path() {
            let _ = std::fs::remove_dir(user.path());
        }
    }
    Ok(())
}
