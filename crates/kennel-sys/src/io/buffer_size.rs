//! Room in the kernel for what is long: through a pipe of 64 KiB, a line of 32 MB goes in five hundred parts, and for
//! each of them somebody is woken.

use std::cell::Cell;

use super::Waitable;
use crate::os;

/// What is not longer than this goes at once anyway.
const LONG: usize = 64 * 1024;
/// What an unprivileged user may have, where nobody said otherwise.
const WIDE: usize = 1 << 20;

/// How many bytes a pipe or a socket holds until they are read.
#[derive(Debug, Default)]
pub struct BufferSize {
    /// What it held before it was made larger.
    usual: Cell<Option<usize>>,
}

impl BufferSize {
    /// For a pipe or socket that may be larger than usual already.
    pub fn larger_than(usual: usize) -> BufferSize {
        let usual = Cell::new(Some(usual));
        BufferSize { usual }
    }

    /// Makes it large for this many bytes, and as it was before for fewer. A pipe stays large while more is left in it, and
    /// a pipe whose user may have no larger ones stays as it is.
    pub fn fit(&self, channel: &impl Waitable, bytes: usize) {
        match self.usual.get() {
            None if bytes > LONG => {
                let usual = enlarged(channel);
                // Not tried again for the same line.
                self.usual.set(Some(usual.unwrap_or(0)));
            }
            Some(0) if bytes <= LONG => self.usual.set(None),
            Some(usual) if bytes <= LONG && os::set_buffer_size(channel.as_fd(), usual) => {
                self.usual.set(None);
            }
            _ => {}
        }
    }
}

/// Makes a pipe hold this many bytes more than it can now, however much is in it; `false` if it does not.
pub fn make_room(pipe: &impl Waitable, bytes: usize) -> bool {
    // The kernel counts pages, and the first of what is written begins a new one.
    const PAGE: usize = 64 * 1024;
    let size = os::pipe_size(pipe.as_fd());
    size.is_some_and(|size| os::set_pipe_size(pipe.as_fd(), size + bytes + PAGE))
}

/// What it held before; nothing if it is as large as it can be.
fn enlarged(channel: &impl Waitable) -> Option<usize> {
    let usual = os::buffer_size(channel.as_fd())?;
    let is_larger = usual < WIDE && os::set_buffer_size(channel.as_fd(), WIDE);
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
        size.fit(&writer, LONG);
        assert_eq!(fcntl_getpipe_size(&writer).unwrap(), usual);
        size.fit(&writer, LONG + 1);
        assert_eq!(fcntl_getpipe_size(&writer).unwrap(), WIDE);
        let written = rustix::io::write(&writer, &vec![b'x'; WIDE / 2]).unwrap();
        size.fit(&writer, 1);
        assert_eq!(fcntl_getpipe_size(&writer).unwrap(), WIDE);
        let mut read = 0;
        while read < written {
            read += rustix::io::read(&reader, &mut [0; 4096]).unwrap();
        }
        size.fit(&writer, 1);
        assert_eq!(fcntl_getpipe_size(&writer).unwrap(), usual);

        fcntl_setpipe_size(&writer, WIDE).unwrap();
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
        size.fit(&ours, LONG + 1);
        size.fit(&ours, 0);
        assert_eq!(sockopt::socket_send_buffer_size(&ours).unwrap(), usual);

        let file = std::fs::File::open("/dev/null").unwrap();
        let size = BufferSize::default();
        size.fit(&file, LONG + 1);
        size.fit(&file, 0);
    }
}
