//! Random values from the operating system.

use std::io;

/// 128 random bits as hexadecimal digits.
pub fn hex_id() -> io::Result<String> {
    let mut bytes = [0u8; 16];
    crate::os::fill_random(&mut bytes)?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}
