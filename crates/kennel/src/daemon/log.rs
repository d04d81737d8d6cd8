//! The log of a daemon or of a detached server: one file and one older one. It holds no environment and no line of MCP.

use std::cell::RefCell;
use std::fmt::Display;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kennel_sys::escape;
use kennel_sys::runtime_dir::{Access, DirError, RuntimeDir};

/// The log's name in the key's directory.
pub(crate) const LOG: &str = "log";
/// The older part.
pub(crate) const OLDER_LOG: &str = "log.1";

/// Longer ones begin a new file.
const LONGEST: u64 = 1 << 20;
/// Most bytes of one file that are read: none that Kennel wrote is longer, the last lines of threads that end included.
pub(crate) const MOST_LOG: u64 = 2 * LONGEST;
/// More of one line is not kept.
const LONGEST_LINE: usize = 8 * 1024;
/// See [`Quota`].
const SPAN: Duration = Duration::from_secs(60);

/// Where what happens is written down. Failing to is no reason to stop serving.
#[derive(Debug)]
pub(crate) struct Log {
    dir: OwnedFd,
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
        let handle = dir.as_fd().try_clone_to_owned();
        let handle = handle.map_err(|source| DirError::Io {
            path: dir.path().to_owned(),
            what: "open",
            source,
        })?;
        let open = RefCell::new(Open { file, length });
        Ok(Log { dir: handle, open })
    }

    /// Adds a line with the time.
    pub(crate) fn line(&self, text: impl Display) {
        let line = stamped(&text.to_string());
        let mut open = self.open.borrow_mut();
        if open.length > 0 && open.length + line.len() as u64 > LONGEST {
            self.begin_anew(&mut open);
        }
        if open.file.write_all(&line).is_ok() {
            open.length += line.len() as u64;
        }
    }

    /// Adds a line with the time, if there have not been too many of its kind; if there had been, how many were left out.
    pub(super) fn line_within(
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

    /// Where another thread can write its last words.
    pub(super) fn aside(&self) -> Option<Aside> {
        self.open.borrow().file.try_clone().ok().map(Aside)
    }

    fn begin_anew(&self, open: &mut Open) {
        use rustix::fs::{Mode, OFlags, openat, renameat};
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let renamed = renameat(&self.dir, LOG, &self.dir, OLDER_LOG);
        let fresh = renamed.and_then(|()| openat(&self.dir, LOG, flags, Mode::RUSR | Mode::WUSR));
        match fresh {
            Ok(file) => {
                *open = Open {
                    file: file.into(),
                    length: 0,
                }
            }
            // Its directory is gone, or worse: not to grow without end comes first.
            Err(_) => {
                let _ = open.file.set_len(0);
                let _ = open.file.rewind();
                open.length = 0;
            }
        }
    }
}

/// How many lines of one kind are logged within [`SPAN`]: a flood of them pushes nothing else out of the log.
#[derive(Debug)]
pub(crate) struct Quota {
    most: usize,
    begun: Option<Instant>,
    logged: usize,
    left_out: usize,
}

impl Quota {
    pub(crate) fn new(most: usize) -> Quota {
        Quota {
            most,
            begun: None,
            logged: 0,
            left_out: 0,
        }
    }

    /// How many lines were left out before this one; `None` if it is to be left out, too.
    pub(crate) fn next(&mut self, now: Instant) -> Option<usize> {
        let is_over = |begun: Instant| now.saturating_duration_since(begun) >= SPAN;
        if self.begun.is_none_or(is_over) {
            (self.begun, self.logged) = (Some(now), 0);
        }
        if self.logged == self.most {
            self.left_out += 1;
            return None;
        }
        self.logged += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

/// The log's file, for the last words of a process.
#[derive(Debug)]
pub(super) struct Aside(File);

impl Aside {
    pub(super) fn line(&self, text: impl Display) {
        let _ = (&self.0).write_all(&stamped(&text.to_string()));
    }
}

fn stamped(text: &str) -> Vec<u8> {
    let mut end = text.len().min(LONGEST_LINE);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    // A log is read with other tools, too.
    let line = escape::printable_lines(&text[..end]).replace('\n', "\\n");
    format!("{} {line}\n", stamp(SystemTime::now())).into_bytes()
}

/// A time as every line begins with it. Of two, the later one is the greater text.
pub(crate) fn stamp(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    utc(since.as_secs(), since.subsec_millis())
}

/// Seconds since 1970 as people write them.
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
        let nasty = String::from_utf8(stamped("\x1b[2Jgone\u{9b}1m\ta")).unwrap();
        assert!(nasty.ends_with(" \\u{1b}[2Jgone\\u{9b}1m\ta\n"), "{nasty}");
        let long = stamped(&"€".repeat(LONGEST_LINE));
        assert!(long.len() < LONGEST_LINE + 40);
        assert!(String::from_utf8(long).is_ok());
    }

    #[test]
    fn of_a_flood_so_many_lines_are_logged_and_the_rest_is_counted() {
        let scope = kennel_testkit::Scope::new("log-quota");
        let dir = RuntimeDir::ensure(scope.path("key")).unwrap();
        let log = Log::open(&dir).unwrap();
        let quota = RefCell::new(Quota::new(3));
        let begun = Instant::now();
        for _ in 0..100_000 {
            log.line_within(&quota, begun, "lines", "x");
        }
        log.line_within(&quota, begun + SPAN, "lines", "y");
        let text = std::fs::read_to_string(scope.path("key").join(LOG)).unwrap();
        let words: Vec<&str> = text.lines().map(|line| &line[25..]).collect();
        let left_out = "99997 more lines were not logged";
        assert_eq!(words, ["x", "x", "x", left_out, "y"]);
    }

    #[test]
    fn a_log_begins_a_new_file_and_keeps_one_old_one() {
        let scope = kennel_testkit::Scope::new("log");
        let dir = RuntimeDir::ensure(scope.path("key")).unwrap();
        let log = Log::open(&dir).unwrap();
        for _ in 0..400 {
            log.line("x".repeat(LONGEST_LINE));
        }
        let size = |name| scope.path("key").join(name).metadata().unwrap().len();
        assert!(size(LOG) <= LONGEST && size(OLDER_LOG) <= LONGEST);
        assert!(size(OLDER_LOG) > LONGEST / 2);
        assert_eq!(dir.entries().unwrap().len(), 2);
    }
}
