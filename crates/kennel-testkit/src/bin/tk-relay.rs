//! The floor: the least a process between an app and its server can do. `tk-relay COMMAND…` copies bytes
//! both ways in one `poll` loop, and understands none of them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Command, Stdio};

use rustix::event::{PollFd, PollFlags, poll};

fn main() {
    let command: Vec<_> = std::env::args_os().skip(1).collect();
    let mut server = Command::new(&command[0])
        .args(&command[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the server starts");
    let mut to_server = server.stdin.take().map(OwnedFd::from);
    let from_server = OwnedFd::from(server.stdout.take().expect("it is piped"));
    let mut buffer = vec![0u8; 64 * 1024];
    loop {
        let stdin = rustix::stdio::stdin();
        let mut fds = vec![PollFd::new(&from_server, PollFlags::IN)];
        if to_server.is_some() {
            fds.push(PollFd::from_borrowed_fd(stdin, PollFlags::IN));
        }
        poll(&mut fds, None).expect("poll");
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        if ready[0] && !pass(from_server.as_fd(), rustix::stdio::stdout(), &mut buffer) {
            break;
        }
        if let (Some(true), Some(server)) = (ready.get(1), &to_server)
            && !pass(stdin, server.as_fd(), &mut buffer)
        {
            to_server = None;
        }
    }
    server.wait().expect("the server ends");
}

/// Copies what is there; `false` at the end.
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
