//! Draws the model: the list, and below it the selected entry, as far as there is room.

use std::collections::VecDeque;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Clear, Paragraph, Row, Sparkline, Table, TableState};

use unicode_width::UnicodeWidthStr as _;

use super::model::{Mode, Model};
use crate::listing::Entry;
use crate::logs::timeline::{LogLine, LogSource};
use crate::ps::words::{self, Health};

/// Minimum width for all columns.
const MIN_WIDTH_FOR_ALL: u16 = 100;
/// Minimum height for the details of the selected entry.
const MIN_HEIGHT_FOR_DETAILS: u16 = 14;

/// Heading, width (0: the rest), and whether it is aligned to the right.
pub(super) type Column = (&'static str, u16, bool);

const ALL_COLUMNS: [Column; 10] = [
    ("NAME", 0, false),
    ("STATE", 12, false),
    ("SRV", 3, true),
    ("CLIENTS", 24, false),
    ("MEMORY", 6, true),
    ("SAVED", 6, true),
    ("REQS", 6, true),
    ("REQ/S", 6, true),
    ("ANSWER", 6, true),
    ("AGE", 4, true),
];
/// The columns of a narrower screen; a very narrow one drops some.
const NARROW_COLUMNS: [Column; 7] = [
    ("NAME", 0, false),
    ("STATE", 11, false),
    ("CLI", 3, true),
    ("MEMORY", 6, true),
    ("REQ/S", 6, true),
    ("ANSWER", 6, true),
    ("AGE", 4, true),
];
/// The order in which columns are dropped: a column is shown completely or not at all.
const DROPPED_FIRST: [&str; 6] = ["REQ/S", "ANSWER", "CLI", "AGE", "STATE", "MEMORY"];
/// Minimum width for sparklines beside the facts.
const MIN_WIDTH_FOR_SAMPLES: u16 = 50;
/// Width between two columns.
const COLUMN_GAP: u16 = 1;
/// Minimum width of a shortened name.
const MIN_NAME_WIDTH: u16 = 8;

const HELP: [&str; 12] = [
    "up, down, j, k      select",
    "l, Enter            its log (up and down to scroll, q to go back)",
    "s                   stop it (asks)",
    "o                   sort by the next column",
    "/                   filter by name, key, state or app",
    "Esc                 no filter",
    "?                   this help",
    "q, Ctrl-C           leave",
    "",
    "MEMORY: memory of the servers. SAVED: memory that one",
    "server for each client would use in addition. ANSWER: the",
    "median time of the last answers.",
];

/// The rows of the screen: title, list, selected entry, its events, footer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Areas {
    pub(super) head: Rect,
    pub(super) list: Rect,
    pub(super) selected: Option<Rect>,
    pub(super) events: Option<Rect>,
    pub(super) footer: Rect,
}

pub(super) fn areas(whole: Rect) -> Areas {
    let rows = |constraints: &[Constraint]| Layout::vertical(constraints).split(whole);
    let line = Constraint::Length(1);
    if whole.height < MIN_HEIGHT_FOR_DETAILS {
        let parts = rows(&[line, Constraint::Min(1), line]);
        return Areas {
            head: parts[0],
            list: parts[1],
            selected: None,
            events: None,
            footer: parts[2],
        };
    }
    // Depends only on the height: nothing moves when entries come and go.
    let list = Constraint::Length((whole.height - 2) * 2 / 5);
    let parts = rows(&[line, list, Constraint::Length(7), Constraint::Min(2), line]);
    Areas {
        head: parts[0],
        list: parts[1],
        selected: Some(parts[2]),
        events: Some(parts[3]),
        footer: parts[4],
    }
}

