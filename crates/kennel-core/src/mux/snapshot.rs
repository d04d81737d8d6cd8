//! A mux as text, and back: what it takes to go on in another process, in the middle of everything.
//!
//! [`Mux`] has its text from serde, field by field as it is: a second set of types for the same state
//! would be one that can forget a part of it. Whoever changes a field changes the text, and says so by the
//! number of the format it is kept in. Ask for everything that follows ([`Mux::poll`], [`Mux::poll_note`])
//! before: what was not asked for is no part of it.

use super::Mux;
use super::calls::Kind;

impl Mux {
    /// Whether nobody waits for anything: no call in flight, no question of the server's, no batch half answered.
    /// A subscription that lasts until somebody ends it (`subscriptions/listen`) is nothing to wait for.
    pub fn is_quiet(&self) -> bool {
        let lasts = |kind: &Kind| *kind == Kind::Listen;
        self.calls.in_flight().all(|call| lasts(&call.kind)) && self.asks.is_empty()
    }

    /// Whether the server could be replaced by another: it is [quiet](Self::is_quiet), and works on no task.
    pub fn is_idle(&self) -> bool {
        self.is_quiet() && self.tasks.unfinished().next().is_none()
    }
}

/// Bytes that are usually text: a string then.
pub(super) mod bytes {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::hello::Text;

    pub(in crate::mux) fn serialize<S: Serializer>(
        bytes: &[u8],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        Text::from(bytes).serialize(serializer)
    }

    pub(in crate::mux) fn deserialize<'de, B: From<Vec<u8>>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<B, D::Error> {
        Text::deserialize(deserializer).map(|text| B::from(text.as_bytes().to_vec()))
    }
}

/// The same, or nothing.
pub(super) mod maybe_bytes {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::hello::Text;

    pub(in crate::mux) fn serialize<S: Serializer>(
        bytes: &Option<Vec<u8>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let text = bytes.as_ref().map(|bytes| Text::from(&bytes[..]));
        text.serialize(serializer)
    }

    pub(in crate::mux) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Vec<u8>>, D::Error> {
        let text = Option::<Text>::deserialize(deserializer)?;
        Ok(text.map(|text| text.as_bytes().to_vec()))
    }
}

/// A map whose keys are no strings: a list of pairs.
pub(super) mod pairs {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(in crate::mux) fn serialize<K: Serialize, V: Serialize, S: Serializer>(
        map: &BTreeMap<K, V>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(map)
    }

    pub(in crate::mux) fn deserialize<'de, K, V, D>(
        deserializer: D,
    ) -> Result<BTreeMap<K, V>, D::Error>
    where
        K: Deserialize<'de> + Ord,
        V: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        let pairs = Vec::<(K, V)>::deserialize(deserializer)?;
        Ok(pairs.into_iter().collect())
    }
}

/// Words of ours.
pub(super) mod words {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::mux::asks::ambiguous_method;

    pub(in crate::mux) fn serialize<S: Serializer>(
        words: &Option<&'static str>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        words.serialize(serializer)
    }

    pub(in crate::mux) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<&'static str>, D::Error> {
        let words = Option::<String>::deserialize(deserializer)?;
        Ok(words.map(|words| ambiguous_method(&words)))
    }
}
