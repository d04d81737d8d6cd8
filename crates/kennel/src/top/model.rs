//! The entries and the selection, and the effect of each key. Pure: entries, times and keys are arguments.

use std::cmp::Reverse;
use std::time::Instant;

use super::history::History;
use super::keys::Key;
use crate::listing::Entry;
use crate::logs::timeline::LogLine;
use crate::ps::words;

/// The order of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sort {
    Age,
    Name,
    Memory,
    Clients,
    Rate,
}

impl Sort {
    const ALL: [Sort; 5] = [
        Sort::Age,
        Sort::Name,
        Sort::Memory,
        Sort::Clients,
        Sort::Rate,
    ];

    pub(super) fn word(self) -> &'static str {
        match self {
            Sort::Age => "age",
            Sort::Name => "name",
            Sort::Memory => "memory",
            Sort::Clients => "clients",
            Sort::Rate => "requests",
        }
    }

    fn next(self) -> Sort {
        let at = Sort::ALL.iter().position(|&sort| sort == self).unwrap_or(0);
        Sort::ALL[(at + 1) % Sort::ALL.len()]
    }
}

/// The meaning of keys at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Browse,
    Filter,
    /// Asks whether to stop the selected entry.
    Ask,
    Help,
    /// Shows the log of the selected entry, scrolled up by this many lines.
    Log(usize),
}

/// An action that the model cannot do itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    None,
    Quit,
    /// Another entry is selected: read its log.
    ReadLog,
    Stop,
}

#[derive(Debug)]
pub(super) struct Model {
    entries: Vec<Entry>,
    selected: Option<String>,
    /// Its position in the list.
    place: usize,
    pub(super) history: History,
    pub(super) sort: Sort,
    pub(super) filter: String,
    pub(super) mode: Mode,
    pub(super) lines: Vec<LogLine>,
    pub(super) no_log: Option<&'static str>,
    pub(super) message: Option<String>,
    pub(super) colour: bool,
    /// Seconds since 1970.
    pub(super) now: u64,
}

impl Model {
    pub(super) fn new(filter: String, colour: bool) -> Model {
        Model {
            entries: Vec::new(),
            selected: None,
            place: 0,
            history: History::default(),
            sort: Sort::Age,
            filter,
            mode: Mode::Browse,
            lines: Vec::new(),
            no_log: None,
            message: None,
            colour,
            now: 0,
        }
    }

    /// Takes the entries that run now.
    pub(super) fn update(&mut self, entries: Vec<Entry>, now: u64, at: Instant) {
        self.history.update(&entries, at);
        (self.entries, self.now) = (entries, now);
        self.keep_selection();
    }

    pub(super) fn set_log(&mut self, lines: Vec<LogLine>, no_log: Option<&'static str>) {
        (self.lines, self.no_log) = (lines, no_log);
    }

    pub(super) fn set_message(&mut self, words: String) {
        self.message = Some(words);
    }

    /// The entries that pass the filter, sorted.
    pub(super) fn visible_entries(&self) -> Vec<&Entry> {
        let passing = |entry: &&Entry| matches_filter(entry, &self.filter);
        let mut shown: Vec<&Entry> = self.entries.iter().filter(passing).collect();
        // A stable sort: equal entries stay ordered by age.
        match self.sort {
            Sort::Age => {}
            Sort::Name => shown.sort_by(|one, other| one.name.cmp(&other.name)),
            Sort::Memory => shown.sort_by_key(|entry| Reverse(words::memory(entry))),
            Sort::Clients => shown.sort_by_key(|entry| Reverse(entry.clients.len())),
            Sort::Rate => shown.sort_by_key(|entry| Reverse(self.history.rate(&entry.key))),
        }
        shown
    }

    pub(super) fn all(&self) -> &[Entry] {
        &self.entries
    }

    pub(super) fn selected(&self) -> Option<&Entry> {
        let key = self.selected.as_deref()?;
        self.visible_entries()
            .into_iter()
            .find(|entry| entry.key == key)
    }

    pub(super) fn index_of_selected(&self) -> Option<usize> {
        let key = self.selected.as_deref()?;
        self.visible_entries()
            .iter()
            .position(|entry| entry.key == key)
    }

