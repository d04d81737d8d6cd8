//! Unix sockets as `/proc/net/unix` lists them.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use crate::process::ProcessRef;

/// The flag of a socket that takes connections (`__SO_ACCEPTCON`).
const ACCEPTS: u32 = 1 << 16;

/// Whether a socket that takes connections is bound to this path; the daemon behind it does not notice the question.
///
/// An error where that cannot be seen: `process`, whose socket it is, has another network namespace.
pub fn listens_at(path: &Path, process: &ProcessRef) -> io::Result<bool> {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net"));
    if namespace("self")? != namespace(&process.pid().to_string())? {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(is_listed(&fs::read("/proc/net/unix")?, path))
}

/// A line has seven fields, then the path: address, references, protocol, flags, type, state, inode.
fn is_listed(text: &[u8], path: &Path) -> bool {
    let lines = text.split(|&byte| byte == b'\n').skip(1);
    lines.into_iter().any(|line| {
        let mut fields = line.splitn(7, |&byte| byte == b' ');
        let flags = fields.nth(3).and_then(|flags| str::from_utf8(flags).ok());
        let flags = flags.and_then(|flags| u32::from_str_radix(flags, 16).ok());
        // Behind type and state. The inode is filled up to five columns.
        let rest = fields.nth(2).map(<[u8]>::trim_ascii_start);
        let at = rest.and_then(|rest| {
            let end = rest.iter().position(|&byte| byte == b' ');
            match end {
                Some(end) if rest[..end].iter().all(u8::is_ascii_digit) => Some(&rest[end + 1..]),
                _ => None,
            }
        });
        let listens = flags.is_some_and(|flags| flags & ACCEPTS != 0);
        listens && at == Some(path.as_os_str().as_bytes())
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
        // An end of a connection has the same path, and takes no connections.
        let _near = UnixStream::connect(&path).unwrap();
        let _far = listener.accept().unwrap();
        drop(listener);
        assert!(!listens_at(&path, &me).unwrap());
    }

    #[test]
    fn a_line_is_read_whatever_the_width_of_its_inode() {
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
    fn connections_wait_while_nobody_takes_them() {
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
