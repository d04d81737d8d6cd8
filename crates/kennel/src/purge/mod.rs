//! `kennel purge`: removes everything of Kennel, and nothing else. Shows it before asking, refuses while anything of it
//! is in use, and removes it while holding the locks that were checked (rule 7).

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

use crate::exit_code::{NOTHING_FOUND, USAGE};
use crate::listing::{self, Entry};
use crate::ps::words::printable;
use crate::stdout::{self, print_line};
use crate::stop::list_ambiguous;
use backups::Backups;
pub(crate) use inventory::has_served;
use inventory::{Inventory, Item, NoInventory};
pub(crate) use plain_state::more_than_state;
use removal::Failure;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Remove only the files of this server: a name or key shown by `kennel ps`, or at least 4 letters of a shared
    /// server's key [default: all servers]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    name: Option<String>,

    /// Do not ask for confirmation; keep the declared state of servers unless --with-state names it
    #[arg(long, short)]
    yes: bool,

    /// Also remove this declared state of a server: the exact path that --dry-run shows; may be given several times
    #[arg(long, value_name = "PATH")]
    with_state: Vec<PathBuf>,

    /// Show what would be removed; remove nothing
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The files and what happened to them, as `--json` shows it.
#[derive(Debug, Serialize)]
struct PurgeReport<'a> {
    items: Vec<&'a Item>,
    removed: bool,
    /// The processes that use the files, if any: then nothing is removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    in_use: Option<String>,
    /// Files that stay: those of Kennel that are needed, declared paths that contain more than state, and files that
    /// are not Kennel's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kept: Vec<Cow<'a, str>>,
}

pub(crate) fn purge(args: &Args) -> ExitCode {
    let user = match RuntimeDir::find_of_user() {
        Ok(user) => user,
        Err(error) => return crate::fail(&error.to_string()),
    };
    if args.name.is_some() {
        // When purging everything, the plan names them.
        crate::refused::warn_all();
    }
    let backups = Backups::of_user(args.name.is_some());
    let inventory = match Inventory::of(user.as_ref(), args.name.as_deref()) {
        Ok(inventory) => inventory,
        Err(NoInventory::Failed(error)) => return crate::fail(&error.to_string()),
        Err(NoInventory::Ambiguous(several)) => {
            let word = args.name.as_deref().unwrap_or_default();
            return list_ambiguous(word, several.iter().map(|it| (it.key(), it.known())));
        }
    };
    if let Err(refusal) = states::check_named(&args.with_state, &inventory) {
        return refused(&refusal);
    }
    let in_use = check_unused(args.name.as_deref()).err();
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
        plan.print_json(false);
        return refused(refusal);
    }
    if plan.items.is_empty() {
        let code = crate::fail_with(
            NOTHING_FOUND,
            &match &args.name {
                None => "no files of kennel found".to_owned(),
                Some(name) => format!(
                    "there are no files of a server called {name}; `kennel purge --dry-run` shows the keys"
                ),
            },
        );
        plan.warn();
        plan.print_json(false);
        return code;
    }
    if args.yes {
        plan.keep_states_except(&args.with_state);
    }
    if !args.json {
        show(&plan.items);
    }
    plan.warn();
    let removed = plan.approve().map_err(Failure::Refused);
    let removed = removed.and_then(|wanted| match wanted {
        true => plan.remove(user.as_ref()).map(|()| true),
        false => Ok(false),
    });
    plan.print_json(removed.as_ref().is_ok_and(|removed| *removed));
    match (removed, &plan.in_use) {
        (Err(Failure::Refused(refusal)), _) => return refused(&refusal),
        (Err(Failure::Partial(why)), _) => {
            return crate::fail(&format!("not everything was removed: {why}"));
        }
        (Ok(_), _) if args.json => {}
        (Ok(true), _) => print_line!("removed"),
        (Ok(false), None) => print_line!("nothing was removed"),
        (Ok(false), Some(by)) => print_line!("nothing was removed; removal would fail now: {by}"),
    }
    ExitCode::SUCCESS
}

/// The files to remove, and the reasons that prevent it.
struct Plan<'a> {
    items: Vec<&'a Item>,
    in_use: Option<String>,
    inventory: &'a Inventory,
    backups: &'a Backups,
    /// Declared state that is kept because no person approved its removal.
    spared: Vec<&'a PathBuf>,
    args: &'a Args,
}

impl Plan<'_> {
    /// Asks for confirmation if required: once for all files of Kennel, then for each state of a server.
    fn approve(&mut self) -> Result<bool, String> {
        match (self.args.dry_run, self.args.yes) {
            (true, _) => return Ok(false),
            (_, true) => return Ok(true),
            _ => {}
        }
        if !crate::wrap::ask("Remove all of Kennel's own files?")? {
            return Ok(false);
        }
        let (states, named) = (&self.inventory.states, &self.args.with_state);
        let approved = states::approved(states, named, crate::wrap::ask)?;
        let approved: Vec<PathBuf> = approved.values().map(|state| state.path.clone()).collect();
        self.keep_states_except(&approved);
        Ok(true)
    }

    /// Removes from the plan the states that are not in `approved`.
    fn keep_states_except(&mut self, approved: &[PathBuf]) {
        for state in self.inventory.states.values() {
            if !approved.contains(&state.path) {
                self.items.retain(|item| item.path != state.path);
                self.spared.push(&state.path);
            }
        }
    }

    /// Removes everything in the plan. Everything is checked again while the locks are held: the user took time to
    /// answer (lesson 13).
    fn remove(&self, user: Option<&RuntimeDir>) -> Result<(), Failure> {
        if let Some(user) = user {
            let states = self.inventory.states.values().map(|state| &state.path);
            let approved = states.filter(|path| !self.spared.contains(path));
            let approved: Vec<PathBuf> = approved.cloned().collect();
            removal::remove(user, self.inventory, &approved)?;
        }
        self.backups.remove().map_err(Failure::Partial)
    }

    /// Warns about everything that stays, with the reason.
    fn warn(&self) {
        self.backups.print_hints();
        for (path, why) in &self.inventory.too_broad {
            crate::warn(&format!(
                "{} was declared with --state, and is kept: {why}; remove the server's files yourself",
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
            let path = printable(&path.display().to_string());
            crate::warn(&format!(
                "{path} is not a file of kennel, so it is not removed"
            ));
        }
    }

    /// Prints the result as JSON.
    fn print_json(&self, removed: bool) {
        if !self.args.json {
            return;
        }
        let declared = self.inventory.too_broad.iter().map(|(path, _)| path);
        let unrelated = self.inventory.unrelated.iter();
        let report = PurgeReport {
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
        stdout::json(&report);
    }
}

/// Fails if a process that is listed runs.
fn check_unused(name: Option<&str>) -> Result<(), String> {
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
    crate::fail_with(USAGE, &format!("nothing was removed: {why}"))
}

fn show(items: &[&Item]) {
    let mut group = "";
    for item in items {
        if item.group != group {
            group = item.group;
            print_line!("{group}");
        }
        print_line!(
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
