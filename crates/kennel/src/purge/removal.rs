//! The removal itself, while holding every lock there is.

use std::os::fd::AsFd;

use kennel_sys::lock::{self, Lock, Mode};
use kennel_sys::runtime_dir::{DirError, RuntimeDir};
use kennel_sys::tree;

use super::inventory::{FLAT, Inventory, NESTED};
use crate::meeting::{DAEMON_LOCK, SPAWN_LOCK};

/// The locks of a key or store, in the order in which whoever needs both takes them.
const LOCKS: &[&str] = &[SPAWN_LOCK, DAEMON_LOCK, "lock"];

/// A directory of a key or store, with its locks won.
struct Won {
    parent: RuntimeDir,
    name: std::ffi::OsString,
    own: RuntimeDir,
    locks: Vec<Lock>,
}

/// Removes what the inventory means. An error says who is in the way, and then nothing was removed.
pub(super) fn remove(user: &RuntimeDir, inventory: &Inventory) -> Result<(), String> {
    let everything = inventory.keys.is_none();
    // Everyone who runs holds the directory: with it in our hands, nobody does, and nobody comes.
    let seized = match everything {
        true => Some(lock::seize(user).map_err(|error| error.to_string())?),
        false => None,
    };
    if everything {
        nothing_left_over(user)?;
    }
    let won = win(user, inventory)?;
    let removed = clear(user, inventory, won, everything);
    drop(seized);
    removed.map_err(|error| format!("not all of it: {error}"))
}

/// Records of trees are what finds their processes again.
fn nothing_left_over(user: &RuntimeDir) -> Result<(), String> {
    let trees = user
        .existing_subdir("trees")
        .map_err(|error| error.to_string())?;
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
                parent,
                name,
                own,
                locks,
            }));
        }
    }
    Ok(won)
}

fn clear(
    user: &RuntimeDir,
    inventory: &Inventory,
    won: Vec<Won>,
    everything: bool,
) -> Result<(), String> {
    let told = |error: DirError| error.to_string();
    for Won {
        parent,
        name,
        own,
        locks,
    } in won
    {
        for file in own.entries().map_err(told)? {
            if !LOCKS.iter().any(|lock| file == *lock) {
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
            if inventory.means(kind, &name) {
                dir.unlink(&name).map_err(told)?;
            }
        }
    }
    if everything {
        for kind in NESTED.iter().chain(FLAT.iter().map(|(kind, _)| kind)) {
            user.remove_subdir_if_empty(kind).map_err(told)?;
        }
        // What is not ours keeps the directory.
        let _ = std::fs::remove_dir(user.path());
    }
    Ok(())
}
