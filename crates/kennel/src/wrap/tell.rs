//! The output and the questions of `wrap` and `unwrap`.

use std::io::{BufRead, IsTerminal};
use std::path::Path;

use unicode_width::UnicodeWidthStr as _;

use super::places::FoundConfig;
use super::plan::Proposal;
use super::{Args, Change, FileReport, FoundFile, Task, diff};
use crate::ps::words::{counted, pad_right, printable, printable_lines, truncate};
use crate::stdout::{self, print_line};

/// Above this number of files, each gets one line with the names of its servers.
const MAX_DETAILED_FILES: usize = 3;

/// Shows the change of each file.
pub(super) fn show_all(args: &Args, shown: &[FoundFile], changes: &[(usize, Change)], home: &Path) {
    if args.json {
        return;
    }
    let short = changes.len() > MAX_DETAILED_FILES && !args.diff;
    for file in shown {
        match file {
            FoundFile::Change(at) if short => show_brief(&changes[*at].1, home),
            FoundFile::Change(at) => show(&changes[*at].1, true, home),
            FoundFile::Unchanged(change) if short || change.rows.is_empty() => {}
            FoundFile::Unchanged(change) => show(change, false, home),
            FoundFile::Skipped(found) => {
                print_line!("{}", headline(found, home));
                print_line!(
                    "  skipped: it is under version control, and other people may use it; --project includes it"
                );
                print_line!();
            }
        }
    }
    if short {
        print_line!(
            "commands and reasons are omitted for more than a few files; --diff shows them"
        );
    }
}

fn headline(found: &FoundConfig, home: &Path) -> String {
    let title = found.client.map_or("file", |client| client.title);
    format!("{title}: {}", display_path(&found.path, home))
}

fn show(change: &Change, changes: bool, home: &Path) {
    print_line!("{}", headline(&change.found, home));
    let wrapping = matches!(change.task, Task::Wrap { .. });
    if wrapping && change.found.is_in_a_repository() {
        print_line!(
            "  under version control: it starts plain `kennel`, which everyone who uses the file needs on the PATH"
        );
    }
    let width = change
        .rows
        .iter()
        .map(|row| printable(&row.name).width())
        .max()
        .unwrap_or(0)
        .clamp(6, 24);
    for row in &change.rows {
        let name = pad_right(&truncate(&printable(&row.name), 24), width);
        match wrapping {
            true => {
                let word = proposal_name(row.proposal);
                print_line!("  {name}  {word:<6}  {}", printable(&row.why));
            }
            false => print_line!("  {name}  {}", printable(&row.why)),
        }
    }
    if changes {
        print_line!();
        stdout::print_partial(&printable_lines(&diff::of(
            &change.source.text,
            &change.before,
            &change.after,
        )));
    }
    print_line!();
}

fn proposal_name(proposal: Proposal) -> &'static str {
    match proposal {
        Proposal::Shared => "shared",
        Proposal::Solo => "solo",
        Proposal::Skip => "skip",
    }
}

/// Prints one line for a file, and one for its servers.
fn show_brief(change: &Change, home: &Path) {
    print_line!("{}", headline(&change.found, home));
    let pairs = change.before.iter().zip(&change.after).zip(&change.rows);
    let changed: Vec<_> = pairs
        .filter(|((old, new), _)| old.command() != new.command())
        .map(|(_, row)| row)
        .collect();
    let names = |wanted: Option<Proposal>| {
        let of = changed
            .iter()
            .filter(|row| wanted.is_none_or(|it| it == row.proposal));
        let names = of.map(|row| truncate(&printable(&row.name), 24));
        names.collect::<Vec<_>>().join(", ")
    };
    let parts: Vec<String> = match change.task {
        Task::Wrap { .. } => [Proposal::Shared, Proposal::Solo]
            .into_iter()
            .map(|proposal| (proposal_name(proposal), names(Some(proposal))))
            .filter(|(_, names)| !names.is_empty())
            .map(|(word, names)| format!("{word}: {names}"))
            .collect(),
        Task::Unwrap => vec![format!("without kennel: {}", names(None))],
    };
    print_line!("  {}", parts.join("; "));
}

