//! The files in the directory of records: one small file per record, which appears complete or not at all (lesson 4).

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::str::FromStr;

use rustix::fs::{AtFlags, Mode, OFlags};

/// Maximum length of a record in bytes.
const MAX_LENGTH: u64 = 4096;

/// Writes a record to a temporary name and renames it. A server can write to this directory and knows both names: a file
/// at the temporary name is removed and never opened, because it may be a named pipe or a link to a file elsewhere.
pub(super) fn write(dir: BorrowedFd<'_>, name: &str, text: &str) -> io::Result<()> {
    let temporary = temporary_name(name);
    let _ = rustix::fs::unlinkat(dir, &temporary, AtFlags::empty());
    let flags = OFlags::WRONLY
        | OFlags::CREATE
        | OFlags::EXCL
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(dir, &temporary, flags, Mode::RUSR | Mode::WUSR)?;
    // The umask may have removed our own right to read it.
    let written = rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR)
        .map_err(io::Error::from)
        .and_then(|()| File::from(fd).write_all(text.as_bytes()))
        .and_then(|()| Ok(rustix::fs::renameat(dir, &temporary, dir, name)?));
    if written.is_err() {
        let _ = rustix::fs::unlinkat(dir, &temporary, AtFlags::empty());
    }
    written
}

/// Reads a record. `None` if the file is not UTF-8, or cannot be a record of this user.
pub(super) fn read(dir: BorrowedFd<'_>, name: &str) -> io::Result<Option<String>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::openat(dir, name, flags, Mode::empty())?);
    if !is_own_file(&file.metadata()?) {
        return Ok(None);
    }
    let mut text = String::new();
    match file.take(MAX_LENGTH).read_to_string(&mut text) {
        Ok(_) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes a record.
pub(super) fn remove(dir: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    // A process that was killed while it wrote the record left this file.
    let _ = rustix::fs::unlinkat(dir, temporary_name(name), AtFlags::empty());
    Ok(rustix::fs::unlinkat(dir, name, AtFlags::empty())?)
}

/// The names of all files in `dir`.
pub(super) fn names(dir: BorrowedFd<'_>) -> io::Result<Vec<String>> {
    Ok(rustix::fs::Dir::read_from(dir.as_fd())?
        .filter_map(|entry| entry.ok()?.file_name().to_str().ok().map(str::to_owned))
        .collect())
}

fn temporary_name(name: &str) -> String {
    format!(".{name}")
}

/// Whether a file can be a record of this user: this user owns it (rule 9), and it has no other name, so it was not
/// hard-linked into the directory. A record that was replaced since it was opened has no name left.
fn is_own_file(meta: &std::fs::Metadata) -> bool {
    meta.is_file() && meta.uid() == rustix::process::geteuid().as_raw() && meta.nlink() <= 1
}

/// The lines `NAME VALUE` of a record.
pub(super) struct Fields<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Fields<'a> {
    /// The fields of a record. `None` if its first line does not begin with `kind`; the version behind it is ignored:
    /// records of later versions have the fields that this version knows.
    pub(super) fn parse(text: &'a str, kind: &str) -> Option<Fields<'a>> {
        let mut lines = text.lines();
        let is_this_kind = lines.next()?.strip_prefix(kind)?.starts_with(' ');
        is_this_kind.then(|| Fields(lines.filter_map(|line| line.split_once(' ')).collect()))
    }

    /// The text of the first field with this name.
    pub(super) fn text(&self, name: &str) -> Option<&'a str> {
        let mut fields = self.0.iter();
        fields.find(|(key, _)| *key == name).map(|field| field.1)
    }

    /// The value of the first field with this name. `None` if it is missing or cannot be parsed.
    pub(super) fn value<T: FromStr>(&self, name: &str) -> Option<T> {
        self.text(name)?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_file_planted_at_the_temporary_name_is_neither_opened_nor_written_to() {
        let dir = std::env::temp_dir().join(format!("kt-whole-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (temporary, precious) = (dir.join(".record"), dir.join("precious"));
        std::fs::write(&precious, "mine").unwrap();
        let opened = File::open(&dir).unwrap();
        let plant: [&dyn Fn(); 4] = [
            &|| {},
            &|| std::fs::hard_link(&precious, &temporary).unwrap(),
            &|| symlink(&precious, &temporary).unwrap(),
            &|| {
                let fifo = rustix::fs::FileType::Fifo;
                rustix::fs::mknodat(opened.as_fd(), ".record", fifo, Mode::RUSR, 0).unwrap();
            },
        ];
        for plant in plant {
            plant();
            write(opened.as_fd(), "record", "text").unwrap();
            assert_eq!(std::fs::read_to_string(dir.join("record")).unwrap(), "text");
            assert_eq!(std::fs::read_to_string(&precious).unwrap(), "mine");
            assert!(!temporary.exists());
        }
        // A directory cannot be replaced: that is an error, and the call does not block.
        std::fs::create_dir(&temporary).unwrap();
        assert!(write(opened.as_fd(), "record", "text").is_err());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
