//! A lock's file holds a record or none. What it holds is what its holder wrote.

use crate::lock_record::Record;

/// A longer name is cut when it is written.
const LONGEST_NAME: usize = 200;

pub(crate) fn check(content: &[u8]) {
    let Some(record) = Record::parse(content) else {
        return;
    };
    assert!(!record.name.contains(char::is_control), "one line");
    let written = record.to_string();
    let again = Record::parse(written.as_bytes()).expect("a record of ours");
    assert_eq!(
        (again.identity, again.since),
        (record.identity, record.since)
    );
    let name: String = record.name.chars().take(LONGEST_NAME).collect();
    assert_eq!(again.name, name);
}
