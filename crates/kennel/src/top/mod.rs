//! `kennel top`: what runs, full-screen. Nothing here is touched by any other command.
//!
//! | file | what |
//! |---|---|
//! | `model` | what is known and chosen, and what a key does to it; pure |
//! | `history` | memory and requests over time; pure |
//! | `view` | how that is drawn |
//! | `screen` | the terminal, which is given back however it ends |

mod history;
mod model;
mod screen;
#[cfg(test)]
mod tests;
mod view;

use std::io;
use std::os::fd::AsFd as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crossterm::event::{self, Event};
use kennel_sys::Signal;
use kennel_sys::events;
use kennel_sys::signals::Signals;

use crate::logs::{self, NoLog};
use crate::{listing, ps, terminal};
use model::{Action, Model};
use screen::Screen;

/// Exit code for a question that cannot be answered as it was put.
const USAGE: u8 = 2;
/// How often it looks: nothing tells when a server's memory changes (rule 10).
const LOOK_EVERY: Duration = Duration::from_secs(1);
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
    let mut model = Model::new(args.filter.unwrap_or_default(), terminal::likes_colour());
    let ended = Screen::enter().and_then(|mut screen| go_on(&mut model, &mut screen, &signals));
    match ended {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(signal)) => ExitCode::from(128u8.wrapping_add(signal.as_raw() as u8)),
        Err(error) => crate::fail(&format!("cannot show it: {error}")),
    }
}

/// Until somebody wants it to end; the signal, if it was one.
fn go_on(model: &mut Model, screen: &mut Screen, signals: &Signals) -> io::Result<Option<Signal>> {
    let stdin = io::stdin();
    let mut next_look = Instant::now();
    loop {
        if Instant::now() >= next_look {
            look(model)?;
            next_look = Instant::now() + LOOK_EVERY;
        }
        screen.draw(model)?;
        let left = next_look.saturating_duration_since(Instant::now());
        events::sleep(&[signals.as_fd(), stdin.as_fd()], &[], Some(left))?;
        while let Some(signal) = signals.next() {
            if signal != Signal::WINCH {
                return Ok(Some(signal));
            }
            screen.forget();
        }
        while event::poll(Duration::ZERO)? {
            let Event::Key(key) = event::read()? else {
                continue;
            };
            match model.key(key) {
                Action::None => {}
                Action::Quit => return Ok(None),
                Action::Look => tell_log(model),
                Action::Stop => stop(model),
            }
        }
    }
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
        // It begins a new file at this very moment: what was said before was said.
        Ok(Err(_)) => {}
        Err(NoLog::Because(why)) => model.heard(Vec::new(), Some(why)),
        Err(NoLog::Unknown | NoLog::Failed(_)) => model.heard(Vec::new(), Some("has no log")),
    }
}

/// Asks the chosen one to end, by its identity. That it has is seen at the next look.
fn stop(model: &mut Model) {
    let Some(entry) = model.chosen() else {
        return;
    };
    let asked = entry.process().map(|process| process.signal(Signal::TERM));
    // Escaped where it is drawn.
    let words = match asked {
        Some(Ok(true)) => format!("{} was asked to stop", entry.name),
        None | Some(Ok(false)) => format!("{} is gone already", entry.name),
        Some(Err(error)) => format!("cannot stop {}: {error}", entry.name),
    };
    model.says(words);
}
