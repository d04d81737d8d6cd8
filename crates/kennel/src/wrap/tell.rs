//! What `wrap` and `unwrap` say and ask.

use std::io::{BufRead, IsTerminal, Write};
use std::path::Path;

use super::plan::Proposal;
use super::{Args, Change, Task, Told, diff};
use crate::ps::words::{cut, printable, printable_lines};

pub(super) fn show(args: &Args, change: &Change, tale: &Told, home: &Path) {
    if args.json || (change.rows.is_empty() && !tale.changes) {
        return;
    }
    let title = change.found.client.map_or("file", |client| client.title);
    println!("{title}: {}", below_home(&change.found.path, home));
    if change.found.project && change.found.client.is_some() {
        println!("  this project's: whoever shares the file needs kennel at the same path");
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
            true => println!("  {name:<width$}  {word:<6}  {}", printable(&row.why)),
            false => println!("  {name:<width$}  {}", printable(&row.why)),
        }
    }
    if tale.changes {
        println!();
        print!(
            "{}",
            printable_lines(&diff::of(
                &change.source.text,
                &change.edits,
                &change.secrets
            ))
        );
    }
    println!();
}

pub(super) fn conclude(args: &Args, told: &[Told]) {
    let written = told.iter().filter(|tale| tale.written).count();
    let would = told.iter().filter(|tale| tale.changes).count();
    if written > 0 {
        println!(
            "wrote {}; restart the apps that were running",
            files_of(written)
        );
    } else if would == 0 {
        println!("nothing to change");
    } else if args.dry_run {
        println!("nothing was changed: this was a dry run");
    } else {
        println!("nothing was changed");
    }
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
    print!("{question} [y/N] ");
    let _ = std::io::stdout().flush();
    let mut answer = String::new();
    let _ = std::io::stdin().lock().read_line(&mut answer);
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}