pub(super) fn draw(frame: &mut Frame<'_>, model: &Model) {
    if let Mode::Log(above) = model.mode {
        return draw_log(frame, model, above);
    }
    let areas = areas(frame.area());
    frame.render_widget(head(model, areas.head.width), areas.head);
    draw_list(frame, model, areas.list);
    if let Some(area) = areas.selected {
        draw_selected(frame, model, area);
    }
    if let Some(area) = areas.events {
        draw_events(frame, model, area);
    }
    frame.render_widget(footer(model), areas.footer);
    if model.mode == Mode::Help {
        draw_help(frame);
    }
}

fn head(model: &Model, width: u16) -> Paragraph<'_> {
    let all = model.all();
    let servers: usize = all.iter().map(|entry| entry.servers.len()).sum();
    let clients: usize = all.iter().map(|entry| entry.clients.len()).sum();
    let memory: u64 = all.iter().map(words::memory).sum();
    let saved: u64 = all.iter().map(|entry| entry.saved_bytes).sum();
    let parts = [
        format!("kennel  {}", words::counted(servers, "server")),
        words::counted(clients, "client"),
        words::bytes(memory),
        format!("saves {}", words::bytes(saved)),
    ];
    Paragraph::new(fitting(&parts, ", ", width)).style(Style::new().add_modifier(Modifier::BOLD))
}

/// The parts that fit, in order: a number is shown completely or not at all.
fn fitting(parts: &[String], between: &str, width: u16) -> String {
    let mut text = String::new();
    for part in parts.iter().filter(|part| !part.is_empty()) {
        let between = if text.is_empty() { "" } else { between };
        let longer = format!("{text}{between}{part}");
        if longer.width() > width.into() {
            break;
        }
        text = longer;
    }
    text
}

fn draw_list(frame: &mut Frame<'_>, model: &Model, area: Rect) {
    let shown = model.visible_entries();
    let columns = columns(area.width);
    let rows = shown.iter().map(|entry| row(model, entry, &columns));
    let heads = columns
        .iter()
        .map(|&(head, _, to_the_right)| match to_the_right {
            true => number(head.to_owned()),
            false => Cell::new(head),
        });
    let heads = Row::new(heads).style(Style::new().add_modifier(Modifier::DIM));
    let constraints = columns
        .iter()
        .map(|&(_, width, _)| Constraint::Length(width));
    let table = Table::new(rows, constraints)
        .column_spacing(COLUMN_GAP)
        .header(heads)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::new().with_selected(model.index_of_selected());
    frame.render_stateful_widget(table, area, &mut state);
    if shown.is_empty() && area.height > 1 {
        let words = match model.filter.is_empty() {
            true => "nothing runs",
            false => "no server matches the filter; Esc removes it",
        };
        let below = Rect {
            y: area.y + 1,
            height: 1,
            ..area
        };
        frame.render_widget(Paragraph::new(words), below);
    }
}

/// Depends only on the width of the screen: no column moves when entries come and go. The name gets the rest.
pub(super) fn columns(whole: u16) -> Vec<Column> {
    let mut columns = match whole >= MIN_WIDTH_FOR_ALL {
        true => ALL_COLUMNS.to_vec(),
        false => NARROW_COLUMNS.to_vec(),
    };
    let name = |columns: &[Column]| {
        let others: u16 = columns[1..]
            .iter()
            .map(|&(_, width, _)| width + COLUMN_GAP)
            .sum();
        whole.saturating_sub(others)
    };
    for dropped in DROPPED_FIRST {
        if name(&columns) >= MIN_NAME_WIDTH {
            break;
        }
        columns.retain(|&(head, ..)| head != dropped);
    }
    columns[0].1 = name(&columns);
    columns
}

fn row(model: &Model, entry: &Entry, columns: &[Column]) -> Row<'static> {
    let cells = columns
        .iter()
        .map(|&(head, width, _)| cell(model, entry, head, width.into()));
    Row::new(cells.collect::<Vec<_>>())
}

