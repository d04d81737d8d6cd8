//! `kennel wrap` and `kennel unwrap`: put Kennel before the servers in the configurations of apps, and remove it.
//!
//! Every file is parsed into the positions of its servers' commands ([`entry`]), by its format ([`json`] and
//! [`shapes`], [`toml`], [`yaml`]). The proposed change ([`plan`]) is a few edits ([`splice`]). They are shown
//! ([`diff`]), written ([`write`](mod@write)), and recorded so that they can be undone ([`undo`]). One command at a time
//! writes ([`lock`](mod@lock)), and reads and plans again once it is the one.

mod anywhere;
mod busy;
pub(crate) mod clients;
mod diff;
pub(crate) mod entry;
mod json;
pub(crate) mod lock;
pub(crate) mod mask;
pub(crate) mod places;
pub(crate) mod plan;
mod program;
pub(crate) mod shapes;
#[cfg(test)]
mod shared_keys;
pub(crate) mod splice;
mod status;
mod tell;
#[cfg(test)]
mod tests;
mod toml;
pub(crate) mod undo;
mod walk;
mod write;
pub(crate) mod yaml;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;

use crate::exit_code::{NOTHING_FOUND, USAGE};
use crate::sharing::ServersToml;
use crate::stdout;
use clients::{CLIENTS, Shape};
use entry::{Entry, EntryId};
use lock::{NotLocked, RecordsLock};
use places::{Bases, FoundConfig};
use plan::{Plan, Proposal, Row, Setting};
use splice::KennelPrefix;
pub(crate) use status::{ConfigStatus, config_status, entries_of};
pub(crate) use tell::ask;
use undo::{Records, UndoPlan};
use write::Source;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Change only the configurations of this app; may be given several times
    #[arg(long, value_name = "APP", value_parser = clap::builder::PossibleValuesParser::new(CLIENTS.iter().map(|client| client.id)))]
    client: Vec<String>,

    /// Change only this file; may be given several times
    #[arg(long, value_name = "PATH")]
    file: Vec<PathBuf>,

    /// Also change this project's files that are under version control
    ///
    /// Other people use them too, so they are skipped by default. The new entries start plain `kennel`, without the path
    /// of this program.
    #[arg(long)]
    project: bool,

    /// Show every change, even in many files
    #[arg(long, conflicts_with = "json")]
    diff: bool,

    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,

    /// Show what would change; change nothing
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The change of a file: `result` is both shown and written.
struct Change {
    found: FoundConfig,
    source: Source,
    rows: Vec<Row>,
    before: Vec<Entry>,
    after: Vec<Entry>,
    result: String,
    task: Task,
}

enum Task {
    /// Kennel is put before servers; with the file without Kennel, and the changed servers.
    Wrap {
        original: String,
        servers: Vec<EntryId>,
        args_added: Vec<EntryId>,
    },
    /// Kennel is removed.
    Unwrap,
}

/// A file, as `--json` shows it.
#[derive(Debug, Serialize)]
struct FileReport {
    client: Option<&'static str>,
    path: String,
    servers: Vec<Row>,
    /// Whether it would change, or was changed.
    changes: bool,
    written: bool,
    /// Whether it belongs to a project and was skipped.
    skipped: bool,
    error: Option<String>,
}

pub(crate) fn wrap(args: &Args) -> ExitCode {
    let program = match program::stable() {
        Ok(program) => program,
        Err(error) => return crate::fail(&error),
    };
    let config = ServersToml::of_user();
    run(args, true, &|found, source, records, home| {
        let shape = shape_of(found, source)?;
        // A path of this machine is wrong for other people who use the file.
        let shared = found.is_in_a_repository();
        let setting = Setting {
            program: if shared { "kennel" } else { &program },
            home,
            config: &config,
        };
        let plan =
            plan::of(&source.text, shape, found, setting).map_err(|error| error.to_string())?;
        wrapping(found, source, shape, records, plan)
    })
}

pub(crate) fn unwrap(args: &Args) -> ExitCode {
    let named = !args.file.is_empty();
    run(args, false, &|found, source, records, _| {
        unwrapping(found, source, records, named)
    })
}

type Planner<'a> = dyn Fn(&FoundConfig, &Source, &Records, &Path) -> Result<Change, String> + 'a;

