//! `kennel ps`: lists what runs.
//!
//! | file | contains |
//! |---|---|
//! | `words` | the texts of an entry |
//! | `table` | the table |

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

use crate::exit_code::USAGE;
use crate::stdout;
use crate::terminal::TerminalWriter;
use crate::{listing, terminal};
use table::TableStyle;

/// How often `--watch` refreshes: no event reports that a server's memory changes (rule 10).
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long, conflicts_with_all = ["wide", "watch"])]
    json: bool,

    /// Show more: key, version, command, pids, classes, and why a session has a dedicated server
    #[arg(short, long)]
    wide: bool,

    /// Refresh every second until Ctrl-C; needs a terminal
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
    crate::refused::warn_all();
    if args.json {
        entries.iter_mut().for_each(|entry| entry.identity = None);
        stdout::json(&entries);
        return ExitCode::SUCCESS;
    }
    for line in table::lines(&entries, style(args)) {
        stdout::print_styled(&line);
    }
    ExitCode::SUCCESS
}

fn style(args: &Args) -> TableStyle {
    TableStyle {
        columns: terminal::columns(),
        wide: args.wide,
        colour: terminal::stdout_has_colour(),
        now: now(),
    }
}

fn watch(args: &Args) -> ExitCode {
    if terminal::size().is_none() {
        let words = "--watch needs a terminal; `kennel ps --json` does not";
        return crate::fail_with(USAGE, words);
    }
    let signals = match terminal::set_up_terminal("--watch", &[]) {
        Ok(signals) => signals,
        Err(code) => return code,
    };
    let mut screen = match TerminalWriter::stdout() {
        Ok(screen) => screen,
        Err(error) => return crate::fail(&format!("cannot write to the terminal: {error}")),
    };
    let watched = refresh_until_stopped(args, &signals, &mut screen);
    // Shows the cursor again, and starts a new line for the shell's prompt.
    let _ = screen.write_all(b"\x1b[?25h\n");
    match watched {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => crate::fail(&error),
    }
}

fn refresh_until_stopped(
    args: &Args,
    signals: &Signals,
    terminal: &mut TerminalWriter,
) -> Result<(), String> {
    let mut shown = String::new();
    let mut cleared = false;
    loop {
        let entries = listing::all().map_err(|error| error.to_string())?;
        // A terminal without a size no longer exists.
        let Some((_, rows)) = terminal::size() else {
            return Ok(());
        };
        let lines = table::lines(&entries, style(args));
        let fitting = &lines[..lines.len().min(rows.saturating_sub(1))];
        // Overwrites each line and then clears the rest of it, so that nothing flickers.
        let screen = fitting.join("\x1b[K\r\n") + "\x1b[K\x1b[J";
        let begin = if cleared {
            "\x1b[H"
        } else {
            "\x1b[?25l\x1b[2J\x1b[H"
        };
        if screen != shown || !cleared {
            match terminal.write_all(format!("{begin}{screen}").as_bytes()) {
                Ok(()) => (shown, cleared) = (screen, true),
                // The terminal accepts nothing at the moment; draw everything once it does.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => cleared = false,
                // The terminal is gone; an error would reach nobody.
                Err(error) if terminal::is_gone(&error) => return Ok(()),
                Err(error) => return Err(format!("cannot show it: {error}")),
            }
        }
        let is_read = events::wait_while_open(&io::stdout(), &[signals], Some(REFRESH_INTERVAL))
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

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}
