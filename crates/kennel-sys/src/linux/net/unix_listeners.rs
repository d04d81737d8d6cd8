//! Listening Unix sockets from `/proc/net/unix`.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use crate::process::ProcessRef;

/// The flag of a listening socket (`__SO_ACCEPTCON`).
const ACCEPTS: u32 = 1 << 16;

/// Whether a listening socket is bound to this path. Does not connect to it.
///
/// Fails if `process`, the owner of the socket, is in another network namespace.
pub fn listens_at(path: &Path, process: &ProcessRef) -> io::Result<bool> {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net"));
    if namespace("self")? != namespace(&process.pid().to_string())? {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(is_listed(&fs::read("/proc/net/unix")?, path))
}

fn is_listed(text: &[u8], path: &Path) -> bool {
    let path = path.as_os_str().as_bytes();
    listening(text).any(|(_, listed)| listed == path)
}

/// The inode and the path of each listening socket in the text of `/proc/net/unix`. The path is empty if it has none.
pub(in super::super) fn listening(text: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let lines = text.split(|&byte| byte == b'\n').skip(1);
    lines.filter_map(|line| {
        // Address, references, protocol, flags, type, state, inode, path. The inode is padded to five columns.
        let mut fields = line.splitn(7, |&byte| byte == b' ');
        let flags = u32::from_str_radix(str::from_utf8(fields.nth(3)?).ok()?, 16).ok()?;
        let rest = fields.nth(2)?.trim_ascii_start();
        let (inode, path) =
            rest.split_at(rest.iter().take_while(|byte| byte.is_ascii_digit()).count());
        let inode = str::from_utf8(inode).ok()?.parse().ok()?;
        let path = path.strip_prefix(b" ").unwrap_or(path);
        (flags & ACCEPTS != 0).then_some((inode, path))
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use kennel_testkit::Scope;

    use super::*;

    #[test]
    fn a_listening_socket_is_seen_without_connecting_to_it() {
        let scope = Scope::new("unix-listener");
        let path = scope.path("a socket.sock");
        let me = ProcessRef::me().unwrap();
        assert!(!listens_at(&path, &me).unwrap());
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        assert!(listens_at(&path, &me).unwrap());
        let none = listener.accept().expect_err("nobody has connected");
        assert_eq!(none.kind(), io::ErrorKind::WouldBlock);
        // A connected socket has the same path, and does not listen.
        let _near = UnixStream::connect(&path).unwrap();
        let _far = listener.accept().unwrap();
        drop(listener);
        assert!(!listens_at(&path, &me).unwrap());
    }

    #[test]
    fn a_line_is_parsed_with_any_width_of_its_inode() {
        let head = "Num       RefCount Protocol Flags    Type St Inode Path\n";
        for inode in ["    7", "12345", "123456789"] {
            let line = format!(
                "{head}0000000000000000: 00000002 00000000 00010000 0001 01 {inode} /a b/c\n"
            );
            assert!(is_listed(line.as_bytes(), Path::new("/a b/c")), "{line}");
            assert!(!is_listed(line.as_bytes(), Path::new("/a")), "{line}");
        }
    }

    #[test]
    fn connections_wait_until_they_are_accepted() {
        let scope = Scope::new("queue");
        let path = scope.path("here");
        let listener = UnixListener::bind(&path).unwrap();
        let me = ProcessRef::me().unwrap();
        assert!(!crate::net::unix_connections_wait(&me).unwrap());
        let _client = UnixStream::connect(&path).unwrap();
        assert!(crate::net::unix_connections_wait(&me).unwrap());
        let _taken = listener.accept().unwrap();
        assert!(!crate::net::unix_connections_wait(&me).unwrap());
    }
}