fn cell(model: &Model, entry: &Entry, head: &str, width: usize) -> Cell<'static> {
    let requests = words::requests(entry);
    let or_dash = |text: Option<String>| number(text.unwrap_or("-".to_owned()));
    match head {
        "NAME" => Cell::new(words::truncate(&words::printable(&entry.name), width)),
        "STATE" => {
            let (state, health) = words::state(entry, model.now);
            Cell::new(words::truncate(&state, width)).style(tint(model, health))
        }
        "SRV" => number(words::few(entry.servers.len())),
        "CLI" => number(words::few(entry.clients.len())),
        "CLIENTS" => Cell::new(words::truncate(&words::clients(entry), width)),
        "MEMORY" => number(words::format_memory(words::memory(entry))),
        "SAVED" => number(words::format_memory(entry.saved_bytes)),
        "REQS" => or_dash(requests.map(words::count)),
        "REQ/S" => or_dash(requests.map(|_| tenths(model.history.rate(&entry.key)))),
        "ANSWER" => or_dash(words::latency(entry).map(words::format_latency)),
        _ => number(words::age(entry.since, model.now)),
    }
}

/// Numbers are aligned to the right.
fn number(text: String) -> Cell<'static> {
    Cell::new(Line::from(text).right_aligned())
}

fn tenths(tenths: u64) -> String {
    match tenths / 10 {
        whole @ 0..1_000 => format!("{whole}.{}", tenths % 10),
        whole => words::count(whole),
    }
}

fn tint(model: &Model, health: Health) -> Style {
    match health {
        _ if !model.colour => Style::new(),
        Health::Good => Style::new().fg(Color::Green),
        Health::Inactive => Style::new().add_modifier(Modifier::DIM),
        Health::Warning => Style::new().fg(Color::Yellow),
    }
}

fn titled(title: String) -> Block<'static> {
    Block::new().borders(Borders::TOP).title(title)
}

/// Draws its servers and clients on the left, its history on the right.
fn draw_selected(frame: &mut Frame<'_>, model: &Model, area: Rect) {
    let Some(entry) = model.selected() else {
        return frame.render_widget(titled(String::new()), area);
    };
    let title = format!(
        " {} · {} · {} ",
        words::printable(&entry.name),
        entry.mode.word(),
        entry.key
    );
    let block = titled(title);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let samples = model.history.of(&entry.key);
    let samples = samples.filter(|_| inner.width >= MIN_WIDTH_FOR_SAMPLES);
    let share = if samples.is_some() { 60 } else { 100 };
    let halves = [share, 100 - share].map(Constraint::Percentage);
    let spacing = if samples.is_some() { 2 } else { 0 };
    let [left, right] = Layout::horizontal(halves).spacing(spacing).areas(inner);
    let facts = facts(entry, model.now, left.width).into_iter();
    let lines: Vec<Line<'_>> = facts.map(Line::from).collect();
    frame.render_widget(Paragraph::new(lines), left);
    let Some(samples) = samples else {
        return;
    };
    let memory = format!("memory {}", words::bytes(words::memory(entry)));
    let rate = format!("requests {}/s", tenths(model.history.rate(&entry.key)));
    let parts = Layout::vertical([1, 2, 1, 2].map(Constraint::Length)).split(right);
    let (green, blue) = (Color::Green, Color::Blue);
    let sparklines = [
        (memory, &samples.memory, green),
        (rate, &samples.rate, blue),
    ];
    for (at, (label, values, colour)) in sparklines.into_iter().enumerate() {
        frame.render_widget(Paragraph::new(label), parts[2 * at]);
        let colour = if model.colour { colour } else { Color::Reset };
        let last = last_of(values, parts[2 * at + 1].width);
        let sparkline = Sparkline::default()
            .data(last)
            .style(Style::new().fg(colour));
        frame.render_widget(sparkline, parts[2 * at + 1]);
    }
}

/// The newest values, one for each column.
pub(super) fn last_of(values: &VecDeque<u64>, columns: u16) -> Vec<u64> {
    let skipped = values.len().saturating_sub(columns.into());
    values.iter().skip(skipped).copied().collect()
}

