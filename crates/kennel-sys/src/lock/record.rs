//! The record that the holder of a lock writes into its file.

use std::fmt;
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::process::{Identity, ProcessRef};

/// First line of every record.
const HEADER: &str = "kennel-lock 1";
/// Last line. A text without it is incomplete.
const END_LINE: &str = "end";
/// Maximum length of a record in bytes.
pub(super) const MAX_LENGTH: usize = 4096;
/// Maximum length of a name in characters.
const MAX_NAME: usize = 200;

/// The holder of a lock, as its file says. Any other content (a bare pid, garbage, half a record) is *no record*, and never
/// a reason to remove the file (lesson 5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The process.
    pub identity: Identity,
    /// The name of the holder. One line: control characters become spaces.
    pub name: String,
    /// When it took the lock, in seconds since 1970.
    pub since: u64,
}

impl Record {
    /// The record of this process, with the current time.
    pub fn of_this_process(name: &str) -> io::Result<Record> {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        Ok(Record {
            identity: *ProcessRef::me()?.identity(),
            name: name.to_owned(),
            since,
        })
    }

    pub(crate) fn parse(content: &[u8]) -> Option<Record> {
        // After the end there may be the rest of a longer record that is being overwritten.
        let mut lines = content.split(|&byte| byte == b'\n').map(str::from_utf8);
        if lines.next()?.ok()? != HEADER {
            return None;
        }
        let mut field = |name: &str| -> Option<&str> {
            let line = lines.next()?.ok()?;
            line.strip_prefix(name)?.strip_prefix(' ')
        };
        let record = Record {
            identity: field("process")?.parse().ok()?,
            since: field("since")?.parse().ok()?,
            name: field("name")?.to_owned(),
        };
        let ended = lines.next()?.ok()? == END_LINE && lines.next().is_some();
        let printable = !record.name.contains(char::is_control);
        (ended && printable).then_some(record)
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |c: char| if c.is_control() { ' ' } else { c };
        let name: String = self.name.chars().map(line).take(MAX_NAME).collect();
        writeln!(f, "{HEADER}")?;
        writeln!(f, "process {}", self.identity)?;
        writeln!(f, "since {}", self.since)?;
        writeln!(f, "name {name}")?;
        writeln!(f, "{END_LINE}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &str) -> Record {
        Record {
            identity: "4711:99:ff:1234:9".parse().unwrap(),
            name: name.to_owned(),
            since: 1_800_000_000,
        }
    }

    #[test]
    fn a_record_can_be_read_back() {
        for name in ["notes", "", "two words", "h\u{e9}"] {
            let record = record(name);
            assert_eq!(Record::parse(record.to_string().as_bytes()), Some(record));
        }
    }

    #[test]
    fn a_name_cannot_forge_a_line() {
        let text = record("x\nend\nname y").to_string();
        assert_eq!(Record::parse(text.as_bytes()).unwrap().name, "x end name y");
    }

    #[test]
    fn the_longest_record_fits() {
        assert!(record(&"\u{1f415}".repeat(5000)).to_string().len() < MAX_LENGTH);
    }

    #[test]
    fn a_partly_overwritten_record_ends_at_its_end_line() {
        let mut text = record("notes").to_string();
        text.push_str("of an older, longer one\nend\n");
        assert_eq!(Record::parse(text.as_bytes()), Some(record("notes")));
    }

    #[test]
    fn lesson_5_any_other_content_is_no_record() {
        let whole = record("notes").to_string();
        for cut in 0..whole.len() {
            assert_eq!(
                Record::parse(&whole.as_bytes()[..cut]),
                None,
                "cut at {cut}"
            );
        }
        let newer = whole.replace("kennel-lock 1", "kennel-lock 2");
        for other in ["4711", "4711\n", "{\"pid\":4711}", "\0\0\0\0", &newer] {
            assert_eq!(Record::parse(other.as_bytes()), None, "{other:?}");
        }
        assert_eq!(Record::parse(&[0xff; 64]), None);
    }
}
