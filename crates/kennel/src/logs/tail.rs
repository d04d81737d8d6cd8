//! Reads a log that grows and is rotated: every line once, in order.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::time::Duration;

use kennel_sys::events;
use kennel_sys::fs::{DirChanges, FileId};
use kennel_sys::io::Waitable;
use kennel_sys::runtime_dir::{Access, DirError, RuntimeDir};

use crate::daemon::{LOG, MAX_LOG_READ, OLDER_LOG};

/// How often a log is read if the kernel does not report changes (the number of watches is limited).
const READ_INTERVAL: Duration = Duration::from_millis(250);

/// Maximum bytes of a line that are shown: a line of a log has at most 8 KiB, each of which may be written as an
/// escape.
const MAX_LINE: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Tail {
    /// The open file and its position; `None` before the first read.
    file: Option<File>,
    /// The beginning of a line without its end.
    incomplete: Vec<u8>,
    /// Changes in the directory; `None` if the kernel does not report them.
    changes: Option<DirChanges>,
    /// Number of bytes that were skipped: of a file only the last [`MAX_LOG_READ`] are read at once.
    left_out: u64,
}

impl Tail {
    pub(super) fn of(dir: &RuntimeDir) -> Tail {
        Tail {
            file: None,
            incomplete: Vec::new(),
            changes: DirChanges::watch(dir.path()).ok(),
            left_out: 0,
        }
    }

    /// The complete lines that were written since the last call; with `all`, also an incomplete one.
    pub(super) fn read_new(&mut self, dir: &RuntimeDir, all: bool) -> io::Result<Vec<String>> {
        // The older file first, so that a rotation between the two reads gives no line twice.
        let current = match &mut self.file {
            None => {
                let (older, current) = (open(dir, OLDER_LOG)?, open(dir, LOG)?);
                if let Some(mut older) = older
                    && !current.as_ref().is_some_and(|it| is_same(it, &older))
                {
                    self.left_out += read_end(&mut older, &mut self.incomplete)?;
                }
                current
            }
            Some(file) => {
                let current = open(dir, LOG)?;
                // After that read: a process that wrote to this file before it was renamed has done so by now.
                self.left_out += read_end(file, &mut self.incomplete)?;
                self.left_out += restart_if_truncated(file, &mut self.incomplete)?;
                match current {
                    Some(current) if !is_same(&current, file) => {
                        if let Some(mut between) = open(dir, OLDER_LOG)?
                            && !is_same(&between, file)
                            && !is_same(&between, &current)
                        {
                            self.left_out += read_end(&mut between, &mut self.incomplete)?;
                        }
                        Some(current)
                    }
                    _ => None,
                }
            }
        };
        if let Some(mut current) = current {
            self.left_out += read_end(&mut current, &mut self.incomplete)?;
            self.file = Some(current);
        }
        Ok(self.lines(all))
    }

    fn lines(&mut self, all: bool) -> Vec<String> {
        let end = match all {
            true => self.incomplete.len(),
            false => self
                .incomplete
                .iter()
                .rposition(|&byte| byte == b'\n')
                .map_or(0, |at| at + 1),
        };
        let whole: Vec<u8> = self.incomplete.drain(..end).collect();
        // No line of a log is that long; do not wait for its end.
        if self.incomplete.len() > MAX_LINE {
            self.left_out += (self.incomplete.len() - MAX_LINE) as u64;
            self.incomplete.truncate(MAX_LINE);
        }
        if whole.is_empty() {
            return Vec::new();
        }
        let mut cut = |line: &[u8]| {
            let (shown, rest) = line.split_at(line.len().min(MAX_LINE));
            self.left_out += rest.len() as u64;
            String::from_utf8_lossy(shown)
                .trim_end_matches('\r')
                .to_owned()
        };
        let lines = whole.strip_suffix(b"\n").unwrap_or(&whole);
        lines.split(|&byte| byte == b'\n').map(&mut cut).collect()
    }

    /// The number of bytes skipped since the last call.
    pub(super) fn take_left_out(&mut self) -> u64 {
        std::mem::take(&mut self.left_out)
    }

    /// Sleeps until there may be more lines; `false` if `output` has no reader any more.
    pub(super) fn wait(&self, output: &dyn Waitable) -> io::Result<bool> {
        let Some(changes) = &self.changes else {
            return events::wait_while_open(output, &[], Some(READ_INTERVAL));
        };
        let is_read = events::wait_while_open(output, &[changes], None)?;
        // The next read finds out what changed.
        changes.clear();
        Ok(is_read)
    }
}

/// Opens a file of the log, if it exists. The error names the file.
fn open(dir: &RuntimeDir, name: &str) -> io::Result<Option<File>> {
    match dir.open_file(name, Access::Read) {
        Ok(file) => Ok(Some(file)),
        Err(DirError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io::Error::other(error)),
    }
}

fn is_same(one: &File, other: &File) -> bool {
    let id = |file: &File| FileId::of(file).ok();
    id(one) == id(other)
}

