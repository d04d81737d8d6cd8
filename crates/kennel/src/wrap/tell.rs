//! What `wrap` and `unwrap` say and ask.

use std::io::{BufRead, IsTerminal};
use std::path::Path;

use super::plan::Proposal;
use super::{Args, Change, Task, Told, diff};
use crate::ps::words::{cut, printable, printable_lines};
use crate::say::{self, say};

pub(super) fn show(args: &Args, change: &Change, tale: &Told, home: &Path) {
    if args.json || (change.rows.is_empty() && !tale.changes) {
        return;
    }
    let title = change.found.client.map_or("file", |client| client.title);
    say!("{title}: {}", below_home(&change.found.path, home));
    if change.found.project && change.found.client.is_some() {
        say!("  this project's: whoever shares the file needs kennel at the same path");
    }
    let width = change
        .rows
        .iter()
        .map(|row| row.name.chars().count())
        .max()
        .unwrap_or(0)
        .clamp(6, 24);
    let wrapping = matches!(change.task, Task::Wrap { .. });
    for row in &change.rows {
        let name = cut(&printable(&row.name), 24);
        let word = match row.proposal {
            Proposal::Shared => "shared",
            Proposal::Solo => "solo",
            Proposal::Skip if wrapping => "skip",
            Proposal::Skip => "",
        };
        match wrapping {
            true => say!("  {name:<width$}  {word:<6}  {}", printable(&row.why)),
            false => say!("  {name:<width$}  {}", printable(&row.why)),
        }
    }
    if tale.changes {
        say!();
        say::part(&printable_lines(&diff::of(
            &change.source.text,
            &change.before,
            &change.after,
        )));
    }
    say!();
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
    let mut reasons = Vec::new();
    if unread > 0 {
        reasons.push(format!("{} cannot be changed", files_of(unread)));
    }
    match (wrapping, rows.len()) {
        (_, 0) if unread == told.len() => {}
        (_, 0) => reasons.push(format!("no server is in {}", files_of(told.len() - unread))),
        (true, all) if behind == all => {
            reasons.push("every server is behind kennel already".to_owned());
        }
        (true, all) => reasons.push(format!(
            "of {all} servers, {behind} are behind kennel already, and the others cannot be (see above)"
        )),
        (false, _) => reasons.push("no server is behind kennel by its doing".to_owned()),
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
