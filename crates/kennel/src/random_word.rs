//! Names that nobody can guess.

pub(crate) use kennel_sys::random::word as random_word;
