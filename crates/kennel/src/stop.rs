//! `kennel stop`: stops servers by name or key.

use std::io;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::builder::NonEmptyStringValueParser;
use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;

use crate::exit_code::{NOTHING_FOUND, USAGE};
use crate::listing::{self, Ambiguous, Entry, Mode, STOP_SERVER};
use crate::ps::words::printable;
use crate::stdout::print_line;

/// Maximum time for a session or a guard to stop its server: two long steps of the stop ladder, and some more.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a daemon may take beyond the stop ladders of its servers before it is killed. A daemon that handles the
/// signal ends itself 5 s after these at the latest.
const GRACE: Duration = Duration::from_secs(10);
/// How long a process may take to end after SIGKILL.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A name or key shown by `kennel ps`, a name in servers.toml, or at least 4 letters of a shared server's key
    #[arg(required_unless_present = "all", value_parser = NonEmptyStringValueParser::new())]
    which: Option<String>,

    /// Stop all your servers
    #[arg(long, conflicts_with = "which")]
    all: bool,
}

pub(crate) fn stop(args: &Args) -> ExitCode {
    let entries = match listing::all() {
        Ok(entries) => entries,
        Err(error) => return crate::fail(&error.to_string()),
    };
    crate::refused::warn_all();
    let (hibernating, running): (Vec<Entry>, Vec<Entry>) =
        entries.into_iter().partition(Entry::is_hibernating);
    let Some(word) = args.which.as_deref() else {
        return match running.is_empty() {
            true => report_hibernating(None, &hibernating.iter().collect::<Vec<_>>()),
            false => stop_all(running.iter()),
        };
    };
    match listing::called(&running, word) {
        Ok(chosen) if chosen.is_empty() => {
            let hibernating = listing::called(&hibernating, word).unwrap_or_default();
            report_hibernating(Some(word), &hibernating)
        }
        Ok(chosen) => stop_all(chosen.into_iter()),
        Err(Ambiguous(several)) => {
            let several = several.into_iter();
            let several = several.map(|it| (&*it.key, format!("{}, in {}", it.name, it.cwd)));
            list_ambiguous(word, several)
        }
    }
}

/// Reports the hibernating servers; if there are none, that nothing was found.
fn report_hibernating(word: Option<&str>, hibernating: &[&Entry]) -> ExitCode {
    for entry in hibernating {
        let name = printable(&entry.name);
        print_line!(
            "{name} ({}) hibernates: there is nothing to stop",
            entry.key
        );
    }
    match word {
        _ if !hibernating.is_empty() => ExitCode::SUCCESS,
        Some(word) => not_found(word),
        None => crate::fail_with(NOTHING_FOUND, "no running server can be stopped"),
    }
}

/// Asks all entries to stop, then waits for each.
fn stop_all<'a>(entries: impl Iterator<Item = &'a Entry>) -> ExitCode {
    let asked: Vec<StopRequest<'_>> = entries.filter_map(StopRequest::to_stop).collect();
    let started = Instant::now();
    let stopped = asked.into_iter().map(|asked| asked.finish(started));
    match stopped.filter(|stopped| !stopped).count() {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// An entry that was asked to stop.
struct StopRequest<'a> {
    entry: &'a Entry,
    process: ProcessRef,
    asked: io::Result<bool>,
    /// The processes whose end is waited for.
    ending: Vec<ProcessRef>,
    /// How long a daemon may take to end.
    timeout: Duration,
}

/// The result for an entry that was asked to stop.
enum Outcome {
    Stopped,
    Killed,
    StillRunning,
}

impl StopRequest<'_> {
    /// Prepares an entry to be stopped; `None` if it has ended since it was listed. A kept service is not asked yet.
    fn to_stop(entry: &Entry) -> Option<StopRequest<'_>> {
        let process = entry.process()?;
        let ending = entry.ends_with(&process);
        // Read before the stop, while its wardens can still tell.
        let timeout = entry.longest_ladder(&process) + GRACE;
        let asked = match entry.mode {
            Mode::Kept => Ok(false),
            _ => entry.ask_to_stop(&process),
        };
        Some(StopRequest {
            entry,
            process,
            asked,
            ending,
            timeout,
        })
    }

    /// Waits until it has stopped, and reports the result; `false` if it has not.
    fn finish(self, started: Instant) -> bool {
        let (name, key) = (printable(&self.entry.name), &self.entry.key);
        let (pid, timeout) = (self.process.pid(), self.timeout.as_secs());
        let stays = match self.entry.stop_signal() == STOP_SERVER {
            true => "; its session stays open, and looks for a daemon at its next request",
            false => "",
        };
        match self.wait(started) {
            Ok(Outcome::Stopped) => print_line!("stopped {name} ({key}){stays}"),
            Ok(Outcome::Killed) => print_line!(
                "killed {name} ({key}): its daemon (pid {pid}) did not stop within {timeout} s"
            ),
            Ok(Outcome::StillRunning) => {
                crate::fail(&format!(
                    "{name} (pid {pid}) does not stop; see `kennel logs {key}`"
                ));
                return false;
            }
            Err(why) => {
                crate::fail(&format!("{name} ({key}) was not stopped: {why}"));
                return false;
            }
        }
        true
    }

    fn wait(self, started: Instant) -> Result<Outcome, String> {
        let (timeout, is_killed) = match self.entry.mode {
            Mode::Kept => {
                return Ok(match crate::kept::end(self.entry)? {
                    true => Outcome::Stopped,
                    false => Outcome::StillRunning,
                });
            }
            Mode::Shared => (self.timeout, true),
            Mode::Solo | Mode::Guard => (STOP_TIMEOUT, false),
        };
        let waited = self.asked;
        let waited = waited.and_then(|_| wait_for_all(&self.ending, started + timeout));
        Ok(match waited {
            Ok(true) => Outcome::Stopped,
            Ok(false) if is_killed && kill(&self.process).unwrap_or(false) => Outcome::Killed,
            Ok(false) | Err(_) => Outcome::StillRunning,
        })
    }
}

/// Kills a daemon that does not react to SIGTERM, by process identity (rule 6). The wardens of its servers end these.
fn kill(daemon: &ProcessRef) -> io::Result<bool> {
    daemon.signal(Signal::KILL)?;
    daemon.wait(Some(KILL_TIMEOUT))
}

/// Waits for the end of all `processes` until `deadline`; returns whether all have ended.
fn wait_for_all(processes: &[ProcessRef], deadline: Instant) -> io::Result<bool> {
    let mut ended = true;
    for process in processes {
        let left = deadline.saturating_duration_since(Instant::now());
        ended &= process.wait(Some(left))?;
    }
    Ok(ended)
}

pub(crate) fn not_found(word: &str) -> ExitCode {
    let word = printable(word);
    let words = format!("no running server is called {word}; `kennel ps` lists those that run");
    crate::fail_with(NOTHING_FOUND, &words)
}

/// Lists the keys that begin with `word`, with the command of each.
pub(crate) fn list_ambiguous<'a>(
    word: &str,
    several: impl Iterator<Item = (&'a str, String)>,
) -> ExitCode {
    let line = |(key, known): (&str, String)| format!("\n  {key} ({})", printable(&known));
    let lines: String = several.map(line).collect();
    let words = format!("{word} is ambiguous: give more letters of one of these keys{lines}");
    crate::fail_with(USAGE, &words)
}
