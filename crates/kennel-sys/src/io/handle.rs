//! Descriptors that can become ready, and descriptors that are handed to another process.

use std::fs::File;
use std::io::{PipeReader, PipeWriter};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// A descriptor that can become ready: of a pipe, a socket, a waker, or a process.
pub trait Waitable: AsFd {}

impl<T: AsFd + ?Sized> Waitable for T {}

/// An open file, pipe, socket or process that came from another process or program, or goes to one.
#[derive(Debug)]
pub struct Handle(OwnedFd);

impl Handle {
    pub(crate) fn new(inner: impl Into<OwnedFd>) -> Handle {
        Handle(inner.into())
    }

    pub(crate) fn into_inner(self) -> OwnedFd {
        self.0
    }
}

impl AsFd for Handle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

macro_rules! conversions {
    ($($type:ty),*) => {
        $(
            impl From<$type> for Handle {
                fn from(inner: $type) -> Handle {
                    Handle::new(inner)
                }
            }

            impl From<Handle> for $type {
                fn from(handle: Handle) -> $type {
                    handle.0.into()
                }
            }
        )*
    };
}

conversions!(File, PipeReader, PipeWriter, UnixStream);
