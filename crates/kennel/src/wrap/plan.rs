//! The proposal of `wrap` for each server of a file, with the reason; changes nothing.

use std::path::Path;

use super::anywhere;
use super::clients::Shape;
use super::entry::{Args, Edit, Entry, EntryId, LineCounter, Start, Unreadable, apply};
use super::places::FoundConfig;
use super::splice::{self, Prefix};
use crate::key::{rights, variables};
use crate::sharing::table::{self, Row as Known};
use crate::sharing::{self, EraFindings, Placement, Rule, ServersToml, SharingInput, launcher};
use crate::values;

/// The proposed change for a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Proposal {
    /// Run it through Kennel, shared by its sessions.
    Shared,
    /// Run it through Kennel, a dedicated server for each session.
    Solo,
    /// Do not change it.
    Skip,
}

/// A server and its proposal.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) line: usize,
    pub(crate) proposal: Proposal,
    pub(crate) why: String,
}

/// The proposal for a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) rows: Vec<Row>,
    pub(crate) edits: Vec<Edit>,
    /// The changed content of the file.
    pub(crate) result: String,
    /// The servers that are put behind Kennel.
    pub(crate) changed: Vec<EntryId>,
    /// The servers among them that had no arguments before.
    pub(crate) args_added: Vec<EntryId>,
}

/// The input of a proposal apart from the file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting<'a> {
    pub(crate) program: &'a str,
    pub(crate) home: &'a Path,
    pub(crate) config: &'a ServersToml,
}

/// The proposal for the servers of `text`.
pub(crate) fn of(
    text: &str,
    shape: Shape,
    found: &FoundConfig,
    setting: Setting<'_>,
) -> Result<Plan, Unreadable> {
    let entries = shape.entries(text)?;
    let mut plan = Plan {
        rows: Vec::new(),
        edits: Vec::new(),
        result: String::new(),
        changed: Vec::new(),
        args_added: Vec::new(),
    };
    let mut lines = LineCounter::new(text);
    for entry in &entries {
        let step = step(entry, found, setting);
        plan.rows.push(Row {
            name: entry.name.clone(),
            line: lines.line_of(entry.at),
            proposal: step.proposal,
            why: step.why,
        });
        let edits = match step.change {
            Change::None => continue,
            // Whoever put it behind Kennel, that does not change.
            Change::UpdatePath => {
                plan.edits.extend(splice::repoint(entry, setting.program));
                continue;
            }
            Change::Wrap(prefix) => splice::wrap(text, entry, &prefix),
        };
        if edits.is_empty() {
            continue;
        }
        let missing = matches!(
            &entry.start,
            Start::Separate {
                args: Args::Missing { .. },
                ..
            }
        );
        plan.args_added.extend(missing.then(|| EntryId::of(entry)));
        plan.changed.push(EntryId::of(entry));
        plan.edits.extend(edits);
    }
    plan.result = apply(text, &plan.edits);
    check(text, &entries, &plan, shape, setting.program)?;
    Ok(plan)
}

enum Change {
    None,
    Wrap(Prefix),
    /// It is behind a Kennel whose program is missing.
    UpdatePath,
}

struct Step {
    proposal: Proposal,
    why: String,
    change: Change,
}

impl Step {
    fn skip(why: impl Into<String>) -> Step {
        Step {
            proposal: Proposal::Skip,
            why: why.into(),
            change: Change::None,
        }
    }
}

