//! Processes as `/proc` shows them: who is below whom, what they hold together, and how often they woke.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use crate::memory::Weight;

/// These processes and everyone below them.
#[derive(Debug, Clone, Default)]
pub(crate) struct People(BTreeSet<u32>);

impl People {
    pub(crate) fn below(roots: impl IntoIterator<Item = u32>) -> People {
        let mut pids = BTreeSet::new();
        let mut next: Vec<u32> = roots.into_iter().collect();
        while let Some(pid) = next.pop() {
            if pids.insert(pid) {
                next.extend(children_of(pid));
            }
        }
        People(pids)
    }

    pub(crate) fn pids(&self) -> impl Iterator<Item = u32> {
        self.0.iter().copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// But for these.
    pub(crate) fn without(&self, others: &[u32]) -> People {
        let left = self.pids().filter(|pid| !others.contains(pid));
        People(left.collect())
    }

    /// Those at the end of a line whose command names this: the servers, and not who starts them.
    pub(crate) fn servers(&self, mark: &str) -> Vec<u32> {
        let is_one = |pid: &u32| children_of(*pid).is_empty() && command_of(*pid).contains(mark);
        self.pids().filter(is_one).collect()
    }

    /// Each its share of what they have in common with others, in megabytes. One that has just ended weighs nothing.
    pub(crate) fn weight(&self) -> f64 {
        let weights = self.pids().filter_map(|pid| Weight::of(pid).ok());
        weights.map(|weight| weight.pss).sum()
    }

    /// How often each of their threads was put on a processor since it began: what waits wakes, and what is interrupted
    /// comes back.
    pub(crate) fn wakes(&self) -> BTreeMap<PathBuf, f64> {
        let threads = self.pids().flat_map(|pid| {
            let threads = fs::read_dir(format!("/proc/{pid}/task"));
            threads.into_iter().flatten().flatten()
        });
        let switches = threads.filter_map(|thread| {
            let status = fs::read_to_string(thread.path().join("status")).ok()?;
            let lines = status.lines().filter(|line| line.contains("ctxt_switches"));
            let counts =
                lines.filter_map(|line| line.split_whitespace().last()?.parse::<f64>().ok());
            Some((thread.path(), counts.sum::<f64>()))
        });
        switches.collect()
    }

    /// How often they woke since then. A thread that ended meanwhile took its number along.
    pub(crate) fn wakes_since(&self, before: &BTreeMap<PathBuf, f64>) -> f64 {
        more_than(before, &self.wakes())
    }
}

/// A thread that counts less than before is a new one by the name of another: all of its wakes are new.
fn more_than(before: &BTreeMap<PathBuf, f64>, now: &BTreeMap<PathBuf, f64>) -> f64 {
    let more = now.iter().map(|(thread, count)| match before.get(thread) {
        Some(before) if before <= count => count - before,
        _ => *count,
    });
    more.sum()
}

/// Of all its threads: a child belongs to the one that started it.
fn children_of(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let lists = threads
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let words = |list: String| -> Vec<u32> {
        let words = list.split_whitespace();
        words.filter_map(|word| word.parse().ok()).collect()
    };
    lists.flat_map(words).collect()
}

fn command_of(pid: u32) -> String {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&words).replace('\0', " ")
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn whoever_comes_and_goes_no_count_is_negative() {
        let counts = |threads: &[(&str, f64)]| -> BTreeMap<PathBuf, f64> {
            let threads = threads.iter();
            threads
                .map(|(name, count)| ((*name).into(), *count))
                .collect()
        };
        let before = counts(&[("stays", 10.0), ("goes", 500.0), ("is another", 90.0)]);
        let now = counts(&[("stays", 13.0), ("is another", 2.0), ("comes", 1.0)]);
        assert_eq!(more_than(&before, &now), 6.0);
    }

    #[test]
    fn whoever_is_below_is_found_and_counted() {
        // It ends with its input, however this ends.
        let mut child = Command::new("cat")
            .arg("-")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();

        let people = People::below([std::process::id()]);
        assert_eq!(people.servers("cat -"), [child.id()]);
        assert_eq!(people.without(&[child.id()]).len(), people.len() - 1);
        assert!(people.weight() > 0.0);
        assert!(people.wakes_since(&BTreeMap::new()) > 0.0);
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
