//! Variables that are meant for this process and must not travel on (lesson 22).

use std::ffi::OsString;

use crate::os;
pub use crate::switch::switch;

/// What [`take`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// The variable's value.
    pub value: OsString,
    /// Whether it is out of the environment now. It stays where other threads already run, for they
    /// may be reading the environment at this moment: call [`take`] first thing in `main`.
    pub scrubbed: bool,
}

/// Reads a variable and takes it out of the environment, so that nothing started later inherits it.
pub fn take(name: &str) -> Option<Taken> {
    let value = std::env::var_os(name)?;
    let alone = os::thread_count_of_this_process().is_ok_and(|threads| threads == 1);
    if alone {
        // SAFETY: this is the only thread, and it is not reading the environment.
        #[expect(clippy::disallowed_methods, reason = "this is what the ban points to")]
        unsafe {
            std::env::remove_var(name);
        }
    }
    Some(Taken {
        value,
        scrubbed: alone,
    })
}
