//! Users of this machine, and the user of this process.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// A user id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct UserId(u32);

impl UserId {
    /// The effective user of this process.
    pub fn current() -> UserId {
        UserId(rustix::process::geteuid().as_raw())
    }

    /// The real user of this process.
    pub fn real() -> UserId {
        UserId(rustix::process::getuid().as_raw())
    }

    pub(crate) fn from_raw(uid: u32) -> UserId {
        UserId(uid)
    }

    /// The number.
    pub fn number(self) -> u32 {
        self.0
    }

    /// Whether this is the effective user of this process.
    pub fn is_current(self) -> bool {
        self == UserId::current()
    }

    /// Whether it is root.
    pub fn is_root(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "uid {}", self.0)
    }
}

/// The name of a local account with this uid.
pub fn name(user: u32) -> Option<String> {
    name_in(&read_accounts(), user)
}

/// Home directories of all local accounts.
pub fn homes() -> Vec<PathBuf> {
    homes_in(&read_accounts())
}

fn read_accounts() -> Vec<u8> {
    std::fs::read("/etc/passwd").unwrap_or_default()
}

/// The fields of each account: `name:password:uid:gid:comment:home:shell`.
fn fields(accounts: &[u8]) -> impl Iterator<Item = impl Iterator<Item = &[u8]>> {
    let lines = accounts.split(|&byte| byte == b'\n');
    lines.map(|line| line.split(|&byte| byte == b':'))
}

fn name_in(accounts: &[u8], user: u32) -> Option<String> {
    fields(accounts).find_map(|mut fields| {
        let name = fields.next()?;
        let uid = std::str::from_utf8(fields.nth(1)?).ok()?;
        let is_it = uid.parse() == Ok(user);
        is_it.then(|| OsStr::from_bytes(name).to_string_lossy().into_owned())
    })
}

fn homes_in(accounts: &[u8]) -> Vec<PathBuf> {
    let homes = fields(accounts).filter_map(|mut fields| fields.nth(5));
    let homes = homes.filter(|home| home.starts_with(b"/"));
    homes
        .map(|home| OsString::from_vec(home.to_vec()).into())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_local_accounts_have_a_name() {
        let accounts = b"root:x:0:0::/root:/bin/sh\n# nobody\nann:x:1000:1000::/home/ann:/bin/sh\n";
        assert_eq!(name_in(accounts, 1000).as_deref(), Some("ann"));
        assert_eq!(name_in(accounts, 0).as_deref(), Some("root"));
        assert_eq!(name_in(accounts, 100), None);
        assert_eq!(name_in(b"", 0), None);
        let homes = homes_in(accounts);
        assert_eq!(homes, ["/root", "/home/ann"].map(PathBuf::from));
    }
}
