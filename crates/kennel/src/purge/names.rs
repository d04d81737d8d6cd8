//! The names that Kennel gives to files and directories in the runtime directory. Files with other names are not
//! Kennel's: `KENNEL_RUNTIME_DIR` may be a directory with files of the user.
//!
//! | directory | written by | names |
//! |---|---|---|
//! | `daemons/<key>/` | `key_dir.rs`, `daemon/` | `spawn.lock`, `daemon.lock`, `daemon.json`, `state.json`, `log`, `log.1`, `<16 hex digits>.sock` |
//! | `guards/<pid>/` | `guard/record.rs` | `record.json`, `log`, `log.1` |
//! | `stores/<32 hex digits>/` | `kennel-guard/store.rs` | `lock`, `declared` |
//! | `solo/` | `listing.rs` | `<pid>` |
//! | `starting/` | `guard/start.rs` | `port-<port>` |
//! | `trees/` | `kennel-sys/tree/` | `<32 hex digits>`, `kept-<pid>-<number>`, both also with a dot before them |
//! | `eras/` | `sharing/eras.rs` | `<key>` |
//!
//! A key has 16 hex digits. `RuntimeDir::write_whole` writes to `.<pid>-<number>.<name>` first. Earlier builds used the
//! same names. A build that writes a new name adds it here.

use std::ffi::OsStr;
use std::str::FromStr;

use kennel_sys::runtime_dir::RuntimeDir;

use super::inventory::STORES;
use crate::daemon::{LOG, OLDER_LOG, STATE};
use crate::guard::record::RECORD as GUARD_RECORD;
use crate::hex;
use crate::key_dir::{DAEMON_LOCK, RECORD as DAEMON_RECORD, SPAWN_LOCK};

/// Number of digits of a key, and of a daemon's generation.
const KEY_DIGITS: usize = 16;
/// Number of digits of a store's key, and of a tree's cookie.
const LONG_KEY_DIGITS: usize = 32;

/// A pattern for names.
#[derive(Debug, Clone, Copy)]
enum NamePattern {
    Exact(&'static str),
    /// This many hex digits.
    Hex(usize),
    Pid,
    Port,
    /// The socket of a daemon's generation.
    Socket,
    /// The record of a kept service.
    Kept,
}

/// How a file is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Creation {
    /// Under its name.
    Direct,
    /// Written as `.<pid>-<number>.<name>`, and renamed.
    Atomic,
    /// Written as `.<name>`, and renamed.
    Dotted,
}

/// The names of the directories in `kind`, if Kennel creates any there.
fn directories(kind: &str) -> Option<NamePattern> {
    match kind {
        "daemons" => Some(NamePattern::Hex(KEY_DIGITS)),
        "guards" => Some(NamePattern::Pid),
        STORES => Some(NamePattern::Hex(LONG_KEY_DIGITS)),
        _ => None,
    }
}

/// The names of the files in `kind`, or in the directories there.
fn files(kind: &str) -> &'static [(NamePattern, Creation)] {
    match kind {
        "daemons" => &[
            (NamePattern::Exact(SPAWN_LOCK), Creation::Direct),
            (NamePattern::Exact(DAEMON_LOCK), Creation::Direct),
            (NamePattern::Exact(DAEMON_RECORD), Creation::Atomic),
            (NamePattern::Exact(STATE), Creation::Atomic),
            (NamePattern::Exact(LOG), Creation::Direct),
            (NamePattern::Exact(OLDER_LOG), Creation::Direct),
            (NamePattern::Socket, Creation::Direct),
        ],
        "guards" => &[
            (NamePattern::Exact(GUARD_RECORD), Creation::Atomic),
            (NamePattern::Exact(LOG), Creation::Direct),
            (NamePattern::Exact(OLDER_LOG), Creation::Direct),
        ],
        STORES => &[
            (NamePattern::Exact("lock"), Creation::Direct),
            (NamePattern::Exact("declared"), Creation::Atomic),
        ],
        "solo" => &[(NamePattern::Pid, Creation::Atomic)],
        "starting" => &[(NamePattern::Port, Creation::Direct)],
        "trees" => &[
            (NamePattern::Hex(LONG_KEY_DIGITS), Creation::Dotted),
            (NamePattern::Kept, Creation::Dotted),
        ],
        "eras" => &[(NamePattern::Hex(KEY_DIGITS), Creation::Atomic)],
        _ => &[],
    }
}

/// Whether Kennel creates directories of this name in `kind`.
pub(super) fn is_directory_of_kennel(kind: &str, name: &OsStr) -> bool {
    let name = name.to_str();
    name.is_some_and(|name| directories(kind).is_some_and(|pattern| pattern.has(name)))
}

/// Whether Kennel creates files of this name in `kind`, or in the directories there.
pub(super) fn is_name_of_kennel(kind: &str, name: &str) -> bool {
    pattern_of(kind, name).is_some()
}

