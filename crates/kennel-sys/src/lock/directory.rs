//! Exclusive locks on a whole directory.

use std::fs::File;

use rustix::fs::{FlockOperation, Mode, OFlags};

use super::{LockError, holder};
use crate::runtime_dir::{RetryTime, RuntimeDir};

/// Time to wait for a cleaner of temporary files or a probe.
const MAX_WAIT: std::time::Duration = std::time::Duration::from_millis(50);

/// An exclusive lock on a directory. While it exists, no process can hold the directory.
#[derive(Debug)]
pub struct SeizedDir(#[expect(dead_code, reason = "closing it releases the lock")] File);

/// Locks `dir` against all processes that [hold](RuntimeDir::hold) it, or returns the holder. For removing the whole
/// directory (rule 7); the caller must check then that it is still [at its path](RuntimeDir::is_at_its_path).
pub fn seize(dir: &RuntimeDir) -> Result<SeizedDir, LockError> {
    let failed = |what, errno: rustix::io::Errno| LockError::io(dir.path(), what, errno.into());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, ".", flags, Mode::empty());
    let file = File::from(file.map_err(|errno| failed("open", errno))?);
    let mut retry_time = RetryTime::of(MAX_WAIT);
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(SeizedDir(file)),
            Err(rustix::io::Errno::WOULDBLOCK) if retry_time.pause() => {}
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(LockError::Held {
                    path: dir.path().to_owned(),
                    holder: holder::of_unrecorded(&file).map(Box::new),
                });
            }
            Err(errno) => return Err(failed("take", errno)),
        }
    }
}
