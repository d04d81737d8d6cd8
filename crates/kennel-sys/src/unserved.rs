//! A platform that is not served yet: its functions are the last column of [`crate::backend`], and most of its types have
//! no values.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

pub use crate::backend::*;
use crate::io::{Event, Interest, Token, Wait};

/// The remedy if the processes of this machine cannot be seen.
pub const FIX_FOR_HIDDEN_PROCESSES: &str = "use a platform that kennel serves";
/// Unknown on this platform.
pub const SYSTEM_DIRECTORIES: &[&str] = &[];
/// Unknown on this platform.
pub const SHARED_DIRECTORIES: &[&str] = &[];

/// Types without values: what makes one is unsupported, and nothing can call its methods.
macro_rules! without_values {
    ($(
        $name:ident::$make:ident($($made_of:ty)?)
        $(, $method:ident($($argument:ty),*) -> $type:ty)*;
    )*) => {
        $(
            /// Has no values.
            #[derive(Debug)]
            pub struct $name(std::convert::Infallible);

            impl $name {
                /// Not supported.
                pub fn $make($(_: $made_of)?) -> io::Result<$name> {
                    unsupported()
                }
                $(
                    /// There is no value to call this on.
                    pub fn $method(&self $(, _: $argument)*) -> $type {
                        match self.0 {}
                    }
                )*
            }

            impl AsFd for $name {
                fn as_fd(&self) -> BorrowedFd<'_> {
                    match self.0 {}
                }
            }
        )*
    };
}

without_values! {
    Waker::new(), wake() -> (), clear() -> ();
    DirChanges::watch(&Path), clear() -> ();
    Poller::new(),
        add(BorrowedFd<'_>, Token, Interest) -> io::Result<bool>,
        change(BorrowedFd<'_>, Token, Interest) -> io::Result<()>,
        remove(BorrowedFd<'_>) -> io::Result<()>,
        cancel_alarm() -> (),
        wait(Wait, &mut Vec<Event>) -> io::Result<bool>;
    Connections::now(),
        unix_peer_of(u64) -> Option<u64>,
        has_peer_outside(&[u64], &HashSet<u64>) -> bool;
}

/// The facts about an orphan.
pub type OrphanFacts = ();

/// A search for children, which finds none.
#[derive(Debug, Default)]
pub struct ChildSearch;

impl ChildSearch {
    /// No children.
    pub fn step(&mut self) -> Vec<u32> {
        Vec::new()
    }
    /// At once.
    pub fn is_complete(&self) -> bool {
        true
    }
}
