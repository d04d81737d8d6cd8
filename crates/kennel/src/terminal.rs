//! Facts about the terminal for commands that print to it.

use std::io::{self, IsTerminal as _};
use std::process::ExitCode;

use kennel_sys::Signal;
use kennel_sys::signals::Signals;

use crate::exit_code::USAGE;
pub(crate) use kennel_sys::terminal::{Input, TerminalReader, TerminalWriter, is_gone};

/// Width of text in columns if the terminal's width is unknown.
const COLUMNS: usize = 80;

/// Maximum size of a terminal; a larger one is treated as having this size. A program can claim any size for its
/// window, and each cell of the screen uses memory.
const MAX_COLUMNS: u16 = 1000;
const MAX_ROWS: u16 = 500;

/// Columns and rows of the terminal at stdout, up to the maximum; 0 if it does not know them.
pub(crate) fn window() -> io::Result<(u16, u16)> {
    let (columns, rows) = kennel_sys::terminal::window_size()?;
    Ok((columns.min(MAX_COLUMNS), rows.min(MAX_ROWS)))
}

/// Maximum width of a table: that of the terminal.
pub(crate) fn columns() -> usize {
    size().map_or(COLUMNS, |(columns, _)| columns)
}

/// Columns and rows of the terminal at stdout, if it is one and knows them.
pub(crate) fn size() -> Option<(usize, usize)> {
    if !io::stdout().is_terminal() {
        return None;
    }
    let (columns, rows) = window().ok()?;
    let known = columns > 0 && rows > 0;
    known.then_some((columns.into(), rows.into()))
}

/// Whether programs may move the cursor: `TERM` is set and not `dumb`.
pub(crate) fn can_move_cursor() -> bool {
    std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb")
}

/// Whether the user wants colours (<https://no-color.org>) and the terminal can show them.
pub(crate) fn wants_colour() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && can_move_cursor()
}

/// Whether output on stdout may have colours.
pub(crate) fn stdout_has_colour() -> bool {
    io::stdout().is_terminal() && wants_colour()
}

/// Prepares `what`, which draws on the terminal until a signal ends it: catches these signals, a change of the window's
/// size, and `more`. The error is the exit code; the reason is reported.
pub(crate) fn set_up_terminal(what: &str, more: &[Signal]) -> Result<Signals, ExitCode> {
    if !can_move_cursor() {
        let words = "needs a terminal with cursor control, but TERM is dumb; use `kennel ps`";
        return Err(crate::fail_with(USAGE, &format!("{what} {words}")));
    }
    let ends = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];
    let all = [&ends[..], &[Signal::WINCH], more].concat();
    Signals::catch(&all).map_err(|error| crate::fail(&format!("cannot catch signals: {error}")))
}
