//! Reads available input once.

use std::io::{self, PipeReader, Read};

use rustix::buffer::spare_capacity;

use super::{Source, Stream, Waitable};
use crate::stdio::Stdin;

/// An input stream.
pub trait Input {
    /// Reads once into the spare capacity of `bytes`, which is not cleared before: that would cost time and memory. 0 at
    /// the end.
    fn read_into_spare(&self, bytes: &mut Vec<u8>) -> io::Result<usize>;

    /// Reads once into `bytes`. 0 at the end.
    fn read_once(&self, bytes: &mut [u8]) -> io::Result<usize>;
}

impl Input for PipeReader {
    fn read_into_spare(&self, bytes: &mut Vec<u8>) -> io::Result<usize> {
        Ok(rustix::io::read(self, spare_capacity(bytes))?)
    }

    fn read_once(&self, bytes: &mut [u8]) -> io::Result<usize> {
        (&mut &*self).read(bytes)
    }
}

impl Input for Stdin {
    fn read_into_spare(&self, bytes: &mut Vec<u8>) -> io::Result<usize> {
        Ok(rustix::io::read(self, spare_capacity(bytes))?)
    }

    fn read_once(&self, bytes: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(self, bytes)?)
    }
}

impl Input for Stream {
    fn read_into_spare(&self, bytes: &mut Vec<u8>) -> io::Result<usize> {
        self.receive_into_spare(bytes)
    }

    fn read_once(&self, bytes: &mut [u8]) -> io::Result<usize> {
        self.receive(bytes)
    }
}

impl<T: Input + Waitable> Input for Source<T> {
    fn read_into_spare(&self, bytes: &mut Vec<u8>) -> io::Result<usize> {
        (**self).read_into_spare(bytes)
    }

    fn read_once(&self, bytes: &mut [u8]) -> io::Result<usize> {
        (**self).read_once(bytes)
    }
}
