//! What a file system says about one file.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{FileType, Stat};

use crate::user::UserId;

/// Which file it is, whatever its name.
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

    /// Its number in its file system.
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

/// What a file was at one moment: kind, owner, rights, size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileFacts {
    id: FileId,
    kind: FileType,
    /// The bits of rights and the sticky bit.
    mode: u32,
    owner: u32,
    group: u32,
    links: u64,
    size: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    changed: i64,
}

impl FileFacts {
    /// The facts of an open file.
    pub fn of(file: &File) -> io::Result<FileFacts> {
        file.metadata().map(|meta| FileFacts::from(&meta))
    }

    /// The facts of the file that a path leads to; links are followed.
    pub fn at(path: &Path) -> io::Result<FileFacts> {
        path.metadata().map(|meta| FileFacts::from(&meta))
    }

    /// Which file it is.
    pub fn id(&self) -> FileId {
        self.id
    }

    /// The user whose it is.
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

    /// When its content changed last, in seconds and nanoseconds since 1970. Any program can set this back.
    pub fn modified(&self) -> (i64, i64) {
        self.modified
    }

    /// When anything about it changed last, in seconds since 1970. No program can set this back.
    pub fn changed(&self) -> i64 {
        self.changed
    }

    /// Whether a user may be allowed to execute it.
    pub fn is_executable(&self) -> bool {
        self.allows(0o111)
    }

    /// Whether any user may write to it. Root writes anyway.
    pub fn is_writable(&self) -> bool {
        self.allows(0o222)
    }

    /// Whether its group may write to it.
    pub fn is_writable_by_group(&self) -> bool {
        self.allows(0o020)
    }

    /// Whether everybody may write to it.
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
            changed: meta.ctime(),
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
            changed: stat.st_ctime,
        }
    }
}

/// The mode of a file, whose type differs from one system to another.
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

/// A number whose type differs from one system, or processor, to another.
fn number<T: TryInto<u64>>(raw: T) -> u64 {
    raw.try_into().unwrap_or(u64::MAX)
}