fn run(args: &Args, wrapping: bool, planner: &Planner<'_>) -> ExitCode {
    let Some(bases) = Bases::of_user() else {
        return crate::fail(
            "HOME is not set to an absolute path: your apps' configurations cannot be found",
        );
    };
    let records = Records::of_user(&bases.home);
    let files = files(args, &bases, &records);
    if files.is_empty() {
        let words = "no configuration of a known app was found; name one with --file";
        let code = crate::fail_with(NOTHING_FOUND, words);
        if args.json {
            stdout::json(&Vec::<FileReport>::new());
        }
        return code;
    }
    if !args.dry_run {
        records.sweep();
    }
    let mut proposals = Proposals::default();
    for found in files {
        proposals.add(found, args, &records, &bases.home, planner);
    }
    tell::show_all(args, &proposals.shown, &proposals.changes, &bases.home);
    if !args.json {
        tell::total(&proposals.reports, wrapping);
    }
    let consent = consent(args, &proposals.changes);
    if let Ok(true) = consent {
        let plan =
            |found: &FoundConfig, source: &Source| planner(found, source, &records, &bases.home);
        let again = |change: &Change| planned_again(change, &plan, &bases.home);
        match lock(&records, wrapping) {
            Ok(_lock) => proposals.carry_out(&records, &again),
            Err(error) => proposals.fail(&error),
        }
    }
    let reports = proposals.reports;
    if args.json {
        stdout::json(&reports);
    } else {
        tell::print_summary(args, &reports, wrapping);
    }
    match consent {
        Err(refusal) => crate::fail_with(USAGE, &refusal),
        Ok(_) if reports.iter().any(|report| report.error.is_some()) => ExitCode::FAILURE,
        Ok(_) => ExitCode::SUCCESS,
    }
}

/// The proposed changes of all files.
#[derive(Default)]
struct Proposals {
    reports: Vec<FileReport>,
    /// The changes, each with the index of its report.
    changes: Vec<(usize, Change)>,
    shown: Vec<FoundFile>,
}

impl Proposals {
    /// Adds a file with its proposed change, or the reason why there is none.
    fn add(
        &mut self,
        found: FoundConfig,
        args: &Args,
        records: &Records,
        home: &Path,
        planner: &Planner<'_>,
    ) {
        let mut report = FileReport {
            client: found.client.map(|client| client.id),
            path: found.path.display().to_string(),
            servers: Vec::new(),
            changes: false,
            written: false,
            skipped: skips(args, &found, records),
            error: None,
        };
        if report.skipped {
            self.reports.push(report);
            self.shown.push(FoundFile::Skipped(found));
            return;
        }
        let source = write::read(&found.path);
        if let (Ok(source), false) = (&source, args.dry_run) {
            let _ = write::sweep(&source.spot);
        }
        match source.and_then(|source| planner(&found, &source, records, home)) {
            Ok(change) => {
                report.servers = change.rows.clone();
                report.changes = change.result != change.source.text;
                if report.changes {
                    report.error = obstacle(&change, home).err();
                }
                if report.changes && report.error.is_none() {
                    self.shown.push(FoundFile::Change(self.changes.len()));
                    self.changes.push((self.reports.len(), change));
                } else {
                    self.shown.push(FoundFile::Unchanged(Box::new(change)));
                }
            }
            Err(error) => report.error = Some(error),
        }
        if let Some(error) = &report.error {
            crate::fail(&format!("{}: {error}", report.path));
        }
        self.reports.push(report);
    }

    /// Writes all changes, each planned `again`, and reports those that fail.
    fn carry_out(&mut self, records: &Records, again: &dyn Fn(&Change) -> Result<Change, String>) {
        for (at, change) in &self.changes {
            let report = &mut self.reports[*at];
            let written = again(change).and_then(|change| carry_out(&change, records));
            if let Err(error) = &written {
                crate::fail(&format!(
                    "{}: {error}; nothing was changed there",
                    report.path
                ));
            }
            report.written = written.is_ok();
            report.error = written.err();
        }
    }

    /// Writes nothing, and reports why.
    fn fail(&mut self, error: &str) {
        crate::fail(&format!("{error}; nothing was changed"));
        for (at, _) in &self.changes {
            self.reports[*at].error = Some(error.to_owned());
        }
    }
}

/// Excludes other commands that write. Without a lock, `wrap` writes nothing. `unwrap` goes on if its file cannot be used: no
/// `wrap` can take it either.
fn lock(records: &Records, wrapping: bool) -> Result<Option<RecordsLock<'_>>, String> {
    let who = if wrapping {
        "kennel wrap"
    } else {
        "kennel unwrap"
    };
    match RecordsLock::take(records, who) {
        Ok(lock) => Ok(Some(lock)),
        Err(NotLocked::Unusable(_)) if !wrapping => Ok(None),
        Err(error) => Err(error.into_text()),
    }
}

