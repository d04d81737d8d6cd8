//! Environment variables that are for this process only, and must not be inherited (lesson 22).

use std::ffi::OsString;

use crate::os;
pub use crate::switch::switch;

/// The result of [`take`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// The variable's value.
    pub value: OsString,
    /// Whether it was removed from the environment. It stays if there are other threads, which may read the environment at
    /// this moment: call [`take`] first in `main`.
    pub scrubbed: bool,
}

/// Reads a variable and removes it from the environment, so that no process inherits it.
pub fn take(name: &str) -> Option<Taken> {
    let value = std::env::var_os(name)?;
    let alone = os::thread_count_of_this_process().is_ok_and(|threads| threads == 1);
    if alone {
        // SAFETY: this is the only thread, and it is not reading the environment.
        #[expect(clippy::disallowed_methods, reason = "the one allowed place")]
        unsafe {
            std::env::remove_var(name);
        }
    }
    Some(Taken {
        value,
        scrubbed: alone,
    })
}