fn facts(entry: &Entry, now: u64, width: u16) -> Vec<String> {
    let notes = words::notes(entry, now).into_iter();
    let mut facts: Vec<String> = notes
        .map(|note| words::truncate(&note, width.into()))
        .collect();
    facts.extend(entry.servers.iter().map(|server| {
        let memory = words::bytes(server.rss_bytes.unwrap_or(0));
        let class = words::printable(server.state.class.as_deref().unwrap_or(""));
        let clients = words::counted(server.state.clients, "client");
        let took = server
            .state
            .latency_us
            .map(words::format_latency)
            .unwrap_or_default();
        let server = format!("server {}", server.state.pid);
        fitting(&[server, memory, clients, took, class], "  ", width)
    }));
    facts.push(format!("clients: {}", words::clients(entry)));
    let why = entry.why.as_ref();
    facts.extend(why.map(|why| format!("dedicated: {}", words::printable(why))));
    facts
}

fn draw_events(frame: &mut Frame<'_>, model: &Model, area: Rect) {
    let block = titled(" last events ".to_owned());
    let room = usize::from(block.inner(area).height);
    let events = Paragraph::new(log_lines(model, room, 0)).block(block);
    frame.render_widget(events, area);
}

/// The lines of the log that fit, scrolled up by `above` lines.
fn log_lines(model: &Model, room: usize, above: usize) -> Vec<Line<'_>> {
    if let Some(why) = model.no_log {
        return vec![Line::from(why)];
    }
    let end = model.lines.len().saturating_sub(above);
    let begin = end.saturating_sub(room);
    let lines = model.lines[begin..end].iter();
    lines.map(|line| log_line(line, model.colour)).collect()
}

fn log_line(log_lines: &LogLine, colour: bool) -> Line<'_> {
    let (by, hue) = match log_lines.by {
        LogSource::Kennel => ("kennel", Color::Cyan),
        LogSource::Server => ("server", Color::Yellow),
    };
    let hue = if colour { hue } else { Color::Reset };
    Line::from(vec![
        Span::styled(log_lines.clock(), Style::new().add_modifier(Modifier::DIM)),
        Span::styled(format!(" {by}  "), Style::new().fg(hue)),
        Span::raw(log_lines.words.as_str()),
    ])
}

fn draw_log(frame: &mut Frame<'_>, model: &Model, above: usize) {
    let name = model.selected().map_or("", |entry| entry.name.as_str());
    let block = titled(format!(" log of {} · q back ", words::printable(name)));
    let area = frame.area();
    let room = usize::from(block.inner(area).height);
    let lines = Paragraph::new(log_lines(model, room, above)).block(block);
    frame.render_widget(lines, area);
}

fn footer(model: &Model) -> Paragraph<'_> {
    let name = || words::printable(model.selected().map_or("", |entry| entry.name.as_str()));
    let text = match (&model.message, model.mode) {
        (_, Mode::Filter) => format!("/{}_   Enter keeps it, Esc removes it", model.filter),
        (_, Mode::Ask) => format!(
            "stop {}, for all its sessions? [y/N]",
            words::truncate(&name(), 24)
        ),
        (Some(message), _) => words::printable(message),
        (None, _) => {
            let filter = match model.filter.is_empty() {
                true => String::new(),
                false => format!(" /{}", model.filter),
            };
            let sort = model.sort.word();
            format!("? help  / filter  o by {sort}  l log  s stop  q quit{filter}")
        }
    };
    Paragraph::new(text)
}

fn draw_help(frame: &mut Frame<'_>) {
    let whole = frame.area();
    let (width, height) = (whole.width.min(60), whole.height.min(14));
    let area = Rect {
        x: (whole.width - width) / 2,
        y: (whole.height - height) / 2,
        width,
        height,
    };
    let lines: Vec<Line<'_>> = HELP.iter().copied().map(Line::from).collect();
    let block = Block::bordered().title(" help ");
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines).block(block), area);
}
