//! Starting a daemon: nobody's child, with the lock under which it is started, and with its first client.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kennel_core::election::{CANCELLED, STUCK};
use kennel_sys::events::{Waker, is_readable};
use kennel_sys::io::{Handle, Stream, number_of};
use kennel_sys::lock::Lock;
use kennel_sys::program::set_shown_name;
use kennel_sys::runtime_dir::Access;
use kennel_sys::{detach, events};

use super::connect::Reached;
use super::newborn::Newborn;
use super::{Policy, Wanted};
use crate::key_dir::KeyDir;

/// What a daemon may know of the environment it happens to be started from. Its servers get their clients'.
/// Never `KENNEL_TREE`: a daemon started from inside a server's tree must survive that tree.
const PASSED_ON: [&str; 12] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "TZ",
    "TMPDIR",
    "KENNEL_RUNTIME_DIR",
    "KENNEL_FEATURES_OFF",
    "KENNEL_SWEEP",
    "RUST_BACKTRACE",
];

/// The daemon's log, in its directory.
const LOG: &str = "log";
/// How much of it is shown to the person whose daemon did not start.
const LOG_TAIL: u64 = 2048;
const LOG_TAIL_LINES: usize = 10;

/// A daemon that is not ready in time ends by itself: what it says last tells more than silence.
const LAST_WORDS: Duration = Duration::from_millis(250);

/// No report of a start is longer.
const LONGEST_REPORT: usize = 4096;

/// What to start, for whom.
pub(super) struct Order<'a> {
    pub(super) program: &'a Path,
    pub(super) wanted: &'a Wanted,
    pub(super) abandoned: &'a Waker,
}

/// What came of a daemon that could be started.
pub(super) enum Begun {
    Ready(Reached),
    /// It ended without a word, or was stuck and was ended: the next one may fare better. What is known of it.
    Died(String),
}

/// Starts the daemon and waits until it is ready. `lock` is `spawn.lock`, which is the daemon's from here on.
pub(super) fn start(order: &Order<'_>, key_dir: &KeyDir, lock: Lock) -> Result<Begun, String> {
    let wanted = order.wanted;
    // Held by us too until it is ready: so others who wait can see at a glance who is busy with it.
    let spawn_lock = lock.into_handed_over().map_err(|error| error.to_string())?;
    let (report, ready) = io::pipe().map_err(cannot)?;
    let (socket, first) = Stream::pair().map_err(cannot)?;

    let orders = orders(key_dir.key(), &spawn_lock, &ready, &first, wanted);
    let command = command(order.program, &orders);
    detach::spawn(command, &[&spawn_lock, &ready, &first]).map_err(cannot)?;
    // The daemon's alone from now on: their end is to be seen here.
    drop((ready, first));

    let generation = match wait_for_report(report, order, key_dir)? {
        Report::Ready(generation) => generation,
        Report::Failed(why) => return Err(format!("the daemon did not start: {why}")),
        Report::Died => {
            let why = "the daemon ended before it was ready";
            return Ok(Begun::Died(format!("{why}{}", log_tail(key_dir))));
        }
        Report::Unwanted => return Err(CANCELLED.to_owned()),
        Report::Stuck => return Ok(Begun::Died(STUCK.to_owned())),
        Report::Late => {
            return Err(format!(
                "the daemon was not ready within {:?} (--start-timeout){}",
                wanted.start_timeout,
                log_tail(key_dir)
            ));
        }
    };
    let recorded = key_dir
        .record()
        .filter(|record| record.generation == generation);
    let daemon = recorded.and_then(|record| record.process());
    Ok(Begun::Ready(Reached { socket, daemon }))
}

fn cannot(error: io::Error) -> String {
    format!("the daemon cannot be started: {error}")
}

/// The one word a daemon is started with.
fn orders(
    key: &str,
    spawn_lock: &File,
    ready: &PipeWriter,
    first: &Handle,
    wanted: &Wanted,
) -> String {
    let Policy {
        linger,
        grace,
        max_idle,
        owner,
        max_line,
    } = &wanted.policy;
    let owner = owner.map_or_else(|| "-".to_owned(), |owner| owner.to_string());
    format!(
        "key={key},spawn={},ready={},first={},linger={},grace={},max-idle={},alarm={},max-line={max_line},owner={owner}",
        number_of(spawn_lock),
        number_of(ready),
        number_of(first),
        linger.as_millis(),
        grace.as_millis(),
        max_idle.as_millis(),
        wanted.start_timeout.as_millis(),
    )
}

fn command(program: &Path, orders: &str) -> Command {
    let mut command = Command::new(program);
    command
        .args(["daemon", orders])
        .env_clear()
        // What a long line took is given back to the system, and not kept for the next one.
        .env("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=131072")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    set_shown_name(&mut command, "kennel");
    for name in PASSED_ON {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command
}

/// What became of a start.
#[derive(Debug, PartialEq, Eq)]
enum Report {
    Ready(String),
    Failed(String),
    Died,
    Late,
    /// It was stuck, and is gone.
    Stuck,
    /// Nobody wants to know any more.
    Unwanted,
}

fn wait_for_report(
    mut pipe: PipeReader,
    order: &Order<'_>,
    key_dir: &KeyDir,
) -> Result<Report, String> {
    let abandoned = order.abandoned;
    let deadline = Instant::now() + order.wanted.start_timeout + LAST_WORDS;
    let mut newborn = Newborn::new();
    let mut heard = Vec::new();
    while !heard.contains(&b'\n') && heard.len() < LONGEST_REPORT {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Report::Late);
        }
        let nap = left.min(newborn.next_look());
        events::sleep(&[&pipe, abandoned], &[], Some(nap)).map_err(cannot)?;
        if is_readable(abandoned) {
            return Ok(Report::Unwanted);
        }
        if !is_readable(&pipe) {
            if newborn.end_if_stuck(key_dir)? {
                return Ok(Report::Stuck);
            }
            continue;
        }
        let mut chunk = [0; 512];
        match pipe.read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => heard.extend_from_slice(&chunk[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(cannot(error)),
        }
    }
    Ok(understand(&heard))
}

fn understand(heard: &[u8]) -> Report {
    let text = String::from_utf8_lossy(heard);
    let Some((line, _)) = text.split_once('\n') else {
        return Report::Died;
    };
    match line.split_once(' ') {
        Some(("ready", generation)) => Report::Ready(generation.to_owned()),
        Some(("failed", why)) => Report::Failed(why.to_owned()),
        _ => Report::Failed(format!("it said {line:?}")),
    }
}

/// The last lines of the daemon's log, ready to follow a sentence.
fn log_tail(key_dir: &KeyDir) -> String {
    let read = || -> Option<String> {
        let mut log = key_dir.dir().open_file(LOG, Access::Read).ok()?;
        let length = log.metadata().ok()?.len();
        log.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL)))
            .ok()?;
        let mut bytes = Vec::new();
        log.take(LOG_TAIL).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    if lines.is_empty() {
        return "; its log is empty".to_owned();
    }
    let last = &lines[lines.len().saturating_sub(LOG_TAIL_LINES)..];
    format!("; its log ends with:\n{}", last.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_ends_ready_failed_or_dead() {
        assert_eq!(understand(b"ready cafe\n"), Report::Ready("cafe".into()));
        let failed = Report::Failed("no room left".into());
        assert_eq!(understand(b"failed no room left\n"), failed);
        for cut in ["", "re", "ready cafe"] {
            assert_eq!(understand(cut.as_bytes()), Report::Died, "{cut:?}");
        }
    }
}
