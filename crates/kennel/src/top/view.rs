//! How the model is drawn: a list, and below it the chosen one, as far as there is room.

use std::collections::VecDeque;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Clear, Paragraph, Row, Sparkline, Table, TableState};

use unicode_width::UnicodeWidthStr as _;

use super::model::{Mode, Model};
use crate::listing::Entry;
use crate::logs::timeline::{Speaker, Told};
use crate::ps::words::{self, Mood};

/// From this width on, everything has its column.
const ROOMY: u16 = 100;
/// From this height on, the chosen one is shown beside the list.
const TALL: u16 = 14;

/// Its head, its width (0: what is left), and whether it ends at its right.
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
/// Those of a narrower screen; of a very narrow one, without some of them.
const FEW_COLUMNS: [Column; 7] = [
    ("NAME", 0, false),
    ("STATE", 11, false),
    ("CLI", 3, true),
    ("MEMORY", 6, true),
    ("REQ/S", 6, true),
    ("ANSWER", 6, true),
    ("AGE", 4, true),
];
/// Where there is no room, columns go in this order: one that is shown is shown whole.
const DROPPED_FIRST: [&str; 6] = ["REQ/S", "ANSWER", "CLI", "AGE", "STATE", "MEMORY"];
/// Narrower than this, the past is not drawn beside the facts.
const WIDE_ENOUGH_FOR_PAST: u16 = 50;
/// Between two columns.
const GAP: u16 = 1;
/// Narrower than this, nobody knows what was cut.
const LEAST_NAME: u16 = 8;

const HELP: [&str; 12] = [
    "up, down, j, k      choose",
    "l, Enter            its log (up and down there, q back)",
    "s                   stop it (asks)",
    "o                   sort by the next column",
    "/                   filter by name, key, state or app",
    "Esc                 no filter",
    "?                   this help",
    "q, Ctrl-C           leave",
    "",
    "MEMORY is what the servers hold now, SAVED what as many",
    "servers as clients would hold beyond that, ANSWER how long",
    "half of the last answers took at most.",
];

/// Who gets which rows: the head, the list, the chosen one, its events, the last line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Areas {
    pub(super) head: Rect,
    pub(super) list: Rect,
    pub(super) chosen: Option<Rect>,
    pub(super) events: Option<Rect>,
    pub(super) foot: Rect,
}

pub(super) fn areas(whole: Rect) -> Areas {
    let rows = |constraints: &[Constraint]| Layout::vertical(constraints).split(whole);
    let line = Constraint::Length(1);
    if whole.height < TALL {
        let parts = rows(&[line, Constraint::Min(1), line]);
        return Areas {
            head: parts[0],
            list: parts[1],
            chosen: None,
            events: None,
            foot: parts[2],
        };
    }
    // Fixed by the height alone: nothing moves when somebody comes or goes.
    let list = Constraint::Length((whole.height - 2) * 2 / 5);
    let parts = rows(&[line, list, Constraint::Length(7), Constraint::Min(2), line]);
    Areas {
        head: parts[0],
        list: parts[1],
        chosen: Some(parts[2]),
        events: Some(parts[3]),
        foot: parts[4],
    }
}

pub(super) fn draw(frame: &mut Frame<'_>, model: &Model) {
    if let Mode::Log(above) = model.mode {
        return draw_log(frame, model, above);
    }
    let areas = areas(frame.area());
    frame.render_widget(head(model, areas.head.width), areas.head);
    draw_list(frame, model, areas.list);
    if let Some(area) = areas.chosen {
        draw_chosen(frame, model, area);
    }
    if let Some(area) = areas.events {
        draw_events(frame, model, area);
    }
    frame.render_widget(foot(model), areas.foot);
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

/// The first of these parts that there is room for: a number is shown whole or not at all.
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
    let shown = model.shown();
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
        .column_spacing(GAP)
        .header(heads)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::new().with_selected(model.place_of_chosen());
    frame.render_stateful_widget(table, area, &mut state);
    if shown.is_empty() && area.height > 1 {
        let words = match model.filter.is_empty() {
            true => "nothing runs",
            false => "nothing passes the filter; Esc removes it",
        };
        let below = Rect {
            y: area.y + 1,
            height: 1,
            ..area
        };
        frame.render_widget(Paragraph::new(words), below);
    }
}

/// Given by the width of the screen alone: no column moves, whoever comes or goes. The name gets what is left.
pub(super) fn columns(whole: u16) -> Vec<Column> {
    let mut columns = match whole >= ROOMY {
        true => ALL_COLUMNS.to_vec(),
        false => FEW_COLUMNS.to_vec(),
    };
    let name = |columns: &[Column]| {
        let others: u16 = columns[1..].iter().map(|&(_, width, _)| width + GAP).sum();
        whole.saturating_sub(others)
    };
    for dropped in DROPPED_FIRST {
        if name(&columns) >= LEAST_NAME {
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
        "NAME" => Cell::new(words::cut(&words::printable(&entry.name), width)),
        "STATE" => {
            let (state, mood) = words::state(entry, model.now);
            Cell::new(words::cut(&state, width)).style(tint(model, mood))
        }
        "SRV" => number(words::few(entry.servers.len())),
        "CLI" => number(words::few(entry.clients.len())),
        "CLIENTS" => Cell::new(words::cut(&words::clients(entry), width)),
        "MEMORY" => number(words::held(words::memory(entry))),
        "SAVED" => number(words::held(entry.saved_bytes)),
        "REQS" => or_dash(requests.map(words::count)),
        "REQ/S" => or_dash(requests.map(|_| tenths(model.history.rate(&entry.key)))),
        "ANSWER" => or_dash(words::latency(entry).map(words::took)),
        _ => number(words::age(entry.since, model.now)),
    }
}

/// Numbers end where their column ends.
fn number(text: String) -> Cell<'static> {
    Cell::new(Line::from(text).right_aligned())
}

