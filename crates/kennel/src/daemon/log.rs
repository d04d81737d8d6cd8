//! The log of a daemon or of a detached server: a file and an older one. It contains no environment and no MCP line.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kennel_sys::escape;
use kennel_sys::fs::Dir;
use kennel_sys::runtime_dir::{Access, DirError, RuntimeDir};

/// The name of the log in the key's directory.
pub(crate) const LOG: &str = "log";
/// The name of its older part.
pub(crate) const OLDER_LOG: &str = "log.1";

/// Maximum bytes of a file before it is rotated.
const MAX_FILE: u64 = 1 << 20;
/// Maximum bytes of one file that are read. Kennel writes no more, even with the last lines of other threads.
pub(crate) const MAX_LOG_READ: u64 = 2 * MAX_FILE;
/// Maximum bytes of a line; the rest is cut off.
const MAX_LINE: usize = 8 * 1024;
/// See [`Quota`].
const QUOTA_PERIOD: Duration = Duration::from_secs(60);

/// The log. A failed write does not stop the daemon.
#[derive(Debug)]
pub(crate) struct Log {
    dir: Dir,
    open: RefCell<Open>,
}

#[derive(Debug)]
struct Open {
    file: File,
    length: u64,
}

impl Log {
    pub(crate) fn open(dir: &RuntimeDir) -> Result<Log, DirError> {
        let mut file = dir.open_file(LOG, Access::Create)?;
        let length = file.seek(SeekFrom::End(0)).unwrap_or(0);
        let handle = Dir::of(dir).map_err(|source| DirError::Io {
            path: dir.path().to_owned(),
            what: "open",
            source,
        })?;
        let open = RefCell::new(Open { file, length });
        Ok(Log { dir: handle, open })
    }

    /// Writes a line with the time.
    pub(crate) fn line(&self, text: impl Display) {
        let line = stamped(&text.to_string());
        let mut open = self.open.borrow_mut();
        if open.length > 0 && open.length + line.len() as u64 > MAX_FILE {
            self.rotate(&mut open);
        }
        if open.file.write_all(&line).is_ok() {
            open.length += line.len() as u64;
        }
    }

    /// The same within a quota; the next line after it says how many were left out.
    pub(super) fn line_within_quota(
        &self,
        quota: &RefCell<Quota>,
        now: Instant,
        kind: &str,
        text: impl Display,
    ) {
        if let Some(left_out) = quota.borrow_mut().next(now) {
            if left_out > 0 {
                self.line(format_args!("{left_out} more {kind} were not logged"));
            }
            self.line(text);
        }
    }

    /// A handle for another thread's last line.
    pub(super) fn handle(&self) -> Option<LogHandle> {
        self.open.borrow().file.try_clone().ok().map(LogHandle)
    }

    fn rotate(&self, open: &mut Open) {
        let log = OsStr::new(LOG);
        let renamed = self.dir.rename(log, OsStr::new(OLDER_LOG));
        let fresh = renamed.and_then(|()| self.dir.create_file(log));
        match fresh {
            Ok(file) => *open = Open { file, length: 0 },
            // Its directory is gone, or worse: the limit on its size comes first.
            Err(_) => {
                let _ = open.file.set_len(0);
                let _ = open.file.rewind();
                open.length = 0;
            }
        }
    }
}

/// A limit on logged lines of one kind within [`QUOTA_PERIOD`], so that a flood of them does not push other lines out of
/// the log.
#[derive(Debug)]
pub(crate) struct Quota {
    max: usize,
    begun: Option<Instant>,
    logged: usize,
    left_out: usize,
}

impl Quota {
    pub(crate) fn new(max: usize) -> Quota {
        Quota {
            max,
            begun: None,
            logged: 0,
            left_out: 0,
        }
    }

    /// Number of lines left out before this one; `None` if this one is left out, too.
    pub(crate) fn next(&mut self, now: Instant) -> Option<usize> {
        let is_over = |begun: Instant| now.saturating_duration_since(begun) >= QUOTA_PERIOD;
        if self.begun.is_none_or(is_over) {
            (self.begun, self.logged) = (Some(now), 0);
        }
        if self.logged == self.max {
            self.left_out += 1;
            return None;
        }
        self.logged += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

/// The log's file, for the last line of a process.
#[derive(Debug)]
pub(super) struct LogHandle(File);

impl LogHandle {
    pub(super) fn line(&self, text: impl Display) {
        let _ = (&self.0).write_all(&stamped(&text.to_string()));
    }
}

fn stamped(text: &str) -> Vec<u8> {
    let mut end = text.len().min(MAX_LINE);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    // The log is read with other tools, too.
    let line = escape::printable_lines(&text[..end]).replace('\n', "\\n");
    format!("{} {line}\n", stamp(SystemTime::now())).into_bytes()
}

/// Formats the time at the start of a line. Later times compare greater as text.
pub(crate) fn stamp(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    utc(since.as_secs(), since.subsec_millis())
}

/// Seconds since 1970 as text.
fn utc(seconds: u64, millis: u32) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years from March on, in eras of 400: the leap day is the last of its year.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_reads_as_people_write_it() {
        assert_eq!(utc(0, 0), "1970-01-01T00:00:00.000Z");
        assert_eq!(utc(951_827_696, 7), "2000-02-29T12:34:56.007Z");
        assert_eq!(utc(1_798_761_599, 999), "2026-12-31T23:59:59.999Z");
    }

    #[test]
    fn a_line_stays_one_line_and_is_cut_between_characters() {
        let line = String::from_utf8(stamped("two\nlines")).unwrap();
        assert!(line.ends_with(" two\\nlines\n"), "{line}");
        let escaped = String::from_utf8(stamped("\x1b[2Jgone\u{9b}1m\ta")).unwrap();
        assert!(
            escaped.ends_with(" \\u{1b}[2Jgone\\u{9b}1m\ta\n"),
            "{escaped}"
        );
        let long = stamped(&"€".repeat(MAX_LINE));
        assert!(long.len() < MAX_LINE + 40);
        assert!(String::from_utf8(long).is_ok());
    }

    #[test]
    fn lines_beyond_the_quota_are_counted_and_not_logged() {
        let scope = kennel_testkit::Scope::new("log-quota");
        let dir = RuntimeDir::ensure(scope.path("key")).unwrap();
        let log = Log::open(&dir).unwrap();
        let quota = RefCell::new(Quota::new(3));
        let begun = Instant::now();
        for _ in 0..100_000 {
            log.line_within_quota(&quota, begun, "lines", "x");
        }
        log.line_within_quota(&quota, begun + QUOTA_PERIOD, "lines", "y");
        let text = std::fs::read_to_string(scope.path("key").join(LOG)).unwrap();
        let words: Vec<&str> = text.lines().map(|line| &line[25..]).collect();
        let left_out = "99997 more lines were not logged";
        assert_eq!(words, ["x", "x", "x", left_out, "y"]);
    }

    #[test]
    fn a_full_log_is_rotated_and_one_old_file_kept() {
        let scope = kennel_testkit::Scope::new("log");
        let dir = RuntimeDir::ensure(scope.path("key")).unwrap();
        let log = Log::open(&dir).unwrap();
        for _ in 0..400 {
            log.line("x".repeat(MAX_LINE));
        }
        let size = |name| scope.path("key").join(name).metadata().unwrap().len();
        assert!(size(LOG) <= MAX_FILE && size(OLDER_LOG) <= MAX_FILE);
        assert!(size(OLDER_LOG) > MAX_FILE / 2);
        assert_eq!(dir.entries().unwrap().len(), 2);
    }
}
