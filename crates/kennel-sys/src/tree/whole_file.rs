//! Small files in the directory of records that appear whole or not at all (lesson 4).

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, Mode, OFlags};

/// Writes a file under the name `aside` and renames it to `name`. A server can write to this directory and knows both names:
/// what stands at `aside` is removed and never opened, for it may be a named pipe or a link to a file elsewhere.
pub(super) fn write(dir: BorrowedFd<'_>, name: &str, aside: &str, text: &str) -> io::Result<()> {
    let _ = rustix::fs::unlinkat(dir, aside, AtFlags::empty());
    let flags = OFlags::WRONLY
        | OFlags::CREATE
        | OFlags::EXCL
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(dir, aside, flags, Mode::RUSR | Mode::WUSR)?;
    // The umask may have taken our own right to read it.
    let written = rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR)
        .map_err(io::Error::from)
        .and_then(|()| File::from(fd).write_all(text.as_bytes()))
        .and_then(|()| Ok(rustix::fs::renameat(dir, aside, dir, name)?));
    if written.is_err() {
        let _ = rustix::fs::unlinkat(dir, aside, AtFlags::empty());
    }
    written
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_was_planted_at_the_name_aside_is_neither_opened_nor_written_to() {
        let dir = std::env::temp_dir().join(format!("kt-whole-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (aside, precious) = (dir.join(".record"), dir.join("precious"));
        std::fs::write(&precious, "mine").unwrap();
        let opened = File::open(&dir).unwrap();
        let plant: [&dyn Fn(); 4] = [
            &|| {},
            &|| std::fs::hard_link(&precious, &aside).unwrap(),
            &|| symlink(&precious, &aside).unwrap(),
            &|| {
                let fifo = rustix::fs::FileType::Fifo;
                rustix::fs::mknodat(opened.as_fd(), ".record", fifo, Mode::RUSR, 0).unwrap();
            },
        ];
        for plant in plant {
            plant();
            write(opened.as_fd(), "record", ".record", "text").unwrap();
            assert_eq!(std::fs::read_to_string(dir.join("record")).unwrap(), "text");
            assert_eq!(std::fs::read_to_string(&precious).unwrap(), "mine");
            assert!(!aside.exists());
        }
        // A directory cannot be stepped around: that is an error, and nothing waits.
        std::fs::create_dir(&aside).unwrap();
        assert!(write(opened.as_fd(), "record", ".record", "text").is_err());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
