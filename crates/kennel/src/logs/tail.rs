//! A log that grows, and begins a new file now and then: every line once, in order.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use kennel_sys::events;
use kennel_sys::runtime_dir::{Access, RuntimeDir};
use rustix::fs::inotify;

use crate::daemon::{LOG, OLDER_LOG};

/// How often a log is looked at where the kernel tells nobody that it grew (it has a bound on watches).
const LOOK_EVERY: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(super) struct Tail {
    /// Where we are; `None` before the first look.
    file: Option<File>,
    /// The beginning of a line whose end was not written yet.
    begun: Vec<u8>,
    /// Readable when something in the directory changed.
    changes: Option<OwnedFd>,
}

impl Tail {
    pub(super) fn of(dir: &RuntimeDir) -> Tail {
        Tail {
            file: None,
            begun: Vec::new(),
            changes: watch(dir).ok(),
        }
    }

    /// The whole lines that were written since the last look; with `all`, an unfinished one too.
    pub(super) fn news(&mut self, dir: &RuntimeDir, all: bool) -> io::Result<Vec<String>> {
        // The older one first: what becomes the older one between the two looks is read twice at no time.
        let current = match &mut self.file {
            None => {
                let (older, current) = (open(dir, OLDER_LOG), open(dir, LOG));
                if let Some(mut older) = older
                    && !current.as_ref().is_some_and(|it| is_same(it, &older))
                {
                    older.read_to_end(&mut self.begun)?;
                }
                current
            }
            Some(file) => {
                let current = open(dir, LOG);
                // Behind that look: whoever wrote to this file before it was renamed has done so.
                file.read_to_end(&mut self.begun)?;
                begin_again_if_shorter(file, &mut self.begun)?;
                match current {
                    Some(current) if !is_same(&current, file) => {
                        if let Some(mut between) = open(dir, OLDER_LOG)
                            && !is_same(&between, file)
                            && !is_same(&between, &current)
                        {
                            between.read_to_end(&mut self.begun)?;
                        }
                        Some(current)
                    }
                    _ => None,
                }
            }
        };
        if let Some(mut current) = current {
            current.read_to_end(&mut self.begun)?;
            self.file = Some(current);
        }
        Ok(self.lines(all))
    }

    fn lines(&mut self, all: bool) -> Vec<String> {
        let end = match all {
            true => self.begun.len(),
            false => self
                .begun
                .iter()
                .rposition(|&byte| byte == b'\n')
                .map_or(0, |at| at + 1),
        };
        let whole: Vec<u8> = self.begun.drain(..end).collect();
        let text = String::from_utf8_lossy(&whole);
        text.lines().map(str::to_owned).collect()
    }

    /// Sleeps until there may be more.
    pub(super) fn wait(&self) -> io::Result<()> {
        let Some(changes) = &self.changes else {
            return events::sleep(&[], &[], Some(LOOK_EVERY));
        };
        events::sleep(&[changes.as_fd()], &[], None)?;
        let mut buffer = [0; 4096];
        // What exactly changed is seen by looking.
        while rustix::io::read(changes, &mut buffer).is_ok_and(|count| count > 0) {}
        Ok(())
    }
}

fn watch(dir: &RuntimeDir) -> io::Result<OwnedFd> {
    use inotify::{CreateFlags, WatchFlags};
    let changes = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    let what = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::MOVED_TO;
    inotify::add_watch(&changes, dir.path(), what)?;
    Ok(changes)
}

fn open(dir: &RuntimeDir, name: &str) -> Option<File> {
    dir.open_file(name, Access::Read).ok()
}

fn is_same(one: &File, other: &File) -> bool {
    let id = |file: &File| file.metadata().map(|meta| (meta.dev(), meta.ino())).ok();
    id(one) == id(other)
}

/// Where no new file can be made, a log is emptied instead.
fn begin_again_if_shorter(file: &mut File, into: &mut Vec<u8>) -> io::Result<()> {
    let position = file.stream_position()?;
    if file.metadata()?.len() < position {
        file.rewind()?;
        file.read_to_end(into)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::Log;

    fn news(tail: &mut Tail, dir: &RuntimeDir) -> Vec<String> {
        let words = |line: &String| line.split(' ').nth(1).map(str::to_owned);
        tail.news(dir, false)
            .unwrap()
            .iter()
            .filter_map(words)
            .collect()
    }

    #[test]
    fn every_line_comes_once_however_often_the_log_begins_anew() {
        let scope = kennel_testkit::Scope::new("tail");
        let dir = RuntimeDir::ensure(scope.path("key")).unwrap();
        let log = Log::open(&dir).unwrap();
        log.line("first");
        let mut tail = Tail::of(&dir);
        assert_eq!(news(&mut tail, &dir), ["first"]);
        assert!(news(&mut tail, &dir).is_empty());
        // A file holds 128 of these: it begins anew up to twice between two looks.
        let long = "x".repeat(8 * 1024 - 20);
        let (mut written, mut heard) = (0, Vec::new());
        for burst in [1, 100, 100, 200, 3, 120] {
            for _ in 0..burst {
                log.line(format_args!("{written} {long}"));
                written += 1;
            }
            heard.extend(news(&mut tail, &dir));
        }
        let expected: Vec<String> = (0..written).map(|number: u32| number.to_string()).collect();
        assert_eq!(heard, expected);
        tail.wait().unwrap();
    }

    #[test]
    fn half_a_line_waits_for_its_end_unless_there_will_be_no_more() {
        let scope = kennel_testkit::Scope::new("half");
        let dir = RuntimeDir::ensure(scope.path("key")).unwrap();
        let mut file = dir.open_file(LOG, Access::Create).unwrap();
        let mut write = |text: &str| io::Write::write_all(&mut file, text.as_bytes()).unwrap();
        let mut tail = Tail::of(&dir);
        write("one\ntw");
        assert_eq!(tail.news(&dir, false).unwrap(), ["one"]);
        write("o\nthree");
        assert_eq!(tail.news(&dir, false).unwrap(), ["two"]);
        assert_eq!(tail.news(&dir, true).unwrap(), ["three"]);
    }
}
