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

mod reader;

use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};

use kennel_sys::fs::{FileFacts, is_on_read_only_fs, open_without_waiting};
use kennel_sys::user::UserId;

use super::Rule;
use super::launcher::{self, Launched, Registry, normalised};
use reader::Reader;

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

impl Named {
    /// Whether that is this server: the same command, and where it says.
    pub(crate) fn runs(&self, command: &[String], cwd: &str) -> bool {
        let there = self.cwd.as_deref().is_none_or(|dir| dir == Path::new(cwd));
        self.command == command && there
    }
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

    /// What this name stands for in the user's file. Its mistakes are told elsewhere.
    pub(crate) fn named_by_user(name: &str) -> Option<Named> {
        ServersToml::load_of_user().0.named(name).cloned()
    }

    /// The user's file, and what in it cannot be used.
    pub(crate) fn load_quietly() -> (ServersToml, Vec<String>) {
        ServersToml::load_of_user()
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
    pub(crate) fn parse(text: &str, home: Option<&Path>) -> (ServersToml, Vec<Complaint>) {
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
    // A pipe under that name must not hold us up.
    let file = match open_without_waiting(path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        opened => opened?,
    };
    let facts = FileFacts::of(&file)?;
    if !facts.is_file() {
        return Err(Error::new(ErrorKind::InvalidInput, "not a regular file"));
    }
    // It says what is run: whoever writes it is believed, so it has to be us, or root.
    let (owner, us) = (facts.owner(), UserId::current());
    if owner != us && !owner.is_root() {
        let whose = format!("belongs to {owner}, not to you ({us})");
        return Err(Error::new(ErrorKind::PermissionDenied, whose));
    }
    if let Some(who) = other_writers(&facts) {
        let quoted = path.display().to_string().replace('\'', "'\\''");
        let open = match is_on_read_only_fs(path) {
            true => format!(
                "{who} may write it, and its file system is read-only: `chmod go-w` it where it can be changed"
            ),
            false => format!("{who} can write it: `chmod go-w '{quoted}'`"),
        };
        return Err(Error::new(ErrorKind::PermissionDenied, open));
    }
    let mut text = String::new();
    file.take(LONGEST + 1).read_to_string(&mut text)?;
    if text.len() as u64 > LONGEST {
        let what = format!("more than {LONGEST} bytes");
        return Err(Error::new(ErrorKind::FileTooLarge, what));
    }
    Ok(Some(text))
}

/// Who else can write a file. A group of the user's own, with the number of the user, has nobody else in it.
fn other_writers(facts: &FileFacts) -> Option<String> {
    let group = facts.group();
    let by_group = facts.is_writable_by_group() && group != UserId::current().number();
    match (facts.is_writable_by_everybody(), by_group) {
        (true, _) => Some("everyone".to_owned()),
        (false, true) => Some(format!("group {group}")),
        (false, false) => None,
    }
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

#[cfg(test)]
mod tests;
