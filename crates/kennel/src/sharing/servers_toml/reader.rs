//! What a file says, key by key.

use std::path::{Path, PathBuf};

use toml_edit::{Document, Item, Table};

use super::{Complaint, Entry, Named, ServersToml, Timings};
use crate::sharing::Rule;
use crate::timers::{self, TIMERS};
use crate::values;

/// Reads a file, and notes what it cannot use.
pub(super) struct Reader<'a> {
    pub(super) text: &'a str,
    pub(super) home: Option<&'a Path>,
    pub(super) complaints: Vec<Complaint>,
}

impl Reader<'_> {
    pub(super) fn file(&mut self) -> ServersToml {
        let text = self.text;
        let mut config = ServersToml::default();
        let document = match Document::parse(text) {
            Ok(document) => document,
            Err(error) => {
                let at = error.span().map_or(0, |span| span.start);
                let what = format!("{}; correct it: the whole file is ignored", error.message());
                self.complain(at, what);
                return config;
            }
        };
        for (name, item) in document.iter() {
            let at = start(document.key(name).and_then(|key| key.span()));
            match (name, item) {
                ("server", Item::ArrayOfTables(tables)) => {
                    for table in tables {
                        let entry = self.entry(table);
                        config.entries.extend(entry);
                    }
                }
                ("server", _) => self.complain(at, "write [[server]], with two brackets".into()),
                ("defaults", Item::Table(table)) => config.defaults = self.defaults(table),
                ("defaults", _) => self.complain(at, "write [defaults], with one bracket".into()),
                _ => {
                    let known = "entries begin with [[server]], timers for all with [defaults]";
                    self.complain(at, format!("unknown: {name}; {known}"));
                }
            }
        }
        let mut names: Vec<&str> = Vec::new();
        for named in config.all_named() {
            if names.contains(&named.name.as_str()) {
                let what = format!("two servers are called {}; the first counts", named.name);
                self.complain(0, what);
            }
            names.push(&named.name);
        }
        config
    }

    fn defaults(&mut self, table: &Table) -> Timings {
        let mut timers = Vec::new();
        for (key, item) in table.iter() {
            let at = start(table.key(key).and_then(|key| key.span()));
            match timer(key) {
                Some(name) => timers.extend(self.timing(name, item, at)),
                None => self.complain(at, format!("unknown: {key}; {} are known", known_timers())),
            }
        }
        timers
    }

    fn entry(&mut self, table: &Table) -> Option<Entry> {
        let at = start(table.span());
        let mut entry = Entry {
            name: None,
            named: None,
            timers: Vec::new(),
            share: None,
            cache: true,
            why: None,
        };
        let (mut name, mut command, mut cwd, mut env_key) = (None, None, None, None);
        for (key, item) in table.iter() {
            let at = start(table.key(key).and_then(|key| key.span()));
            match key {
                "match" => match item.as_str() {
                    Some(name) => entry.name = Some(self.at_home(name)),
                    None => self.complain(at, SAY_WHICH.into()),
                },
                "share" => entry.share = Some(self.rule(item, at)),
                "cache" => match item.as_bool() {
                    Some(cache) => entry.cache = cache,
                    None => self.complain(at, "cache is true or false".into()),
                },
                "why" => match item.as_str() {
                    Some(why) => entry.why = Some(one_line(why)),
                    None => self.complain(at, "why is a text".into()),
                },
                "name" => match item.as_str().filter(|name| is_name(name)) {
                    Some(text) => name = Some((text.to_owned(), at)),
                    None => {
                        self.complain(at, "name is one word: letters, digits, . _ and -".into())
                    }
                },
                "command" => match texts(item).filter(|words| !words.is_empty()) {
                    Some(words) => command = Some((words, at)),
                    None => self.complain(
                        at,
                        "command is a list: [\"npx\", \"-y\", \"package\"]".into(),
                    ),
                },
                "cwd" => match item.as_str() {
                    Some(dir) => cwd = Some(PathBuf::from(self.at_home(dir))),
                    None => self.complain(at, "cwd is a directory".into()),
                },
                "env_key" => match texts(item) {
                    Some(names) => match names
                        .iter()
                        .try_for_each(|it| values::name(it.as_ref()).map(drop))
                    {
                        Ok(()) => env_key = Some(names),
                        Err(error) => self.complain(at, format!("env_key: {error}")),
                    },
                    None => self.complain(at, "env_key is a list of names: [\"TOKEN\"]".into()),
                },
                other => match timer(other) {
                    Some(name) => entry.timers.extend(self.timing(name, item, at)),
                    None => {
                        let known = "match, share, why, cache, name, command, cwd, env_key";
                        let what =
                            format!("unknown: {other}; {known}, {} are known", known_timers());
                        self.complain(at, what);
                    }
                },
            }
        }
        match (name, command) {
            (Some((name, _)), Some((mut command, _))) => {
                command[0] = self.at_home(&command[0]);
                entry.named = Some(Named {
                    name,
                    command,
                    cwd,
                    env_key,
                });
            }
            (Some((name, at)), None) => {
                self.complain(at, format!("{name} has no command; what is it to run?"));
            }
            (None, Some((_, at))) => {
                self.complain(at, "a command needs a name to be run by".into())
            }
            (None, None) => {}
        }
        if entry.name.is_none() && entry.named.is_none() {
            if !table.contains_key("match")
                && !table.contains_key("name")
                && !table.contains_key("command")
            {
                self.complain(at, SAY_WHICH.into());
            }
            return None;
        }
        Some(entry)
    }

    fn timing(
        &mut self,
        name: &'static str,
        item: &Item,
        at: usize,
    ) -> Option<(&'static str, String)> {
        let checked = match item.as_str() {
            Some(text) => timers::check(name, text).map(|()| text.to_owned()),
            None => Err(format!(
                "{} is {}",
                name.replace('-', "_"),
                timers::what_to_write(name)
            )),
        };
        match checked {
            Ok(text) => Some((name, text)),
            Err(error) => {
                self.complain(at, format!("{error}; it is ignored"));
                None
            }
        }
    }

    fn at_home(&self, name: &str) -> String {
        let below = name.strip_prefix("~/").or((name == "~").then_some(""));
        let path = below.and_then(|below| Some(self.home?.join(below)));
        path.map_or_else(
            || name.to_owned(),
            |path| path.to_string_lossy().into_owned(),
        )
    }

    /// A rule nobody can read is taken as the careful one.
    fn rule(&mut self, item: &Item, at: usize) -> Rule {
        match item.as_str() {
            Some("always") => Rule::Always,
            Some("in-turn") => Rule::InTurn,
            Some("modern") => Rule::Modern,
            Some("never") => Rule::Never,
            _ => {
                let what =
                    "share is \"always\", \"in-turn\", \"modern\" or \"never\"; taken as \"never\"";
                self.complain(at, what.into());
                Rule::Never
            }
        }
    }

    fn complain(&mut self, at: usize, what: String) {
        let before = self.text.get(..at).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before
            .rsplit('\n')
            .next()
            .unwrap_or_default()
            .chars()
            .count()
            + 1;
        self.complaints.push(Complaint { line, column, what });
    }
}

const SAY_WHICH: &str =
    "say which server: match = \"package, program or path\"; the entry is ignored";

/// The timer that a key stands for: `stop_after` is `--stop-after`.
fn timer(key: &str) -> Option<&'static str> {
    TIMERS
        .iter()
        .find(|name| name.replace('-', "_") == key)
        .copied()
}

fn known_timers() -> String {
    TIMERS.map(|name| name.replace('-', "_")).join(", ")
}

/// A word that can be typed, and that no option looks like.
fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_alphanumeric() || "._-".contains(c);
    name.starts_with(char::is_alphanumeric) && name.chars().all(plain)
}

fn texts(item: &Item) -> Option<Vec<String>> {
    let texts = item
        .as_array()?
        .iter()
        .map(|value| Some(value.as_str()?.to_owned()));
    texts.collect()
}

fn start(span: Option<std::ops::Range<usize>>) -> usize {
    span.map_or(0, |span| span.start)
}

/// For a cell of a listing.
fn one_line(why: &str) -> String {
    let words = why.split(|c: char| c.is_control() || c == ' ');
    words
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}
