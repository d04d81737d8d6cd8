//! Starts a daemon: detached from this process, with `spawn.lock` and with the connection of its first client.

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

use super::connect::DaemonConnection;
use super::starting::StartingDaemon;
use super::{ElectionRequest, Policy};
use crate::key_dir::KeyDir;

/// The environment variables that a daemon gets from the process that starts it. Its servers get the environments of their
/// clients. `KENNEL_TREE` is never passed: a daemon that is started from a server's tree must survive that tree.
const PASSED_VARIABLES: [&str; 12] = [
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
/// Maximum bytes of the log that are shown if the daemon did not start.
const LOG_TAIL: u64 = 2048;
const LOG_TAIL_LINES: usize = 10;

/// Wait beyond the start timeout: a daemon that is not ready in time ends by itself and reports why.
const REPORT_MARGIN: Duration = Duration::from_millis(250);

/// Maximum bytes of a daemon's report about its start.
const MAX_REPORT: usize = 4096;

/// A daemon to start.
pub(super) struct StartRequest<'a> {
    pub(super) program: &'a Path,
    pub(super) wanted: &'a ElectionRequest,
    pub(super) abandoned: &'a Waker,
}

/// The result of starting the daemon's process.
pub(super) enum StartOutcome {
    Ready(DaemonConnection),
    /// It exited without a report, or was stuck and was killed: another attempt may succeed. With the reason.
    Exited(String),
}

/// Starts the daemon and waits until it is ready. `lock` is `spawn.lock`, which is handed to the daemon.
pub(super) fn start(
    order: &StartRequest<'_>,
    key_dir: &KeyDir,
    lock: Lock,
) -> Result<StartOutcome, String> {
    let wanted = order.wanted;
    // This process holds it too until the daemon is ready, so that waiting shims can name the process that starts it.
    let spawn_lock = lock.into_handed_over().map_err(|error| error.to_string())?;
    let (report, ready) = io::pipe().map_err(start_error)?;
    let (socket, first) = Stream::pair().map_err(start_error)?;

    let daemon_args = daemon_args(key_dir.key(), &spawn_lock, &ready, &first, wanted);
    let command = command(order.program, &daemon_args);
    detach::spawn(command, &[&spawn_lock, &ready, &first]).map_err(start_error)?;
    // Only the daemon may hold these, so that this process sees when they close.
    drop((ready, first));

    let generation = match wait_for_report(report, order, key_dir)? {
        StartReport::Ready(generation) => generation,
        StartReport::Failed(why) => return Err(format!("the daemon did not start: {why}")),
        StartReport::Exited => {
            let why = "the daemon exited before it was ready";
            return Ok(StartOutcome::Exited(format!("{why}{}", log_tail(key_dir))));
        }
        StartReport::Abandoned => return Err(CANCELLED.to_owned()),
        StartReport::Stuck => return Ok(StartOutcome::Exited(STUCK.to_owned())),
        StartReport::TimedOut => {
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
    Ok(StartOutcome::Ready(DaemonConnection { socket, daemon }))
}

fn start_error(error: io::Error) -> String {
    format!("the daemon cannot be started: {error}")
}

/// The settings of a daemon, as the argument that it is started with.
fn daemon_args(
    key: &str,
    spawn_lock: &File,
    ready: &PipeWriter,
    first: &Handle,
    wanted: &ElectionRequest,
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

fn command(program: &Path, daemon_args: &str) -> Command {
    let mut command = Command::new(program);
    command
        .args(["daemon", daemon_args])
        .env_clear()
        // Memory of long lines is returned to the system instead of being kept for the next long line.
        .env("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=131072")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    set_shown_name(&mut command, "kennel");
    for name in PASSED_VARIABLES {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command
}

/// The report of a daemon about its start.
#[derive(Debug, PartialEq, Eq)]
enum StartReport {
    Ready(String),
    Failed(String),
    Exited,
    TimedOut,
    /// It was stuck and was killed.
    Stuck,
    /// The election was cancelled.
    Abandoned,
}

fn wait_for_report(
    mut pipe: PipeReader,
    order: &StartRequest<'_>,
    key_dir: &KeyDir,
) -> Result<StartReport, String> {
    let abandoned = order.abandoned;
    let deadline = Instant::now() + order.wanted.start_timeout + REPORT_MARGIN;
    let mut starting = StartingDaemon::new();
    let mut received = Vec::new();
    while !received.contains(&b'\n') && received.len() < MAX_REPORT {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(StartReport::TimedOut);
        }
        let timeout = left.min(starting.until_next_check());
        events::sleep(&[&pipe, abandoned], &[], Some(timeout)).map_err(start_error)?;
        if is_readable(abandoned) {
            return Ok(StartReport::Abandoned);
        }
        if !is_readable(&pipe) {
            if starting.kill_if_stuck(key_dir)? {
                return Ok(StartReport::Stuck);
            }
            continue;
        }
        let mut chunk = [0; 512];
        match pipe.read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => received.extend_from_slice(&chunk[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(start_error(error)),
        }
    }
    Ok(parse_report(&received))
}

fn parse_report(received: &[u8]) -> StartReport {
    let text = String::from_utf8_lossy(received);
    let Some((line, _)) = text.split_once('\n') else {
        return StartReport::Exited;
    };
    match line.split_once(' ') {
        Some(("ready", generation)) => StartReport::Ready(generation.to_owned()),
        Some(("failed", why)) => StartReport::Failed(why.to_owned()),
        _ => StartReport::Failed(format!("unknown report: {line:?}")),
    }
}

/// The last lines of the daemon's log, as the end of an error message.
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
    fn a_report_is_ready_failed_or_missing() {
        assert_eq!(
            parse_report(b"ready cafe\n"),
            StartReport::Ready("cafe".into())
        );
        let failed = StartReport::Failed("no room left".into());
        assert_eq!(parse_report(b"failed no room left\n"), failed);
        for cut in ["", "re", "ready cafe"] {
            assert_eq!(parse_report(cut.as_bytes()), StartReport::Exited, "{cut:?}");
        }
    }
}