/// Reads a file and plans its change again, under the lock: its record may have changed since the first look. An error if the
/// change is not the one that was shown.
fn planned_again(
    change: &Change,
    plan: &dyn Fn(&FoundConfig, &Source) -> Result<Change, String>,
    home: &Path,
) -> Result<Change, String> {
    let source = write::read(&change.found.path)?;
    let again = plan(&change.found, &source)?;
    let is_same = again.source.real() == change.source.real()
        && again.source.text == change.source.text
        && again.result == change.result;
    if !is_same {
        return Err("it was changed in the meantime; run the command again".to_owned());
    }
    obstacle(&again, home)?;
    Ok(again)
}

/// A file, in the order in which it was found.
enum FoundFile {
    /// The index of its change.
    Change(usize),
    /// Nothing changes, or something prevents the change.
    Unchanged(Box<Change>),
    Skipped(FoundConfig),
}

/// Whether to skip a file that other people use too: unless it was named, or wrapped before.
fn skips(args: &Args, found: &FoundConfig, records: &Records) -> bool {
    let asked = args.project || !args.file.is_empty();
    !asked && is_skipped(found, records)
}

/// Whether a plain `kennel wrap` skips a file because other people use it too.
fn is_skipped(found: &FoundConfig, records: &Records) -> bool {
    let known = || records.all().iter().any(|record| record.path == found.path);
    found.is_in_a_repository() && !known()
}

/// The configurations to change.
fn files(args: &Args, bases: &Bases, records: &Records) -> Vec<FoundConfig> {
    if args.file.is_empty() {
        let mut found = bases.find(&args.client);
        // A file that was wrapped in another project is known from its record.
        let elsewhere = records.all().into_iter().map(|record| record.path);
        let elsewhere: Vec<PathBuf> = elsewhere
            .filter(|path| args.client.is_empty() && path.is_file())
            .filter(|path| found.iter().all(|known| known.path != *path))
            .collect();
        found.extend(elsewhere.into_iter().map(|path| FoundConfig {
            client: None,
            path,
            shape: None,
            project: true,
        }));
        return found;
    }
    // A known location tells the format more reliably than the name.
    let known = bases.find(&[]);
    let named = args.file.iter().map(|path| {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let found = known.iter().find(|found| found.path == path).cloned();
        let client = CLIENTS
            .iter()
            .find(|client| args.client.iter().any(|id| id == client.id));
        found.unwrap_or(FoundConfig {
            client,
            shape: None,
            project: !path.starts_with(&bases.home),
            path,
        })
    });
    named.collect()
}

fn shape_of(found: &FoundConfig, source: &Source) -> Result<Shape, String> {
    let known = found
        .shape
        .or_else(|| Shape::of_file(&found.path, &source.text));
    known.ok_or_else(|| {
        "unknown kind of file: its name must end in .json, .jsonc, .toml or .yaml".to_owned()
    })
}

fn wrapping(
    found: &FoundConfig,
    source: &Source,
    shape: Shape,
    records: &Records,
    plan: Plan,
) -> Result<Change, String> {
    let record = records.of(source.real());
    // Wrapped before and edited since: `unwrap` must restore the file without any of it.
    let (mut servers, mut args_added) = (plan.changed, plan.args_added);
    let mut original = source.text.clone();
    if let Some(record) = record {
        let undo_plan = undo::own_change(&source.text, shape, Some(&record))
            .map_err(|error| error.to_string())?;
        original = entry::apply(&source.text, &undo_plan.edits);
        servers.extend(undo_plan.servers);
        args_added.extend(undo_plan.args_added);
    }
    Ok(Change {
        found: found.clone(),
        source: source.clone(),
        rows: plan.rows,
        before: entries(shape, &source.text)?,
        after: entries(shape, &plan.result)?,
        result: plan.result,
        task: Task::Wrap {
            original,
            servers,
            args_added,
        },
    })
}

