//! A line of a log as people read it: when, who, what. And where a timeline begins.

use std::time::SystemTime;

use crate::daemon::stamp;
use crate::guard::output::{ESCAPE, OWN_WORDS};
use crate::ps::words::printable;

/// Every line begins with a time of this length.
const STAMP: usize = "1970-01-01T00:00:00.000Z".len();

/// Who writes a log, and how it tells its own words from the server's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Teller {
    /// Its servers' words are marked.
    Daemon,
    /// Its own words are marked.
    Guard,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Speaker {
    Kennel,
    Server,
}

/// One line of a timeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) at: String,
    pub(crate) by: Speaker,
    pub(crate) words: String,
}

impl Teller {
    pub(crate) fn line(self, line: &str) -> Told {
        let (at, rest) = match stamp_of(line) {
            Some(at) => (at, line[STAMP..].trim_start_matches(' ')),
            None => ("", line),
        };
        let (by, words) = match self {
            Teller::Daemon => match rest.strip_prefix("server says: ") {
                Some(words) => (Speaker::Server, words),
                None => (Speaker::Kennel, rest),
            },
            Teller::Guard => match rest.strip_prefix(OWN_WORDS) {
                Some(words) => (Speaker::Kennel, words),
                None => (Speaker::Server, rest.strip_prefix(ESCAPE).unwrap_or(rest)),
            },
        };
        let at = at.to_owned();
        let words = printable(&words.replace('\t', "    "));
        Told { at, by, words }
    }
}

impl Told {
    pub(crate) fn text(&self, colour: bool) -> String {
        let (by, code) = match self.by {
            Speaker::Kennel => ("kennel", 36),
            Speaker::Server => ("server", 33),
        };
        let Told { at, words, .. } = self;
        match colour {
            true => format!("\x1b[2m{at}\x1b[0m \x1b[{code}m{by}\x1b[0m  {words}"),
            false => format!("{at} {by}  {words}"),
        }
    }

    /// The time of the day alone, for where there is little room.
    pub(crate) fn clock(&self) -> &str {
        self.at.get(11..19).unwrap_or_default()
    }
}

/// From when on lines are shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Since {
    Ever,
    /// Not before a line with this stamp or a later one.
    Stamp(String),
}

impl Since {
    pub(crate) fn at(time: SystemTime) -> Since {
        Since::Stamp(stamp(time))
    }

    /// Whether this line is shown; with the first that is, all are.
    pub(crate) fn has_come(&mut self, line: &str) -> bool {
        if let Since::Stamp(since) = self {
            if stamp_of(line).is_none_or(|at| at < since.as_str()) {
                return false;
            }
            *self = Since::Ever;
        }
        true
    }
}

/// The time a line begins with, if it does.
fn stamp_of(line: &str) -> Option<&str> {
    let at = line.get(..STAMP)?;
    (at.ends_with('Z') && at.as_bytes()[10] == b'T').then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: &str = "2026-12-31T23:59:59.999Z";

    #[test]
    fn kennels_words_and_the_servers_are_told_apart_in_both_kinds_of_log() {
        for (teller, line, by, words) in [
            (
                Teller::Daemon,
                "server 5 runs",
                Speaker::Kennel,
                "server 5 runs",
            ),
            (
                Teller::Daemon,
                "server says: oh no",
                Speaker::Server,
                "oh no",
            ),
            (
                Teller::Guard,
                "kennel: it ended",
                Speaker::Kennel,
                "it ended",
            ),
            (
                Teller::Guard,
                "\\kennel: all is well",
                Speaker::Server,
                "kennel: all is well",
            ),
            (
                Teller::Guard,
                "listening 80",
                Speaker::Server,
                "listening 80",
            ),
        ] {
            let told = teller.line(&format!("{AT} {line}"));
            assert_eq!((told.at.as_str(), told.by), (AT, by));
            assert_eq!(told.words, words);
            assert_eq!(told.clock(), "23:59:59");
        }
        let odd = Teller::Daemon.line("no time, and \x1b[2J");
        assert_eq!(odd.text(false), " kennel  no time, and \\u{1b}[2J");
    }

    #[test]
    fn a_timeline_begins_with_the_first_line_that_is_young_enough() {
        let mut since = Since::Stamp("2026-12-31T23:00:00.000Z".to_owned());
        assert!(!since.has_come("2026-12-31T22:59:59.999Z a"));
        assert!(!since.has_come("what has no time belongs to what was before"));
        assert!(since.has_come("2026-12-31T23:00:00.000Z b"));
        assert!(since.has_come("what has no time"));
    }
}
