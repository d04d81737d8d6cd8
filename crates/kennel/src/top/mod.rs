//! `kennel top`: what runs, full-screen. Nothing here is touched by any other command.
//!
//! | file | what |
//! |---|---|
//! | `model` | what is known and chosen, and what a key does to it; pure |
//! | `keys` | which keys the bytes of a terminal are; pure |
//! | `history` | memory and requests over time; pure |
//! | `view` | how that is drawn |
//! | `backend` | the escape sequences it is drawn with |
//! | `screen` | the terminal, which is given back however it ends |

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

use crate::logs::{self, NoLog};
use crate::terminal::{Input, TerminalReader};
use crate::{listing, ps, terminal};
use keys::{Key, KeyParser};
use model::{Action, Model};
use screen::Screen;

/// Exit code for a question that cannot be answered as it was put.
const USAGE: u8 = 2;
/// How often it looks: nothing tells when a server's memory changes (rule 10).
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The rest of an escape sequence comes within this time, or never.
const SEQUENCE_WITHIN: Duration = Duration::from_millis(25);
/// So much of a log is read at most.
const LINES: usize = 1000;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Begin with what has this in its name, key or app
    filter: Option<String>,
}

pub(crate) fn top(args: Args) -> ExitCode {
    if terminal::size().is_none() || !io::IsTerminal::is_terminal(&io::stdin()) {
        crate::fail("top needs a terminal; `kennel ps` and `kennel ps --json` do not");
        return ExitCode::from(USAGE);
    }
    if !terminal::has_cursor() {
        crate::fail(
            "top needs a terminal with a cursor that moves, and TERM is dumb; use `kennel ps`",
        );
        return ExitCode::from(USAGE);
    }
    let all = [
        Signal::INT,
        Signal::TERM,
        Signal::HUP,
        Signal::QUIT,
        Signal::WINCH,
        Signal::TSTP,
    ];
    let signals = match Signals::catch(&all) {
        Ok(signals) => signals,
        Err(error) => return crate::fail(&format!("cannot catch signals: {error}")),
    };
    let mut model = Model::new(args.filter.unwrap_or_default(), terminal::likes_colour());
    let ended = TerminalReader::stdin().and_then(|input| {
        let mut screen = Screen::enter()?;
        go_on(&mut model, &mut screen, &input, &signals)
    });
    match ended {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(signal)) => ExitCode::from(128u8.wrapping_add(signal.as_raw() as u8)),
        // Nobody is there to read why.
        Err(error) if terminal::is_gone(&error) => ExitCode::from(128 + Signal::HUP.as_raw() as u8),
        Err(error) => crate::fail(&format!("cannot show it: {error}")),
    }
}

/// Until somebody wants it to end; the signal, if it was one. A terminal that is gone is as good as SIGHUP.
fn go_on(
    model: &mut Model,
    screen: &mut Screen,
    input: &TerminalReader,
    signals: &Signals,
) -> io::Result<Option<Signal>> {
    let mut parser = KeyParser::default();
    let mut next_look = Instant::now();
    loop {
        if Instant::now() >= next_look {
            look(model)?;
            next_look = Instant::now() + LOOK_EVERY;
        }
        match screen.draw(model) {
            // It takes nothing at the moment, and is drawn anew when it does.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => screen.forget(),
            drawn => drawn?,
        }
        let mut left = next_look.saturating_duration_since(Instant::now());
        if parser.is_incomplete() {
            left = left.min(SEQUENCE_WITHIN);
        }
        events::wait(&[signals, input], &[], Some(left))?;
        while let Some(signal) = signals.next() {
            match signal {
                Signal::WINCH => screen.forget(),
                Signal::TSTP => screen.suspend()?,
                _ => return Ok(Some(signal)),
            }
        }
        let Some(keys) = typed(&mut parser, input)? else {
            return Ok(Some(Signal::HUP));
        };
        for key in keys {
            match model.key(key) {
                Action::None => {}
                Action::Quit => return Ok(None),
                Action::Look => tell_log(model),
                Action::Stop => stop(model),
            }
        }
    }
}

/// The keys that were typed since; `None` if the terminal is gone.
fn typed(parser: &mut KeyParser, input: &TerminalReader) -> io::Result<Option<Vec<Key>>> {
    let mut bytes = [0; 1024];
    Ok(match input.read(&mut bytes)? {
        Input::Bytes(read) => Some(parser.feed(&bytes[..read])),
        Input::Nothing => Some(parser.finish()),
        Input::Gone => None,
    })
}

fn look(model: &mut Model) -> io::Result<()> {
    let entries = listing::all().map_err(|error| io::Error::other(error.to_string()))?;
    model.saw(entries, ps::now(), Instant::now());
    tell_log(model);
    Ok(())
}

/// What the chosen one said last.
fn tell_log(model: &mut Model) {
    let Some(key) = model.chosen().map(|entry| entry.key.clone()) else {
        return model.heard(Vec::new(), None);
    };
    match logs::find(&key).map(|log| logs::last(&log, LINES)) {
        Ok(Ok(lines)) => model.heard(lines, None),
        Ok(Err(_)) => model.heard(Vec::new(), Some("has a log that cannot be read")),
        Err(NoLog::Because(why)) => model.heard(Vec::new(), Some(why)),
        Err(NoLog::Unknown | NoLog::Ambiguous(_) | NoLog::Failed(_)) => {
            model.heard(Vec::new(), Some("has no log"));
        }
    }
}

/// Asks the chosen one to end, by its identity. That it has is seen at the next look.
fn stop(model: &mut Model) {
    let Some(entry) = model.chosen() else {
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
    model.says(words);
}
