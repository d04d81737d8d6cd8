//! What of a terminal matters to those who write for people.

use std::io::{self, IsTerminal as _};

pub(crate) use kennel_sys::terminal::{Input, TerminalReader, TerminalWriter, is_gone};

/// A text for people has these many columns where nobody can tell how many there are.
const COLUMNS: usize = 80;

/// A terminal that claims to be larger is treated as of this size: the window of a program may claim any, and a picture takes
/// memory for each of its cells.
const MOST_COLUMNS: u16 = 1000;
const MOST_ROWS: u16 = 500;

/// Columns and rows of the terminal that stdout is, as far as they are used; 0 if it does not know.
pub(crate) fn window() -> io::Result<(u16, u16)> {
    let (columns, rows) = kennel_sys::terminal::window_size()?;
    Ok((columns.min(MOST_COLUMNS), rows.min(MOST_ROWS)))
}

/// How wide a table may be: as wide as the terminal.
pub(crate) fn columns() -> usize {
    size().map_or(COLUMNS, |(columns, _)| columns)
}

/// Columns and rows of the terminal that stdout is, if it is one and knows.
pub(crate) fn size() -> Option<(usize, usize)> {
    if !io::stdout().is_terminal() {
        return None;
    }
    let (columns, rows) = window().ok()?;
    let known = columns > 0 && rows > 0;
    known.then_some((columns.into(), rows.into()))
}

/// Whether a program may move the cursor on it: `TERM` says what it is, and that it is not dumb.
pub(crate) fn has_cursor() -> bool {
    std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb")
}

/// Whether colour is welcome (<https://no-color.org>) where it can be shown.
pub(crate) fn likes_colour() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && has_cursor()
}

/// Whether what goes to stdout may have colour.
pub(crate) fn stdout_has_colour() -> bool {
    io::stdout().is_terminal() && likes_colour()
}
