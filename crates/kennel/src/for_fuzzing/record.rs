//! A record that is believed says the same when it is written down again: nobody is taken for somebody else.

use kennel_sys::process::Identity;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{key_dir, wrap};

pub(super) fn check(content: &[u8]) {
    if let Some(record) = read_back::<key_dir::DaemonRecord>(content) {
        names_one(&record.identity);
    }
    read_back::<wrap::undo::Record>(content);
    let Ok(text) = str::from_utf8(content) else {
        return;
    };
    names_one(text);
    kennel_sys::for_fuzzing::tree_record(text);
}

fn read_back<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(
    content: &[u8],
) -> Option<T> {
    let record: T = serde_json::from_slice(content).ok()?;
    let written = serde_json::to_vec(&record).expect("strings and numbers can be serialized");
    let again = serde_json::from_slice(&written).expect("a record of ours");
    assert_eq!(record, again);
    Some(record)
}

fn names_one(text: &str) {
    if let Ok(identity) = text.parse::<Identity>() {
        assert_eq!(identity.to_string().parse(), Ok(identity));
    }
}
