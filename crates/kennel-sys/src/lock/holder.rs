//! Who holds a lock: by the record where it is true, else by what the kernel says.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::file::FileId;
use super::record::{LONGEST, Record};
use crate::escape;
use crate::os::file_locks;
use crate::process::ProcessRef;

/// A living process that holds a lock. Displayed: `pid 4711 (notes, for 5 min)`.
#[derive(Debug)]
pub struct Holder {
    /// The process.
    pub process: ProcessRef,
    /// What it calls itself, if it left a record.
    pub name: Option<String>,
    /// When it took the lock, in seconds since 1970, if it left a record.
    pub since: Option<u64>,
}

impl Holder {
    /// Whether it has written down that it holds the lock.
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

/// Who holds `file`, which may have a record.
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
    match file_locks::holds(&holder.process, id) {
        Some(true) => Some(holder),
        Some(false) => by_kernel(id),
        // Its files are hidden from us: the record stands unless another is seen to have the lock.
        None => match file_locks::takers(id).into_iter().next() {
            Some(taker) if taker.proven => Some(Holder::unnamed(taker.process)),
            _ => Some(holder),
        },
    }
}

/// Who holds `file`, whose content is not ours to understand.
pub(super) fn of_unrecorded(file: &File) -> Option<Holder> {
    by_kernel(FileId::of(file).ok()?)
}

fn by_kernel(id: FileId) -> Option<Holder> {
    let taker = file_locks::takers(id).into_iter().next();
    let process = match taker {
        Some(taker) if taker.proven => Some(taker.process),
        // One who inherited the lock holds it as well, and may be all that is left of its taker.
        taker => file_locks::heirs(id, |_| true)
            .next()
            .or(taker.map(|taker| taker.process)),
    };
    process.map(Holder::unnamed)
}

pub(super) fn recorded(file: &File) -> Option<Record> {
    let mut content = [0; LONGEST];
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

/// A duration as people say it.
fn rounded(duration: Duration) -> String {
    match duration.as_secs() {
        seconds @ ..120 => format!("{seconds} s"),
        seconds @ ..7_200 => format!("{} min", seconds / 60),
        seconds @ ..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_named_with_its_pid_and_what_it_said() {
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
