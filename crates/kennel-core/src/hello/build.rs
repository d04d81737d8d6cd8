//! Which build of the program somebody runs, and which of two is the newer one.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// A build of Kennel: its version, and a stamp that tells two builds of one version apart. Its text is
/// `1.2.3`, `1.2.3-rc.1` or, with a stamp, `1.2.3+1767225600`.
///
/// Newer is the higher version, by the rules of semantic versions; of one version, the later stamp. Both are
/// part of the build itself: neither where it lies, nor when it was copied there, makes it newer. Two
/// builds that are equal here are the same, and none replaces the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Build {
    release: [u64; 3],
    /// Of a pre-release, its parts.
    pre: Vec<String>,
    /// 0 where the build has none.
    stamp: u64,
}

/// Text that names no build.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoBuild;

impl fmt::Display for NoBuild {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no build (expected `1.2.3` or `1.2.3+stamp`)")
    }
}

impl std::error::Error for NoBuild {}

impl FromStr for Build {
    type Err = NoBuild;

    fn from_str(text: &str) -> Result<Build, NoBuild> {
        let (version, stamp) = text.split_once('+').unwrap_or((text, "0"));
        let (release, pre) = match version.split_once('-') {
            Some((release, pre)) => (release, pre.split('.').map(str::to_owned).collect()),
            None => (version, Vec::new()),
        };
        let numbers: Vec<u64> = release
            .split('.')
            .map(|part| part.parse().map_err(|_| NoBuild))
            .collect::<Result<_, _>>()?;
        if pre.iter().any(String::is_empty) {
            return Err(NoBuild);
        }
        Ok(Build {
            release: numbers.try_into().map_err(|_| NoBuild)?,
            pre,
            stamp: stamp.parse().map_err(|_| NoBuild)?,
        })
    }
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.release;
        write!(f, "{major}.{minor}.{patch}")?;
        if !self.pre.is_empty() {
            write!(f, "-{}", self.pre.join("."))?;
        }
        match self.stamp {
            0 => Ok(()),
            stamp => write!(f, "+{stamp}"),
        }
    }
}

impl Ord for Build {
    fn cmp(&self, other: &Build) -> Ordering {
        let release = self.release.cmp(&other.release);
        let pre = || match (self.pre.is_empty(), other.pre.is_empty()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => self
                .pre
                .iter()
                .map(|part| Part::of(part))
                .cmp(other.pre.iter().map(|part| Part::of(part))),
        };
        let stamp = || self.stamp.cmp(&other.stamp);
        release.then_with(pre).then_with(stamp)
    }
}

impl PartialOrd for Build {
    fn partial_cmp(&self, other: &Build) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A part of a pre-release: numbers come before words.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Part<'a> {
    Number(u64),
    Word(&'a str),
}

impl Part<'_> {
    fn of(text: &str) -> Part<'_> {
        match text.parse() {
            Ok(number) => Part::Number(number),
            Err(_) => Part::Word(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(text: &str) -> Build {
        text.parse().unwrap()
    }

    #[test]
    fn a_build_reads_back_as_it_was_written() {
        for text in ["0.1.0", "1.20.3", "1.0.0-rc.1", "1.0.0+17", "1.0.0-a.b+17"] {
            assert_eq!(build(text).to_string(), text);
        }
        assert_eq!(build("1.0.0+0"), build("1.0.0"));
    }

    #[test]
    fn newer_is_the_higher_version_and_of_one_version_the_later_stamp() {
        let ascending = [
            "0.1.0-1",
            "0.1.0-alpha",
            "0.1.0-alpha.2",
            "0.1.0-alpha.10",
            "0.1.0-beta",
            "0.1.0",
            "0.1.0+9",
            "0.1.0+10",
            "0.2.0",
            "0.10.0",
            "1.0.0",
        ];
        for pair in ascending.windows(2) {
            assert!(build(pair[0]) < build(pair[1]), "{pair:?}");
        }
    }

    #[test]
    fn what_names_no_build_is_refused() {
        for text in [
            "", "0", "1.2", "1.2.3.4", "a.b.c", "1.2.3-", "1.2.3+x", "1.2.3+",
        ] {
            assert_eq!(text.parse::<Build>(), Err(NoBuild), "{text}");
        }
    }
}
