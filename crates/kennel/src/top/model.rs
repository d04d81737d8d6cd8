//! What is known and chosen, and what a key does to it. Pure: entries, times and keys are handed in.

use std::cmp::Reverse;
use std::time::Instant;

use super::history::History;
use super::keys::Key;
use crate::listing::Entry;
use crate::logs::timeline::Told;
use crate::ps::words;

/// By what the list is sorted.
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

/// What the keys are for at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Browse,
    Filter,
    /// Whether the chosen one is to be stopped.
    Ask,
    Help,
    /// The log of the chosen one, so many lines above its end.
    Log(usize),
}

/// What is to be done beyond the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    None,
    Quit,
    /// Somebody else is chosen: what did it say?
    Look,
    Stop,
}

#[derive(Debug)]
pub(super) struct Model {
    entries: Vec<Entry>,
    chosen: Option<String>,
    /// Where it was in the list.
    place: usize,
    pub(super) history: History,
    pub(super) sort: Sort,
    pub(super) filter: String,
    pub(super) mode: Mode,
    pub(super) lines: Vec<Told>,
    pub(super) no_log: Option<&'static str>,
    pub(super) message: Option<String>,
    pub(super) colour: bool,
    /// In seconds since 1970.
    pub(super) now: u64,
}

impl Model {
    pub(super) fn new(filter: String, colour: bool) -> Model {
        Model {
            entries: Vec::new(),
            chosen: None,
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

    /// Who runs now.
    pub(super) fn saw(&mut self, entries: Vec<Entry>, now: u64, at: Instant) {
        self.history.saw(&entries, at);
        (self.entries, self.now) = (entries, now);
        self.choose_somebody();
    }

    pub(super) fn heard(&mut self, lines: Vec<Told>, no_log: Option<&'static str>) {
        (self.lines, self.no_log) = (lines, no_log);
    }

    pub(super) fn says(&mut self, words: String) {
        self.message = Some(words);
    }

    /// Those that the filter lets through, sorted.
    pub(super) fn shown(&self) -> Vec<&Entry> {
        let passing = |entry: &&Entry| passes(entry, &self.filter);
        let mut shown: Vec<&Entry> = self.entries.iter().filter(passing).collect();
        // Stable: those that are equal stay as they are, by age.
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

    pub(super) fn chosen(&self) -> Option<&Entry> {
        let key = self.chosen.as_deref()?;
        self.shown().into_iter().find(|entry| entry.key == key)
    }

    pub(super) fn place_of_chosen(&self) -> Option<usize> {
        let key = self.chosen.as_deref()?;
        self.shown().iter().position(|entry| entry.key == key)
    }

    pub(super) fn key(&mut self, key: Key) -> Action {
        if key == Key::CtrlC {
            return Action::Quit;
        }
        self.message = None;
        match self.mode {
            Mode::Browse => self.browse(key),
            Mode::Filter => self.type_filter(key),
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
                self.choose_somebody();
            }
            Key::Char('?' | 'h') => self.mode = Mode::Help,
            Key::Char('/') => self.mode = Mode::Filter,
            Key::Char('o') => self.sort = self.sort.next(),
            Key::Char('l') | Key::Enter if self.chosen().is_some() => {
                self.mode = Mode::Log(0);
            }
            Key::Char('s') => match self.chosen() {
                Some(entry) if entry.is_at_rest() => {
                    self.says("it hibernates: there is nothing to stop".to_owned());
                }
                Some(_) => self.mode = Mode::Ask,
                None => {}
            },
            Key::Down | Key::Char('j') => return self.move_by(1),
            Key::Up | Key::Char('k') => return self.move_by(-1),
            Key::PageDown => return self.move_by(10),
            Key::PageUp => return self.move_by(-10),
            Key::Home | Key::Char('g') => return self.move_by(isize::MIN),
            Key::End | Key::Char('G') => return self.move_by(isize::MAX),
            _ => {}
        }
        Action::None
    }

    fn type_filter(&mut self, key: Key) -> Action {
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
        self.choose_somebody();
        Action::Look
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

    fn move_by(&mut self, by: isize) -> Action {
        let last = self.shown().len().saturating_sub(1);
        let place = self.place_of_chosen().unwrap_or(0);
        let place = place.saturating_add_signed(by).min(last);
        self.choose(place);
        Action::Look
    }

    fn choose(&mut self, place: usize) {
        self.place = place;
        self.chosen = self.shown().get(place).map(|entry| entry.key.clone());
    }

    /// The one that was chosen, as long as it is shown; else whoever has its place now.
    fn choose_somebody(&mut self) {
        if let Some(place) = self.place_of_chosen() {
            self.place = place;
        } else {
            let last = self.shown().len().saturating_sub(1);
            self.choose(self.place.min(last));
            if matches!(self.mode, Mode::Ask | Mode::Log(_)) {
                // Whoever was meant is gone; nobody else was.
                self.mode = Mode::Browse;
            }
        }
    }
}

/// Whether its name, key, state or an app of its has this in it.
fn passes(entry: &Entry, filter: &str) -> bool {
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
