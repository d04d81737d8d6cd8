//! Lists with a maximum length: a list of short texts takes many times its bytes in memory.

use std::marker::PhantomData;
use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, IgnoredAny, SeqAccess, Visitor};

use super::MAX_VARIABLES;

/// Deserializes at most [`MAX_VARIABLES`] elements, plus one if there are more, so that the caller detects the excess.
pub(super) fn list<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    deserializer.deserialize_seq(List(PhantomData))
}

/// Deserializes a list that is shared by several owners.
pub(super) fn shared<'de, D, T>(deserializer: D) -> Result<Arc<Vec<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    list(deserializer).map(Arc::new)
}

/// Deserializes an optional list.
pub(super) fn deserialize_optional<'de, D, T>(deserializer: D) -> Result<Option<Vec<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let list: Option<Bounded<T>> = Option::deserialize(deserializer)?;
    Ok(list.map(|Bounded(list)| list))
}

struct Bounded<T>(Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Bounded<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Bounded<T>, D::Error> {
        list(deserializer).map(Bounded)
    }
}

struct List<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
    type Value = Vec<T>;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
        let mut list = Vec::new();
        while list.len() <= MAX_VARIABLES {
            match items.next_element()? {
                Some(item) => list.push(item),
                None => return Ok(list),
            }
        }
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_list_that_is_too_long_one_too_many_is_kept() {
        for (length, kept) in [
            (0, 0),
            (MAX_VARIABLES, MAX_VARIABLES),
            (MAX_VARIABLES + 1, MAX_VARIABLES + 1),
            (3 * MAX_VARIABLES, MAX_VARIABLES + 1),
        ] {
            let text = serde_json::to_string(&vec![7u8; length]).unwrap();
            let mut json = serde_json::Deserializer::from_str(&text);
            let read: Vec<u8> = list(&mut json).unwrap();
            json.end().unwrap();
            assert_eq!(read.len(), kept);
        }
    }
}
