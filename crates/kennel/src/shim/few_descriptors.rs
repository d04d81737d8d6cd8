//! Sessions with a low limit of descriptors (`ulimit -n`): raises the limit, or explains the shortage.

use std::io;

use kennel_sys::limits::{descriptor_limit, descriptors_are_short, raise_descriptors};

/// Descriptors that a session needs while it starts a dedicated server, with a margin.
const NEEDED: u32 = 32;

/// Runs `act`; if descriptors are short, raises the limit and retries once. Started processes get the former limit.
pub(super) fn retry_with_higher_limit<T>(mut act: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    match act() {
        Err(error) if descriptors_are_short(&error) && raise_descriptors() => act(),
        done => done,
    }
}

/// Advice to append to an error of a descriptor shortage; empty for other errors.
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
