//! The build of the program, and which of two builds is newer.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// A build of Kennel: its version, and a stamp that distinguishes two builds of one version. Its text is `1.2.3`,
/// `1.2.3-rc.1` or, with a stamp, `1.2.3+1767225600`.
///
/// The newer build has the higher version, by the rules of semantic versions, or the same version and the later stamp.
/// Both are part of the build: neither the path of the program nor the time of its installation counts. Neither of two
/// equal builds replaces the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Build {
    release: [u64; 3],
    /// The parts of the pre-release version.
    pre_release: Vec<String>,
    /// The stamp; 0 if the build has none.
    stamp: u64,
}

/// A text that is not a build.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidBuild;

impl fmt::Display for InvalidBuild {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a build: expected `1.2.3` or `1.2.3+stamp`")
    }
}

impl std::error::Error for InvalidBuild {}

impl FromStr for Build {
    type Err = InvalidBuild;

    fn from_str(text: &str) -> Result<Build, InvalidBuild> {
        let (version, stamp) = text.split_once('+').unwrap_or((text, "0"));
        let (release, pre_release) = match version.split_once('-') {
            Some((release, pre_release)) => {
                (release, pre_release.split('.').map(str::to_owned).collect())
            }
            None => (version, Vec::new()),
        };
        let numbers: Vec<u64> = release
            .split('.')
            .map(|part| part.parse().map_err(|_| InvalidBuild))
            .collect::<Result<_, _>>()?;
        if pre_release.iter().any(String::is_empty) {
            return Err(InvalidBuild);
        }
        Ok(Build {
            release: numbers.try_into().map_err(|_| InvalidBuild)?,
            pre_release,
            stamp: stamp.parse().map_err(|_| InvalidBuild)?,
        })
    }
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.release;
        write!(f, "{major}.{minor}.{patch}")?;
        if !self.pre_release.is_empty() {
            write!(f, "-{}", self.pre_release.join("."))?;
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
        let pre_release = || match (self.pre_release.is_empty(), other.pre_release.is_empty()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => self
                .pre_release
                .iter()
                .map(|part| Part::of(part))
                .cmp(other.pre_release.iter().map(|part| Part::of(part))),
        };
        let stamp = || self.stamp.cmp(&other.stamp);
        release.then_with(pre_release).then_with(stamp)
    }
}

impl PartialOrd for Build {
    fn partial_cmp(&self, other: &Build) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A part of a pre-release version: numbers come before words.
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
            assert_eq!(text.parse::<Build>(), Err(InvalidBuild), "{text}");
        }
    }
}
