//! `kennel ps`: what runs.
//!
//! | file | what |
//! |---|---|
//! | `words` | an entry in a few words |
//! | `table` | the table of them |

mod table;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod words;

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kennel_sys::Signal;
use kennel_sys::events;
use kennel_sys::signals::Signals;

use crate::say;
use crate::terminal::TerminalWriter;
use crate::{listing, terminal};
use table::Look;

/// Exit code for a question that cannot be answered as it was put.
const USAGE: u8 = 2;
/// How often `--watch` looks: nothing tells when a server's memory changes (rule 10).
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// For programs rather than people
    #[arg(long, conflicts_with_all = ["wide", "watch"])]
    json: bool,

    /// More lines: key, version, command, pids, classes, and why a session is on its own
    #[arg(short, long)]
    wide: bool,

    /// Go on showing it until Ctrl-C; only on a terminal
    #[arg(long)]
    watch: bool,
}

pub(crate) fn ps(args: &Args) -> ExitCode {
    if args.watch {
        return watch(args);
    }
    let mut entries = match listing::all() {
        Ok(entries) => entries,
        Err(error) => return crate::fail(&error.to_string()),
    };
    crate::refused::tell();
    if args.json {
        entries.iter_mut().for_each(|entry| entry.identity = None);
        say::json(&entries);
        return ExitCode::SUCCESS;
    }
    for line in table::lines(&entries, look(args)) {
        say::styled(&line);
    }
    ExitCode::SUCCESS
}

fn look(args: &Args) -> Look {
    Look {
        columns: terminal::columns(),
        wide: args.wide,
        colour: terminal::stdout_has_colour(),
        now: now(),
    }
}

fn watch(args: &Args) -> ExitCode {
    if terminal::size().is_none() {
        crate::fail("--watch needs a terminal; for programs there is `kennel ps --json`");
        return ExitCode::from(USAGE);
    }
    if !terminal::has_cursor() {
        crate::fail(
            "--watch needs a terminal with a cursor that moves, and TERM is dumb; use `kennel ps`",
        );
        return ExitCode::from(USAGE);
    }
    let all = [
        Signal::INT,
        Signal::TERM,
        Signal::HUP,
        Signal::QUIT,
        Signal::WINCH,
    ];
    let signals = match Signals::catch(&all) {
        Ok(signals) => signals,
        Err(error) => return crate::fail(&format!("cannot catch signals: {error}")),
    };
    let mut screen = match TerminalWriter::stdout() {
        Ok(screen) => screen,
        Err(error) => return crate::fail(&format!("cannot write to the terminal: {error}")),
    };
    let watched = keep_showing(args, &signals, &mut screen);
    // Where it was hidden; and whatever comes next begins on a line of its own.
    let _ = screen.write_all(b"\x1b[?25h\n");
    match watched {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => crate::fail(&error),
    }
}

fn keep_showing(
    args: &Args,
    signals: &Signals,
    terminal: &mut TerminalWriter,
) -> Result<(), String> {
    let mut shown = String::new();
    let mut cleared = false;
    loop {
        let entries = listing::all().map_err(|error| error.to_string())?;
        // A terminal that has no size any more is gone.
        let Some((_, rows)) = terminal::size() else {
            return Ok(());
        };
        let lines = table::lines(&entries, look(args));
        let fitting = &lines[..lines.len().min(rows.saturating_sub(1))];
        // Each line is overwritten, and only then what is left of it removed: nothing flickers.
        let screen = fitting.join("\x1b[K\r\n") + "\x1b[K\x1b[J";
        let begin = if cleared {
            "\x1b[H"
        } else {
            "\x1b[?25l\x1b[2J\x1b[H"
        };
        if screen != shown || !cleared {
            match terminal.write_all(format!("{begin}{screen}").as_bytes()) {
                Ok(()) => (shown, cleared) = (screen, true),
                // It takes nothing at the moment, and is shown all of it when it does.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => cleared = false,
                // It is gone, and nobody is there to read why.
                Err(error) if terminal::is_gone(&error) => return Ok(()),
                Err(error) => return Err(format!("cannot show it: {error}")),
            }
        }
        let is_read = events::wait_while_read(&io::stdout(), &[signals], Some(LOOK_EVERY))
            .map_err(|error| format!("cannot wait: {error}"))?;
        if !is_read {
            return Ok(());
        }
        while let Some(signal) = signals.next() {
            match signal {
                Signal::WINCH => cleared = false,
                _ => return Ok(()),
            }
        }
    }
}

/// In seconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}
