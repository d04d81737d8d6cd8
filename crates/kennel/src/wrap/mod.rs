//! `kennel wrap` and `kennel unwrap`: Kennel before the servers in the configurations of apps, and away again.
//!
//! Every file is read into the places of its servers' commands ([`entry`]), by its format ([`json`] and
//! [`shapes`], [`toml`], [`yaml`]); what is proposed ([`plan`]) is a few splices ([`splice`]), shown
//! ([`diff`]) before they are written ([`write`](mod@write)), and written down so that they can be undone ([`undo`]).

mod anywhere;
mod busy;
pub(crate) mod clients;
mod diff;
pub(crate) mod entry;
mod json;
pub(crate) mod mask;
pub(crate) mod places;
mod plan;
mod program;
mod shapes;
#[cfg(test)]
mod shared_keys;
pub(crate) mod splice;
mod tell;
#[cfg(test)]
mod tests;
mod toml;
pub(crate) mod undo;
mod walk;
mod write;
mod yaml;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;

use crate::say;
use crate::sharing::ServersToml;
use clients::{CLIENTS, Shape};
use entry::{Entry, EntryId};
use places::{Bases, Found};
use plan::{Plan, Proposal, Row, Setting};
use splice::Behind;
pub(crate) use tell::ask;
use undo::{Records, Undoing};
use write::Source;

/// Exit code for a usage that is refused.
const REFUSED: u8 = 2;
/// Exit code for "nothing found".
const NOTHING: u8 = 3;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only this app's configurations; may be given several times
    #[arg(long, value_name = "APP", value_parser = clap::builder::PossibleValuesParser::new(CLIENTS.iter().map(|client| client.id)))]
    client: Vec<String>,

    /// Only this file, wherever it is; may be given several times
    #[arg(long, value_name = "PATH")]
    file: Vec<PathBuf>,

    /// Also change this project's files that are under version control
    ///
    /// Others may have them too, so they are left alone by default. The entries there start plain `kennel`, not the path
    /// of this one.
    #[arg(long)]
    project: bool,

    /// Show every command that changes, also of many files
    #[arg(long, conflicts_with = "json")]
    diff: bool,

    /// Do it without asking
    #[arg(long, short)]
    yes: bool,

    /// Show what would change, and change nothing
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,

    /// For programs rather than people
    #[arg(long)]
    json: bool,
}

/// What is to become of a file: `result` is what is shown as well as what is written.
struct Change {
    found: Found,
    source: Source,
    rows: Vec<Row>,
    before: Vec<Entry>,
    after: Vec<Entry>,
    result: String,
    task: Task,
}

enum Task {
    /// Kennel before servers: what the file was without any, and what was done to which.
    Wrap {
        original: String,
        servers: Vec<EntryId>,
        args_added: Vec<EntryId>,
    },
    /// Kennel away.
    Unwrap,
}

