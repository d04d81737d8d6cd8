//! What must hold for random bytes, where that needs internals of this crate. The package `kennel-fuzz` calls these
//! functions; each panics if a rule is broken.

use crate::lock;
use crate::tree::record as tree;

/// Maximum characters of a name in a lock's file. A longer name is cut when it is written.
const MAX_NAME: usize = 200;

/// Checks the content of a lock's file: a record or none. A record that is written again says the same.
pub fn lock(content: &[u8]) {
    let Some(record) = lock::Record::parse(content) else {
        return;
    };
    assert!(!record.name.contains(char::is_control), "one line");
    let written = record.to_string();
    let again = lock::Record::parse(written.as_bytes()).expect("a record of ours");
    assert_eq!(
        (again.identity, again.since),
        (record.identity, record.since)
    );
    let name: String = record.name.chars().take(MAX_NAME).collect();
    assert_eq!(again.name, name);
}

/// Checks the record of a process tree: one that is written again says the same.
pub fn tree_record(text: &str) {
    if let Some(record) = tree::Record::parse(text) {
        assert_eq!(tree::Record::parse(&record.text()), Some(record));
    }
}
