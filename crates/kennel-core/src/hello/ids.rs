//! Ids as JSON-RPC writes them. A value that is no id is left out: to know fewer unsent requests is safe, to fail to
//! read the message is not.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use crate::message::Key;
use crate::message::reply::IN_FLIGHT_LIMIT;

pub(super) fn serialize<S: Serializer>(ids: &[Key], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(ids.iter().filter(|id| !is_odd(id)).map(SpelledId))
}

/// Reads the ids among the first [`IN_FLIGHT_LIMIT`] values: a session has no more requests. Any other value than a list
/// is an empty list.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Key>, D::Error> {
    let list: &RawValue = Deserialize::deserialize(from)?;
    let mut list = serde_json::Deserializer::from_str(list.get());
    Ok(list.deserialize_seq(Ids).unwrap_or_default())
}

fn is_odd(id: &Key) -> bool {
    matches!(id, Key::Odd(_))
}

/// An id as JSON-RPC writes it.
struct SpelledId<'a>(&'a Key);

impl Serialize for SpelledId<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Key::Number(number) => to.serialize_i64(*number),
            Key::Text(text) | Key::Odd(text) => to.serialize_str(text),
        }
    }
}

/// Reads a list of ids and ignores other values: a list of short values takes many times its bytes in memory.
struct Ids;

impl<'de> Visitor<'de> for Ids {
    type Value = Vec<Key>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of ids")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<Key>, A::Error> {
        let mut ids = Vec::new();
        for _ in 0..IN_FLIGHT_LIMIT {
            let Some(spelled) = items.next_element::<&RawValue>()? else {
                return Ok(ids);
            };
            let id = Key::of(spelled.get().as_bytes());
            ids.extend(id.filter(|id| !is_odd(id)));
        }
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(ids)
    }
}
