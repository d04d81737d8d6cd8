//! The names that Kennel gives to files and directories in the runtime directory. Whatever has another name there is not
//! Kennel's: `KENNEL_RUNTIME_DIR` may be a directory with files of the user in it.
//!
//! | directory | written by | names |
//! |---|---|---|
//! | `daemons/<key>/` | `meeting.rs`, `daemon/` | `spawn.lock`, `daemon.lock`, `daemon.json`, `state.json`, `log`, `log.1`, `<16 hex digits>.sock` |
//! | `guards/<pid>/` | `guard/record.rs` | `record.json`, `log`, `log.1` |
//! | `stores/<32 hex digits>/` | `kennel-guard/store.rs` | `lock`, `declared` |
//! | `solo/` | `listing.rs` | `<pid>` |
//! | `starting/` | `guard/start.rs` | `port-<port>` |
//! | `trees/` | `kennel-sys/tree/` | `<32 hex digits>`, `kept-<pid>-<number>`, both also with a dot before them |
//! | `eras/` | `sharing/eras.rs` | `<key>` |
//!
//! A key has 16 hex digits. `RuntimeDir::write_whole` writes to `.<pid>-<number>.<name>` first. The files of former builds
//! have the same names. A build that writes a new name adds it here.

use std::ffi::OsStr;
use std::str::FromStr;

use kennel_sys::runtime_dir::RuntimeDir;

use super::inventory::STORES;
use crate::daemon::{LOG, OLDER_LOG, STATE};
use crate::guard::record::RECORD as GUARD_RECORD;
use crate::meeting::{DAEMON_LOCK, RECORD as DAEMON_RECORD, SPAWN_LOCK};

/// Digits of a key, and of a daemon's generation.
const KEY_DIGITS: usize = 16;
/// Digits of a store's key, and of a tree's cookie.
const LONG_DIGITS: usize = 32;

/// A form of names.
#[derive(Debug, Clone, Copy)]
enum Form {
    Exactly(&'static str),
    /// So many hex digits.
    Hex(usize),
    Pid,
    Port,
    /// The socket of a daemon's generation.
    Socket,
    /// The record of a kept service.
    Kept,
}

/// How a file comes to its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Created under it.
    Direct,
    /// Written as `.<pid>-<number>.<name>`, and renamed.
    Whole,
    /// Written as `.<name>`, and renamed.
    Dotted,
}

/// The names of the directories in `kind`, if Kennel makes any there.
fn directories(kind: &str) -> Option<Form> {
    match kind {
        "daemons" => Some(Form::Hex(KEY_DIGITS)),
        "guards" => Some(Form::Pid),
        STORES => Some(Form::Hex(LONG_DIGITS)),
        _ => None,
    }
}

/// The names of the files in `kind`, or in the directories there.
fn files(kind: &str) -> &'static [(Form, Way)] {
    match kind {
        "daemons" => &[
            (Form::Exactly(SPAWN_LOCK), Way::Direct),
            (Form::Exactly(DAEMON_LOCK), Way::Direct),
            (Form::Exactly(DAEMON_RECORD), Way::Whole),
            (Form::Exactly(STATE), Way::Whole),
            (Form::Exactly(LOG), Way::Direct),
            (Form::Exactly(OLDER_LOG), Way::Direct),
            (Form::Socket, Way::Direct),
        ],
        "guards" => &[
            (Form::Exactly(GUARD_RECORD), Way::Whole),
            (Form::Exactly(LOG), Way::Direct),
            (Form::Exactly(OLDER_LOG), Way::Direct),
        ],
        STORES => &[
            (Form::Exactly("lock"), Way::Direct),
            (Form::Exactly("declared"), Way::Whole),
        ],
        "solo" => &[(Form::Pid, Way::Whole)],
        "starting" => &[(Form::Port, Way::Direct)],
        "trees" => &[
            (Form::Hex(LONG_DIGITS), Way::Dotted),
            (Form::Kept, Way::Dotted),
        ],
        "eras" => &[(Form::Hex(KEY_DIGITS), Way::Whole)],
        _ => &[],
    }
}

/// Whether Kennel makes directories of this name in `kind`.
pub(super) fn is_directory_of_kennel(kind: &str, name: &OsStr) -> bool {
    let name = name.to_str();
    name.is_some_and(|name| directories(kind).is_some_and(|form| form.has(name)))
}

/// Whether Kennel writes files of this name in `kind`, or in the directories there.
pub(super) fn is_name_of_kennel(kind: &str, name: &str) -> bool {
    form_of(kind, name).is_some()
}

/// Whether an entry of `dir`, which is `kind` or a directory there, is a file or socket that Kennel writes there, and ours.
/// Kennel makes no links.
pub(super) fn is_file_of_kennel(kind: &str, dir: &RuntimeDir, name: &OsStr) -> bool {
    let Some(form) = name.to_str().and_then(|name| form_of(kind, name)) else {
        return false;
    };
    let facts = dir.facts_of(name).ok().flatten();
    facts.is_some_and(|it| {
        let is_its_type = match form {
            Form::Socket => it.is_socket(),
            _ => it.is_file(),
        };
        is_its_type && it.owner().is_current()
    })
}

/// The form that a file of this name in `kind` has.
fn form_of(kind: &str, name: &str) -> Option<Form> {
    let mut files = files(kind).iter();
    let found = files.find(|(form, way)| form.has(name) || way.is_before(*form, name));
    found.map(|(form, _)| *form)
}

impl Form {
    fn has(self, name: &str) -> bool {
        match self {
            Form::Exactly(exactly) => name == exactly,
            Form::Hex(digits) => is_hex(name, digits),
            Form::Pid => is_number::<u32>(name),
            Form::Port => name.strip_prefix("port-").is_some_and(is_number::<u16>),
            Form::Socket => name
                .strip_suffix(".sock")
                .is_some_and(|generation| is_hex(generation, KEY_DIGITS)),
            Form::Kept => name
                .strip_prefix("kept-")
                .and_then(|rest| rest.split_once('-'))
                .is_some_and(|(pid, start)| is_number::<u32>(pid) && is_number::<u64>(start)),
        }
    }
}

impl Way {
    /// Whether a file has this name before it gets one of `form`.
    fn is_before(self, form: Form, name: &str) -> bool {
        let Some(rest) = name.strip_prefix('.') else {
            return false;
        };
        match self {
            Way::Direct => false,
            Way::Dotted => form.has(rest),
            Way::Whole => rest.split_once('.').is_some_and(|(writer, name)| {
                let writer = writer.split_once('-');
                let is_writer = |(pid, serial)| is_number::<u32>(pid) && is_number::<u32>(serial);
                writer.is_some_and(is_writer) && form.has(name)
            }),
        }
    }
}

/// Lower-case, as Kennel writes them.
fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits
        && text
            .bytes()
            .all(|it| matches!(it, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether it is a number as Kennel writes it: without a sign or zeros before it.
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
    fn names_that_kennel_writes_are_known() {
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
