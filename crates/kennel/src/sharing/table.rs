//! Well-known servers, and whether their sessions may share one.
//!
//! Each row was decided by reading the code of the version it names. *Safe* means that no session can notice another
//! one: no state of a connection, no roots, no questions to the user, no log messages about calls, and calls that may
//! run at the same time. In doubt, a server is dedicated.

mod rows;

use std::ffi::OsString;

use super::Rule;
use super::launcher::{self, Launched, Registry, is_installed, normalised};
use crate::key::variables;
use crate::names::Names;
pub(crate) use rows::ROWS;

/// A server in the table.
#[derive(Debug)]
pub(crate) struct Row {
    /// Its package, if it comes from a registry.
    pub(crate) package: Option<(Registry, &'static str)>,
    /// The names of its programs.
    pub(crate) programs: &'static [&'static str],
    /// The name of its module for `python -m`.
    pub(crate) module: Option<&'static str>,
    /// The sessions that may share it.
    pub(crate) rule: Rule,
    /// The reason, in a few words for `kennel ps`.
    pub(crate) why: &'static str,
    /// The variables it reads, in addition to those that every program of its runtime reads; `None` if no session
    /// shares it. A name that ends in `*` stands for all names with this prefix.
    pub(crate) reads: Option<Names>,
    /// The version that was read.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "for people: a test keeps the documentation to it")
    )]
    pub(crate) seen: &'static str,
    /// The result of the review of its source code.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "for people: a test keeps the documentation to it")
    )]
    pub(crate) evidence: &'static str,
}

/// The row for what a command starts.
pub(crate) fn row_of(launched: &Launched) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.matches(launched))
}

/// The variables that count for a command's key, if it is in the table and any session shares it.
pub(crate) fn variables_of(command: &[OsString]) -> Option<Vec<&'static str>> {
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    row_of(&launcher::launched(&words)?)?.variables()
}

impl Row {
    /// The variables that count when its sessions are compared, if any session shares it: it does not depend on others.
    pub(crate) fn variables(&self) -> Option<Vec<&'static str>> {
        let runtime = match self.package {
            Some((Registry::Npm, _)) => variables::NODE,
            Some((Registry::PyPi, _)) => variables::PYTHON,
            Some((Registry::Elsewhere, _)) | None => &[],
        };
        let own = self.reads?.iter();
        Some(
            [variables::EVERYWHERE, runtime]
                .concat()
                .into_iter()
                .chain(own)
                .collect(),
        )
    }

    fn matches(&self, launched: &Launched) -> bool {
        match launched {
            Launched::Package {
                registry,
                names,
                program,
            } => {
                let named = |name: &String| self.is_package(*registry, name);
                let ours = |program: &String| self.programs.contains(&program.as_str());
                // Of several packages, it is unknown to which the program belongs.
                names.iter().all(named) && program.as_ref().is_none_or(ours)
            }
            Launched::Module(module) => self.module == Some(module.as_str()),
            // Any file may have this name, so a path proves nothing. That is no problem if the row says that it is
            // dedicated.
            Launched::Program(path) => {
                let trusted = self.rule == Rule::Never || is_installed(path);
                trusted && self.programs.contains(&launched.name())
            }
            Launched::Script(_) => false,
        }
    }

    fn is_package(&self, from: Registry, name: &str) -> bool {
        match self.package {
            Some((Registry::PyPi, ours)) => from == Registry::PyPi && normalised(name) == ours,
            Some((registry, ours)) => from == registry && name == ours,
            None => false,
        }
    }
}

#[cfg(test)]
mod tests;