fn step(entry: &Entry, found: &FoundConfig, setting: Setting<'_>) -> Step {
    let command = match (&entry.start, entry.command()) {
        (Start::None(why), _) => return Step::skip(*why),
        (_, None) => return Step::skip("starts nothing"),
        (_, Some(command)) => command,
    };
    if let Some(behind) = splice::kennel_prefix(&command) {
        let (proposal, why) = propose(&command[behind.server..], setting.config);
        if behind.is_gone() {
            let why = format!("{} is missing: replaced by this one; {why}", behind.program);
            return Step {
                proposal,
                why,
                change: Change::UpdatePath,
            };
        }
        return Step::skip("already runs through kennel");
    }
    if splice::is_kennel(&command) {
        return Step::skip("already is a command of kennel");
    }
    if let Some(why) = why_unclear(entry, &command[0], found) {
        return Step::skip(why);
    }
    let (proposal, why) = propose(&command, setting.config);
    let row = launcher::launched(&command).and_then(|launched| table::row_of(&launched));
    let row = row.filter(|row| row.rule != Rule::Never);
    let anywhere = row.is_some_and(anywhere::fits) && !found.project && !entry.has_cwd;
    let names = env_key(entry, row);
    let home = setting.home.to_str().filter(|_| anywhere);
    Step {
        proposal,
        why,
        change: Change::Wrap(Prefix::new(setting.program, home, &names)),
    }
}

/// The names for `--env-key`: the variables of the entry, unless something else decides which count.
fn env_key(entry: &Entry, row: Option<&Known>) -> Vec<String> {
    let known = row.and_then(Known::variables);
    let counts = |name: &String| {
        let name = name.as_bytes();
        let known = known.as_deref().unwrap_or_default();
        rights::is_credential(name)
            || variables::names_registry(name)
            || variables::matches(known, name)
    };
    // Variables that always count need not be named, so that the entries of two apps are equal.
    if row.is_some() && entry.env.iter().all(counts) {
        return Vec::new();
    }
    let mut names = entry.env.clone();
    for name in known.unwrap_or_default() {
        if !names.iter().any(|other| other == name) {
            names.push(name.to_owned());
        }
    }
    // A name with a comma would be read as two, and an invalid name would be refused.
    names.retain(|name| !name.contains(',') && values::name(name.as_ref()).is_ok());
    names
}

fn propose(command: &[String], config: &ServersToml) -> (Proposal, String) {
    let command: Vec<_> = command.iter().map(Into::into).collect();
    let decision = sharing::decide(&SharingInput {
        command: &command,
        config,
        remembered: EraFindings::default(),
    });
    // Present sessions begin with `initialize`: a server that only modern ones share is not called shared.
    match decision.legacy {
        Placement::Shared => (Proposal::Shared, decision.why),
        Placement::Solo => (Proposal::Solo, decision.why),
    }
}

/// Why it is unclear what the app would start.
fn why_unclear(entry: &Entry, program: &str, found: &FoundConfig) -> Option<&'static str> {
    let apart = matches!(entry.start, Start::Separate { .. });
    if program.is_empty() {
        return Some("its command is empty");
    }
    if apart && program.contains(char::is_whitespace) && !Path::new(program).exists() {
        return Some("its command has spaces: write the program in command and the rest in args");
    }
    let fills_in = found.client.is_some_and(|client| client.expands_args);
    if apart && program.contains('$') && !fills_in {
        return Some(
            "the app expands variables in its command, and may not expand them in arguments",
        );
    }
    None
}

/// Parses the result as the app will: each changed server starts the same command, behind Kennel, and the others are
/// unchanged. Anything else is not written.
fn check(
    text: &str,
    before: &[Entry],
    plan: &Plan,
    shape: Shape,
    program: &str,
) -> Result<(), Unreadable> {
    let after = shape.entries(&plan.result)?;
    let own = |command: &[String]| match splice::kennel_prefix(command) {
        Some(behind) => command[behind.server..].to_vec(),
        None => command.to_vec(),
    };
    let alike = |(old, new): (&Entry, &Entry)| {
        let (was, is) = (old.command(), new.command());
        let same = was.as_deref().map(own) == is.as_deref().map(own);
        let ours = was == is || is.is_some_and(|is| is[0] == program);
        old.path == new.path && old.env == new.env && same && ours
    };
    if before.len() == after.len() && before.iter().zip(&after).all(alike) {
        return Ok(());
    }
    Err(Unreadable::at(
        text,
        0,
        "cannot be changed without changing other parts of the file",
    ))
}
