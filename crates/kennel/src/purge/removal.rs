//! The removal itself, while holding every lock there is.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::PathBuf;

use kennel_guard::Declared;
use kennel_sys::lock::{self, Lock, Mode};
use kennel_sys::runtime_dir::{DirError, RuntimeDir};
use kennel_sys::tree;

use super::inventory::{FLAT, Inventory, Item, NESTED, STORES, is_removable};
use super::plain_state::more_than_state;
use crate::judged_dir::JudgedDir;
use crate::meeting::{DAEMON_LOCK, SPAWN_LOCK};
use crate::ps::words::printable;

/// The locks of a key or store, in the order in which whoever needs both takes them.
const LOCKS: &[&str] = &[SPAWN_LOCK, DAEMON_LOCK, "lock"];

/// A directory of a key or store, with its locks won.
struct Won {
    kind: &'static str,
    parent: RuntimeDir,
    name: std::ffi::OsString,
    own: RuntimeDir,
    locks: Vec<Lock>,
}

/// Removes what the inventory means. An error says who is in the way, and then nothing was removed.
/// Of the states of servers, only `approved` ones go.
pub(super) fn remove(
    user: &RuntimeDir,
    inventory: &Inventory,
    approved: &[PathBuf],
) -> Result<(), String> {
    let everything = inventory.is_everything();
    // Everyone who runs holds the directory: with it in our hands, nobody does, and nobody comes.
    let seized = match everything {
        true => Some(lock::seize(user).map_err(|error| error.to_string())?),
        false => None,
    };
    if everything {
        nothing_left_over(user)?;
    }
    let won = win(user, inventory)?;
    let removed = clear(user, inventory, approved, won);
    drop(seized);
    removed.map_err(|error| format!("not all of it: {error}"))
}

/// Records of trees are what finds their processes again.
fn nothing_left_over(user: &RuntimeDir) -> Result<(), String> {
    let trees = user
        .existing_subdir("trees")
        .map_err(|error| error.to_string())?;
    let kept = crate::kept::living(user);
    if !kept.is_empty() {
        let services: Vec<String> = kept
            .iter()
            .map(|it| format!("{} (pid {})", printable(&it.command), it.identity.pid()))
            .collect();
        return Err(format!(
            "services that outlived their server run: {}; `kennel stop --all` first",
            services.join(", ")
        ));
    }
    let left = trees.map(|trees| tree::find_leftovers(trees.as_fd()));
    match left {
        None => Ok(()),
        Some(Ok(left)) if left.is_empty() => Ok(()),
        Some(Ok(left)) => Err(format!(
            "{} processes of killed servers are left; `kennel reap` first",
            left.len()
        )),
        Some(Err(error)) => Err(error.to_string()),
    }
}

/// Wins every lock before anything is touched.
fn win(user: &RuntimeDir, inventory: &Inventory) -> Result<Vec<Won>, String> {
    let mut won = Vec::new();
    let told = |error: DirError| error.to_string();
    for kind in NESTED {
        let Some(parent) = user.existing_subdir(kind).map_err(told)? else {
            continue;
        };
        for name in parent.entries().map_err(told)? {
            if !inventory.means(kind, &name) {
                continue;
            }
            let Some(own) = parent.existing_subdir(&name).map_err(told)? else {
                continue;
            };
            let present = own.entries().map_err(told)?;
            let mut locks = Vec::new();
            for lock in LOCKS
                .iter()
                .filter(|lock| present.iter().any(|name| name == **lock))
            {
                let lock = Lock::acquire(&own, lock, Mode::Exclusive);
                locks.push(lock.map_err(|error| error.to_string())?);
            }
            let parent = user.existing_subdir(kind).map_err(told)?;
            won.extend(parent.map(|parent| Won {
                kind,
                parent,
                name,
                own,
                locks,
            }));
        }
    }
    Ok(won)
}

/// Only what was shown and approved, and is still declared now that its lock is ours.
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
    // Somebody may have put a link in its place, or in the place of what it is in.
    let there = kennel_guard::real_path(path).is_ok_and(|real| real == *path);
    if !still || !there {
        return Ok(());
    }
    // Asked again: a question takes its time, and a work tree may be there by now.
    if let Some(why) = more_than_state(path) {
        return Err(format!("{} is kept: {why}", path.display()));
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(());
    };
    let Some(parent) = JudgedDir::open(parent)? else {
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
    won: Vec<Won>,
) -> Result<(), String> {
    let everything = inventory.is_everything();
    let told = |error: DirError| error.to_string();
    for Won {
        kind,
        parent,
        name,
        own,
        locks,
    } in won
    {
        if kind == STORES {
            remove_state(inventory, approved, &name, &own)?;
        }
        for file in own.entries().map_err(told)? {
            if !LOCKS.iter().any(|lock| file == *lock) && is_removable(&own, &file) {
                own.unlink(&file).map_err(told)?;
            }
        }
        for lock in locks {
            lock.remove(&own).map_err(|error| error.to_string())?;
        }
        parent.remove_subdir_if_empty(&name).map_err(told)?;
    }
    for (kind, _) in FLAT {
        let Some(dir) = user.existing_subdir(kind).map_err(told)? else {
            continue;
        };
        for name in dir.entries().map_err(told)? {
            if inventory.means(kind, &name) && is_removable(&dir, &name) {
                dir.unlink(&name).map_err(told)?;
            }
        }
    }
    if everything {
        for kind in NESTED.iter().chain(FLAT.iter().map(|(kind, _)| kind)) {
            user.remove_subdir_if_empty(kind).map_err(told)?;
        }
        // What is not ours keeps the directory.
        if user.is_at_its_path() {
            let _ = std::fs::remove_dir(user.path());
        }
    }
    Ok(())
}