    pub(super) fn key(&mut self, key: Key) -> Action {
        if key == Key::CtrlC {
            return Action::Quit;
        }
        self.message = None;
        match self.mode {
            Mode::Browse => self.browse(key),
            Mode::Filter => self.edit_filter(key),
            Mode::Ask => {
                self.mode = Mode::Browse;
                match key {
                    Key::Char('y' | 'Y') => Action::Stop,
                    _ => Action::None,
                }
            }
            Mode::Help => {
                self.mode = Mode::Browse;
                Action::None
            }
            Mode::Log(above) => self.read_log(key, above),
        }
    }

    fn browse(&mut self, key: Key) -> Action {
        match key {
            Key::Char('q') => return Action::Quit,
            Key::Esc => {
                self.filter.clear();
                self.keep_selection();
            }
            Key::Char('?' | 'h') => self.mode = Mode::Help,
            Key::Char('/') => self.mode = Mode::Filter,
            Key::Char('o') => self.sort = self.sort.next(),
            Key::Char('l') | Key::Enter if self.selected().is_some() => {
                self.mode = Mode::Log(0);
            }
            Key::Char('s') => match self.selected() {
                Some(entry) if entry.is_hibernating() => {
                    self.set_message("it hibernates: there is nothing to stop".to_owned());
                }
                Some(_) => self.mode = Mode::Ask,
                None => {}
            },
            Key::Down | Key::Char('j') => return self.move_selection(1),
            Key::Up | Key::Char('k') => return self.move_selection(-1),
            Key::PageDown => return self.move_selection(10),
            Key::PageUp => return self.move_selection(-10),
            Key::Home | Key::Char('g') => return self.move_selection(isize::MIN),
            Key::End | Key::Char('G') => return self.move_selection(isize::MAX),
            _ => {}
        }
        Action::None
    }

    fn edit_filter(&mut self, key: Key) -> Action {
        match key {
            Key::Enter => self.mode = Mode::Browse,
            Key::Esc => {
                self.filter.clear();
                self.mode = Mode::Browse;
            }
            Key::Backspace => drop(self.filter.pop()),
            Key::Char(char) => self.filter.push(char),
            _ => {}
        }
        self.keep_selection();
        Action::ReadLog
    }

    fn read_log(&mut self, key: Key, above: usize) -> Action {
        let most = self.lines.len().saturating_sub(1);
        self.mode = match key {
            Key::Char('q' | 'l') | Key::Esc | Key::Enter => Mode::Browse,
            Key::Up | Key::Char('k') => Mode::Log((above + 1).min(most)),
            Key::Down | Key::Char('j') => Mode::Log(above.saturating_sub(1)),
            Key::PageUp => Mode::Log((above + 10).min(most)),
            Key::PageDown | Key::Char(' ') => Mode::Log(above.saturating_sub(10)),
            Key::Home | Key::Char('g') => Mode::Log(most),
            Key::End | Key::Char('G') => Mode::Log(0),
            _ => Mode::Log(above),
        };
        Action::None
    }

    fn move_selection(&mut self, by: isize) -> Action {
        let last = self.visible_entries().len().saturating_sub(1);
        let place = self.index_of_selected().unwrap_or(0);
        let place = place.saturating_add_signed(by).min(last);
        self.select(place);
        Action::ReadLog
    }

    fn select(&mut self, place: usize) {
        self.place = place;
        self.selected = self
            .visible_entries()
            .get(place)
            .map(|entry| entry.key.clone());
    }

    /// Keeps the selected entry while it is shown; else selects the one at its position.
    fn keep_selection(&mut self) {
        if let Some(place) = self.index_of_selected() {
            self.place = place;
        } else {
            let last = self.visible_entries().len().saturating_sub(1);
            self.select(self.place.min(last));
            if matches!(self.mode, Mode::Ask | Mode::Log(_)) {
                // The selected entry is gone; do not apply the question to another one.
                self.mode = Mode::Browse;
            }
        }
    }
}

/// Whether its name, key, state or one of its apps contains this text.
fn matches_filter(entry: &Entry, filter: &str) -> bool {
    let filter = filter.to_lowercase();
    let apps = entry
        .clients
        .iter()
        .flat_map(|client| client.app.iter().chain(&client.client));
    let mut texts = [&entry.name, &entry.key, &entry.state]
        .into_iter()
        .chain(apps);
    texts.any(|text| text.to_lowercase().contains(&filter))
}