/// The number of files and servers, and what would become of them.
pub(super) fn total(reports: &[FileReport], wrapping: bool) {
    let files = |wanted: &dyn Fn(&FileReport) -> bool| {
        reports.iter().filter(|report| wanted(report)).count()
    };
    let changes = |report: &FileReport| report.changes && report.error.is_none();
    let mut parts = vec![format!("{} change", files(&changes))];
    for (count, what) in [
        (files(&|report| report.error.is_some()), "cannot be changed"),
        (files(&|report| report.skipped), "skipped (--project)"),
        (
            files(&|report| !report.changes && !report.skipped && report.error.is_none()),
            "stay as they are",
        ),
    ] {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    }
    let rows: Vec<_> = reports.iter().flat_map(|report| &report.servers).collect();
    let count = |wanted| rows.iter().filter(|row| row.proposal == wanted).count();
    let mut line = format!("{}: {}", files_of(reports.len()), parts.join(", "));
    if wrapping {
        let counts = [Proposal::Shared, Proposal::Solo, Proposal::Skip]
            .map(|proposal| format!("{} {}", count(proposal), proposal_name(proposal)));
        let servers = counted(rows.len(), "server");
        line += &format!("; {servers}: {}", counts.join(", "));
    }
    print_line!("{line}");
}

pub(super) fn print_summary(args: &Args, reports: &[FileReport], wrapping: bool) {
    let written = reports.iter().filter(|report| report.written).count();
    let would = reports.iter().filter(|report| report.changes).count();
    if written > 0 {
        print_line!(
            "wrote {}; restart the apps that were running",
            files_of(written)
        );
    } else if would == 0 {
        print_line!("nothing to change: {}", why_unchanged(reports, wrapping));
    } else if args.dry_run {
        print_line!("nothing was changed: this was a dry run");
    } else {
        print_line!("nothing was changed");
    }
}

/// Why no file would change, by the reason of each server or file.
fn why_unchanged(reports: &[FileReport], wrapping: bool) -> String {
    let unread = reports
        .iter()
        .filter(|report| report.error.is_some())
        .count();
    let rows: Vec<_> = reports.iter().flat_map(|report| &report.servers).collect();
    let behind = rows
        .iter()
        .filter(|row| row.why.starts_with("already"))
        .count();
    let skipped = reports.iter().filter(|report| report.skipped).count();
    let mut reasons = Vec::new();
    if skipped > 0 {
        reasons.push(format!(
            "{} skipped, which --project includes",
            files_of(skipped)
        ));
    }
    if unread > 0 {
        reasons.push(format!("{} cannot be changed", files_of(unread)));
    }
    match (wrapping, rows.len()) {
        (_, 0) if unread + skipped == reports.len() => {}
        (_, 0) => {
            let read = reports.len() - unread - skipped;
            reasons.push(format!("no server is in {}", files_of(read)));
        }
        (true, all) if behind == all => {
            reasons.push("every server already runs through kennel".to_owned());
        }
        (true, all) => reasons.push(format!(
            "of {all} servers, {behind} already run through kennel, and the others cannot (see above)"
        )),
        (false, _) => reasons.push("no entries were wrapped by `kennel wrap`".to_owned()),
    }
    reasons.join("; ")
}

pub(super) fn files_of(count: usize) -> String {
    counted(count, "file")
}

fn display_path(path: &Path, home: &Path) -> String {
    match path.strip_prefix(home) {
        Ok(below) => printable(&format!("~/{}", below.display())),
        Err(_) => printable(&path.display().to_string()),
    }
}

/// Asks a question on the terminal; an error if stdin is not a terminal.
pub(crate) fn ask(question: &str) -> Result<bool, String> {
    if !std::io::stdin().is_terminal() {
        return Err(
            "stdin is not a terminal, so the question cannot be asked: run it on a terminal, or add --yes; --dry-run only shows"
                .to_owned(),
        );
    }
    stdout::print_partial(&format!("{question} [y/N] "));
    let mut answer = String::new();
    let _ = std::io::stdin().lock().read_line(&mut answer);
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}
