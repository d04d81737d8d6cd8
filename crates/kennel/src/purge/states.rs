//! Which states of servers a purge removes. Any process of the user can write a declaration, so it is never sufficient:
//! a person approves each path, by `--with-state` or on a terminal. `--yes` does not.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::inventory::{Inventory, Item};
use crate::ps::words::printable;

/// Refuses a `--with-state` that is not a declared state.
pub(super) fn check_named(named: &[PathBuf], inventory: &Inventory) -> Result<(), String> {
    for path in named {
        if let Some((_, why)) = inventory.too_broad.iter().find(|(kept, _)| kept == path) {
            return Err(format!("--with-state {}: {why}", display(path)));
        }
        if !inventory.states.values().any(|state| state.path == *path) {
            return Err(format!(
                "--with-state {} is not a state that a server declared; `kennel purge --dry-run` lists their paths",
                display(path)
            ));
        }
    }
    Ok(())
}

/// The states to remove: those in `named`, and those of the others that `ask` approves, one by one.
pub(super) fn approved<'a>(
    states: &'a BTreeMap<OsString, Item>,
    named: &[PathBuf],
    mut ask: impl FnMut(&str) -> Result<bool, String>,
) -> Result<BTreeMap<OsString, &'a Item>, String> {
    let mut approved = BTreeMap::new();
    for (store, state) in states {
        let goes = named.contains(&state.path)
            || ask(&format!(
                "Remove {} too, with everything in it? A server declared it as its state.",
                display(&state.path)
            ))?;
        if goes {
            approved.insert(store.clone(), state);
        }
    }
    Ok(approved)
}

fn display(path: &Path) -> String {
    printable(&path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states() -> BTreeMap<OsString, Item> {
        let state = |name: &str| Item {
            group: "state",
            path: PathBuf::from("/data").join(name),
            bytes: 0,
        };
        let states = ["one", "two", "three"];
        states.map(|name| (name.into(), state(name))).into()
    }

    #[test]
    fn a_state_is_removed_only_if_its_exact_path_is_named_or_approved() {
        let states = states();
        let named = |path: &str| vec![PathBuf::from(path)];
        let chosen = |named: &[PathBuf]| {
            let approved = approved(&states, named, |_| Ok(false)).unwrap();
            approved.into_keys().collect::<Vec<_>>()
        };
        assert_eq!(chosen(&[]), Vec::<OsString>::new());
        assert_eq!(chosen(&named("/data/one")), ["one"]);
        for inexact in ["/data", "/data/one/below", "one"] {
            assert_eq!(chosen(&named(inexact)), Vec::<OsString>::new());
        }

        let mut questions = Vec::new();
        let ask = |question: &str| {
            questions.push(question.to_owned());
            Ok(question.contains("/data/two "))
        };
        let approved = approved(&states, &named("/data/one"), ask).unwrap();
        assert_eq!(approved.into_keys().collect::<Vec<_>>(), ["one", "two"]);
        assert_eq!(questions.len(), 2, "one each, and none for what was named");
    }

    #[test]
    fn a_path_that_is_no_declared_state_or_more_than_state_is_refused() {
        let mut inventory = Inventory::default();
        inventory.states = states();
        inventory.too_broad = vec![("/data/home".into(), "it is a home".to_owned())];
        let check = |path: &str| check_named(&[PathBuf::from(path)], &inventory);
        assert_eq!(check("/data/one"), Ok(()));
        assert!(check("/data/home").unwrap_err().contains("it is a home"));
        assert!(check("/data/none").unwrap_err().contains("--dry-run"));
    }
}
