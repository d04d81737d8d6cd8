//! `kennel logs`: what Kennel did and what the server said, in one timeline.
//!
//! | file | what |
//! |---|---|
//! | `timeline` | a line of a log as people read it, and since when |
//! | `tail` | a log that grows, and begins a new file now and then |

mod tail;
pub(crate) mod timeline;

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::builder::NonEmptyStringValueParser;
use kennel_sys::runtime_dir::{DirError, RuntimeDir};

use crate::daemon::LOG;
use crate::guard::record::{self as guards, Words};
use crate::listing::{self, Ambiguous, Mode};
use crate::meeting::{DaemonRecord, Meeting};
use crate::purge::has_served;
use crate::sharing::ServersToml;
use crate::sharing::launcher::name_of;
use crate::stop::nothing_called;
use crate::{duration, terminal};
use tail::Tail;
use timeline::{Since, Teller, Told};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A name or key that `kennel ps` shows, a name in servers.toml, or the first letters (4 or more) of a shared server's key
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    which: String,

    /// Go on as more is written
    #[arg(short, long)]
    follow: bool,

    /// Only what was said in the last so long: 30s, 10m, 2h
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    since: Option<Duration>,
}

/// A log, and who speaks in it.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) dir: RuntimeDir,
    pub(crate) teller: Teller,
}

/// Why somebody's words cannot be shown.
#[derive(Debug)]
pub(crate) enum NoLog {
    /// It has none, because.
    Because(&'static str),
    Unknown,
    Failed(DirError),
}

pub(crate) fn logs(args: &Args) -> ExitCode {
    crate::refused::tell();
    match find(&args.which) {
        Ok(log) => shown(show(&log, args)),
        Err(NoLog::Because(why)) => crate::fail(&format!("{} {why}", args.which)),
        Err(NoLog::Unknown) => nothing_called(&args.which),
        Err(NoLog::Failed(error)) => crate::fail(&error.to_string()),
    }
}

/// Its last lines, at most so many.
pub(crate) fn last(log: &Log, lines: usize) -> io::Result<Vec<Told>> {
    let all = Tail::of(&log.dir).news(&log.dir, true)?;
    let skipped = all.len().saturating_sub(lines);
    Ok(all[skipped..]
        .iter()
        .map(|line| log.teller.line(line))
        .collect())
}

/// The log of whom people call `word`: of one that lives, else of the last that did.
pub(crate) fn find(word: &str) -> Result<Log, NoLog> {
    match guards::words_of(word).map_err(NoLog::Failed)? {
        Some(Words::Logged(dir)) => {
            let teller = Teller::Guard;
            return Ok(Log { dir, teller });
        }
        Some(Words::Elsewhere) => {
            let why = "runs in the foreground: what it says goes to where it was started";
            return Err(NoLog::Because(why));
        }
        None => {}
    }
    let named = ServersToml::named_by_user(word);
    let is_meant = |meeting: &Meeting| {
        let is_it = |record: DaemonRecord| {
            let named = named.as_ref();
            let its = named.is_some_and(|named| named.runs(&record.command, &record.cwd));
            record.name == word || its
        };
        let by_name = meeting.record().is_some_and(is_it);
        by_name || (word.len() >= 4 && meeting.key().starts_with(word))
    };
    let since = |meeting: &Meeting| meeting.record().map(|record| record.since);
    let meetings = Meeting::all().map_err(NoLog::Failed)?.into_iter();
    if let Some(meeting) = meetings.filter(is_meant).max_by_key(since) {
        let (dir, teller) = (meeting.into_dir(), Teller::Daemon);
        return Ok(Log { dir, teller });
    }
    let entries = listing::all().map_err(NoLog::Failed)?;
    let called = listing::called(&entries, word).unwrap_or_else(|Ambiguous(several)| several);
    if called.iter().any(|entry| entry.mode == Mode::Solo) {
        let why = "is a session on its own: what its server says goes to its app";
        return Err(NoLog::Because(why));
    }
    // Of one that has ended nothing is left but what it said.
    let name = named.map_or(word.to_owned(), |named| name_of(&named.command));
    let meetings = Meeting::all().map_err(NoLog::Failed)?.into_iter();
    let last = meetings
        .filter(|meeting| has_served(meeting, &name))
        .max_by_key(|meeting| {
            meeting
                .dir()
                .path()
                .join(LOG)
                .metadata()
                .ok()?
                .modified()
                .ok()
        });
    match last {
        Some(meeting) => Ok(Log {
            dir: meeting.into_dir(),
            teller: Teller::Daemon,
        }),
        None => Err(NoLog::Unknown),
    }
}

fn shown(shown: io::Result<()>) -> ExitCode {
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => crate::fail(&format!("cannot show the log: {error}")),
    }
}

fn show(log: &Log, args: &Args) -> io::Result<()> {
    let since = args
        .since
        .and_then(|ago| SystemTime::now().checked_sub(ago));
    let mut since = since.map_or(Since::Ever, Since::at);
    let colour = terminal::stdout_has_colour();
    let mut tail = Tail::of(&log.dir);
    let mut stdout = io::stdout().lock();
    loop {
        for line in tail.news(&log.dir, !args.follow)? {
            if since.has_come(&line) {
                let line = log.teller.line(&line).text(colour);
                stdout.write_all(line.as_bytes())?;
                stdout.write_all(b"\n")?;
            }
        }
        stdout.flush()?;
        let left_out = tail.take_left_out();
        if left_out > 0 {
            crate::warn(&format!(
                "{left_out} bytes of the log are not shown: it is longer than any that Kennel writes"
            ));
        }
        if !args.follow || !tail.wait(&stdout)? {
            return Ok(());
        }
    }
}
