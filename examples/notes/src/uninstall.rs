//! `notes uninstall`: an inventory, a question, and deletion under the lock.

use std::fmt::Display;
use std::fs;
use std::io::{self, IsTerminal as _, Write as _};

use kennel_guard::{GuardBuilder, Refusal, Seized};

use crate::cli;
use crate::failure::Failure;
use crate::inventory::{Entry, Inventory, Size};
use crate::place::Place;

pub(crate) fn run(args: &cli::Uninstall, guard: GuardBuilder) -> Result<(), Failure> {
    let place = Place::of(&args.store)?;
    let guard = place.guarded_by(guard);
    if let Some(held) = guard.probe().map_err(Failure::failed)?.first() {
        return Err(in_use(held));
    }
    let inventory = Inventory::of(&place, &guard)?;
    if inventory.is_empty() {
        return Err(Failure::nothing_found(format!(
            "nothing to remove: the store {place} has no files"
        )));
    }
    print(&format!("store: {place}\n{inventory}"))?;
    if !args.yes {
        confirm()?;
    }
    // What was seen above was a snapshot, and the question took its time (lesson 13): the lock is
    // taken now, at the new and the legacy place, and held across the deletion (rule 7).
    let seized = guard.seize().map_err(not_seized)?;
    // Looked at again, now that nobody can change it.
    let removed = remove(Inventory::of(&place, &guard)?, seized)?;
    print(&removed)
}

/// A store that is held is not touched.
fn in_use(held: impl Display) -> Failure {
    Failure::refused(format!(
        "nothing was removed, since {held}\n\
         deleting an open database would corrupt it: end that process, then run this again"
    ))
}

/// Somebody came while the question was being answered, or the system said no.
fn not_seized(refusal: Refusal) -> Failure {
    match refusal.is_in_use() {
        true => in_use(refusal),
        false => Failure::failed(refusal),
    }
}

fn confirm() -> Result<(), Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::refused(
            "nothing was removed: there is no terminal to ask on; add --yes to delete these files",
        ));
    }
    let mut answer = String::new();
    #[expect(clippy::disallowed_methods, reason = "a question waits for its reader")]
    let asked = write!(io::stderr(), "Delete these files? [y/N] ");
    asked
        .and_then(|()| io::stdin().read_line(&mut answer))
        .map_err(|error| Failure::failed(format!("cannot ask on the terminal: {error}")))?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::refused("nothing was removed")),
    }
}

/// Deletes what is there now, and says what that was.
fn remove(inventory: Inventory, seized: Seized) -> Result<String, Failure> {
    let ours = |entries: Vec<Entry>| {
        entries
            .into_iter()
            .filter(|entry| entry.left_alone.is_none())
    };
    let mut files = 0;
    let mut bytes = 0;
    // The database goes first: it would be wrong without its journal, but not the other way round.
    for entry in ours(inventory.database).chain(ours(inventory.legacy)) {
        match fs::remove_file(&entry.path) {
            Ok(()) => {
                files += 1;
                bytes += entry.bytes;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                return Err(Failure::failed(format!(
                    "cannot remove {}: {error}; {files} files were removed before it",
                    entry.path.display()
                )));
            }
        }
    }
    files += inventory.runtime.len();
    bytes += inventory
        .runtime
        .iter()
        .map(|entry| entry.bytes)
        .sum::<u64>();
    // Last, for until then it keeps others out.
    seized.remove_runtime().map_err(Failure::failed)?;
    Ok(format!("removed {files} files, {}\n", Size(bytes)))
}

fn print(text: &str) -> Result<(), Failure> {
    io::stdout()
        .write_all(text.as_bytes())
        .map_err(|error| Failure::failed(format!("cannot write to stdout: {error}")))
}