/// `named`: the file was given with `--file`, so that Kennel is removed even without a record that `wrap` added it.
fn unwrapping(
    found: &FoundConfig,
    source: &Source,
    records: &Records,
    named: bool,
) -> Result<Change, String> {
    let shape = shape_of(found, source)?;
    let record = records.of(source.real());
    let undo_plan = match (&record, named) {
        (None, false) => UndoPlan::default(),
        _ => undo::own_change(&source.text, shape, record.as_ref())
            .map_err(|error| error.to_string())?,
    };
    let undone = entry::apply(&source.text, &undo_plan.edits);
    let original = record
        .as_ref()
        .and_then(|record| records.original(source.real(), record, &source.text, &undo_plan.edits));
    let result = original.unwrap_or(undone);
    let (before, after) = (entries(shape, &source.text)?, entries(shape, &result)?);
    if before.len() != after.len() {
        return Err("its backup has different servers; remove kennel by hand".to_owned());
    }
    let mut lines = entry::LineCounter::new(&source.text);
    let rows = before.iter().zip(&after).map(|(entry, then)| {
        let command = entry.command();
        let why = match command.as_deref().and_then(splice::kennel_prefix) {
            _ if command != then.command() => "kennel is removed".to_owned(),
            Some(behind) => {
                let is_unclear = undo_plan.unclear.contains(&entry.at);
                left(&behind, record.is_some(), is_unclear)
            }
            None => "does not run through kennel".to_owned(),
        };
        Row {
            name: entry.name.clone(),
            line: lines.line_of(entry.at),
            proposal: Proposal::Skip,
            why,
        }
    });
    Ok(Change {
        found: found.clone(),
        source: source.clone(),
        rows: rows.collect(),
        before,
        after,
        result,
        task: Task::Unwrap,
    })
}

/// Why `unwrap` leaves Kennel before a server, and what to do.
fn left(behind: &KennelPrefix, is_on_record: bool, is_unclear: bool) -> String {
    const REMOVE_BY_HAND: &str = "remove kennel by hand";
    let (why, fix) = if is_unclear {
        let why = "`kennel wrap` wrapped fewer servers of this name than there are";
        (why, REMOVE_BY_HAND)
    } else if is_on_record {
        ("`kennel wrap` did not wrap it", REMOVE_BY_HAND)
    } else if behind.own_options {
        (
            "has options that `kennel wrap` does not write",
            REMOVE_BY_HAND,
        )
    } else {
        let why = "no record that `kennel wrap` wrapped it";
        (why, "--file removes it")
    };
    match behind.is_gone() {
        true => format!(
            "{} is missing, so the app cannot start it; {why}: not changed; {fix}, or replace it by this kennel with \
             `kennel wrap`",
            behind.program
        ),
        false => format!("{why}: not changed; {fix}"),
    }
}

fn entries(shape: Shape, text: &str) -> Result<Vec<Entry>, String> {
    shape.entries(text).map_err(|error| error.to_string())
}

/// Why a file cannot be changed now.
fn obstacle(change: &Change, home: &Path) -> Result<(), String> {
    write::writable(&change.source.spot)?;
    let client = change.found.client.filter(|_| !change.found.project);
    let Some((client, program)) = client.and_then(|client| Some((client, client.rewrites?))) else {
        return Ok(());
    };
    match busy::running(program, home) {
        Some(pid) => Err(format!(
            "{} runs (pid {pid}) and writes this file itself: quit it first, then run the command again",
            client.title
        )),
        None => Ok(()),
    }
}

fn carry_out(change: &Change, records: &Records) -> Result<(), String> {
    match &change.task {
        Task::Wrap {
            original,
            servers,
            args_added,
        } => {
            let (path, real) = (&change.found.path, change.source.real());
            let contents = (original.as_str(), change.result.as_str());
            let former = records.kept(real);
            let dir = records.dir().display();
            // Before the change, so that a `wrap` that is killed in between can be undone.
            let kept = records.keep(path, real, contents, servers.clone(), args_added.clone());
            let kept = kept.map_err(|error| format!("cannot keep a backup in {dir}: {error}"));
            let done = kept.and_then(|()| write::replace(&change.source, &change.result));
            // Another `wrap` may have written the same meanwhile: then the record is correct.
            let is_there = || write::read(real).is_ok_and(|now| now.text == change.result);
            if let Err(failed) = &done
                && !is_there()
            {
                let restored = records.put_back(real, former);
                restored.map_err(|error| {
                    format!("{failed}, nor can its record in {dir} be restored: {error}")
                })?;
            }
            done
        }
        Task::Unwrap => {
            write::replace(&change.source, &change.result)?;
            records.forget(change.source.real());
            Ok(())
        }
    }
}

/// Whether the user agrees; an error if stdin is not a terminal.
fn consent(args: &Args, changes: &[(usize, Change)]) -> Result<bool, String> {
    if args.dry_run || changes.is_empty() {
        return Ok(false);
    }
    if args.yes {
        return Ok(true);
    }
    tell::ask(&format!("Write {}?", tell::files_of(changes.len())))
}

/// A path, quoted for a shell.
pub(crate) fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@:,".contains(c);
    match text.chars().all(plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}
