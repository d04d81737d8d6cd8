//! `kennel purge`: everything of Kennel's is gone, and nothing else is. Shown before it is asked for, refused while
//! anybody uses it, and done while holding the locks that were checked (rule 7).

mod backups;
mod inventory;
mod names;
mod plain_state;
mod removal;
mod states;

use std::borrow::Cow;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::NonEmptyStringValueParser;
use kennel_sys::runtime_dir::RuntimeDir;
use serde::Serialize;

use crate::listing::{self, Entry};
use crate::ps::words::printable;
use crate::say::{self, say};
use backups::Backups;
pub(crate) use inventory::has_served;
use inventory::{Inventory, Item};
pub(crate) use plain_state::more_than_state;
use removal::Failure;

/// Exit code for a destructive act that is refused.
const REFUSED: u8 = 2;
/// Exit code for "nothing found".
const NOTHING: u8 = 3;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only what belongs to this server: a name or key that `kennel ps` shows; else everything
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    name: Option<String>,

    /// Do it without asking; declared state of servers is kept unless --with-state names it
    #[arg(long, short)]
    yes: bool,

    /// Remove this declared state of a server too: the exact path that --dry-run shows; may be given several times
    #[arg(long, value_name = "PATH")]
    with_state: Vec<PathBuf>,

    /// Show what would go, and remove nothing
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,

    /// For programs rather than people
    #[arg(long)]
    json: bool,
}

/// What there is, and what became of it, as `--json` shows it.
#[derive(Debug, Serialize)]
struct Told<'a> {
    items: Vec<&'a Item>,
    removed: bool,
    /// By whom, if somebody uses it: nothing is removed then.
    #[serde(skip_serializing_if = "Option::is_none")]
    in_use: Option<String>,
    /// What stays: Kennel's own that is needed, what was declared and is more than state, and what is not Kennel's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kept: Vec<Cow<'a, str>>,
}

pub(crate) fn purge(args: &Args) -> ExitCode {
    let user = match RuntimeDir::find_of_user() {
        Ok(user) => user,
        Err(error) => return crate::fail(&error.to_string()),
    };
    if args.name.is_some() {
        // With everything, the plan names them.
        crate::refused::tell();
    }
    let backups = Backups::of_user(args.name.is_some());
    let inventory = match Inventory::of(user.as_ref(), args.name.as_deref()) {
        Ok(inventory) => inventory,
        Err(error) => return crate::fail(&error.to_string()),
    };
    if let Err(refusal) = states::check_named(&args.with_state, &inventory) {
        return refused(&refusal);
    }
    let in_use = nobody_uses(args.name.as_deref()).err();
    let items = inventory.items.iter().chain(&backups.items);
    let mut plan = Plan {
        items: items.chain(inventory.states.values()).collect(),
        in_use,
        inventory: &inventory,
        backups: &backups,
        spared: Vec::new(),
        args,
    };
    if let Some(refusal) = plan.in_use.as_ref().filter(|_| !args.dry_run) {
        plan.tell(false);
        return refused(refusal);
    }
    if plan.items.is_empty() {
        crate::fail(&match &args.name {
            None => "there is nothing of kennel's to remove".to_owned(),
            Some(name) => format!(
                "there is nothing of a server called {name}; `kennel purge --dry-run` shows the keys there are"
            ),
        });
        plan.warn();
        plan.tell(false);
        return ExitCode::from(NOTHING);
    }
    if args.yes {
        plan.keep_states_but(&args.with_state);
    }
    if !args.json {
        show(&plan.items);
    }
    plan.warn();
    let wanted = match plan.approve() {
        Ok(wanted) => wanted,
        Err(refusal) => {
            plan.tell(false);
            return refused(&refusal);
        }
    };
    if wanted {
        let approved = plan.approved_states();
        // Asked again, now that the locks are held: a question takes its time (lesson 13).
        let removed = match &user {
            Some(user) => removal::remove(user, &inventory, &approved),
            None => Ok(()),
        };
        let removed = removed.and_then(|()| backups.remove().map_err(Failure::Partly));
        match removed {
            Ok(()) => {}
            Err(Failure::Refused(refusal)) => {
                plan.tell(false);
                return refused(&refusal);
            }
            Err(Failure::Partly(why)) => {
                plan.tell(false);
                return crate::fail(&format!("not all of it was removed: {why}"));
            }
        }
    }
    plan.tell(wanted);
    if !args.json {
        match (wanted, &plan.in_use) {
            (true, _) => say!("removed"),
            (false, None) => say!("nothing was removed"),
            (false, Some(by)) => say!("nothing was removed, and nothing could be now: {by}"),
        }
    }
    ExitCode::SUCCESS
}

