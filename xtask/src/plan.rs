//! The plan of a run: its parts, and how long each is expected to take.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

/// One part of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) name: String,
    /// Minimum and maximum seconds on two cores; `None` if unknown.
    typical: Option<(u64, u64)>,
}

impl Part {
    pub(crate) fn new(name: impl Into<String>, typical: impl Into<Option<(u64, u64)>>) -> Part {
        Part {
            name: name.into(),
            typical: typical.into(),
        }
    }
}

/// The parts in order, and the time of each in its last successful run on this machine.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    parts: Vec<Part>,
    last: BTreeMap<String, u64>,
    /// The file with the times; `None` for a run whose times are not typical.
    file: Option<PathBuf>,
}

impl Plan {
    /// A plan with the times of earlier runs from `file`, which also records those of this run.
    pub(crate) fn new(parts: Vec<Part>, file: Option<&Path>) -> Plan {
        Plan {
            parts,
            last: file.map(read).unwrap_or_default(),
            file: file.map(Path::to_owned),
        }
    }

    /// The lines of the plan: a line for each part, and one for the total.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = (self.parts.iter())
            .map(|part| format!("{:>28}  {}", part.name, self.expected(&part.name)))
            .collect();
        let sum = |of: fn(&(u64, u64)) -> u64| -> Option<u64> {
            let parts = self.parts.iter();
            parts.map(|part| part.typical.as_ref().map(of)).sum()
        };
        let typical = sum(|range| range.0).zip(sum(|range| range.1));
        let last: Option<u64> = (self.parts.iter())
            .map(|part| self.last.get(&part.name).copied())
            .sum();
        lines.push(format!("{:>28}  {}", "in total", words(typical, last)));
        lines
    }

    /// The expected time of a part, as text.
    pub(crate) fn expected(&self, name: &str) -> String {
        let part = self.parts.iter().find(|part| part.name == name);
        let typical = part.and_then(|part| part.typical);
        words(typical, self.last.get(name).copied())
    }

    /// The number of this part, and the number of parts.
    pub(crate) fn place(&self, name: &str) -> Option<(usize, usize)> {
        let at = self.parts.iter().position(|part| part.name == name)?;
        Some((at + 1, self.parts.len()))
    }

    /// Records the time of a part for the next plan.
    pub(crate) fn took(&mut self, name: &str, took: Duration) {
        let Some(file) = &self.file else {
            return;
        };
        self.last.insert(name.to_owned(), took.as_secs());
        let text = format!("{:#}\n", json!(self.last));
        // If this fails, the next plan has no time for it.
        if let Some(dir) = file.parent() {
            let _ = fs::create_dir_all(dir);
        }
        let _ = fs::write(file, text);
    }
}

fn read(file: &Path) -> BTreeMap<String, u64> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let json: Value = serde_json::from_str(&text).unwrap_or_default();
    let times = json.as_object().into_iter().flatten();
    times
        .filter_map(|(name, seconds)| Some((name.clone(), seconds.as_u64()?)))
        .collect()
}

fn words(typical: Option<(u64, u64)>, last: Option<u64>) -> String {
    let typical = typical.map(|(least, most)| match (least, most) {
        (_, ..60) => "less than a minute".to_owned(),
        (..60, most) => format!("up to {} min", most.div_ceil(60)),
        (least, most) => format!("{} to {} min", least / 60, most.div_ceil(60)),
    });
    let last = last.map(|last| format!("last time {}", clock(Duration::from_secs(last))));
    match (typical, last) {
        (None, None) => "not known".to_owned(),
        (one, other) => one.into_iter().chain(other).collect::<Vec<_>>().join("; "),
    }
}

/// A time as minutes and seconds.
pub(crate) fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use kennel_testkit::Scope;

    use super::*;

    #[test]
    fn the_plan_names_every_part_its_time_and_the_total() {
        let parts = vec![
            Part::new("build", (240, 840)),
            Part::new("tests", (300, 600)),
            Part::new("search", (1, 20)),
        ];
        let plan = Plan::new(parts, None);
        let lines: Vec<String> = (plan.lines().iter())
            .map(|line| line.trim().to_owned())
            .collect();
        assert_eq!(
            lines,
            [
                "build  4 to 14 min",
                "tests  5 to 10 min",
                "search  less than a minute",
                "in total  9 to 25 min",
            ]
        );
        assert_eq!(plan.place("tests"), Some((2, 3)));
        assert_eq!(plan.place("another"), None);
    }

    #[test]
    fn a_part_with_unknown_time_makes_the_total_unknown() {
        let plan = Plan::new(vec![Part::new("a", (1, 2)), Part::new("b", None)], None);
        assert_eq!(plan.expected("b"), "not known");
        let lines = plan.lines();
        assert!(lines[2].ends_with("in total  not known"), "{lines:?}");
    }

    #[test]
    fn the_next_plan_shows_the_last_time_of_a_part() {
        let scope = Scope::new("plan");
        let file = scope.path("target/xtask/times.json");
        let parts = || vec![Part::new("build", (240, 840))];
        Plan::new(parts(), Some(&file)).took("build", Duration::from_secs(75));
        let next = Plan::new(parts(), Some(&file));
        assert_eq!(next.expected("build"), "4 to 14 min; last time 1:15");
        fs::write(&file, "not JSON").expect("a file of ours");
        let next = Plan::new(parts(), Some(&file));
        assert_eq!(next.expected("build"), "4 to 14 min");
    }
}
