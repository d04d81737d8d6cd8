//! The record of a process tree, from which a later start finds its leftovers. The name of the file is the cookie of the tree.

use std::io;
use std::os::fd::BorrowedFd;

use crate::detached::Detached;
use crate::process::Identity;

use super::record_file::{self, Fields};

/// First word of every record.
const KIND: &str = "kennel-tree";
const VERSION: u32 = 1;

/// The record of a process tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(super) served: Identity,
    pub(super) warden: Identity,
    /// The direct child, if it was still alive when its identity was read.
    pub(super) server: Option<Identity>,
    /// The session of the direct child; 0 before the start.
    pub(super) session: u32,
    /// The policy for detached services.
    pub(super) detached: Detached,
}

impl Record {
    pub(super) fn new(served: Identity, warden: Identity, detached: Detached) -> Record {
        Record {
            served,
            warden,
            server: None,
            session: 0,
            detached,
        }
    }

    /// Writes the record under the name of the cookie.
    pub(super) fn write(&self, dir: BorrowedFd<'_>, cookie: &str) -> io::Result<()> {
        record_file::write(dir, cookie, &self.text())
    }

    pub(super) fn read(dir: BorrowedFd<'_>, cookie: &str) -> io::Result<Option<Record>> {
        let text = record_file::read(dir, cookie)?;
        Ok(text.and_then(|text| Record::parse(&text)))
    }

    pub(crate) fn text(&self) -> String {
        let Record {
            served,
            warden,
            server,
            session,
            detached,
        } = self;
        let mut text =
            format!("{KIND} {VERSION}\nserved {served}\nwarden {warden}\nsession {session}\n");
        text += &format!("detached {detached}\n");
        if let Some(server) = server {
            text += &format!("server {server}\n");
        }
        text
    }

    pub(crate) fn parse(text: &str) -> Option<Record> {
        let fields = Fields::parse(text, KIND)?;
        Some(Record {
            served: fields.value("served")?,
            warden: fields.value("warden")?,
            server: fields.value("server"),
            session: fields.value("session")?,
            // Missing in records of earlier builds.
            detached: fields.value("detached").unwrap_or_default(),
        })
    }
}

/// The cookies on record.
pub(super) fn cookies(dir: BorrowedFd<'_>) -> io::Result<Vec<String>> {
    let is_cookie =
        |name: &String| name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    Ok(record_file::names(dir)?
        .into_iter()
        .filter(is_cookie)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_can_be_read_back_and_garbage_cannot() {
        let identity: Identity = "1:2:0000000000000000000000000000000f:4:5"
            .parse()
            .expect("well-formed");
        let record = Record {
            served: identity,
            warden: identity,
            server: Some(identity),
            session: 77,
            detached: Detached::Keep,
        };
        assert_eq!(Record::parse(&record.text()), Some(record.clone()));
        let earlier_build = record.text().replace("detached keep\n", "");
        let read = Record::parse(&earlier_build).expect("well-formed");
        assert_eq!(read.detached, Detached::Auto);
        // The pipes in records of earlier builds prove nothing, and are ignored.
        let with_pipes = record.text() + "pipe 13:4711\n";
        assert_eq!(Record::parse(&with_pipes), Some(record.clone()));
        let early = Record::new(identity, identity, Detached::Auto);
        assert_eq!(Record::parse(&early.text()), Some(early));
        let cut = &record.text()[..40];
        for garbage in ["", "4711", "kennel-lock 1\n", cut, "\0\0\0"] {
            assert_eq!(Record::parse(garbage), None, "{garbage:?}");
        }
    }
}