/// Whether an entry of `dir`, which is `kind` or a directory in it, is a file or socket of this user that Kennel
/// creates there. Kennel creates no links.
pub(super) fn is_file_of_kennel(kind: &str, dir: &RuntimeDir, name: &OsStr) -> bool {
    let Some(pattern) = name.to_str().and_then(|name| pattern_of(kind, name)) else {
        return false;
    };
    let facts = dir.facts_of(name).ok().flatten();
    facts.is_some_and(|it| {
        let is_its_type = match pattern {
            NamePattern::Socket => it.is_socket(),
            _ => it.is_file(),
        };
        is_its_type && it.owner().is_current()
    })
}

/// The pattern that a file of this name in `kind` has.
fn pattern_of(kind: &str, name: &str) -> Option<NamePattern> {
    let mut files = files(kind).iter();
    let found = files
        .find(|(pattern, creation)| pattern.has(name) || creation.is_temporary(*pattern, name));
    found.map(|(pattern, _)| *pattern)
}

impl NamePattern {
    fn has(self, name: &str) -> bool {
        match self {
            NamePattern::Exact(exactly) => name == exactly,
            NamePattern::Hex(digits) => hex::is_text(name, digits),
            NamePattern::Pid => is_number::<u32>(name),
            NamePattern::Port => name.strip_prefix("port-").is_some_and(is_number::<u16>),
            NamePattern::Socket => name
                .strip_suffix(".sock")
                .is_some_and(|generation| hex::is_text(generation, KEY_DIGITS)),
            NamePattern::Kept => name
                .strip_prefix("kept-")
                .and_then(|rest| rest.split_once('-'))
                .is_some_and(|(pid, start)| is_number::<u32>(pid) && is_number::<u64>(start)),
        }
    }
}

impl Creation {
    /// Whether a file has this name before it is renamed to a name of this pattern.
    fn is_temporary(self, pattern: NamePattern, name: &str) -> bool {
        let Some(rest) = name.strip_prefix('.') else {
            return false;
        };
        match self {
            Creation::Direct => false,
            Creation::Dotted => pattern.has(rest),
            Creation::Atomic => rest.split_once('.').is_some_and(|(writer, name)| {
                let writer = writer.split_once('-');
                let is_writer = |(pid, serial)| is_number::<u32>(pid) && is_number::<u32>(serial);
                writer.is_some_and(is_writer) && pattern.has(name)
            }),
        }
    }
}

/// Whether this is a number as Kennel writes it: without a sign or leading zeros.
fn is_number<N: FromStr + ToString>(text: &str) -> bool {
    text.parse::<N>()
        .is_ok_and(|number| number.to_string() == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "0123456789abcdef";
    const COOKIE: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn names_that_kennel_writes_are_recognised() {
        let socket = format!("{KEY}.sock");
        let (dotted, era) = (format!(".{COOKIE}"), format!(".4711-0.{KEY}"));
        for (kind, names) in [
            (
                "daemons",
                &["spawn.lock", "daemon.lock", "daemon.json", "state.json"][..],
            ),
            (
                "daemons",
                &[
                    "log",
                    "log.1",
                    &socket,
                    ".1-0.daemon.json",
                    ".99-12.state.json",
                ],
            ),
            (
                "guards",
                &["record.json", "log", "log.1", ".1-0.record.json"],
            ),
            ("stores", &["lock", "declared", ".4711-3.declared"]),
            ("solo", &["1", "4194304", ".4711-3.4711"]),
            ("starting", &["port-1", "port-65535"]),
            ("trees", &[COOKIE, &dotted, "kept-7-1234", ".kept-7-0"]),
            ("eras", &[KEY, &era]),
        ] {
            for name in names {
                assert!(is_name_of_kennel(kind, name), "{kind}: {name}");
            }
        }
        for (kind, name) in [("daemons", KEY), ("guards", "4711"), ("stores", COOKIE)] {
            assert!(is_directory_of_kennel(kind, name.as_ref()), "{kind}");
        }
    }

    #[test]
    fn other_names_are_not_kennels() {
        let upper = COOKIE.to_uppercase();
        let (long, short) = (format!("{KEY}0"), &KEY[1..]);
        for (kind, names) in [
            (
                "daemons",
                &["main.c", "lock", "declared", "log.2", "a.sock", "log.old"][..],
            ),
            ("daemons", &[KEY, "record.json", ".1-0.log", ".daemon.json"]),
            ("guards", &["lock", "daemon.json", "mynotes", "log.1.gz"]),
            (
                "stores",
                &["ledger.xlsx", "log", ".1-0.lock", ".1.declared"],
            ),
            ("solo", &["myfile", "007", "+1", "4294967296", "1.txt", ""]),
            ("starting", &["mine", "port-", "port-65536", "port-080"]),
            (
                "trees",
                &["oak.jpg", KEY, &upper, "kept-7", "kept-a-b", "."],
            ),
            ("eras", &["jurassic", &long, short, COOKIE, ".1-0.jurassic"]),
            ("unknown", &["log", KEY]),
        ] {
            for name in names {
                assert!(!is_name_of_kennel(kind, name), "{kind}: {name}");
            }
        }
        for (kind, name) in [
            ("daemons", "mydaemon"),
            ("daemons", short),
            ("guards", "dogs"),
            ("stores", "berlin"),
            ("trees", COOKIE),
        ] {
            assert!(
                !is_directory_of_kennel(kind, name.as_ref()),
                "{kind}: {name}"
            );
        }
    }
}
