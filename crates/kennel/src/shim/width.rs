//! Room in the kernel for what is long: through a pipe of 64 KiB, a line of 32 MB goes in five hundred parts, and for
//! each of them somebody is woken.

use std::cell::Cell;
use std::os::fd::AsFd;

use rustix::net::sockopt;
use rustix::pipe::{fcntl_getpipe_size, fcntl_setpipe_size};

/// What is not longer than this goes at once anyway.
const LONG: usize = 64 * 1024;
/// What an unprivileged user may have, where nobody said otherwise.
const WIDE: usize = 1 << 20;

/// How much of what is written a pipe or a socket holds until it is read.
#[derive(Debug, Default)]
pub(crate) struct Width {
    /// What it held before it was made wider.
    usual: Cell<Option<usize>>,
}

impl Width {
    /// Of one that may be wider than usual already.
    pub(crate) fn wider_than(usual: usize) -> Width {
        let usual = Cell::new(Some(usual));
        Width { usual }
    }

    /// Wide for this many bytes, and as it was before for less. What is left of that in it keeps a pipe wide until the
    /// next time, and one whose owner has no more to spend stays as it is.
    pub(crate) fn suit(&self, fd: impl AsFd, bytes: usize) {
        match self.usual.get() {
            None if bytes > LONG => {
                let usual = widened(&fd);
                // Not tried again for the same line.
                self.usual.set(Some(usual.unwrap_or(0)));
            }
            Some(0) if bytes <= LONG => self.usual.set(None),
            Some(usual) if bytes <= LONG && narrowed(&fd, usual) => self.usual.set(None),
            _ => {}
        }
    }
}

/// Makes a pipe hold this many bytes more than it can now, however much is in it; `false` if it does not.
pub(crate) fn make_room(fd: impl AsFd, bytes: usize) -> bool {
    // The kernel counts pages, and the first of what is written begins a new one.
    const PAGE: usize = 64 * 1024;
    let Ok(size) = fcntl_getpipe_size(&fd) else {
        return false;
    };
    fcntl_setpipe_size(&fd, size + bytes + PAGE).is_ok()
}

/// What it held before; nothing if it is as wide as it can be.
fn widened(fd: impl AsFd) -> Option<usize> {
    if let Ok(usual) = fcntl_getpipe_size(&fd) {
        let is_wider = usual < WIDE && fcntl_setpipe_size(&fd, WIDE).is_ok();
        return is_wider.then_some(usual);
    }
    // The kernel says twice of what it was told, for its own needs.
    let usual = sockopt::socket_send_buffer_size(&fd).ok()? / 2;
    let is_wider = usual < WIDE && sockopt::set_socket_send_buffer_size(&fd, WIDE).is_ok();
    is_wider.then_some(usual)
}

fn narrowed(fd: impl AsFd, usual: usize) -> bool {
    match fcntl_getpipe_size(&fd) {
        Ok(_) => fcntl_setpipe_size(&fd, usual).is_ok(),
        Err(_) => sockopt::set_socket_send_buffer_size(&fd, usual).is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use rustix::pipe::PipeFlags;

    use super::*;

    #[test]
    fn a_pipe_is_as_it_was_when_what_was_long_is_read() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let usual = fcntl_getpipe_size(&writer).unwrap();
        let width = Width::default();
        width.suit(&writer, LONG);
        assert_eq!(fcntl_getpipe_size(&writer).unwrap(), usual);
        width.suit(&writer, LONG + 1);
        assert_eq!(fcntl_getpipe_size(&writer).unwrap(), WIDE);
        let written = rustix::io::write(&writer, &vec![b'x'; WIDE / 2]).unwrap();
        width.suit(&writer, 1);
        assert_eq!(fcntl_getpipe_size(&writer).unwrap(), WIDE);
        let mut read = 0;
        while read < written {
            read += rustix::io::read(&reader, &mut [0; 4096]).unwrap();
        }
        width.suit(&writer, 1);
        assert_eq!(fcntl_getpipe_size(&writer).unwrap(), usual);

        fcntl_setpipe_size(&writer, WIDE).unwrap();
        Width::wider_than(usual).suit(&writer, 1);
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
        let width = Width::default();
        width.suit(&ours, LONG + 1);
        width.suit(&ours, 0);
        assert_eq!(sockopt::socket_send_buffer_size(&ours).unwrap(), usual);

        let file = std::fs::File::open("/dev/null").unwrap();
        let width = Width::default();
        width.suit(&file, LONG + 1);
        width.suit(&file, 0);
    }
}
