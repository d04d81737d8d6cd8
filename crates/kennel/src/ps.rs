//! `kennel ps`, `kennel stop`, `kennel logs`: what runs, how to end it, what it said.
#![expect(clippy::print_stdout, reason = "these answer a person's question")]

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kennel_sys::Signal;
use kennel_sys::events;
use kennel_sys::runtime_dir::{Access, RuntimeDir};

use crate::daemon::{LOG, OLDER_LOG};
use crate::guard::record::{self as guards, Guarded, Words};
use crate::listing::{self, Ambiguous, Entry, Mode};
use crate::meeting::Meeting;

/// Exit code for "nothing found".
const NOTHING: u8 = 3;
/// Exit code for a question that cannot be answered as it was put.
const USAGE: u8 = 2;
/// How long a daemon may take to stop its servers: two long rungs, and some.
const STOPPING: Duration = Duration::from_secs(60);
/// How often a log is looked at with `-f`: a file offers no event to everyone (rule 10 names `--watch` and the like).
const FOLLOW: Duration = Duration::from_millis(250);

#[derive(Debug, clap::Args)]
pub(crate) struct PsArgs {
    /// For programs rather than people
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct StopArgs {
    /// A name or key that `kennel ps` shows, or the first letters of one key
    #[arg(required_unless_present = "all")]
    which: Option<String>,

    /// Stop everything of yours
    #[arg(long, conflicts_with = "which")]
    all: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct LogsArgs {
    /// A name or key that `kennel ps` shows
    which: String,

    /// Go on as more is written
    #[arg(short, long)]
    follow: bool,
}

pub(crate) fn ps(args: &PsArgs) -> ExitCode {
    let mut entries = match listing::all() {
        Ok(entries) => entries,
        Err(error) => return crate::fail(&error.to_string()),
    };
    if args.json {
        entries.iter_mut().for_each(|entry| entry.identity = None);
        println!("{}", serde_json::to_string(&entries).expect("plain values"));
        return ExitCode::SUCCESS;
    }
    if entries.is_empty() {
        println!("nothing runs");
        return ExitCode::SUCCESS;
    }
    println!(
        "{:<20} {:<17} {:<7} {:>7} {:>7} {:>8} {:>5} VERSION",
        "NAME", "KEY", "MODE", "SERVERS", "CLIENTS", "MEMORY", "AGE"
    );
    for entry in &entries {
        let name: String = entry.name.chars().take(20).collect();
        let mode = match entry.mode {
            Mode::Solo => "solo",
            Mode::Shared => "shared",
            Mode::Guard => "guard",
        };
        let memory: u64 = entry
            .servers
            .iter()
            .filter_map(|server| server.rss_bytes)
            .sum();
        println!(
            "{name:<20} {:<17} {mode:<7} {:>7} {:>7} {:>5} MB {:>5} {}",
            entry.key,
            entry.servers.len(),
            entry
                .guarded
                .as_ref()
                .map_or(entry.clients.len(), |guarded| guarded.connections),
            memory >> 20,
            age(entry.since),
            entry.version
        );
        for note in notes(entry) {
            println!("  {note}");
        }
    }
    ExitCode::SUCCESS
}

/// What the columns do not tell: who shares with whom, what that saves, and who does not and why.
fn notes(entry: &Entry) -> Vec<String> {
    let shared = entry.servers.iter().filter(|it| it.state.clients > 1);
    let mut notes: Vec<String> = shared
        .map(|server| {
            let class = server.state.class.as_deref().unwrap_or("?");
            let clients = server.state.clients;
            format!(
                "{clients} clients share server {} ({class})",
                server.state.pid
            )
        })
        .collect();
    let stale = entry.servers.iter().filter(|server| server.stale);
    notes.extend(stale.map(|server| {
        let pid = server.state.pid;
        format!("server {pid} is stale: its files changed since it was started")
    }));
    if entry.saved_bytes > 0 {
        let megabytes = entry.saved_bytes >> 20;
        notes.push(format!("saves {megabytes} MB against a server for each"));
    }
    notes.extend(
        entry
            .guarded
            .as_ref()
            .map(|guarded| guard_note(entry, guarded)),
    );
    let why = entry.why.as_ref();
    notes.extend(why.map(|why| format!("on its own: {why}")));
    notes
}

fn guard_note(entry: &Entry, guarded: &Guarded) -> String {
    let ports: Vec<String> = guarded.ports.iter().map(u16::to_string).collect();
    let ports = match &ports[..] {
        [] => "no port".to_owned(),
        [port] => format!("port {port}"),
        several => format!("ports {}", several.join(", ")),
    };
    match (entry.owner, guarded.owner_alive) {
        (Some(owner), Some(true)) => format!("listens on {ports}; its owner is {owner}"),
        (_, Some(_)) => format!("listens on {ports}; {}", entry.state),
        (_, None) => format!("listens on {ports}; without an owner"),
    }
}

pub(crate) fn stop(args: &StopArgs) -> ExitCode {
    let mut entries = match listing::all() {
        Ok(entries) => entries,
        Err(error) => return crate::fail(&error.to_string()),
    };
    entries.retain(|entry| !entry.is_at_rest());
    let chosen = match args.which.as_deref() {
        None => Ok(entries.iter().collect()),
        Some(word) => listing::called(&entries, word),
    };
    let chosen: Vec<&Entry> = match chosen {
        Ok(chosen) => chosen,
        Err(ambiguous) => return which_one(args.which.as_deref().unwrap_or_default(), &ambiguous),
    };
    if chosen.is_empty() {
        return match args.which.as_deref() {
            Some(word) => nothing_called(word),
            None => {
                crate::fail("nothing runs that could be stopped");
                ExitCode::from(NOTHING)
            }
        };
    }
    let mut left = 0;
    for entry in &chosen {
        // Gone between the look and now: what was wanted.
        let Some(process) = entry.process() else {
            continue;
        };
        let asked = process.signal(Signal::TERM);
        let ended = asked
            .and_then(|_| process.wait(Some(STOPPING)))
            .unwrap_or(false);
        match ended {
            true => println!("stopped {} ({})", entry.name, entry.key),
            false => {
                left += 1;
                crate::fail(&format!(
                    "{} (pid {}) does not stop; look at `kennel logs {}`",
                    entry.name,
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

pub(crate) fn logs(args: &LogsArgs) -> ExitCode {
    match guards::words_of(&args.which) {
        Ok(Some(Words::Logged(dir))) => return shown(show_log(&dir, args.follow)),
        Ok(Some(Words::Elsewhere)) => {
            let words = "runs in the foreground: what it says goes to where it was started";
            return crate::fail(&format!("{} {words}", args.which));
        }
        Ok(None) => {}
        Err(error) => return crate::fail(&error.to_string()),
    }
    let meetings = match Meeting::all() {
        Ok(meetings) => meetings,
        Err(error) => return crate::fail(&error.to_string()),
    };
    let is_meant = |meeting: &&Meeting| {
        let named = meeting
            .record()
            .is_some_and(|record| record.name == args.which);
        named || (args.which.len() >= 4 && meeting.key().starts_with(&args.which))
    };
    let Some(meeting) = meetings.iter().find(is_meant) else {
        return nothing_called(&args.which);
    };
    shown(show_log(meeting.dir(), args.follow))
}

fn shown(shown: io::Result<()>) -> ExitCode {
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => crate::fail(&format!("cannot show the log: {error}")),
    }
}

fn show_log(dir: &RuntimeDir, follow: bool) -> io::Result<()> {
    let open = |name| dir.open_file(name, Access::Read).ok();
    let mut stdout = io::stdout().lock();
    if let Some(mut older) = open(OLDER_LOG) {
        io::copy(&mut older, &mut stdout)?;
    }
    let mut log: Option<File> = open(LOG);
    loop {
        if let Some(log) = &mut log {
            let mut news = Vec::new();
            log.read_to_end(&mut news)?;
            stdout.write_all(&news)?;
            stdout.flush()?;
        }
        if !follow {
            return Ok(());
        }
        events::sleep(&[], &[], Some(FOLLOW))?;
        // It began anew: what is shorter than where we are is another file.
        let fresh = open(LOG);
        let position = log.as_mut().map_or(Ok(0), |log| log.stream_position())?;
        if fresh
            .as_ref()
            .is_some_and(|fresh| fresh.metadata().is_ok_and(|meta| meta.len() < position))
        {
            log = fresh;
        }
    }
}

fn nothing_called(word: &str) -> ExitCode {
    crate::fail(&format!(
        "nothing that runs is called {word}; `kennel ps` shows what does"
    ));
    ExitCode::from(NOTHING)
}

fn which_one(word: &str, Ambiguous(several): &Ambiguous<'_>) -> ExitCode {
    let line = |entry: &&Entry| format!("\n  {} ({}, in {})", entry.key, entry.name, entry.cwd);
    let lines: String = several.iter().map(line).collect();
    crate::fail(&format!(
        "{} keys begin with {word}: say more of the one you mean{lines}",
        several.len()
    ));
    ExitCode::from(USAGE)
}

fn age(since: u64) -> String {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    match now.saturating_sub(since) {
        seconds @ ..120 => format!("{seconds}s"),
        seconds @ ..7_200 => format!("{}m", seconds / 60),
        seconds @ ..172_800 => format!("{}h", seconds / 3_600),
        seconds => format!("{}d", seconds / 86_400),
    }
}
