//! The lock of the records: only one process at a time changes configurations and what is kept about them. Without it, an
//! `unwrap` could remove the record that a `wrap` has just kept for the same file.

use std::time::{Duration, Instant};

use kennel_sys::events;
use kennel_sys::fs::create_private_dirs;
use kennel_sys::lock::{Lock, LockError, Mode, Record};
use kennel_sys::runtime_dir::RuntimeDir;

use super::undo::Records;

/// The name of the lock's file, beside the directory of the records.
pub(crate) const LOCK: &str = "wrap.lock";

/// Maximum time to wait for another process. To write a file takes milliseconds.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// Interval for trying again: the kernel offers no event for a lock with a time limit.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// The lock, held until it is dropped. The last one removes its file, with the directories of the records.
#[derive(Debug)]
pub(crate) struct RecordsLock<'a> {
    records: &'a Records,
    dir: RuntimeDir,
    /// `None` only while it is dropped.
    lock: Option<Lock>,
}

/// Why the lock could not be taken, as text.
#[derive(Debug)]
pub(crate) enum NotLocked {
    /// Another process holds it.
    Held(String),
    /// Its directory or file cannot be used. `wrap` keeps no record then.
    Unusable(String),
}

impl NotLocked {
    pub(crate) fn into_text(self) -> String {
        match self {
            NotLocked::Held(why) | NotLocked::Unusable(why) => why,
        }
    }
}

impl RecordsLock<'_> {
    /// Waits for the lock, and takes it. Creates its file. `who` is shown to processes that wait for it.
    pub(crate) fn take<'a>(records: &'a Records, who: &str) -> Result<RecordsLock<'a>, NotLocked> {
        let deadline = Instant::now() + MAX_WAIT;
        loop {
            let is_last = Instant::now() >= deadline;
            if let Some((dir, lock)) = attempt(records, is_last)? {
                // It only informs.
                let record = Record::of_this_process(who).ok();
                let _ = record.map(|record| lock.write_record(&record));
                return Ok(RecordsLock {
                    records,
                    dir,
                    lock: Some(lock),
                });
            }
            let _ = events::sleep(&[], &[], Some(RETRY_INTERVAL));
        }
    }
}

/// Takes the lock, or returns `None` to try again. `is_last`: an error instead, which names the holder.
fn attempt(records: &Records, is_last: bool) -> Result<Option<(RuntimeDir, Lock)>, NotLocked> {
    let unusable = |error: String| {
        let path = records.kennels_path().join(LOCK);
        NotLocked::Unusable(format!("cannot lock {}: {error}", path.display()))
    };
    create_private_dirs(records.kennels_path()).map_err(|error| unusable(error.to_string()))?;
    records.checked_dir().map_err(unusable)?;
    let dir = RuntimeDir::open(records.kennels_path());
    let Some(dir) = dir.map_err(|error| unusable(error.to_string()))? else {
        // The last holder removed it just now.
        return Ok(None);
    };
    let taken = match is_last {
        false => Lock::try_acquire(&dir, LOCK, Mode::Exclusive),
        true => Lock::acquire(&dir, LOCK, Mode::Exclusive).map(Some),
    };
    match taken {
        Ok(lock) => Ok(lock.map(|lock| (dir, lock))),
        Err(error @ LockError::Held { .. }) => Err(NotLocked::Held(format!(
            "another command is changing configurations: {error}; run the command again when it has ended"
        ))),
        // The last holder removed the directory just now.
        Err(_) if !dir.is_at_its_path() => Ok(None),
        Err(error) => Err(unusable(error.to_string())),
    }
}

impl Drop for RecordsLock<'_> {
    fn drop(&mut self) {
        let Ok(Some(kennels)) = self.records.kennels_dir() else {
            return;
        };
        Records::remove_dir_if_empty(&kennels);
        let lock = self.lock.take().filter(|_| !self.records.dir().exists());
        if let Some(lock) = lock {
            let _ = lock.remove(&self.dir);
            Records::remove_dirs_if_empty(&kennels);
        }
    }
}
