//! Buffer sizes of pipes and sockets. Through a pipe of 64 KiB, a line of 32 MB is written in five hundred parts, and
//! each part wakes a process.

use std::cell::Cell;

use super::Waitable;
use crate::os;

/// Maximum bytes that are written at once without a larger buffer.
const MIN_ENLARGED: usize = 64 * 1024;
/// The kernel's default limit for an unprivileged user.
const DEFAULT_MAX_SIZE: usize = 1 << 20;

/// The buffer size of a pipe or socket, which is adapted to long lines.
#[derive(Debug, Default)]
pub struct BufferSize {
    /// The size before it was enlarged.
    usual: Cell<Option<usize>>,
}

impl BufferSize {
    /// For a pipe or socket whose buffer may already be larger than usual.
    pub fn larger_than(usual: usize) -> BufferSize {
        let usual = Cell::new(Some(usual));
        BufferSize { usual }
    }

    /// Enlarges the buffer for this many bytes, or restores its former size if fewer are written. A pipe stays large
    /// while it contains more, and stays as it is if its user may have no larger ones.
    pub fn fit(&self, channel: &impl Waitable, bytes: usize) {
        match self.usual.get() {
            None if bytes > MIN_ENLARGED => {
                let usual = enlarge(channel);
                // A failed attempt is not repeated for the same line.
                self.usual.set(Some(usual.unwrap_or(0)));
            }
            Some(0) if bytes <= MIN_ENLARGED => self.usual.set(None),
            Some(usual) if bytes <= MIN_ENLARGED && os::set_buffer_size(channel.as_fd(), usual) => {
                self.usual.set(None);
            }
            _ => {}
        }
    }
}

/// Enlarges a pipe so that it can take this many more bytes, however full it is. Returns whether it can.
pub fn make_room(pipe: &impl Waitable, bytes: usize) -> bool {
    // The kernel counts pages, and a write begins a new one.
    const PAGE: usize = 64 * 1024;
    let size = os::pipe_size(pipe.as_fd());
    size.is_some_and(|size| os::set_pipe_size(pipe.as_fd(), size + bytes + PAGE))
}

/// Enlarges the buffer. Returns the former size; `None` if the buffer already has the maximum size.
fn enlarge(channel: &impl Waitable) -> Option<usize> {
    let usual = os::buffer_size(channel.as_fd())?;
    let is_larger =
        usual < DEFAULT_MAX_SIZE && os::set_buffer_size(channel.as_fd(), DEFAULT_MAX_SIZE);
    is_larger.then_some(usual)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use rustix::net::sockopt;
    use rustix::pipe::{PipeFlags, fcntl_getpipe_size, fcntl_setpipe_size};

    use super::*;

    #[test]
    fn a_pipe_is_as_it_was_when_what_was_long_is_read() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let usual = fcntl_getpipe_size(&writer).unwrap();
        let size = BufferSize::default();
        size.fit(&writer, MIN_ENLARGED);
        assert_eq!(fcntl_getpipe_size(&writer).unwrap(), usual);
        size.fit(&writer, MIN_ENLARGED + 1);
        assert_eq!(fcntl_getpipe_size(&writer).unwrap(), DEFAULT_MAX_SIZE);
        let written = rustix::io::write(&writer, &vec![b'x'; DEFAULT_MAX_SIZE / 2]).unwrap();
        size.fit(&writer, 1);
        assert_eq!(fcntl_getpipe_size(&writer).unwrap(), DEFAULT_MAX_SIZE);
        let mut read = 0;
        while read < written {
            read += rustix::io::read(&reader, &mut [0; 4096]).unwrap();
        }
        size.fit(&writer, 1);
        assert_eq!(fcntl_getpipe_size(&writer).unwrap(), usual);

        fcntl_setpipe_size(&writer, DEFAULT_MAX_SIZE).unwrap();
        BufferSize::larger_than(usual).fit(&writer, 1);
        assert_eq!(fcntl_getpipe_size(&writer).unwrap(), usual);
    }

    #[test]
    fn a_full_pipe_takes_what_room_was_made_for() {
        let (_reader, writer) = rustix::pipe::pipe_with(PipeFlags::NONBLOCK).unwrap();
        while rustix::io::write(&writer, b"x").is_ok() {}
        let rest = [b'x'; 3 * 4096 + 1];
        assert!(rustix::io::write(&writer, &rest).is_err());
        assert!(make_room(&writer, rest.len()));
        assert_eq!(rustix::io::write(&writer, &rest).unwrap(), rest.len());
        let (ours, _theirs) = UnixStream::pair().unwrap();
        assert!(!make_room(&ours, 1));
    }

    #[test]
    fn a_socket_is_as_it_was_and_what_has_no_width_is_let_alone() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let usual = sockopt::socket_send_buffer_size(&ours).unwrap();
        let size = BufferSize::default();
        size.fit(&ours, MIN_ENLARGED + 1);
        size.fit(&ours, 0);
        assert_eq!(sockopt::socket_send_buffer_size(&ours).unwrap(), usual);

        let file = std::fs::File::open("/dev/null").unwrap();
        let size = BufferSize::default();
        size.fit(&file, MIN_ENLARGED + 1);
        size.fit(&file, 0);
    }
}
