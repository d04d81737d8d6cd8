//! The environment variables of Kennel, and variables that look like one but have no effect because they are misspelled
//! or belong to another version.

use crate::timers;

/// Variables without a flag, in alphabetical order. Some are only for the tests and builds of this project.
const WITHOUT_FLAG: &[&str] = &[
    "KENNEL_BENCH_PEERS",
    "KENNEL_BUILD_STAMP",
    "KENNEL_FEATURES_OFF",
    "KENNEL_FULL",
    "KENNEL_OFF",
    "KENNEL_ON_CHANGE",
    "KENNEL_OWNER_PID",
    "KENNEL_PARENT_WATCH",
    "KENNEL_REAP_ONLY",
    "KENNEL_REPLAY",
    "KENNEL_RUNTIME_DIR",
    "KENNEL_SEED",
    "KENNEL_SWEEP",
    "KENNEL_TREE",
];
/// Maximum number of letters by which a misspelled name differs.
const MAX_TYPOS: usize = 2;

/// A variable that has no effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unknown {
    pub(crate) name: String,
    /// The variable that was probably meant.
    pub(crate) suggestion: Option<String>,
}

/// The variables of this process that begin with `KENNEL_` and have no effect, in order. Their values are not read.
pub(crate) fn unknown() -> Vec<Unknown> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    unknown_among(names.filter(|name| name.starts_with("KENNEL_")))
}

/// Warns about names that are probably misspelled; other names may belong to another program called Kennel.
pub(crate) fn warn_of_misspelled() {
    for Unknown { name, suggestion } in unknown() {
        if let Some(suggestion) = suggestion {
            crate::warn(&format!("{name} has no effect: did you mean {suggestion}?"));
        }
    }
}

fn unknown_among(names: impl Iterator<Item = String>) -> Vec<Unknown> {
    let known: Vec<String> = timers::TIMERS
        .iter()
        .map(|timer| timers::variable(timer.name))
        .chain(WITHOUT_FLAG.iter().map(|name| (*name).to_owned()))
        .collect();
    let unknown = names.filter(|name| !known.contains(name));
    let mut unknown: Vec<Unknown> = unknown
        .map(|name| {
            let distances = known.iter().map(|known| (distance(&name, known), known));
            let closest = distances.filter(|(letters, _)| *letters <= MAX_TYPOS).min();
            let suggestion = closest.map(|(_, known)| known.clone());
            Unknown { name, suggestion }
        })
        .collect();
    unknown.sort_by(|one, other| one.name.cmp(&other.name));
    unknown
}

/// Number of letters to insert, remove or replace to turn one name into the other (Levenshtein distance).
fn distance(one: &str, other: &str) -> usize {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = at + 1;
        for (column, theirs) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != theirs);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelled_names_are_reported_with_the_right_ones() {
        let names = [
            "KENNEL_LINGER",
            "KENNEL_LINGR",
            "KENNEL_OF",
            "KENNEL_MAXIDLE",
        ];
        let names = names
            .into_iter()
            .chain(["KENNEL_SOMETHING_ELSE", "KENNEL_DETACHED"]);
        let unknown = unknown_among(names.map(str::to_owned));
        let told: Vec<(&str, Option<&str>)> = unknown
            .iter()
            .map(|unknown| (unknown.name.as_str(), unknown.suggestion.as_deref()))
            .collect();
        assert_eq!(
            told,
            [
                ("KENNEL_LINGR", Some("KENNEL_LINGER")),
                ("KENNEL_MAXIDLE", Some("KENNEL_MAX_IDLE")),
                ("KENNEL_OF", Some("KENNEL_OFF")),
                ("KENNEL_SOMETHING_ELSE", None),
            ]
        );
    }

    #[test]
    fn letters_that_differ_are_counted() {
        assert_eq!(distance("abc", "abc"), 0);
        assert_eq!(distance("abc", "adc"), 1);
        assert_eq!(distance("abc", ""), 3);
        assert_eq!(distance("ac", "abc"), 1);
    }
}
