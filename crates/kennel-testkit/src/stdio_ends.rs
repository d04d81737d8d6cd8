//! The two ends of a stream that a fake app gives to a process as its stdin or stdout.

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::pipe::PipeFlags;

/// The read end and the write end of a pipe, or of a socket pair, which apps on Node use.
pub fn stdio_ends(socket: bool) -> (OwnedFd, OwnedFd) {
    if socket {
        let flags = SocketFlags::CLOEXEC;
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        return pair.expect("a socket pair");
    }
    rustix::pipe::pipe_with(PipeFlags::CLOEXEC).expect("a pipe")
}

/// Starts a process that keeps a copy of `end` open until it is killed.
pub fn keep_open(end: impl AsFd) -> Child {
    let copy = end.as_fd().try_clone_to_owned().expect("a copy of the end");
    Command::new("sleep")
        .arg("1000")
        .stdin(Stdio::null())
        .stdout(copy)
        .spawn()
        .expect("sleep starts")
}
