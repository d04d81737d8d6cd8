//! The servers people use, and whether their sessions may share one.
//!
//! Each row was judged by reading the code of the version it names. *Safe* means that nothing a session
//! does can be seen by another: no state of a connection, no roots, no questions to the person, no log
//! messages about calls, and calls that may run side by side. When in doubt, solo.

mod rows;

use std::ffi::OsString;

use super::Rule;
use super::launcher::{self, Launched, Registry, is_installed, normalised};
use crate::key::variables;
use crate::names::Names;
pub(crate) use rows::ROWS;

/// What is known about one server.
#[derive(Debug)]
pub(crate) struct Row {
    /// Its package, if it comes from a registry.
    pub(crate) package: Option<(Registry, &'static str)>,
    /// What its programs are called.
    pub(crate) programs: &'static [&'static str],
    /// What `python -m` calls it.
    pub(crate) module: Option<&'static str>,
    /// Who may share it.
    pub(crate) rule: Rule,
    /// Why, in a few words for `kennel ps`.
    pub(crate) why: &'static str,
    /// The variables it reads, beside those that every program of its runtime does; none where no session shares it. A
    /// name that ends in `*` stands for all that begin like it.
    pub(crate) reads: Option<Names>,
    /// The version that was read.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "for people: a test keeps the documentation to it")
    )]
    pub(crate) seen: &'static str,
    /// What was found in it.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "for people: a test keeps the documentation to it")
    )]
    pub(crate) evidence: &'static str,
}

/// What is known about what a command starts.
pub(crate) fn row_of(launched: &Launched) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.is_about(launched))
}

/// The variables that count for what a command starts, if it is in the table and any session shares it.
pub(crate) fn variables_of(command: &[OsString]) -> Option<Vec<&'static str>> {
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    row_of(&launcher::launched(&words)?)?.variables()
}

impl Row {
    /// The variables that count when its sessions are compared, if any session shares it: what else differs says
    /// nothing about it.
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

    fn is_about(&self, launched: &Launched) -> bool {
        match launched {
            Launched::Package {
                registry,
                names,
                program,
            } => {
                let named = |name: &String| self.is_package(*registry, name);
                let ours = |program: &String| self.programs.contains(&program.as_str());
                // Of several packages, nobody can say which one the program is of.
                names.iter().all(named) && program.as_ref().is_none_or(ours)
            }
            Launched::Module(module) => self.module == Some(module.as_str()),
            // What anybody may have put anywhere is vouched for by nobody; to keep it alone needs no voucher.
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
