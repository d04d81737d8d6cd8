//! A tree, written down for the start after a disaster. The file's name is the tree's cookie.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;

use rustix::fs::{AtFlags, Mode, OFlags};

use crate::detached::Detached;
use crate::process::Identity;

use super::whole_file;

/// First line of every record; a later version's has another number, and the lines we know.
const HEADER: &str = "kennel-tree 1";
const HEADER_OF_ANY: &str = "kennel-tree ";
/// No record of ours is longer.
const LONGEST: u64 = 4096;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) served: Identity,
    pub(super) warden: Identity,
    /// The direct child, if it lived long enough to be looked at.
    pub(super) server: Option<Identity>,
    /// The direct child's session; 0 before the start.
    pub(super) session: u32,
    /// What becomes of detached services.
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

    /// Appears whole or not at all (lesson 4).
    pub(super) fn write(&self, dir: BorrowedFd<'_>, cookie: &str) -> io::Result<()> {
        whole_file::write(dir, cookie, &aside(cookie), &self.text())
    }

    pub(super) fn read(dir: BorrowedFd<'_>, cookie: &str) -> io::Result<Option<Record>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = File::from(rustix::fs::openat(dir, cookie, flags, Mode::empty())?);
        if !is_own_file(&file.metadata()?) {
            return Ok(None);
        }
        let mut text = String::new();
        match file.take(LONGEST).read_to_string(&mut text) {
            Ok(_) => Ok(Record::parse(&text)),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn text(&self) -> String {
        let Record {
            served,
            warden,
            server,
            session,
            detached,
        } = self;
        let mut text = format!("{HEADER}\nserved {served}\nwarden {warden}\nsession {session}\n");
        text += &format!("detached {detached}\n");
        if let Some(server) = server {
            text += &format!("server {server}\n");
        }
        text
    }

    pub(super) fn parse(text: &str) -> Option<Record> {
        let mut lines = text.lines();
        if !lines.next()?.starts_with(HEADER_OF_ANY) {
            return None;
        }
        let lines: Vec<(&str, &str)> = lines.filter_map(|line| line.split_once(' ')).collect();
        let first = |name: &str| {
            lines
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| *value)
        };
        Some(Record {
            served: first("served")?.parse().ok()?,
            warden: first("warden")?.parse().ok()?,
            server: first("server").and_then(|identity| identity.parse().ok()),
            session: first("session")?.parse().ok()?,
            // Not in the records of earlier builds.
            detached: first("detached")
                .and_then(|word| word.parse().ok())
                .unwrap_or_default(),
        })
    }
}

pub(super) fn remove(dir: BorrowedFd<'_>, cookie: &str) -> io::Result<()> {
    // A warden that was killed while it wrote left this beside it.
    let _ = rustix::fs::unlinkat(dir, aside(cookie), AtFlags::empty());
    rustix::fs::unlinkat(dir, cookie, AtFlags::empty())?;
    Ok(())
}

/// Whether a file can be a record of ours: no other user wrote it (rule 9), and it is not a file from somewhere else that
/// a hard link put here. A record that was replaced since it was opened has no name left.
pub(super) fn is_own_file(meta: &std::fs::Metadata) -> bool {
    meta.is_file() && meta.uid() == rustix::process::geteuid().as_raw() && meta.nlink() <= 1
}

/// Where a record is written before it takes its name.
fn aside(cookie: &str) -> String {
    format!(".{cookie}")
}

/// The cookies on record.
pub(super) fn cookies(dir: BorrowedFd<'_>) -> io::Result<Vec<String>> {
    let is_cookie =
        |name: &String| name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    Ok(names_in(dir)?.into_iter().filter(is_cookie).collect())
}

/// The names of all files in `dir`.
pub(super) fn names_in(dir: BorrowedFd<'_>) -> io::Result<Vec<String>> {
    Ok(rustix::fs::Dir::read_from(dir.as_fd())?
        .filter_map(|entry| entry.ok()?.file_name().to_str().ok().map(str::to_owned))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_and_garbage_does_not() {
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
        // The pipes in records of earlier builds confirm nobody, and are not read.
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