/// What there is to do, and what stands in the way.
struct Plan<'a> {
    items: Vec<&'a Item>,
    in_use: Option<String>,
    inventory: &'a Inventory,
    backups: &'a Backups,
    /// Declared state that is kept because nobody approved its removal.
    spared: Vec<&'a PathBuf>,
    args: &'a Args,
}

impl Plan<'_> {
    /// Asks, where that is wanted: for everything of Kennel's, and then for each state of a server.
    fn approve(&mut self) -> Result<bool, String> {
        match (self.args.dry_run, self.args.yes) {
            (true, _) => return Ok(false),
            (_, true) => return Ok(true),
            _ => {}
        }
        if !crate::wrap::ask("Remove all that is Kennel's own?")? {
            return Ok(false);
        }
        let (states, named) = (&self.inventory.states, &self.args.with_state);
        let approved = states::approved(states, named, crate::wrap::ask)?;
        let approved: Vec<PathBuf> = approved.values().map(|state| state.path.clone()).collect();
        self.keep_states_but(&approved);
        Ok(true)
    }

    /// Takes the states from the plan that `approved` does not have.
    fn keep_states_but(&mut self, approved: &[PathBuf]) {
        for state in self.inventory.states.values() {
            if !approved.contains(&state.path) {
                self.items.retain(|item| item.path != state.path);
                self.spared.push(&state.path);
            }
        }
    }

    fn approved_states(&self) -> Vec<PathBuf> {
        let states = self.inventory.states.values().map(|state| &state.path);
        let goes = states.filter(|path| !self.spared.contains(path));
        goes.cloned().collect()
    }

    /// Names what stays, and says why.
    fn warn(&self) {
        self.backups.say();
        for (path, why) in &self.inventory.too_much {
            crate::warn(&format!(
                "{} was declared with --state, and is kept: {why}; remove what is the server's yourself",
                path.display()
            ));
        }
        for path in &self.spared {
            crate::warn(&format!(
                "{} was declared with --state, and is kept: --yes does not cover it; `--with-state PATH` does, or remove it \
                 yourself",
                path.display()
            ));
        }
        for path in &self.inventory.unrelated {
            crate::warn(&format!("{} is not kennel's, and is left", path.display()));
        }
    }

    /// The answer for programs, whatever came of it.
    fn tell(&self, removed: bool) {
        if !self.args.json {
            return;
        }
        let declared = self.inventory.too_much.iter().map(|(path, _)| path);
        let unrelated = self.inventory.unrelated.iter();
        let told = Told {
            items: self.items.clone(),
            removed,
            in_use: self.in_use.clone(),
            kept: declared
                .chain(self.spared.iter().copied())
                .chain(&self.backups.kept)
                .chain(&self.backups.unrelated)
                .chain(unrelated)
                .map(|path| path.to_string_lossy())
                .collect(),
        };
        say::json(&told);
    }
}

/// Whether anybody whom we know runs.
fn nobody_uses(name: Option<&str>) -> Result<(), String> {
    let entries = listing::all().map_err(|error| error.to_string())?;
    let meant = |entry: &&Entry| name.is_none_or(|name| entry.is_called(name));
    let used: Vec<String> = entries
        .iter()
        .filter(meant)
        .filter_map(|entry| {
            let name = printable(&entry.name);
            Some(format!("{name} (pid {})", entry.process()?.pid()))
        })
        .collect();
    match used.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "in use by {}; `kennel stop` first, and close the apps that use it",
            used.join(", ")
        )),
    }
}

fn refused(why: &str) -> ExitCode {
    crate::fail(&format!("nothing was removed: {why}"));
    ExitCode::from(REFUSED)
}

fn show(items: &[&Item]) {
    let mut group = "";
    for item in items {
        if item.group != group {
            group = item.group;
            say!("{group}");
        }
        say!(
            "  {:>9}  {}",
            bytes(item.bytes),
            printable(&item.path.display().to_string())
        );
    }
}

fn bytes(count: u64) -> String {
    match count {
        0..10_240 => format!("{count} B"),
        10_240..10_485_760 => format!("{} kB", count >> 10),
        _ => format!("{} MB", count >> 20),
    }
}
