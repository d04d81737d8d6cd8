//! The table: columns as wide as they must be, and a line as wide as it may be.

use unicode_width::UnicodeWidthStr as _;

use super::words::{self, Mood};
use crate::listing::{Entry, Mode};

const GAP: &str = "  ";
/// Narrower than this, nobody knows what was cut.
const LEAST: usize = 8;

const HEADS: [&str; 8] = [
    "NAME", "STATE", "SRV", "CLIENTS", "MEMORY", "SAVED", "REQS", "AGE",
];
const NAME: usize = 0;
const STATE: usize = 1;
const CLIENTS: usize = 3;
/// Numbers, which end where their column ends.
const TO_THE_RIGHT: [bool; 8] = [false, false, true, false, true, true, true, true];

/// How a table is to look.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    /// No line is wider, but for `wide`.
    pub(super) columns: usize,
    pub(super) wide: bool,
    pub(super) colour: bool,
    /// In seconds since 1970.
    pub(super) now: u64,
}

pub(super) fn lines(entries: &[Entry], look: Look) -> Vec<String> {
    if entries.is_empty() {
        return vec!["nothing runs".to_owned()];
    }
    let rows: Vec<[String; 8]> = entries.iter().map(|entry| row(entry, look.now)).collect();
    let widths = widths(&rows, look.columns);
    let heads = HEADS.map(str::to_owned);
    let mut lines = vec![line(&heads, &widths, None)];
    for (entry, row) in entries.iter().zip(&rows) {
        let (_, mood) = words::state(entry, look.now);
        lines.push(line(row, &widths, look.colour.then_some(mood)));
        let mut notes = words::notes(entry, look.now);
        if look.wide {
            notes.extend(details(entry));
        }
        let room = if look.wide { usize::MAX } else { look.columns };
        lines.extend(
            notes
                .iter()
                .map(|note| words::cut(&format!("  {note}"), room)),
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
        words::held(words::memory(entry)),
        words::held(entry.saved_bytes),
        words::requests(entry).map_or("-".to_owned(), words::count),
        words::age(entry.since, now),
    ]
}

/// As wide as their content; if that is too wide together, clients and names give way, the wider one first.
fn widths(rows: &[[String; 8]], columns: usize) -> [usize; 8] {
    let mut widths = HEADS.map(str::len);
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.width());
        }
    }
    let gaps = GAP.len() * (HEADS.len() - 1);
    while widths.iter().sum::<usize>() + gaps > columns {
        let wider = match widths[CLIENTS] > widths[NAME] {
            true => CLIENTS,
            false => NAME,
        };
        match widths[wider] > LEAST {
            true => widths[wider] -= 1,
            false => break,
        }
    }
    widths
}

fn line(row: &[String; 8], widths: &[usize; 8], mood: Option<Mood>) -> String {
    let cells = (0..row.len()).map(|column| {
        let width = widths[column];
        let cell = words::cut(&row[column], width);
        let cell = match TO_THE_RIGHT[column] {
            true => words::pad_left(&cell, width),
            false => words::pad_right(&cell, width),
        };
        match mood {
            Some(mood) if column == STATE => format!("\x1b[{}m{cell}\x1b[0m", colour(mood)),
            _ => cell,
        }
    });
    cells.collect::<Vec<_>>().join(GAP).trim_end().to_owned()
}

fn colour(mood: Mood) -> u8 {
    match mood {
        Mood::Well => 32,
        Mood::Quiet => 2,
        Mood::Odd => 33,
    }
}

/// What `--wide` adds.
fn details(entry: &Entry) -> Vec<String> {
    let daemon = entry.daemon_pid.map(|pid| format!(", daemon {pid}"));
    let mut details = vec![words::printable(&format!(
        "key {} ({}), version {}{}",
        entry.key,
        words::mode(entry.mode),
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
        let took = state.latency_us.map(words::took);
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
        details.push(format!("saves {saved} against a server for each"));
    }
    let why = entry.why.as_ref().filter(|_| entry.mode != Mode::Kept);
    details.extend(why.map(|why| format!("on its own: {}", words::printable(why))));
    details
}
