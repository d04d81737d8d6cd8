//! `servers.toml`: what a person says about the servers they use. Only read, never created.
//!
//! ```toml
//! [[server]]
//! match = "@acme/thing"
//! share = "always"
//! why = "keeps nothing between calls"
//! cache = false
//! ```

use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};

use toml_edit::{Document, Item, Table};

use super::Rule;
use super::launcher::{Launched, Registry, normalised};

/// No configuration is longer.
const LONGEST: u64 = 1 << 20;

/// What the person wrote down; the first entry that fits counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ServersToml {
    entries: Vec<Entry>,
}

/// What the person says about one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// A package, the name of a program or module, or a path.
    name: String,
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
            let Complaint { line, what } = complaint;
            format!("{}, line {line}: {what}", path.display())
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
        let entries = reader.file();
        (ServersToml { entries }, reader.complaints)
    }

    /// What the person says about this server.
    pub(crate) fn entry_for(&self, launched: &Launched) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.is_about(launched))
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
        match launched {
            Launched::Package {
                registry,
                names,
                program,
            } => {
                let named = |name: &String| *name == self.name || self.is_spelled(name, *registry);
                names.iter().any(named) || program.as_ref() == Some(&self.name)
            }
            Launched::Module(module) => *module == self.name,
            Launched::Script(path) => self.is_at(path),
            Launched::Program(path) => self.is_at(path) || launched.name() == self.name,
        }
    }

    /// A name of Python's index has many spellings.
    fn is_spelled(&self, name: &str, registry: Registry) -> bool {
        registry == Registry::PyPi && normalised(name) == normalised(&self.name)
    }

    fn is_at(&self, path: &str) -> bool {
        self.name.contains('/') && self.name == path
    }
}

struct Reader<'a> {
    text: &'a str,
    home: Option<&'a Path>,
    complaints: Vec<Complaint>,
}

impl Reader<'_> {
    fn file(&mut self) -> Vec<Entry> {
        let text = self.text;
        let document = match Document::parse(text) {
            Ok(document) => document,
            Err(error) => {
                let at = error.span().map_or(0, |span| span.start);
                let what = format!("{}; correct it: the whole file is ignored", error.message());
                self.complain(at, what);
                return Vec::new();
            }
        };
        let mut entries = Vec::new();
        for (name, item) in document.iter() {
            let at = start(document.key(name).and_then(|key| key.span()));
            if name != "server" {
                self.complain(
                    at,
                    format!("unknown: {name}; entries begin with [[server]]"),
                );
                continue;
            }
            let Some(tables) = item.as_array_of_tables() else {
                self.complain(at, "write [[server]], with two brackets".into());
                continue;
            };
            entries.extend(tables.iter().filter_map(|table| self.entry(table)));
        }
        entries
    }

    fn entry(&mut self, table: &Table) -> Option<Entry> {
        let at = start(table.span());
        let Some(name) = table.get("match").and_then(Item::as_str) else {
            let what =
                "say which server: match = \"package, program or path\"; the entry is ignored";
            self.complain(at, what.into());
            return None;
        };
        let mut entry = Entry {
            name: self.at_home(name),
            share: None,
            cache: true,
            why: None,
        };
        for (key, item) in table.iter() {
            let at = start(table.key(key).and_then(|key| key.span()));
            match key {
                "match" => {}
                "share" => entry.share = Some(self.rule(item, at)),
                "cache" => match item.as_bool() {
                    Some(cache) => entry.cache = cache,
                    None => self.complain(at, "cache is true or false".into()),
                },
                "why" => match item.as_str() {
                    Some(why) => entry.why = Some(one_line(why)),
                    None => self.complain(at, "why is a text".into()),
                },
                other => {
                    let known = "match, share, why and cache are known";
                    self.complain(at, format!("unknown: {other}; {known}"));
                }
            }
        }
        Some(entry)
    }

    fn at_home(&self, name: &str) -> String {
        let below = name.strip_prefix("~/");
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
        self.complaints.push(Complaint { line, what });
    }
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