fn tenths(tenths: u64) -> String {
    match tenths / 10 {
        whole @ 0..1_000 => format!("{whole}.{}", tenths % 10),
        whole => words::count(whole),
    }
}

fn tint(model: &Model, mood: Mood) -> Style {
    match mood {
        _ if !model.colour => Style::new(),
        Mood::Well => Style::new().fg(Color::Green),
        Mood::Quiet => Style::new().add_modifier(Modifier::DIM),
        Mood::Odd => Style::new().fg(Color::Yellow),
    }
}

fn titled(title: String) -> Block<'static> {
    Block::new().borders(Borders::TOP).title(title)
}

/// Its servers and clients at the left, its past at the right.
fn draw_chosen(frame: &mut Frame<'_>, model: &Model, area: Rect) {
    let Some(entry) = model.chosen() else {
        return frame.render_widget(titled(String::new()), area);
    };
    let title = format!(
        " {} · {} · {} ",
        words::printable(&entry.name),
        words::mode(entry.mode),
        entry.key
    );
    let block = titled(title);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let past = model.history.of(&entry.key);
    let past = past.filter(|_| inner.width >= WIDE_ENOUGH_FOR_PAST);
    let share = if past.is_some() { 60 } else { 100 };
    let halves = [share, 100 - share].map(Constraint::Percentage);
    let spacing = if past.is_some() { 2 } else { 0 };
    let [left, right] = Layout::horizontal(halves).spacing(spacing).areas(inner);
    let facts = facts(entry, model.now, left.width).into_iter();
    let lines: Vec<Line<'_>> = facts.map(Line::from).collect();
    frame.render_widget(Paragraph::new(lines), left);
    let Some(past) = past else {
        return;
    };
    let memory = format!("memory {}", words::bytes(words::memory(entry)));
    let rate = format!("requests {}/s", tenths(model.history.rate(&entry.key)));
    let parts = Layout::vertical([1, 2, 1, 2].map(Constraint::Length)).split(right);
    let (green, blue) = (Color::Green, Color::Blue);
    let sparklines = [(memory, &past.memory, green), (rate, &past.rate, blue)];
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

/// As many of the newest as there are columns.
pub(super) fn last_of(values: &VecDeque<u64>, columns: u16) -> Vec<u64> {
    let skipped = values.len().saturating_sub(columns.into());
    values.iter().skip(skipped).copied().collect()
}

fn facts(entry: &Entry, now: u64, width: u16) -> Vec<String> {
    let notes = words::notes(entry, now).into_iter();
    let mut facts: Vec<String> = notes.map(|note| words::cut(&note, width.into())).collect();
    facts.extend(entry.servers.iter().map(|server| {
        let memory = words::bytes(server.rss_bytes.unwrap_or(0));
        let class = words::printable(server.state.class.as_deref().unwrap_or(""));
        let clients = words::counted(server.state.clients, "client");
        let took = server.state.latency_us.map(words::took).unwrap_or_default();
        let server = format!("server {}", server.state.pid);
        fitting(&[server, memory, clients, took, class], "  ", width)
    }));
    facts.push(format!("clients: {}", words::clients(entry)));
    let why = entry.why.as_ref();
    facts.extend(why.map(|why| format!("on its own: {}", words::printable(why))));
    facts
}

fn draw_events(frame: &mut Frame<'_>, model: &Model, area: Rect) {
    let block = titled(" last events ".to_owned());
    let room = usize::from(block.inner(area).height);
    let events = Paragraph::new(told(model, room, 0)).block(block);
    frame.render_widget(events, area);
}

/// The last lines of the log that there is room for, so many above its end.
fn told(model: &Model, room: usize, above: usize) -> Vec<Line<'_>> {
    if let Some(why) = model.no_log {
        return vec![Line::from(why)];
    }
    let end = model.lines.len().saturating_sub(above);
    let begin = end.saturating_sub(room);
    let lines = model.lines[begin..end].iter();
    lines.map(|line| told_line(line, model.colour)).collect()
}

fn told_line(told: &Told, colour: bool) -> Line<'_> {
    let (by, hue) = match told.by {
        Speaker::Kennel => ("kennel", Color::Cyan),
        Speaker::Server => ("server", Color::Yellow),
    };
    let hue = if colour { hue } else { Color::Reset };
    Line::from(vec![
        Span::styled(told.clock(), Style::new().add_modifier(Modifier::DIM)),
        Span::styled(format!(" {by}  "), Style::new().fg(hue)),
        Span::raw(told.words.as_str()),
    ])
}

fn draw_log(frame: &mut Frame<'_>, model: &Model, above: usize) {
    let name = model.chosen().map_or("", |entry| entry.name.as_str());
    let block = titled(format!(" log of {} · q back ", words::printable(name)));
    let area = frame.area();
    let room = usize::from(block.inner(area).height);
    let lines = Paragraph::new(told(model, room, above)).block(block);
    frame.render_widget(lines, area);
}

fn foot(model: &Model) -> Paragraph<'_> {
    let name = || words::printable(model.chosen().map_or("", |entry| entry.name.as_str()));
    let text = match (&model.message, model.mode) {
        (_, Mode::Filter) => format!("/{}_   Enter keeps it, Esc removes it", model.filter),
        (_, Mode::Ask) => format!(
            "stop {}, for all its sessions? [y/N]",
            words::cut(&name(), 24)
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
