//! Names that nobody can guess.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// 128 random bits, as hexadecimal digits.
pub(crate) fn random_word() -> io::Result<String> {
    let mut bytes = [0u8; 16];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}
