//! `servers.toml`: what a person says about the servers they use. Only read, never created.
//!
//! ```toml
//! [defaults]
//! linger = "5m"
//!
//! [[server]]
//! match = "@acme/thing"
//! share = "always"
//! why = "keeps nothing between calls"
//! cache = false
//!
//! [[server]]
//! name = "memory"
//! command = ["npx", "-y", "@modelcontextprotocol/server-memory"]
//! cwd = "~"
//! env_key = ["MEMORY_FILE_PATH"]
//! ```

use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};

use toml_edit::{Document, Item, Table};

use super::Rule;
use super::launcher::{self, Launched, Registry, normalised};
use crate::timers::{self, TIMERS};

/// No configuration is longer.
const LONGEST: u64 = 1 << 20;

/// What the person wrote down; the first entry that fits counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ServersToml {
    entries: Vec<Entry>,
    /// The timers of every server that has none of its own.
    defaults: Timings,
}

/// Timers by their names, as they are written.
pub(crate) type Timings = Vec<(&'static str, String)>;

/// A server that `kennel run NAME` starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) command: Vec<String>,
    pub(crate) cwd: Option<PathBuf>,
    pub(crate) env_key: Option<Vec<String>>,
}

/// What the person says about one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// A package, the name of a program or module, or a path.
    name: Option<String>,
    /// What it starts, if it has a name and a command of its own.
    pub(crate) named: Option<Named>,
    pub(crate) timers: Timings,
    /// Who may share it, if they said so.
    pub(crate) share: Option<Rule>,
    /// Whether its lists may be answered from memory.
    pub(crate) cache: bool,
    /// Why, in their words.
    pub(crate) why: Option<String>,
}

/// What is wrong with the file, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Complaint {
    line: usize,
    column: usize,
    what: String,
}

impl ServersToml {
    /// What cannot be used in the user's file.
    pub(crate) fn complaints_of_user() -> Vec<String> {
        ServersToml::load_of_user().1
    }

    fn load_of_user() -> (ServersToml, Vec<String>) {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        match place(std::env::var_os("XDG_CONFIG_HOME"), home.as_deref()) {
            Some(path) => ServersToml::load(&path, home.as_deref()),
            None => Default::default(),
        }
    }

    /// The user's file, with a warning for each thing in it that cannot be used. Missing is fine.
    pub(crate) fn of_user() -> ServersToml {
        let (config, warnings) = ServersToml::load_of_user();
        for warning in warnings {
            crate::warn(&warning);
        }
        config
    }

    fn load(path: &Path, home: Option<&Path>) -> (ServersToml, Vec<String>) {
        let text = match read(path) {
            Ok(Some(text)) => text,
            Ok(None) => return Default::default(),
            Err(error) => {
                let warning = format!("{}: {error}; it is ignored", path.display());
                return (ServersToml::default(), vec![warning]);
            }
        };
        let (config, complaints) = ServersToml::parse(&text, home);
        let told = |complaint: Complaint| {
            let Complaint { line, column, what } = complaint;
            format!("{}, line {line}, column {column}: {what}", path.display())
        };
        (config, complaints.into_iter().map(told).collect())
    }

    /// What a file says whose `~/` is `home`.
    pub(super) fn parse(text: &str, home: Option<&Path>) -> (ServersToml, Vec<Complaint>) {
        let mut reader = Reader {
            text,
            home,
            complaints: Vec::new(),
        };
        let config = reader.file();
        (config, reader.complaints)
    }

    /// What the person says about this server.
    pub(crate) fn entry_for(&self, launched: &Launched) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.is_about(launched))
    }

    /// The server that a person gave this name.
    pub(crate) fn named(&self, name: &str) -> Option<&Named> {
        self.all_named().find(|named| named.name == name)
    }

    /// Every server with a name.
    pub(crate) fn all_named(&self) -> impl Iterator<Item = &Named> {
        self.entries.iter().filter_map(|entry| entry.named.as_ref())
    }

    /// The timers that are written down for a command, its own before those of all.
    pub(crate) fn timers_for(&self, command: &[OsString]) -> Timings {
        let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
        let launched = launcher::launched(&words);
        let entry = launched.and_then(|launched| self.entry_for(&launched));
        let own = entry.map_or(&[][..], |entry| &entry.timers);
        own.iter().chain(&self.defaults).cloned().collect()
    }
}

/// Where the user's file is.
fn place(config: Option<OsString>, home: Option<&Path>) -> Option<PathBuf> {
    // A relative one is to be ignored, says the specification of these directories.
    let config = config.map(PathBuf::from).filter(|dir| dir.is_absolute());
    let config = config.or_else(|| Some(home.filter(|dir| dir.is_absolute())?.join(".config")))?;
    Some(config.join("kennel").join("servers.toml"))
}

/// The whole file, or `None` if there is none.
fn read(path: &Path) -> std::io::Result<Option<String>> {
    use std::io::{Error, ErrorKind};
    match std::fs::metadata(path) {
        // A pipe under that name must not hold us up.
        Ok(meta) if !meta.is_file() => {
            return Err(Error::new(ErrorKind::InvalidInput, "not a regular file"));
        }
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
        Ok(_) => {}
    }
    let mut text = String::new();
    let file = std::fs::File::open(path)?;
    file.take(LONGEST + 1).read_to_string(&mut text)?;
    if text.len() as u64 > LONGEST {
        let what = format!("more than {LONGEST} bytes");
        return Err(Error::new(ErrorKind::FileTooLarge, what));
    }
    Ok(Some(text))
}

impl Entry {
    fn is_about(&self, launched: &Launched) -> bool {
        if self.name.is_none() {
            let own = self
                .named
                .as_ref()
                .map(|named| launcher::launched(&named.command));
            return own.flatten().as_ref() == Some(launched);
        }
        match launched {
            Launched::Package {
                registry,
                names,
                program,
            } => {
                let called = |name: &String| self.is(name) || self.is_spelled(name, *registry);
                names.iter().any(called) || program.as_ref().is_some_and(|name| self.is(name))
            }
            Launched::Module(module) => self.is(module),
            Launched::Script(path) => self.is_at(path),
            Launched::Program(path) => self.is_at(path) || self.is(launched.name()),
        }
    }

    fn is(&self, name: &str) -> bool {
        self.name.as_deref() == Some(name)
    }

    /// A name of Python's index has many spellings.
    fn is_spelled(&self, name: &str, registry: Registry) -> bool {
        let ours = self.name.as_deref().map(normalised);
        registry == Registry::PyPi && ours == Some(normalised(name))
    }

    fn is_at(&self, path: &str) -> bool {
        path.contains('/') && self.is(path)
    }
}

struct Reader<'a> {
    text: &'a str,
    home: Option<&'a Path>,
    complaints: Vec<Complaint>,
}

impl Reader<'_> {
    fn file(&mut self) -> ServersToml {
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
                    Some(names) => env_key = Some(names),
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
            None => Err("write a duration as a text: \"30s\"".to_owned()),
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

#[cfg(test)]
mod tests;
