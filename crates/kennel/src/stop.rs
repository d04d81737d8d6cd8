//! `kennel stop`: ends what runs, by its name or key.

use std::io;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::builder::NonEmptyStringValueParser;
use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;

use crate::listing::{self, Ambiguous, Entry, Mode, STOP_SERVER};
use crate::ps::words::printable;
use crate::say::say;

/// Exit code for "nothing found".
const NOTHING: u8 = 3;
/// Exit code for a question that cannot be answered as it was put.
const USAGE: u8 = 2;
/// How long a daemon may take to stop its servers: two long rungs, and some.
const STOPPING: Duration = Duration::from_secs(60);
/// How long a daemon may take beyond the ladders of its servers before it is killed. One that hears the signal ends itself
/// 5 s after these at the latest.
const GRACE: Duration = Duration::from_secs(10);
/// How long it may take to end a process that was sent SIGKILL.
const KILL_TAKES: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A name or key that `kennel ps` shows, a name in servers.toml, or the first letters (4 or more) of one shared server's key
    #[arg(required_unless_present = "all", value_parser = NonEmptyStringValueParser::new())]
    which: Option<String>,

    /// Stop everything of yours
    #[arg(long, conflicts_with = "which")]
    all: bool,
}

pub(crate) fn stop(args: &Args) -> ExitCode {
    let entries = match listing::all() {
        Ok(entries) => entries,
        Err(error) => return crate::fail(&error.to_string()),
    };
    crate::refused::tell();
    let (resting, entries): (Vec<Entry>, Vec<Entry>) =
        entries.into_iter().partition(Entry::is_at_rest);
    let chosen = match args.which.as_deref() {
        None => Ok(entries.iter().collect()),
        Some(word) => listing::called(&entries, word),
    };
    let chosen: Vec<&Entry> = match chosen {
        Ok(chosen) => chosen,
        Err(Ambiguous(several)) => {
            let several = several.into_iter();
            let several = several.map(|it| (&*it.key, format!("{}, in {}", it.name, it.cwd)));
            return which_one(args.which.as_deref().unwrap_or_default(), several);
        }
    };
    if chosen.is_empty() {
        let resting = match args.which.as_deref() {
            None => resting.iter().collect(),
            Some(word) => listing::called(&resting, word).unwrap_or_default(),
        };
        for entry in &resting {
            say!(
                "{} ({}) hibernates: there is nothing to stop",
                printable(&entry.name),
                entry.key
            );
        }
        return match args.which.as_deref() {
            _ if !resting.is_empty() => ExitCode::SUCCESS,
            Some(word) => nothing_called(word),
            None => {
                crate::fail("nothing runs that could be stopped");
                ExitCode::from(NOTHING)
            }
        };
    }
    let mut left = 0;
    let asked: Vec<Asked<'_>> = chosen.into_iter().filter_map(Asked::to_stop).collect();
    let started = Instant::now();
    let deadline = started + STOPPING;
    for Asked {
        entry,
        process,
        asked,
        ending,
        patience,
    } in asked
    {
        let mut killed = false;
        let ended = match entry.mode {
            Mode::Kept => crate::kept::end(entry),
            Mode::Shared => {
                let ended = asked.and_then(|_| wait_for_all(&ending, started + patience));
                killed = matches!(ended, Ok(false));
                let ended = match killed {
                    true => kill(&process),
                    false => ended,
                };
                Ok(ended.unwrap_or(false))
            }
            _ => {
                let ended = asked.and_then(|_| wait_for_all(&ending, deadline));
                Ok(ended.unwrap_or(false))
            }
        };
        match ended {
            Ok(true) if killed => say!(
                "killed {} ({}): its daemon (pid {}) did not stop within {} s",
                printable(&entry.name),
                entry.key,
                process.pid(),
                patience.as_secs()
            ),
            Ok(true) => say!(
                "stopped {} ({}){}",
                printable(&entry.name),
                entry.key,
                match entry.stop_signal() == STOP_SERVER {
                    true =>
                        "; its session stays, and looks for a daemon when it next needs a server",
                    false => "",
                }
            ),
            Err(why) => {
                left += 1;
                crate::fail(&format!(
                    "{} ({}) is left alone: {why}",
                    printable(&entry.name),
                    entry.key
                ));
            }
            Ok(false) => {
                left += 1;
                crate::fail(&format!(
                    "{} (pid {}) does not stop; look at `kennel logs {}`",
                    printable(&entry.name),
                    process.pid(),
                    entry.key
                ));
            }
        }
    }
    if left > 0 {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

/// An entry that was asked to stop. All are asked before the first is waited for.
struct Asked<'a> {
    entry: &'a Entry,
    process: ProcessRef,
    asked: io::Result<bool>,
    /// The processes whose end is waited for.
    ending: Vec<ProcessRef>,
    /// How long a daemon may take to end.
    patience: Duration,
}

impl Asked<'_> {
    /// `None` if it is gone since it was looked at: what was wanted. A kept service is not asked yet.
    fn to_stop(entry: &Entry) -> Option<Asked<'_>> {
        let process = entry.process()?;
        let ending = entry.ends_with(&process);
        // Asked before the stop: its wardens tell.
        let patience = entry.longest_ladder(&process) + GRACE;
        let asked = match entry.mode {
            Mode::Kept => Ok(false),
            _ => entry.ask_to_stop(&process),
        };
        Some(Asked {
            entry,
            process,
            asked,
            ending,
            patience,
        })
    }
}

/// Kills a daemon that does not hear SIGTERM, by reference (rule 6). The wardens of its servers end these.
fn kill(daemon: &ProcessRef) -> io::Result<bool> {
    daemon.signal(Signal::KILL)?;
    daemon.wait(Some(KILL_TAKES))
}

/// Waits for their end until `deadline`; whether all have ended.
fn wait_for_all(processes: &[ProcessRef], deadline: Instant) -> io::Result<bool> {
    let mut ended = true;
    for process in processes {
        let left = deadline.saturating_duration_since(Instant::now());
        ended &= process.wait(Some(left))?;
    }
    Ok(ended)
}

pub(crate) fn nothing_called(word: &str) -> ExitCode {
    crate::fail(&format!(
        "nothing that runs is called {}; `kennel ps` shows what does",
        printable(word)
    ));
    ExitCode::from(NOTHING)
}

/// Lists the keys that begin with `word`, each with what is known of it.
pub(crate) fn which_one<'a>(
    word: &str,
    several: impl ExactSizeIterator<Item = (&'a str, String)>,
) -> ExitCode {
    let count = several.len();
    let line = |(key, known): (&str, String)| format!("\n  {key} ({})", printable(&known));
    let lines: String = several.map(line).collect();
    crate::fail(&format!(
        "{count} keys begin with {word}: say more of the one you mean{lines}"
    ));
    ExitCode::from(USAGE)
}
