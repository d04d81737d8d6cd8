//! `kennel top`: monitors running servers, full-screen. No other command uses this code.
//!
//! | file | contains |
//! |---|---|
//! | `model` | entries, selection, and the effect of each key; pure |
//! | `keys` | parses keys from the bytes of a terminal; pure |
//! | `history` | memory and requests over time; pure |
//! | `view` | draws the model |
//! | `backend` | the escape sequences for drawing |
//! | `screen` | the terminal, which is always restored |

mod backend;
mod history;
mod keys;
mod model;
mod screen;
#[cfg(test)]
mod tests;
mod view;

use std::io;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use kennel_sys::Signal;
use kennel_sys::events;
use kennel_sys::signals::Signals;

use crate::exit_code::{self, USAGE};
use crate::logs::{self, NoLog};
use crate::terminal::{Input, TerminalReader};
use crate::{listing, ps, terminal};
use keys::{Key, KeyParser};
use model::{Action, Model};
use screen::Screen;

/// How often it refreshes: no event reports that a server's memory changes (rule 10).
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time between the bytes of an escape sequence.
const SEQUENCE_WITHIN: Duration = Duration::from_millis(25);
/// Maximum number of lines of a log that are read.
const LINES: usize = 1000;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Show only rows with this text in their name, key, state or app
    filter: Option<String>,
}

pub(crate) fn top(args: Args) -> ExitCode {
    if terminal::size().is_none() || !io::IsTerminal::is_terminal(&io::stdin()) {
        let words = "top needs a terminal; `kennel ps` and `kennel ps --json` do not";
        return crate::fail_with(USAGE, words);
    }
    let signals = match terminal::set_up_terminal("top", &[Signal::TSTP]) {
        Ok(signals) => signals,
        Err(code) => return code,
    };
    let mut model = Model::new(args.filter.unwrap_or_default(), terminal::wants_colour());
    let ended = TerminalReader::stdin().and_then(|input| {
        let mut screen = Screen::enter()?;
        run(&mut model, &mut screen, &input, &signals)
    });
    match ended {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(signal)) => ExitCode::from(exit_code::of_signal(signal)),
        // The terminal is gone; an error would reach nobody.
        Err(error) if terminal::is_gone(&error) => {
            ExitCode::from(exit_code::of_signal(Signal::HUP))
        }
        Err(error) => crate::fail(&format!("cannot show it: {error}")),
    }
}

/// Runs until the user quits or a signal arrives; returns the signal. A terminal that is gone counts as SIGHUP.
fn run(
    model: &mut Model,
    screen: &mut Screen,
    input: &TerminalReader,
    signals: &Signals,
) -> io::Result<Option<Signal>> {
    let mut parser = KeyParser::default();
    let mut next_refresh = Instant::now();
    loop {
        if Instant::now() >= next_refresh {
            refresh(model)?;
            next_refresh = Instant::now() + REFRESH_INTERVAL;
        }
        match screen.draw(model) {
            // The terminal accepts nothing at the moment; draw everything once it does.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => screen.forget(),
            drawn => drawn?,
        }
        let mut left = next_refresh.saturating_duration_since(Instant::now());
        if parser.is_incomplete() {
            left = left.min(SEQUENCE_WITHIN);
        }
        events::sleep(&[signals, input], &[], Some(left))?;
        while let Some(signal) = signals.next() {
            match signal {
                Signal::WINCH => screen.forget(),
                Signal::TSTP => screen.suspend()?,
                _ => return Ok(Some(signal)),
            }
        }
        let Some(keys) = read_keys(&mut parser, input)? else {
            return Ok(Some(Signal::HUP));
        };
        for key in keys {
            match model.key(key) {
                Action::None => {}
                Action::Quit => return Ok(None),
                Action::ReadLog => read_selected_log(model),
                Action::Stop => stop(model),
            }
        }
    }
}

/// The keys that were typed since; `None` if the terminal is gone.
fn read_keys(parser: &mut KeyParser, input: &TerminalReader) -> io::Result<Option<Vec<Key>>> {
    let mut bytes = [0; 1024];
    Ok(match input.read(&mut bytes)? {
        Input::Bytes(read) => Some(parser.feed(&bytes[..read])),
        Input::Nothing => Some(parser.finish()),
        Input::Gone => None,
    })
}

fn refresh(model: &mut Model) -> io::Result<()> {
    let entries = listing::all().map_err(|error| io::Error::other(error.to_string()))?;
    model.update(entries, ps::now(), Instant::now());
    read_selected_log(model);
    Ok(())
}

/// Reads the last lines of the selected entry's log.
fn read_selected_log(model: &mut Model) {
    let Some(key) = model.selected().map(|entry| entry.key.clone()) else {
        return model.set_log(Vec::new(), None);
    };
    match logs::find(&key).map(|log| logs::last(&log, LINES)) {
        Ok(Ok(lines)) => model.set_log(lines, None),
        Ok(Err(_)) => model.set_log(Vec::new(), Some("has a log that cannot be read")),
        Err(NoLog::NotAvailable(why)) => model.set_log(Vec::new(), Some(why)),
        Err(NoLog::Unknown | NoLog::Ambiguous(_) | NoLog::Failed(_)) => {
            model.set_log(Vec::new(), Some("has no log"));
        }
    }
}

/// Asks the selected entry to stop, by process identity. The next refresh shows the result.
fn stop(model: &mut Model) {
    let Some(entry) = model.selected() else {
        return;
    };
    let process = match entry.mode {
        crate::listing::Mode::Kept => crate::kept::process_to_end(entry),
        _ => Ok(entry.process()),
    };
    let asked = process.and_then(|process| {
        let asked = process.map(|process| entry.ask_to_stop(&process));
        asked.unwrap_or(Ok(false))
    });
    // Escaped where it is drawn.
    let words = match asked {
        Ok(true) => format!("{} was asked to stop", entry.name),
        Ok(false) => format!("{} is gone already", entry.name),
        Err(error) => format!("cannot stop {}: {error}", entry.name),
    };
    model.set_message(words);
}
