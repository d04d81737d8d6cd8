//! What `wrap` and `unwrap` say and ask.

use std::io::{BufRead, IsTerminal};
use std::path::Path;

use unicode_width::UnicodeWidthStr as _;

use super::places::Found;
use super::plan::Proposal;
use super::{Args, Change, Shown, Task, Told, diff};
use crate::ps::words::{cut, pad_right, printable, printable_lines};
use crate::say::{self, say};

/// More files than these are shown shortly: a line for each with the names of its servers.
const MANY: usize = 3;

/// Shows what would become of each file.
pub(super) fn show_all(args: &Args, shown: &[Shown], changes: &[(usize, Change)], home: &Path) {
    if args.json {
        return;
    }
    let short = changes.len() > MANY && !args.diff;
    for file in shown {
        match file {
            Shown::Change(at) if short => show_shortly(&changes[*at].1, home),
            Shown::Change(at) => show(&changes[*at].1, true, home),
            Shown::Unchanged(change) if short || change.rows.is_empty() => {}
            Shown::Unchanged(change) => show(change, false, home),
            Shown::Skipped(found) => {
                say!("{}", headline(found, home));
                say!(
                    "  skipped: it is under version control, and others may have it too; --project includes it"
                );
                say!();
            }
        }
    }
    if short {
        say!("commands and reasons are left out for so many files; --diff shows them");
    }
}

fn headline(found: &Found, home: &Path) -> String {
    let title = found.client.map_or("file", |client| client.title);
    format!("{title}: {}", below_home(&found.path, home))
}

fn show(change: &Change, changes: bool, home: &Path) {
    say!("{}", headline(&change.found, home));
    let wrapping = matches!(change.task, Task::Wrap { .. });
    if wrapping && change.found.is_in_a_repository() {
        say!(
            "  under version control: it starts plain `kennel`, which everybody who has the file needs on the PATH"
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
        let name = pad_right(&cut(&printable(&row.name), 24), width);
        match wrapping {
            true => {
                let word = word(row.proposal);
                say!("  {name}  {word:<6}  {}", printable(&row.why));
            }
            false => say!("  {name}  {}", printable(&row.why)),
        }
    }
    if changes {
        say!();
        say::part(&printable_lines(&diff::of(
            &change.source.text,
            &change.before,
            &change.after,
        )));
    }
    say!();
}

fn word(proposal: Proposal) -> &'static str {
    match proposal {
        Proposal::Shared => "shared",
        Proposal::Solo => "solo",
        Proposal::Skip => "skip",
    }
}

/// One line for a file, and one for its servers.
fn show_shortly(change: &Change, home: &Path) {
    say!("{}", headline(&change.found, home));
    let pairs = change.before.iter().zip(&change.after).zip(&change.rows);
    let changed: Vec<_> = pairs
        .filter(|((old, new), _)| old.command() != new.command())
        .map(|(_, row)| row)
        .collect();
    let names = |wanted: Option<Proposal>| {
        let of = changed
            .iter()
            .filter(|row| wanted.is_none_or(|it| it == row.proposal));
        let names = of.map(|row| cut(&printable(&row.name), 24));
        names.collect::<Vec<_>>().join(", ")
    };
    let parts: Vec<String> = match change.task {
        Task::Wrap { .. } => [Proposal::Shared, Proposal::Solo]
            .into_iter()
            .map(|proposal| (word(proposal), names(Some(proposal))))
            .filter(|(_, names)| !names.is_empty())
            .map(|(word, names)| format!("{word}: {names}"))
            .collect(),
        Task::Unwrap => vec![format!("without kennel: {}", names(None))],
    };
    say!("  {}", parts.join("; "));
}

/// How many files and servers there are, and what would become of them.
pub(super) fn total(told: &[Told], wrapping: bool) {
    let files = |wanted: &dyn Fn(&Told) -> bool| told.iter().filter(|tale| wanted(tale)).count();
    let changes = |tale: &Told| tale.changes && tale.error.is_none();
    let mut parts = vec![format!("{} change", files(&changes))];
    for (count, what) in [
        (files(&|tale| tale.error.is_some()), "cannot be changed"),
        (files(&|tale| tale.skipped), "skipped (--project)"),
        (
            files(&|tale| !tale.changes && !tale.skipped && tale.error.is_none()),
            "stay as they are",
        ),
    ] {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    }
    let rows: Vec<_> = told.iter().flat_map(|tale| &tale.servers).collect();
    let count = |wanted| rows.iter().filter(|row| row.proposal == wanted).count();
    let mut line = format!("{}: {}", files_of(told.len()), parts.join(", "));
    if wrapping {
        let counts = [Proposal::Shared, Proposal::Solo, Proposal::Skip]
            .map(|proposal| format!("{} {}", count(proposal), word(proposal)));
        let servers = if rows.len() == 1 { "server" } else { "servers" };
        line += &format!("; {} {servers}: {}", rows.len(), counts.join(", "));
    }
    say!("{line}");
}

pub(super) fn conclude(args: &Args, told: &[Told], wrapping: bool) {
    let written = told.iter().filter(|tale| tale.written).count();
    let would = told.iter().filter(|tale| tale.changes).count();
    if written > 0 {
        say!(
            "wrote {}; restart the apps that were running",
            files_of(written)
        );
    } else if would == 0 {
        say!("nothing to change: {}", why_nothing(told, wrapping));
    } else if args.dry_run {
        say!("nothing was changed: this was a dry run");
    } else {
        say!("nothing was changed");
    }
}

/// Why no file would change: whoever expected a change sees which part of that was wrong.
fn why_nothing(told: &[Told], wrapping: bool) -> String {
    let unread = told.iter().filter(|tale| tale.error.is_some()).count();
    let rows: Vec<_> = told.iter().flat_map(|tale| &tale.servers).collect();
    let behind = rows
        .iter()
        .filter(|row| row.why.ends_with("already"))
        .count();
    let skipped = told.iter().filter(|tale| tale.skipped).count();
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
        (_, 0) if unread + skipped == told.len() => {}
        (_, 0) => {
            let read = told.len() - unread - skipped;
            reasons.push(format!("no server is in {}", files_of(read)));
        }
        (true, all) if behind == all => {
            reasons.push("every server is behind kennel already".to_owned());
        }
        (true, all) => reasons.push(format!(
            "of {all} servers, {behind} are behind kennel already, and the others cannot be (see above)"
        )),
        (false, _) => reasons.push("no entries were wrapped by `kennel wrap`".to_owned()),
    }
    reasons.join("; ")
}

pub(super) fn files_of(count: usize) -> String {
    format!("{count} file{}", if count == 1 { "" } else { "s" })
}

fn below_home(path: &Path, home: &Path) -> String {
    match path.strip_prefix(home) {
        Ok(below) => printable(&format!("~/{}", below.display())),
        Err(_) => printable(&path.display().to_string()),
    }
}

/// Asks on a terminal; refuses where there is none.
pub(crate) fn ask(question: &str) -> Result<bool, String> {
    if !std::io::stdin().is_terminal() {
        return Err(
            "nobody can be asked: run it on a terminal, or add --yes; --dry-run only shows"
                .to_owned(),
        );
    }
    say::part(&format!("{question} [y/N] "));
    let mut answer = String::new();
    let _ = std::io::stdin().lock().read_line(&mut answer);
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}
