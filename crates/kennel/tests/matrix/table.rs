//! How the matrix is printed.

use std::fmt::Write;
use std::time::Duration;

use kennel_sys::Signal;

use crate::scene::Outcome;
use crate::{AROUNDS, Around, Cell, KERNELS, Mode, Victim};

const WIDTH: usize = 17;

/// The whole table: a row per victim, signal and mode; a column per surrounding; in it, a time per kernel.
pub(crate) fn render(cells: &[Cell], outcomes: &[Option<Outcome>]) -> String {
    let mut text = String::from(
        "\nwhat dies, how and in which mode; what is around it. Milliseconds from the last death until nothing\n\
         of server, warden, shim and daemon is left; kernel with all features / no SO_PEERPIDFD / no pidfs\n\
         (-: there is no such thing, .: not in this run, FAIL: something remained, see below)\n\n",
    );
    let line = |first: &str, columns: Vec<String>| {
        let columns: String = columns
            .iter()
            .map(|column| format!(" {column:>WIDTH$}"))
            .collect();
        format!("{first:<28}{columns}\n")
    };
    text += &line(
        "",
        AROUNDS.map(|around| heading(around).to_owned()).to_vec(),
    );
    let per_row = AROUNDS.len() * KERNELS.len();
    for (row, outcomes) in cells.chunks(per_row).zip(outcomes.chunks(per_row)) {
        let of_kernels = row
            .chunks(KERNELS.len())
            .zip(outcomes.chunks(KERNELS.len()));
        let columns = of_kernels.map(|(cells, outcomes)| {
            let words = cells
                .iter()
                .zip(outcomes)
                .map(|(cell, outcome)| word(cell, outcome.as_ref()));
            words.collect::<Vec<_>>().join("/")
        });
        text += &line(&title(&row[0]), columns.collect());
    }
    let played = outcomes.iter().flatten().count();
    let failed = failures(cells, outcomes).len();
    let _ = writeln!(
        text,
        "\n{played} cells played, {failed} failed; {}",
        slowest(cells, outcomes)
    );
    text
}

/// The cells in which something remained, or went otherwise wrong.
pub(crate) fn failures(cells: &[Cell], outcomes: &[Option<Outcome>]) -> Vec<String> {
    let failed = cells
        .iter()
        .zip(outcomes)
        .filter_map(|(cell, outcome)| match outcome {
            Some(Outcome::Failed(words)) => Some(format!("{}: {words}", name(cell))),
            _ => None,
        });
    failed.collect()
}

fn slowest(cells: &[Cell], outcomes: &[Option<Outcome>]) -> String {
    let times = cells
        .iter()
        .zip(outcomes)
        .filter_map(|(cell, outcome)| match outcome {
            Some(Outcome::NothingLeft(time)) => Some((*time, cell)),
            _ => None,
        });
    let slowest: Option<(Duration, &Cell)> = times.max_by_key(|(time, _)| *time);
    slowest.map_or_else(
        || "none was empty".to_owned(),
        |(time, cell)| format!("the slowest took {} ms: {}", time.as_millis(), name(cell)),
    )
}

fn word(cell: &Cell, outcome: Option<&Outcome>) -> String {
    match outcome {
        _ if !cell.is_possible() => "-".to_owned(),
        None => ".".to_owned(),
        Some(Outcome::NothingLeft(time)) => time.as_millis().to_string(),
        Some(Outcome::Failed(_)) => "FAIL".to_owned(),
    }
}

fn name(cell: &Cell) -> String {
    let off = if cell.off.is_empty() {
        String::new()
    } else {
        format!(", without {}", cell.off)
    };
    format!("{}, {}{off}", title(cell), heading(cell.around))
}

fn title(cell: &Cell) -> String {
    let victim = match (cell.victim, cell.mode) {
        (Victim::App, _) => "app",
        (Victim::Shim, _) => "shim",
        (Victim::Daemon, _) => "daemon",
        (Victim::Warden, _) => "warden",
        (Victim::Server, _) => "server",
        (Victim::Owner, _) => "owner",
        (Victim::DaemonAndShims, _) => "daemon+shims",
        (Victim::ServedAndWarden, Mode::Solo) => "shim+warden",
        (Victim::ServedAndWarden, Mode::Daemon) => "daemon+warden",
    };
    let how = match cell.how {
        Signal::TERM => "TERM",
        Signal::KILL => "KILL",
        _ => "STOP",
    };
    let mode = match cell.mode {
        Mode::Solo => "solo",
        Mode::Daemon => "daemon",
    };
    format!("{victim} {how} {mode}")
}

fn heading(around: Around) -> &'static str {
    match around {
        Around::PipeCloses => "pipe closes",
        Around::PipeHeld => "pipe held",
        Around::Launcher => "launcher",
        Around::Early => "0-100 ms old",
        Around::Zombie => "zombies stay",
        Around::Stubborn => "stubborn family",
    }
}