/// A file, as `--json` shows it.
#[derive(Debug, Serialize)]
struct Told {
    client: Option<&'static str>,
    path: String,
    servers: Vec<Row>,
    /// Whether it would change, or was changed.
    changes: bool,
    written: bool,
    /// It is a project's, and was not asked for.
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
        // A path of this machine means nothing to the others who have the file.
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

type Planner<'a> = dyn Fn(&Found, &Source, &Records, &Path) -> Result<Change, String> + 'a;

fn run(args: &Args, wrapping: bool, planner: &Planner<'_>) -> ExitCode {
    let Some(bases) = Bases::of_user() else {
        return crate::fail(
            "HOME is not set to an absolute path: where are your apps' configurations?",
        );
    };
    let records = Records::of_user(&bases.home);
    let files = files(args, &bases, &records);
    if files.is_empty() {
        crate::fail("no configuration of an app that is known was found; name one with --file");
        if args.json {
            say::json(&Vec::<Told>::new());
        }
        return ExitCode::from(NOTHING);
    }
    if !args.dry_run {
        records.sweep();
    }
    let mut told: Vec<Told> = Vec::new();
    let mut changes: Vec<(usize, Change)> = Vec::new();
    let mut shown: Vec<Shown> = Vec::new();
    for found in files {
        let mut tale = Told {
            client: found.client.map(|client| client.id),
            path: found.path.display().to_string(),
            servers: Vec::new(),
            changes: false,
            written: false,
            skipped: skips(args, &found, &records),
            error: None,
        };
        if tale.skipped {
            told.push(tale);
            shown.push(Shown::Skipped(found));
            continue;
        }
        let source = write::read(&found.path);
        if let (Ok(source), false) = (&source, args.dry_run) {
            let _ = write::sweep(&source.spot);
        }
        let planned = source.and_then(|source| planner(&found, &source, &records, &bases.home));
        match planned {
            Ok(change) => {
                tale.servers = change.rows.clone();
                tale.changes = change.result != change.source.text;
                if tale.changes {
                    tale.error = hindrance(&change, &bases.home).err();
                }
                if tale.changes && tale.error.is_none() {
                    shown.push(Shown::Change(changes.len()));
                    changes.push((told.len(), change));
                } else {
                    shown.push(Shown::Unchanged(Box::new(change)));
                }
            }
            Err(error) => tale.error = Some(error),
        }
        if let Some(error) = &tale.error {
            crate::fail(&format!("{}: {error}", tale.path));
        }
        told.push(tale);
    }
    tell::show_all(args, &shown, &changes, &bases.home);
    if !args.json {
        tell::total(&told, wrapping);
    }
    let asked = consent(args, &changes);
    if let Ok(true) = asked {
        for (at, change) in &changes {
            let written = carry_out(change, &records);
            if let Err(error) = &written {
                crate::fail(&format!(
                    "{}: {error}; nothing was changed there",
                    told[*at].path
                ));
            }
            told[*at].written = written.is_ok();
            told[*at].error = written.err();
        }
    }
    if args.json {
        say::json(&told);
    } else {
        tell::conclude(args, &told, wrapping);
    }
    match asked {
        Err(refusal) => {
            crate::fail(&refusal);
            ExitCode::from(REFUSED)
        }
        Ok(_) if told.iter().any(|tale| tale.error.is_some()) => ExitCode::FAILURE,
        Ok(_) => ExitCode::SUCCESS,
    }
}

/// A file, in the order in which it was found.
enum Shown {
    /// The change at this place.
    Change(usize),
    /// Nothing changes there, or something keeps it from changing.
    Unchanged(Box<Change>),
    Skipped(Found),
}

/// Whether a file is left alone because others have it too: unless somebody named it, or wrapped it before.
fn skips(args: &Args, found: &Found, records: &Records) -> bool {
    let asked = args.project || !args.file.is_empty();
    !asked && is_skipped(found, records)
}

/// Whether a plain `kennel wrap` leaves a file alone because others have it too.
fn is_skipped(found: &Found, records: &Records) -> bool {
    let known = || records.all().iter().any(|record| record.path == found.path);
    found.is_in_a_repository() && !known()
}

/// The configurations that are meant.
fn files(args: &Args, bases: &Bases, records: &Records) -> Vec<Found> {
    if args.file.is_empty() {
        let mut found = bases.find(&args.client);
        // What was wrapped in another project is remembered.
        let elsewhere = records.all().into_iter().map(|record| record.path);
        let elsewhere: Vec<PathBuf> = elsewhere
            .filter(|path| args.client.is_empty() && path.is_file())
            .filter(|path| found.iter().all(|known| known.path != *path))
            .collect();
        found.extend(elsewhere.into_iter().map(|path| Found {
            client: None,
            path,
            shape: None,
            project: true,
        }));
        return found;
    }
    // A known place says more about a file than its name.
    let known = bases.find(&[]);
    let named = args.file.iter().map(|path| {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let found = known.iter().find(|found| found.path == path).cloned();
        let client = CLIENTS
            .iter()
            .find(|client| args.client.iter().any(|id| id == client.id));
        found.unwrap_or(Found {
            client,
            shape: None,
            project: !path.starts_with(&bases.home),
            path,
        })
    });
    named.collect()
}

fn shape_of(found: &Found, source: &Source) -> Result<Shape, String> {
    let known = found
        .shape
        .or_else(|| Shape::of_file(&found.path, &source.text));
    known.ok_or_else(|| {
        "what kind of file is it? It must end in .json, .jsonc, .toml or .yaml".to_owned()
    })
}

fn wrapping(
    found: &Found,
    source: &Source,
    shape: Shape,
    records: &Records,
    plan: Plan,
) -> Result<Change, String> {
    let record = records.of(source.real());
    // Wrapped before and edited since: what `unwrap` is to give back is the file without all of it.
    let (mut servers, mut args_added) = (plan.changed, plan.args_added);
    let mut original = source.text.clone();
    if let Some(record) = record {
        let undoing = undo::own_change(&source.text, shape, Some(&record))
            .map_err(|error| error.to_string())?;
        original = entry::apply(&source.text, &undoing.edits);
        servers.extend(undoing.servers);
        args_added.extend(undoing.args_added);
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

/// `named`: the person named this file, so that Kennel is taken out of it even if no record says that `wrap` put it there.
fn unwrapping(
    found: &Found,
    source: &Source,
    records: &Records,
    named: bool,
) -> Result<Change, String> {
    let shape = shape_of(found, source)?;
    let record = records.of(source.real());
    let undoing = match (&record, named) {
        (None, false) => Undoing::default(),
        _ => undo::own_change(&source.text, shape, record.as_ref())
            .map_err(|error| error.to_string())?,
    };
    let undone = entry::apply(&source.text, &undoing.edits);
    let original = record
        .as_ref()
        .and_then(|record| records.original(source.real(), record, &source.text, &undoing.edits));
    let result = original.unwrap_or(undone);
    let (before, after) = (entries(shape, &source.text)?, entries(shape, &result)?);
    if before.len() != after.len() {
        return Err("its backup has other servers; take kennel out by hand".to_owned());
    }
    let rows = before.iter().zip(&after).map(|(entry, then)| {
        let command = entry.command();
        let why = match command.as_deref().and_then(splice::behind) {
            _ if command != then.command() => "kennel is taken away".to_owned(),
            Some(behind) => {
                let is_unclear = undoing.unclear.contains(&entry.at);
                left(&behind, record.is_some(), is_unclear)
            }
            None => "is not behind kennel".to_owned(),
        };
        Row {
            name: entry.name.clone(),
            line: entry::Unreadable::at(&source.text, entry.at, "").line,
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

/// Why `unwrap` leaves a server behind Kennel, and what to do.
fn left(behind: &Behind, is_on_record: bool, is_unclear: bool) -> String {
    const BY_HAND: &str = "take kennel out by hand";
    let (why, fix) = if is_unclear {
        let why = "`kennel wrap` put fewer servers of this name behind kennel than there are";
        (why, BY_HAND)
    } else if is_on_record {
        ("`kennel wrap` did not put it behind kennel", BY_HAND)
    } else if behind.own_options {
        ("has options that `kennel wrap` does not write", BY_HAND)
    } else {
        let why = "no record that `kennel wrap` put it behind kennel";
        (why, "--file takes it out")
    };
    match behind.is_gone() {
        true => format!(
            "{} is gone, so that the app cannot start it; {why}: left as it is; {fix}, or put this kennel in its place with \
             `kennel wrap`",
            behind.program
        ),
        false => format!("{why}: left as it is; {fix}"),
    }
}

fn entries(shape: Shape, text: &str) -> Result<Vec<Entry>, String> {
    shape.entries(text).map_err(|error| error.to_string())
}

/// What keeps a file from being changed now.
fn hindrance(change: &Change, home: &Path) -> Result<(), String> {
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
            // Before the change: a `wrap` that is killed in between can be undone.
            let kept = records.keep(path, real, contents, servers.clone(), args_added.clone());
            let kept = kept.map_err(|error| format!("cannot keep a backup in {dir}: {error}"));
            let done = kept.and_then(|()| write::replace(&change.source, &change.result));
            // Another `wrap` may have written the same meanwhile: then the record is true.
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

/// Whether the person wants it; an error where nobody can be asked.
fn consent(args: &Args, changes: &[(usize, Change)]) -> Result<bool, String> {
    if args.dry_run || changes.is_empty() {
        return Ok(false);
    }
    if args.yes {
        return Ok(true);
    }
    tell::ask(&format!("Write {}?", tell::files_of(changes.len())))
}

/// A configuration, as `kennel wrap` sees it.
pub(crate) struct Judged {
    pub(crate) entries: Vec<Entry>,
    /// The names of the servers that a plain `kennel wrap` would change.
    pub(crate) to_wrap: Vec<String>,
    /// What keeps it from changing them, and what to do.
    pub(crate) hindrance: Option<String>,
}

/// What `kennel wrap` would do with a configuration.
pub(crate) fn judge(found: &Found, home: &Path) -> Result<Judged, String> {
    let source = write::read(&found.path)?;
    let shape = shape_of(found, &source)?;
    let words = |error: entry::Unreadable| error.to_string();
    let entries = shape.entries(&source.text).map_err(words)?;
    let (config, _) = ServersToml::load_quietly();
    let setting = Setting {
        // Any name will do: nothing is written.
        program: "/kennel",
        home: Path::new("/"),
        config: &config,
    };
    let plan = plan::of(&source.text, shape, found, setting).map_err(words)?;
    let rows = plan.rows.into_iter();
    let to_change = rows.filter(|row| row.proposal != Proposal::Skip);
    let to_wrap = match is_skipped(found, &Records::of_user(home)) {
        true => Vec::new(),
        false => to_change.map(|row| row.name).collect(),
    };
    Ok(Judged {
        entries,
        to_wrap,
        hindrance: write::writable(&source.spot).err(),
    })
}

/// The servers of a configuration.
pub(crate) fn entries_of(found: &Found) -> Result<Vec<entry::Entry>, String> {
    let source = write::read(&found.path)?;
    let shape = shape_of(found, &source)?;
    entries(shape, &source.text)
}

/// A path as a shell reads it.
pub(crate) fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@:,".contains(c);
    match text.chars().all(plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}
