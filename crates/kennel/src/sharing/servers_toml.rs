//! `servers.toml`: the user's settings for servers. Only read, never created.
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
use crate::wrap::entry::Unreadable;
use reader::Reader;

/// Maximum size of the file, in bytes.
const MAX_SIZE: u64 = 1 << 20;

/// The content of the file; the first entry that matches counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ServersToml {
    entries: Vec<Entry>,
    /// The timers for all servers without their own.
    defaults: Timings,
}

/// Timers by name, as written.
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
    /// Whether this is the same server: the same command, in the configured directory.
    pub(crate) fn runs(&self, command: &[String], cwd: &str) -> bool {
        let there = self.cwd.as_deref().is_none_or(|dir| dir == Path::new(cwd));
        self.command == command && there
    }
}

/// The settings for one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The name of a package, program or module, or a path.
    name: Option<String>,
    /// The command, if the entry has a name and a command.
    pub(crate) named: Option<Named>,
    pub(crate) timers: Timings,
    /// The sessions that may share it, if configured.
    pub(crate) share: Option<Rule>,
    /// Whether its lists may be answered from the cache.
    pub(crate) cache: bool,
    /// The user's reason.
    pub(crate) why: Option<String>,
}

impl ServersToml {
    /// The server with this name in the user's file. Its mistakes are reported elsewhere.
    pub(crate) fn named_by_user(name: &str) -> Option<Named> {
        ServersToml::load_quietly().0.named(name).cloned()
    }

    /// The user's file, and everything in it that cannot be used.
    pub(crate) fn load_quietly() -> (ServersToml, Vec<String>) {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        match path_of_user(std::env::var_os("XDG_CONFIG_HOME"), home.as_deref()) {
            Some(path) => ServersToml::load(&path, home.as_deref()),
            None => Default::default(),
        }
    }

    /// The user's file, with a warning for everything in it that cannot be used. It may be missing.
    pub(crate) fn of_user() -> ServersToml {
        let (config, warnings) = ServersToml::load_quietly();
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
        let (config, problems) = ServersToml::parse(&text, home);
        let problems = problems.iter();
        let warnings = problems.map(|problem| format!("{}, {problem}", path.display()));
        (config, warnings.collect())
    }

    /// Parses a file; `~/` in it stands for `home`.
    pub(crate) fn parse(text: &str, home: Option<&Path>) -> (ServersToml, Vec<Unreadable>) {
        let mut reader = Reader {
            text,
            home,
            problems: Vec::new(),
        };
        let config = reader.file();
        (config, reader.problems)
    }

    /// The entry for this server.
    pub(crate) fn entry_for(&self, launched: &Launched) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.matches(launched))
    }

    /// The server with this name.
    pub(crate) fn named(&self, name: &str) -> Option<&Named> {
        self.all_named().find(|named| named.name == name)
    }

    /// All servers with a name.
    pub(crate) fn all_named(&self) -> impl Iterator<Item = &Named> {
        self.entries.iter().filter_map(|entry| entry.named.as_ref())
    }

    /// The timers for a command: its own before those for all.
    pub(crate) fn timers_for(&self, command: &[OsString]) -> Timings {
        let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
        let launched = launcher::launched(&words);
        let entry = launched.and_then(|launched| self.entry_for(&launched));
        let own = entry.map_or(&[][..], |entry| &entry.timers);
        own.iter().chain(&self.defaults).cloned().collect()
    }
}

/// The path of the user's file.
fn path_of_user(config: Option<OsString>, home: Option<&Path>) -> Option<PathBuf> {
    // The XDG specification says to ignore a relative path.
    let config = config.map(PathBuf::from).filter(|dir| dir.is_absolute());
    let config = config.or_else(|| Some(home.filter(|dir| dir.is_absolute())?.join(".config")))?;
    Some(config.join("kennel").join("servers.toml"))
}

/// The content of the file; `None` if it does not exist.
fn read(path: &Path) -> std::io::Result<Option<String>> {
    use std::io::{Error, ErrorKind};
    // Must not wait for the writer of a named pipe.
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
    // The file says which commands run, so it must belong to this user or root.
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
    file.take(MAX_SIZE + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_SIZE {
        let what = format!("more than {MAX_SIZE} bytes");
        return Err(Error::new(ErrorKind::FileTooLarge, what));
    }
    Ok(Some(text))
}

/// Other users who can write the file. A group with the user's own number has no other members.
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
    fn matches(&self, launched: &Launched) -> bool {
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
                let called = |name: &String| self.is(name) || self.has_name(name, *registry);
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

    /// A name in Python's index has many spellings.
    fn has_name(&self, name: &str, registry: Registry) -> bool {
        let ours = self.name.as_deref().map(normalised);
        registry == Registry::PyPi && ours == Some(normalised(name))
    }

    fn is_at(&self, path: &str) -> bool {
        path.contains('/') && self.is(path)
    }
}

#[cfg(test)]
mod tests;
