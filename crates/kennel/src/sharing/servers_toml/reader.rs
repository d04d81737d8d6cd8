//! Reads `servers.toml`, key by key.

use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::{Entry, Named, ServersToml, Timings};
use crate::sharing::Rule;
use crate::timers::{TIMERS, Timer};
use crate::values;
use crate::wrap::entry::Unreadable;

/// Reads the file, and collects what it cannot use.
pub(super) struct Reader<'a> {
    pub(super) text: &'a str,
    pub(super) home: Option<&'a Path>,
    pub(super) problems: Vec<Unreadable>,
}

impl Reader<'_> {
    pub(super) fn file(&mut self) -> ServersToml {
        let text = self.text;
        let mut config = ServersToml::default();
        let document = match DeTable::parse(text) {
            Ok(document) => document.into_inner(),
            Err(error) => {
                let at = error.span().map_or(0, |span| span.start);
                let what = format!("{}; fix it: the whole file is ignored", error.message());
                self.report(at, what);
                return config;
            }
        };
        for (name, item) in &document {
            let at = name.span().start;
            match (name.get_ref().as_ref(), item.get_ref()) {
                ("server", DeValue::Array(tables))
                    if tables.iter().all(|it| it.get_ref().is_table()) =>
                {
                    for item in tables {
                        let table = item.get_ref().as_table();
                        let entry = table.and_then(|table| self.entry(table, item.span().start));
                        config.entries.extend(entry);
                    }
                }
                ("server", _) => self.report(at, "write [[server]], with two brackets".into()),
                ("defaults", DeValue::Table(table)) => config.defaults = self.defaults(table),
                ("defaults", _) => self.report(at, "write [defaults], with one bracket".into()),
                (name, _) => {
                    let known = "entries begin with [[server]], timers for all with [defaults]";
                    self.report(at, format!("unknown: {name}; {known}"));
                }
            }
        }
        let mut names: Vec<&str> = Vec::new();
        for named in config.all_named() {
            if names.contains(&named.name.as_str()) {
                let what = format!("two servers are called {}; the first counts", named.name);
                self.report(0, what);
            }
            names.push(&named.name);
        }
        config
    }

    fn defaults(&mut self, table: &DeTable<'_>) -> Timings {
        let mut timers = Vec::new();
        for (key, item) in table {
            let (key, at) = (key.get_ref().as_ref(), key.span().start);
            let item = item.get_ref();
            match timer(key) {
                Some(name) => timers.extend(self.timing(name, item, at)),
                None => self.report(at, format!("unknown: {key}; {} are known", known_timers())),
            }
        }
        timers
    }

    fn entry(&mut self, table: &DeTable<'_>, at: usize) -> Option<Entry> {
        let mut entry = Entry {
            name: None,
            named: None,
            timers: Vec::new(),
            share: None,
            cache: true,
            why: None,
        };
        let mut command = Command::default();
        for (key, item) in table {
            let (key, at) = (key.get_ref().as_ref(), key.span().start);
            let read = self.member(key, item.get_ref(), at, &mut entry, &mut command);
            if let Err(problem) = read {
                self.report(at, problem);
            }
        }
        entry.named = self.named(command);
        if entry.name.is_none() && entry.named.is_none() {
            let names_it = ["match", "name", "command"];
            if !names_it.iter().any(|key| table.contains_key(*key)) {
                self.report(at, MISSING_MATCH.into());
            }
            return None;
        }
        Some(entry)
    }

    /// Reads one member of an entry. The error says what to write instead.
    fn member(
        &mut self,
        key: &str,
        item: &DeValue<'_>,
        at: usize,
        entry: &mut Entry,
        command: &mut Command,
    ) -> Result<(), String> {
        match key {
            "match" => entry.name = Some(self.with_home(item.as_str().ok_or(MISSING_MATCH)?)),
            "share" => entry.share = Some(self.rule(item, at)),
            "cache" => entry.cache = item.as_bool().ok_or("cache is true or false")?,
            "why" => entry.why = Some(one_line(item.as_str().ok_or("why is a string")?)),
            "name" => {
                let name = item.as_str().filter(|name| is_name(name));
                let name = name.ok_or("name may contain only letters, digits, . _ and -")?;
                command.name = Some((name.to_owned(), at));
            }
            "command" => {
                let words = texts(item).filter(|words| !words.is_empty());
                let words = words.ok_or("command is a list: [\"npx\", \"-y\", \"package\"]")?;
                command.words = Some((words, at));
            }
            "cwd" => {
                let dir = item.as_str().ok_or("cwd is a directory")?;
                command.cwd = Some(PathBuf::from(self.with_home(dir)));
            }
            "env_key" => {
                let names = texts(item).ok_or("env_key is a list of names: [\"TOKEN\"]")?;
                for name in &names {
                    values::name(name.as_ref()).map_err(|error| format!("env_key: {error}"))?;
                }
                command.env_key = Some(names);
            }
            other => {
                let timer = timer(other).ok_or_else(|| {
                    let known = "match, share, why, cache, name, command, cwd, env_key";
                    format!("unknown: {other}; {known}, {} are known", known_timers())
                })?;
                entry.timers.extend(self.timing(timer, item, at));
            }
        }
        Ok(())
    }

    /// The server of an entry with a name and a command.
    fn named(&mut self, command: Command) -> Option<Named> {
        match (command.name, command.words) {
            (Some((name, _)), Some((mut words, _))) => {
                words[0] = self.with_home(&words[0]);
                return Some(Named {
                    name,
                    command: words,
                    cwd: command.cwd,
                    env_key: command.env_key,
                });
            }
            (Some((name, at)), None) => {
                self.report(at, format!("{name} has no command; add one, or use match"));
            }
            (None, Some((_, at))) => {
                self.report(at, "command needs a name for `kennel run NAME`".into());
            }
            (None, None) => {}
        }
        None
    }

    fn timing(
        &mut self,
        timer: &'static Timer,
        item: &DeValue<'_>,
        at: usize,
    ) -> Option<(&'static str, String)> {
        let checked = match item.as_str() {
            Some(text) => (timer.check)(text).map(|()| text.to_owned()),
            None => Err(format!("{} is {}", key_of(timer), timer.syntax)),
        };
        match checked {
            Ok(text) => Some((timer.name, text)),
            Err(error) => {
                self.report(at, format!("{error}; it is ignored"));
                None
            }
        }
    }

    fn with_home(&self, name: &str) -> String {
        let below = name.strip_prefix("~/").or((name == "~").then_some(""));
        let path = below.and_then(|below| Some(self.home?.join(below)));
        path.map_or_else(
            || name.to_owned(),
            |path| path.to_string_lossy().into_owned(),
        )
    }

    /// An unreadable rule counts as the careful one.
    fn rule(&mut self, item: &DeValue<'_>, at: usize) -> Rule {
        match item.as_str() {
            Some("always") => Rule::Always,
            Some("in-turn") => Rule::InTurn,
            Some("modern") => Rule::Modern,
            Some("never") => Rule::Never,
            _ => {
                let what =
                    "share is \"always\", \"in-turn\", \"modern\" or \"never\"; taken as \"never\"";
                self.report(at, what.into());
                Rule::Never
            }
        }
    }

    fn report(&mut self, at: usize, problem: String) {
        self.problems.push(Unreadable::at(self.text, at, problem));
    }
}

