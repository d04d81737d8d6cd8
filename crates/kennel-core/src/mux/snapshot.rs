//! Serialization of a mux, so that another process can continue with calls in flight.
//!
//! [`Mux`] derives its format from serde field by field: a second set of types could miss a part of the state. A
//! change of a field changes the format and must raise its version. Call [`Mux::poll_output`] and [`Mux::poll_note`] until
//! they return `None` first: pending actions are not serialized.

use super::Mux;
use super::calls::Kind;

impl Mux {
    /// Whether no call and no server request is in flight. `subscriptions/listen` does not count.
    pub fn is_quiet(&self) -> bool {
        let lasts = |kind: &Kind| *kind == Kind::Listen;
        self.calls.in_flight().all(|call| lasts(&call.kind)) && self.server_requests.is_empty()
    }

    /// Whether the server could be replaced: it is [quiet](Self::is_quiet), and works on no task.
    pub fn is_idle(&self) -> bool {
        self.is_quiet() && self.tasks.unfinished().next().is_none()
    }
}

/// Serializes optional bytes.
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

/// Serializes a map whose keys are not strings as a list of pairs.
pub(crate) mod pairs {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<K: Serialize, V: Serialize, S: Serializer>(
        map: &BTreeMap<K, V>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(map)
    }

    pub(crate) fn deserialize<'de, K, V, D>(deserializer: D) -> Result<BTreeMap<K, V>, D::Error>
    where
        K: Deserialize<'de> + Ord,
        V: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        let pairs = Vec::<(K, V)>::deserialize(deserializer)?;
        Ok(pairs.into_iter().collect())
    }
}

/// Serializes a static string.
pub(super) mod static_text {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::mux::server_requests::ambiguous_method;

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
