//! A session that may have few descriptors (`ulimit -n`): it takes what it is allowed, or says what is short.

use std::io;

use kennel_sys::limits::{descriptor_limit, descriptors_are_short, raise_descriptors};

/// Descriptors that a session has open while it starts a server of its own, with some to spare.
const NEEDED: u32 = 32;

/// Does it, and once more with as many descriptors as are allowed where they were short. What is started gets the former
/// limit.
pub(super) fn retry_with_higher_limit<T>(mut act: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    match act() {
        Err(error) if descriptors_are_short(&error) && raise_descriptors() => act(),
        done => done,
    }
}

/// What is short and what to do, to be added to an error that says that descriptors are short; empty for others.
pub(super) fn advice(error: &io::Error) -> String {
    if !descriptors_are_short(error) {
        return String::new();
    }
    let limit = descriptor_limit();
    let limit = limit.map_or_else(|| "none".to_owned(), |limit| limit.to_string());
    format!(
        ": the limit of open files is {limit}, and a session needs {NEEDED}; raise it (`ulimit -n 1024`) and begin the \
         session again"
    )
}
