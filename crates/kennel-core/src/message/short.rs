//! A few bytes, as an id is: kept where they stand, and not in memory of their own.

use std::fmt;
use std::ops::Deref;

/// Bytes that are usually few.
#[derive(Clone)]
pub(crate) struct Short(Kept);

#[derive(Clone)]
enum Kept {
    Here { bytes: [u8; HERE], length: u8 },
    Apart(Box<[u8]>),
}

/// As many as fit beside the rest of what would say where they are.
const HERE: usize = 22;

impl Deref for Short {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Kept::Here { bytes, length } => &bytes[..usize::from(*length)],
            Kept::Apart(bytes) => bytes,
        }
    }
}

impl From<&[u8]> for Short {
    fn from(all: &[u8]) -> Short {
        let mut bytes = [0; HERE];
        match bytes.get_mut(..all.len()) {
            Some(place) => {
                place.copy_from_slice(all);
                let length = all.len() as u8;
                Short(Kept::Here { bytes, length })
            }
            None => Short(Kept::Apart(all.into())),
        }
    }
}

impl From<Vec<u8>> for Short {
    fn from(all: Vec<u8>) -> Short {
        Short::from(&all[..])
    }
}

impl fmt::Debug for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_are_there_however_many() {
        for length in [0, 1, HERE - 1, HERE, HERE + 1, 300] {
            let all: Vec<u8> = (0..length).map(|at| at as u8).collect();
            assert_eq!(Short::from(&all[..])[..], all[..]);
        }
        assert_eq!(size_of::<Short>(), size_of::<Vec<u8>>());
    }
}
