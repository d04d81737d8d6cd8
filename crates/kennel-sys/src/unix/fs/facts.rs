//! Facts about a file.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{FileType, Stat};

use crate::user::UserId;

/// The identity of a file, independent of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    pub(crate) dev: u64,
    pub(crate) ino: u64,
}

impl FileId {
    /// The identity of an open file.
    pub fn of(file: &File) -> io::Result<FileId> {
        file.metadata().map(|meta| FileId::from(&meta))
    }

    /// The number of its file system.
    pub fn device(self) -> u64 {
        self.dev
    }

    /// The inode number.
    pub fn number(self) -> u64 {
        self.ino
    }
}

impl From<&Metadata> for FileId {
    fn from(meta: &Metadata) -> FileId {
        FileId {
            dev: meta.dev(),
            ino: meta.ino(),
        }
    }
}

/// The facts about a file at one moment: kind, owner, mode, size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileFacts {
    id: FileId,
    kind: FileType,
    /// The permission bits and the sticky bit.
    mode: u32,
    owner: u32,
    group: u32,
    links: u64,
    size: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    /// Seconds and nanoseconds.
    changed: (i64, i64),
}

impl FileFacts {
    /// The facts of an open file.
    pub fn of(file: &File) -> io::Result<FileFacts> {
        file.metadata().map(|meta| FileFacts::from(&meta))
    }

    /// The facts of the file at a path; links are followed.
    pub fn at(path: &Path) -> io::Result<FileFacts> {
        path.metadata().map(|meta| FileFacts::from(&meta))
    }

    /// The identity of the file.
    pub fn id(&self) -> FileId {
        self.id
    }

    /// The owner of the file.
    pub fn owner(&self) -> UserId {
        UserId::from_raw(self.owner)
    }

    /// The number of its group.
    pub fn group(&self) -> u32 {
        self.group
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.kind == FileType::RegularFile
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == FileType::Directory
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.kind == FileType::Symlink
    }

    /// Whether it is a socket with a name.
    pub fn is_socket(&self) -> bool {
        self.kind == FileType::Socket
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// How many names it has (hard links).
    pub fn links(&self) -> u64 {
        self.links
    }

    /// Time of the last change of its content, in seconds and nanoseconds since 1970. Any program can set it.
    pub fn modified(&self) -> (i64, i64) {
        self.modified
    }

    /// Time of the last change of the file or its facts, in seconds since 1970. No program can set it.
    pub fn changed(&self) -> i64 {
        self.changed.0
    }

    /// The same, in seconds and nanoseconds.
    pub fn changed_at(&self) -> (i64, i64) {
        self.changed
    }

    /// The permission bits.
    pub fn mode(&self) -> u32 {
        self.mode & 0o7777
    }

    /// Whether an execute bit is set for any user.
    pub fn is_executable(&self) -> bool {
        self.allows(0o111)
    }

    /// Whether a write bit is set for any user. Root may write anyway.
    pub fn is_writable(&self) -> bool {
        self.allows(0o222)
    }

    /// Whether its group may write to it.
    pub fn is_writable_by_group(&self) -> bool {
        self.allows(0o020)
    }

    /// Whether all users may write to it.
    pub fn is_writable_by_everybody(&self) -> bool {
        self.allows(0o002)
    }

    /// Whether only the owner of an entry may remove it from this directory, as in `/tmp`.
    pub fn is_sticky(&self) -> bool {
        self.allows(0o1000)
    }

    fn allows(&self, any: u32) -> bool {
        self.mode & any != 0
    }
}

impl From<&Metadata> for FileFacts {
    fn from(meta: &Metadata) -> FileFacts {
        FileFacts {
            id: FileId::from(meta),
            kind: kind_of(meta.file_type()),
            mode: meta.mode(),
            owner: meta.uid(),
            group: meta.gid(),
            links: meta.nlink(),
            size: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }
}

impl From<Stat> for FileFacts {
    fn from(stat: Stat) -> FileFacts {
        FileFacts {
            id: FileId {
                dev: number(stat.st_dev),
                ino: number(stat.st_ino),
            },
            kind: FileType::from_raw_mode(stat.st_mode),
            mode: mode_of(&stat),
            owner: stat.st_uid,
            group: stat.st_gid,
            links: number(stat.st_nlink),
            size: stat.st_size.unsigned_abs(),
            modified: (stat.st_mtime, number(stat.st_mtime_nsec) as i64),
            changed: (stat.st_ctime, number(stat.st_ctime_nsec) as i64),
        }
    }
}

/// The mode of a file, whose type differs between systems.
pub(crate) fn mode_of(stat: &Stat) -> u32 {
    number(stat.st_mode) as u32
}

fn kind_of(kind: std::fs::FileType) -> FileType {
    match kind {
        kind if kind.is_file() => FileType::RegularFile,
        kind if kind.is_dir() => FileType::Directory,
        kind if kind.is_symlink() => FileType::Symlink,
        kind if kind.is_socket() => FileType::Socket,
        _ => FileType::Unknown,
    }
}

/// A number whose type differs between systems or processors.
fn number<T: TryInto<u64>>(raw: T) -> u64 {
    raw.try_into().unwrap_or(u64::MAX)
}