/// The parts of a command, with their positions, as they are read.
#[derive(Default)]
struct Command {
    name: Option<(String, usize)>,
    words: Option<(Vec<String>, usize)>,
    cwd: Option<PathBuf>,
    env_key: Option<Vec<String>>,
}

const MISSING_MATCH: &str =
    "name the server: match = \"package, program or path\"; the entry is ignored";

/// The timer of a key: `stop_after` is `--stop-after`.
fn timer(key: &str) -> Option<&'static Timer> {
    TIMERS.iter().find(|timer| key_of(timer) == key)
}

fn key_of(timer: &Timer) -> String {
    timer.name.replace('-', "_")
}

fn known_timers() -> String {
    TIMERS.each_ref().map(key_of).join(", ")
}

/// A word that can be typed and does not look like an option.
fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_alphanumeric() || "._-".contains(c);
    name.starts_with(char::is_alphanumeric) && name.chars().all(plain)
}

fn texts(item: &DeValue<'_>) -> Option<Vec<String>> {
    let texts = item
        .as_array()?
        .iter()
        .map(|value| Some(value.get_ref().as_str()?.to_owned()));
    texts.collect()
}

/// For a cell of a table.
fn one_line(why: &str) -> String {
    let words = why.split(|c: char| c.is_control() || c == ' ');
    words
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}
