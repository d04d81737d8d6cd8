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
use crate::stop::{nothing_called, which_one};
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
    /// Several keys begin with the same letters.
    Ambiguous(Vec<Meeting>),
    Failed(DirError),
}

pub(crate) fn logs(args: &Args) -> ExitCode {
    crate::refused::tell();
    match find(&args.which) {
        Ok(log) => shown(show(&log, args)),
        Err(NoLog::Because(why)) => crate::fail(&format!("{} {why}", args.which)),
        Err(NoLog::Unknown) => nothing_called(&args.which),
        Err(NoLog::Ambiguous(several)) => {
            let known = |meeting: &Meeting| match meeting.record() {
                Some(record) => format!("{}, in {}", record.name, record.cwd),
                None => "has ended".to_owned(),
            };
            let several = several.iter();
            which_one(&args.which, several.map(|it| (it.key(), known(it))))
        }
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

/// The log of whom people call `word`: of one that lives, else of the last that did. A whole name or key comes before the
/// first letters of a key, as for `kennel stop`.
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
    let is_called = |meeting: &Meeting| {
        let is_it = |record: DaemonRecord| {
            let named = named.as_ref();
            let its = named.is_some_and(|named| named.runs(&record.command, &record.cwd));
            record.name == word || its
        };
        meeting.key() == word || meeting.record().is_some_and(is_it)
    };
    let lives = |meeting: &Meeting| {
        let process = meeting.record().and_then(|record| record.process());
        process.is_some()
    };
    let rank = |meeting: &Meeting| {
        let since = meeting.record().map(|record| record.since);
        (meeting.key() == word, lives(meeting), since)
    };
    let meetings = Meeting::all().map_err(NoLog::Failed)?.into_iter();
    if let Some(meeting) = meetings.filter(is_called).max_by_key(rank) {
        return Ok(Log::of_daemon(meeting));
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
    if let Some(meeting) = last {
        return Ok(Log::of_daemon(meeting));
    }
    let begins_so = |it: &Meeting| word.len() >= 4 && it.key().starts_with(word);
    let meetings = Meeting::all().map_err(NoLog::Failed)?.into_iter();
    let (living, ended): (Vec<Meeting>, Vec<Meeting>) = meetings.filter(begins_so).partition(lives);
    let mut several = if living.is_empty() { ended } else { living };
    match (several.pop(), several.is_empty()) {
        (None, _) => Err(NoLog::Unknown),
        (Some(meeting), true) => Ok(Log::of_daemon(meeting)),
        (Some(meeting), false) => {
            several.push(meeting);
            Err(NoLog::Ambiguous(several))
        }
    }
}

impl Log {
    fn of_daemon(meeting: Meeting) -> Log {
        Log {
            dir: meeting.into_dir(),
            teller: Teller::Daemon,
        }
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
