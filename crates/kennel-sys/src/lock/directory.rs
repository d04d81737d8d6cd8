//! A whole directory, against everyone who is in it.

use std::fs::File;

use rustix::fs::{FlockOperation, Mode, OFlags};

use super::{LockError, holder};
use crate::runtime_dir::{Patience, RuntimeDir};

/// How long a cleaner of temporary files, or one who looks, may keep us waiting.
const PASSES: std::time::Duration = std::time::Duration::from_millis(50);

/// While it lives, nobody can hold the directory: whoever comes waits, or goes elsewhere.
#[derive(Debug)]
pub struct SeizedDir(#[expect(dead_code, reason = "closing it is what gives it back")] File);

/// Takes `dir` against everyone who [holds](RuntimeDir::hold) it, or says who does. For whoever removes all of it (rule 7), and has
/// to see then that it is still [at its path](RuntimeDir::is_at_its_path).
pub fn seize(dir: &RuntimeDir) -> Result<SeizedDir, LockError> {
    let failed = |what, errno: rustix::io::Errno| LockError::io(dir.path(), what, errno.into());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, ".", flags, Mode::empty());
    let file = File::from(file.map_err(|errno| failed("open", errno))?);
    let mut patience = Patience::of(PASSES);
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(SeizedDir(file)),
            Err(rustix::io::Errno::WOULDBLOCK) if patience.pause() => {}
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