/// Reads a file to its end, but no more than the last [`MAX_LOG_READ`] bytes; returns how many were skipped. Any process of
/// the user can create a file that claims to have terabytes.
fn read_end(file: &mut File, into: &mut Vec<u8>) -> io::Result<u64> {
    let position = file.stream_position()?;
    let length = file.metadata()?.len();
    let left_out = length.saturating_sub(position).saturating_sub(MAX_LOG_READ);
    if left_out > 0 {
        // The line that was incomplete ends somewhere in the skipped part.
        into.truncate(
            into.iter()
                .rposition(|&byte| byte == b'\n')
                .map_or(0, |at| at + 1),
        );
        file.seek(SeekFrom::Start(position + left_out))?;
    }
    file.take(MAX_LOG_READ).read_to_end(into)?;
    Ok(left_out)
}

/// If no new file can be created, a log is truncated instead.
fn restart_if_truncated(file: &mut File, into: &mut Vec<u8>) -> io::Result<u64> {
    let position = file.stream_position()?;
    if file.metadata()?.len() < position {
        file.rewind()?;
        return read_end(file, into);
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::Log;

    fn read_new(tail: &mut Tail, dir: &RuntimeDir) -> Vec<String> {
        let words = |line: &String| line.split(' ').nth(1).map(str::to_owned);
        tail.read_new(dir, false)
            .unwrap()
            .iter()
            .filter_map(words)
            .collect()
    }

    #[test]
    fn every_line_is_read_once_however_often_the_log_is_rotated() {
        let scope = kennel_testkit::Scope::new("tail");
        let dir = RuntimeDir::ensure(scope.path("key")).unwrap();
        let log = Log::open(&dir).unwrap();
        log.line("first");
        let mut tail = Tail::of(&dir);
        assert_eq!(read_new(&mut tail, &dir), ["first"]);
        assert!(read_new(&mut tail, &dir).is_empty());
        // A file has room for 128 of these: it is rotated up to twice between two reads.
        let long = "x".repeat(8 * 1024 - 20);
        let (mut written, mut heard) = (0, Vec::new());
        for burst in [1, 100, 100, 200, 3, 120] {
            for _ in 0..burst {
                log.line(format_args!("{written} {long}"));
                written += 1;
            }
            heard.extend(read_new(&mut tail, &dir));
        }
        let expected: Vec<String> = (0..written).map(|number: u32| number.to_string()).collect();
        assert_eq!(heard, expected);
        assert!(tail.wait(&io::stdout()).unwrap());
    }

    #[test]
    fn of_a_huge_file_the_last_lines_are_read_and_no_more() {
        let scope = kennel_testkit::Scope::new("huge");
        let dir = RuntimeDir::ensure(scope.path("key")).unwrap();
        let mut file = dir.open_file(LOG, Access::Create).unwrap();
        let mut older = dir.open_file(OLDER_LOG, Access::Create).unwrap();
        // Sparse: a terabyte that uses no disk space.
        for (file, word) in [(&mut older, "older"), (&mut file, "one")] {
            file.seek(SeekFrom::Start(1 << 40)).unwrap();
            io::Write::write_all(file, format!("\n{word}\ntwo\n").as_bytes()).unwrap();
        }
        let mut tail = Tail::of(&dir);
        let lines = tail.read_new(&dir, false).unwrap();
        let bytes: usize = lines.iter().map(String::len).sum();
        assert!(bytes < 4 * MAX_LINE, "{bytes}");
        assert_eq!(lines[1..3], ["older", "two"]);
        assert_eq!(lines[4..], ["one", "two"]);
        assert!(tail.take_left_out() > 1 << 40);
        // The same while it grows without a newline.
        file.set_len(2 << 40).unwrap();
        assert!(tail.read_new(&dir, false).unwrap().is_empty());
        assert!(tail.incomplete.len() <= MAX_LINE);
        file.seek(SeekFrom::End(0)).unwrap();
        io::Write::write_all(&mut file, b"\nthree\n").unwrap();
        assert_eq!(tail.read_new(&dir, false).unwrap()[1..], ["three"]);
    }

    #[test]
    fn an_incomplete_line_waits_for_its_end_unless_the_log_is_complete() {
        let scope = kennel_testkit::Scope::new("half");
        let dir = RuntimeDir::ensure(scope.path("key")).unwrap();
        let mut file = dir.open_file(LOG, Access::Create).unwrap();
        let mut write = |text: &str| io::Write::write_all(&mut file, text.as_bytes()).unwrap();
        let mut tail = Tail::of(&dir);
        write("one\ntw");
        assert_eq!(tail.read_new(&dir, false).unwrap(), ["one"]);
        write("o\nthree");
        assert_eq!(tail.read_new(&dir, false).unwrap(), ["two"]);
        assert_eq!(tail.read_new(&dir, true).unwrap(), ["three"]);
    }

    #[test]
    fn a_log_that_cannot_be_read_is_an_error_that_names_it_and_one_that_is_not_there_is_empty() {
        let scope = kennel_testkit::Scope::new("unreadable");
        let dir = RuntimeDir::ensure(scope.path("key")).unwrap();
        assert!(Tail::of(&dir).read_new(&dir, true).unwrap().is_empty());
        for name in [LOG, OLDER_LOG] {
            // Unreadable for root, too.
            let path = scope.path("key").join(name);
            std::fs::create_dir(&path).unwrap();
            let error = Tail::of(&dir).read_new(&dir, true).unwrap_err().to_string();
            let named = format!("cannot open {}: not a regular file", path.display());
            assert_eq!(error, named);
            std::fs::remove_dir(&path).unwrap();
        }
    }
}
