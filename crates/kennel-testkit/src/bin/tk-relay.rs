//! A bare relay: the least that a process between an app and its server can do. `tk-relay COMMAND…` copies bytes both ways
//! in one `poll` loop, without parsing them. It is connected to its command by two pipes, or with `--socket` by one socket:
//! `tk-relay --socket tk-relay SERVER` measures two processes.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags, poll};

fn main() {
    let mut command: Vec<OsString> = std::env::args_os().skip(1).collect();
    let by_socket = command.first().is_some_and(|word| word == "--socket");
    if by_socket {
        command.remove(0);
    }
    let (mut server, mut to_server, from_server) = start(&command, by_socket);
    let (stdin, stdout) = (rustix::stdio::stdin(), rustix::stdio::stdout());
    let mut buffer = vec![0u8; 64 * 1024];
    loop {
        let mut fds = [
            PollFd::new(&from_server, PollFlags::IN),
            PollFd::from_borrowed_fd(stdin, PollFlags::IN),
        ];
        // After the app's input ended, only the server is read.
        let watched = if to_server.is_some() { 2 } else { 1 };
        poll(&mut fds[..watched], None).expect("poll");
        let [server_speaks, app_speaks] = fds.map(|fd| !fd.revents().is_empty());
        if server_speaks && !pass(from_server.as_fd(), stdout, &mut buffer) {
            break;
        }
        if app_speaks
            && let Some(to) = &to_server
            && !pass(stdin, to.as_fd(), &mut buffer)
        {
            if by_socket {
                // The other direction stays open for answers.
                rustix::net::shutdown(to, rustix::net::Shutdown::Write).expect("shutdown");
            }
            to_server = None;
        }
    }
    server.wait().expect("the server ends");
}

/// The command, and the descriptors to write to it and to read from it.
fn start(command: &[OsString], by_socket: bool) -> (Child, Option<OwnedFd>, OwnedFd) {
    let mut started = Command::new(&command[0]);
    started.args(&command[1..]);
    if by_socket {
        let (ours, its) = UnixStream::pair().expect("a pair of sockets");
        let again = ours.try_clone().expect("another handle");
        let its_output = its.try_clone().expect("another handle");
        let child = started
            .stdin(OwnedFd::from(its))
            .stdout(OwnedFd::from(its_output))
            .spawn()
            .expect("the server starts");
        return (child, Some(ours.into()), again.into());
    }
    let mut child = started
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the server starts");
    let to = child.stdin.take().expect("it is piped");
    let from = child.stdout.take().expect("it is piped");
    (child, Some(to.into()), from.into())
}

/// Copies the available data; `false` at the end.
fn pass(from: BorrowedFd<'_>, to: BorrowedFd<'_>, buffer: &mut [u8]) -> bool {
    let Ok(length @ 1..) = rustix::io::read(from, &mut *buffer) else {
        return false;
    };
    let mut rest = &buffer[..length];
    while !rest.is_empty() {
        let Ok(count) = rustix::io::write(to, rest) else {
            return false;
        };
        rest = &rest[count..];
    }
    true
}
