//! Text of the operating system, which consists of bytes: paths, arguments and variables need not be UTF-8.

use std::fmt;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes that are usually text. In JSON a string, or a list of numbers if they are not UTF-8.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Text(Vec<u8>);

impl Text {
    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<&[u8]> for Text {
    fn from(bytes: &[u8]) -> Text {
        Text(bytes.to_vec())
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        String::from_utf8_lossy(&self.0).fmt(f)
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => self.0.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Text, D::Error> {
        struct TextVisitor;

        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, or a list of bytes")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Text, E> {
                Ok(Text(text.as_bytes().to_vec()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut bytes: A) -> Result<Text, A::Error> {
                let mut all = Vec::new();
                while let Some(byte) = bytes.next_element()? {
                    all.push(byte);
                }
                Ok(Text(all))
            }
        }

        deserializer.deserialize_any(TextVisitor)
    }
}

/// Serializes bytes as [`Text`], for `#[serde(with = "…")]`.
pub mod text_of_bytes {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Text;

    /// Writes the bytes as text.
    pub fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        Text::from(bytes).serialize(to)
    }

    /// Reads the output of [`serialize`].
    pub fn deserialize<'de, D: Deserializer<'de>, B: From<Vec<u8>>>(
        from: D,
    ) -> Result<B, D::Error> {
        Text::deserialize(from).map(|text| text.as_bytes().to_vec().into())
    }
}
