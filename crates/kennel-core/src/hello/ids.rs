//! Ids on the wire: as JSON-RPC writes them. What is none is left out; to know less of what was not sent is
//! safe, not to understand the rest would not be.

use serde::{Deserialize as _, Deserializer, Serializer};
use serde_json::Value;

use crate::message::Key;

pub(super) fn serialize<S: Serializer>(ids: &[Key], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(ids.iter().filter_map(value))
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Key>, D::Error> {
    let ids = match Value::deserialize(from)? {
        Value::Array(ids) => ids,
        _ => Vec::new(),
    };
    Ok(ids.into_iter().filter_map(key).collect())
}

fn value(key: &Key) -> Option<Value> {
    match key {
        Key::Number(number) => Some((*number).into()),
        Key::Text(text) => Some((&**text).into()),
        Key::Odd(_) => None,
    }
}

fn key(value: Value) -> Option<Key> {
    match value {
        Value::Number(number) => number.as_i64().map(Key::Number),
        Value::String(text) => Some(Key::Text(text.into())),
        _ => None,
    }
}
