//! The holder of a lock: from its record if that is valid, else from the kernel.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::file::FileId;
use super::record::{MAX_LENGTH, Record};
use crate::duration::rounded;
use crate::escape;
use crate::os;
use crate::process::ProcessRef;

/// A living process that holds a lock. Displayed: `pid 4711 (notes, for 5 min)`.
#[derive(Debug)]
pub struct Holder {
    /// The process.
    pub process: ProcessRef,
    /// Its name, if it left a record.
    pub name: Option<String>,
    /// When it took the lock, in seconds since 1970, if it left a record.
    pub since: Option<u64>,
}

impl Holder {
    /// Whether it has written a record of the lock.
    pub(super) fn is_recorded(&self) -> bool {
        self.since.is_some()
    }

    fn unnamed(process: ProcessRef) -> Holder {
        Holder {
            process,
            name: None,
            since: None,
        }
    }
}

/// The holder of `file`, which may have a record.
pub(super) fn of_recorded(file: &File) -> Option<Holder> {
    let id = FileId::of(file).ok()?;
    let by_record = recorded(file).and_then(|record| {
        let process = ProcessRef::find(&record.identity).ok()??;
        Some(Holder {
            process,
            name: Some(record.name).filter(|name| !name.is_empty()),
            since: Some(record.since),
        })
    });
    let Some(holder) = by_record else {
        return by_kernel(id);
    };
    match os::holds_lock(&holder.process, id) {
        Some(true) => Some(holder),
        Some(false) => by_kernel(id),
        // We may not see its files: the record counts unless another process is seen to have the lock.
        None => match os::lock_owners(id).into_iter().next() {
            Some(taker) if taker.proven => Some(Holder::unnamed(taker.process)),
            _ => Some(holder),
        },
    }
}

/// The holder of `file`, which contains no valid record.
pub(super) fn of_unrecorded(file: &File) -> Option<Holder> {
    by_kernel(FileId::of(file).ok()?)
}

fn by_kernel(id: FileId) -> Option<Holder> {
    let taker = os::lock_owners(id).into_iter().next();
    let process = match taker {
        Some(taker) if taker.proven => Some(taker.process),
        // A process that inherited the lock holds it too, and the taker may be gone.
        taker => os::lock_holders(id, &|_| true)
            .next()
            .or(taker.map(|taker| taker.process)),
    };
    process.map(Holder::unnamed)
}

pub(super) fn recorded(file: &File) -> Option<Record> {
    let mut content = [0; MAX_LENGTH];
    let length = file.read_at(&mut content, 0).ok()?;
    Record::parse(&content[..length])
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pid {}", self.process.pid())?;
        let age = self.since.map(|since| {
            let age = SystemTime::now().duration_since(UNIX_EPOCH + Duration::from_secs(since));
            rounded(age.unwrap_or_default())
        });
        // The holder chose its name.
        let name = self.name.as_deref().map(escape::printable);
        match (name, age) {
            (Some(name), Some(age)) => write!(f, " ({name}, for {age})"),
            (Some(name), None) => write!(f, " ({name})"),
            (None, Some(age)) => write!(f, " (for {age})"),
            (None, None) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_shown_with_pid_and_name() {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_secs();
        let me = || ProcessRef::me().unwrap();
        let pid = std::process::id();
        let told = Holder {
            process: me(),
            name: Some("notes".to_owned()),
            since: Some(now - 300),
        };
        assert_eq!(told.to_string(), format!("pid {pid} (notes, for 5 min)"));
        let nasty = Holder {
            process: me(),
            name: Some("\x1b[2J".to_owned()),
            since: None,
        };
        assert_eq!(nasty.to_string(), format!("pid {pid} (\\u{{1b}}[2J)"));
        assert_eq!(Holder::unnamed(me()).to_string(), format!("pid {pid}"));
    }
}
