//! The table: columns as wide as their content, lines no wider than the terminal.

use unicode_width::UnicodeWidthStr as _;

use super::words::{self, Health};
use crate::listing::{Entry, Mode};

const COLUMN_GAP: &str = "  ";
/// Minimum width of a shortened column.
const MIN_WIDTH: usize = 8;

const COLUMN_HEADERS: [&str; 8] = [
    "NAME", "STATE", "SRV", "CLIENTS", "MEMORY", "SAVED", "REQS", "AGE",
];
const NAME: usize = 0;
const STATE: usize = 1;
const CLIENTS: usize = 3;
/// Columns with numbers, which are aligned to the right.
const RIGHT_ALIGNED: [bool; 8] = [false, false, true, false, true, true, true, true];

/// How a table looks.
#[derive(Debug, Clone, Copy)]
pub(super) struct TableStyle {
    /// Maximum width of a line; ignored with `wide`.
    pub(super) columns: usize,
    pub(super) wide: bool,
    pub(super) colour: bool,
    /// Seconds since 1970.
    pub(super) now: u64,
}

pub(super) fn lines(entries: &[Entry], style: TableStyle) -> Vec<String> {
    if entries.is_empty() {
        return vec!["nothing runs".to_owned()];
    }
    let rows: Vec<[String; 8]> = entries.iter().map(|entry| row(entry, style.now)).collect();
    let widths = widths(&rows, style.columns);
    let heads = COLUMN_HEADERS.map(str::to_owned);
    let mut lines = vec![line(&heads, &widths, None)];
    for (entry, row) in entries.iter().zip(&rows) {
        let (_, health) = words::state(entry, style.now);
        lines.push(line(row, &widths, style.colour.then_some(health)));
        let mut notes = words::notes(entry, style.now);
        if style.wide {
            notes.extend(details(entry));
        }
        let room = if style.wide {
            usize::MAX
        } else {
            style.columns
        };
        lines.extend(
            notes
                .iter()
                .map(|note| words::truncate(&format!("  {note}"), room)),
        );
    }
    lines
}

fn row(entry: &Entry, now: u64) -> [String; 8] {
    [
        words::printable(&entry.name),
        words::state(entry, now).0,
        entry.servers.len().to_string(),
        words::clients(entry),
        words::format_memory(words::memory(entry)),
        words::format_memory(entry.saved_bytes),
        words::requests(entry).map_or("-".to_owned(), words::count),
        words::age(entry.since, now),
    ]
}

/// The width of each column: that of its content. If the sum is too wide, clients and names are shortened, the wider
/// one first.
fn widths(rows: &[[String; 8]], columns: usize) -> [usize; 8] {
    let mut widths = COLUMN_HEADERS.map(str::len);
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.width());
        }
    }
    let gaps = COLUMN_GAP.len() * (COLUMN_HEADERS.len() - 1);
    while widths.iter().sum::<usize>() + gaps > columns {
        let wider = match widths[CLIENTS] > widths[NAME] {
            true => CLIENTS,
            false => NAME,
        };
        match widths[wider] > MIN_WIDTH {
            true => widths[wider] -= 1,
            false => break,
        }
    }
    widths
}

fn line(row: &[String; 8], widths: &[usize; 8], health: Option<Health>) -> String {
    let cells = (0..row.len()).map(|column| {
        let width = widths[column];
        let cell = words::truncate(&row[column], width);
        let cell = match RIGHT_ALIGNED[column] {
            true => words::pad_left(&cell, width),
            false => words::pad_right(&cell, width),
        };
        match health {
            Some(health) if column == STATE => format!("\x1b[{}m{cell}\x1b[0m", colour(health)),
            _ => cell,
        }
    });
    cells
        .collect::<Vec<_>>()
        .join(COLUMN_GAP)
        .trim_end()
        .to_owned()
}

fn colour(health: Health) -> u8 {
    match health {
        Health::Good => 32,
        Health::Inactive => 2,
        Health::Warning => 33,
    }
}

/// The lines that `--wide` adds.
fn details(entry: &Entry) -> Vec<String> {
    let daemon = entry.daemon_pid.map(|pid| format!(", daemon {pid}"));
    let mut details = vec![words::printable(&format!(
        "key {} ({}), version {}{}",
        entry.key,
        entry.mode.word(),
        entry.version,
        daemon.unwrap_or_default()
    ))];
    let command = entry.command.join(" ");
    details.push(words::printable(&format!(
        "runs {command} in {}",
        entry.cwd
    )));
    details.extend(entry.servers.iter().map(|server| {
        let state = &server.state;
        let class = state.class.as_deref().map(|class| format!(" ({class})"));
        let clients = words::counted(state.clients, "client");
        let memory = words::bytes(server.rss_bytes.unwrap_or(0));
        let class = words::printable(&class.unwrap_or_default());
        let took = state.latency_us.map(words::format_latency);
        let took = took.map(|took| format!(", answers in {took}"));
        let took = took.unwrap_or_default();
        format!("server {}{class}: {clients}, {memory}{took}", state.pid)
    }));
    details.extend(entry.clients.iter().map(|client| {
        let app = words::printable(client.app.as_deref().unwrap_or("?"));
        let its = client.app_pid.map(|pid| format!(" {pid}"));
        let process = format!("{app}{}", its.unwrap_or_default());
        let who = match &client.client {
            Some(name) => format!("{} ({process})", words::printable(name)),
            None => process,
        };
        format!("client {} of {who}", client.pid)
    }));
    if entry.saved_bytes > 0 {
        let saved = words::bytes(entry.saved_bytes);
        details.push(format!(
            "saves {saved} compared with one server for each client"
        ));
    }
    let why = entry.why.as_ref().filter(|_| entry.mode != Mode::Kept);
    details.extend(why.map(|why| format!("dedicated: {}", words::printable(why))));
    details
}
