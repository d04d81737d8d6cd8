//! `kennel logs`: the messages of Kennel and the output of the server, in one timeline.
//!
//! | file | contains |
//! |---|---|
//! | `timeline` | a line of a log as people read it, and the start of a timeline |
//! | `tail` | a log that grows and is rotated |

mod tail;
pub(crate) mod timeline;

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::builder::NonEmptyStringValueParser;
use kennel_sys::runtime_dir::{DirError, RuntimeDir};

use crate::daemon::LOG;
use crate::guard::record::{self as guards, OutputPlace};
use crate::key_dir::{DaemonRecord, KeyDir};
use crate::listing::{self, Ambiguous, Mode};
use crate::purge::has_served;
use crate::sharing::ServersToml;
use crate::sharing::launcher::name_of;
use crate::stop::{list_ambiguous, not_found};
use crate::{duration, terminal};
use tail::Tail;
use timeline::{FirstShown, LogFormat, LogLine};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A name or key shown by `kennel ps`, a name in servers.toml, or at least 4 letters of a shared server's key
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    which: String,

    /// Print new lines as they are written
    #[arg(short, long)]
    follow: bool,

    /// Show log lines newer than DURATION: 30s, 10m, 2h
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    since: Option<Duration>,
}

/// A log, and which program writes it.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) dir: RuntimeDir,
    pub(crate) format: LogFormat,
}

/// Why a log cannot be shown.
#[derive(Debug)]
pub(crate) enum NoLog {
    /// The server has no log, for this reason.
    NotAvailable(&'static str),
    Unknown,
    /// Several keys begin with the same letters.
    Ambiguous(Vec<KeyDir>),
    Failed(DirError),
}

pub(crate) fn logs(args: &Args) -> ExitCode {
    crate::refused::warn_all();
    match find(&args.which) {
        Ok(log) => exit_code(show(&log, args)),
        Err(NoLog::NotAvailable(why)) => crate::fail(&format!("{} {why}", args.which)),
        Err(NoLog::Unknown) => not_found(&args.which),
        Err(NoLog::Ambiguous(several)) => {
            let several = several.iter();
            list_ambiguous(&args.which, several.map(|it| (it.key(), it.known())))
        }
        Err(NoLog::Failed(error)) => crate::fail(&error.to_string()),
    }
}

/// Its last lines, at most this many.
pub(crate) fn last(log: &Log, lines: usize) -> io::Result<Vec<LogLine>> {
    let all = Tail::of(&log.dir).read_new(&log.dir, true)?;
    let skipped = all.len().saturating_sub(lines);
    Ok(all[skipped..]
        .iter()
        .map(|line| log.format.line(line))
        .collect())
}

/// The log of the daemon or guard that `word` names: of a running one, else of the last that ended. A whole name or key
/// takes precedence over the first letters of a key, as for `kennel stop`.
pub(crate) fn find(word: &str) -> Result<Log, NoLog> {
    match guards::output_of(word).map_err(NoLog::Failed)? {
        Some(OutputPlace::Log(dir)) => {
            let format = LogFormat::Guard;
            return Ok(Log { dir, format });
        }
        Some(OutputPlace::Terminal) => {
            let why = "runs in the foreground: its output goes to the terminal or process that started it";
            return Err(NoLog::NotAvailable(why));
        }
        None => {}
    }
    let named = ServersToml::named_by_user(word);
    let is_called = |key_dir: &KeyDir| {
        let is_it = |record: DaemonRecord| {
            let named = named.as_ref();
            let its = named.is_some_and(|named| named.runs(&record.command, &record.cwd));
            record.name == word || its
        };
        key_dir.key() == word || key_dir.record().is_some_and(is_it)
    };
    let lives = |key_dir: &KeyDir| {
        let process = key_dir.record().and_then(|record| record.process());
        process.is_some()
    };
    let rank = |key_dir: &KeyDir| {
        let since = key_dir.record().map(|record| record.since);
        (key_dir.key() == word, lives(key_dir), since)
    };
    let key_dirs = KeyDir::all().map_err(NoLog::Failed)?.into_iter();
    if let Some(key_dir) = key_dirs.filter(is_called).max_by_key(rank) {
        return Ok(Log::of_daemon(key_dir));
    }
    let entries = listing::all().map_err(NoLog::Failed)?;
    let called = listing::called(&entries, word).unwrap_or_else(|Ambiguous(several)| several);
    if called.iter().any(|entry| entry.mode == Mode::Solo) {
        let why = "is a dedicated session: the stderr of its server goes to its app";
        return Err(NoLog::NotAvailable(why));
    }
    // Of an ended server only its log is left.
    let name = named.map_or(word.to_owned(), |named| name_of(&named.command));
    let key_dirs = KeyDir::all().map_err(NoLog::Failed)?.into_iter();
    let last = key_dirs
        .filter(|key_dir| has_served(key_dir, &name))
        .max_by_key(|key_dir| {
            key_dir
                .dir()
                .path()
                .join(LOG)
                .metadata()
                .ok()?
                .modified()
                .ok()
        });
    if let Some(key_dir) = last {
        return Ok(Log::of_daemon(key_dir));
    }
    let short = KeyDir::beginning_with(word).map_err(NoLog::Failed)?;
    let (living, ended): (Vec<KeyDir>, Vec<KeyDir>) = short.into_iter().partition(lives);
    let mut several = if living.is_empty() { ended } else { living };
    match (several.pop(), several.is_empty()) {
        (None, _) => Err(NoLog::Unknown),
        (Some(key_dir), true) => Ok(Log::of_daemon(key_dir)),
        (Some(key_dir), false) => {
            several.push(key_dir);
            Err(NoLog::Ambiguous(several))
        }
    }
}

impl Log {
    fn of_daemon(key_dir: KeyDir) -> Log {
        Log {
            dir: key_dir.into_dir(),
            format: LogFormat::Daemon,
        }
    }
}

fn exit_code(shown: io::Result<()>) -> ExitCode {
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        // The reader closed its end: it has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => crate::fail(&format!("cannot show the log: {error}")),
    }
}

fn show(log: &Log, args: &Args) -> io::Result<()> {
    let since = args
        .since
        .and_then(|ago| SystemTime::now().checked_sub(ago));
    let mut since = since.map_or(FirstShown::FromStart, FirstShown::at);
    let colour = terminal::stdout_has_colour();
    let mut tail = Tail::of(&log.dir);
    let mut stdout = io::stdout().lock();
    loop {
        for line in tail.read_new(&log.dir, !args.follow)? {
            if since.is_shown(&line) {
                let line = log.format.line(&line).text(colour);
                stdout.write_all(line.as_bytes())?;
                stdout.write_all(b"\n")?;
            }
        }
        stdout.flush()?;
        let left_out = tail.take_left_out();
        if left_out > 0 {
            crate::warn(&format!(
                "{left_out} bytes of the log are not shown: it is longer than the logs that Kennel writes"
            ));
        }
        if !args.follow || !tail.wait(&stdout)? {
            return Ok(());
        }
    }
}
