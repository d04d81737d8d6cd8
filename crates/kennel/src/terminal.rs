//! What of a terminal matters to those who write for people.

use std::io::{self, IsTerminal as _};

/// A text for people has these many columns where nobody can tell how many there are.
const COLUMNS: usize = 80;

/// How wide a table may be: as wide as the terminal.
pub(crate) fn columns() -> usize {
    size().map_or(COLUMNS, |(columns, _)| columns)
}

/// Columns and rows of the terminal that stdout is, if it is one and knows.
pub(crate) fn size() -> Option<(usize, usize)> {
    let stdout = io::stdout();
    if !stdout.is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(stdout).ok()?;
    let known = size.ws_col > 0 && size.ws_row > 0;
    known.then_some((size.ws_col.into(), size.ws_row.into()))
}

/// Whether colour is welcome (<https://no-color.org>) where it can be shown.
pub(crate) fn likes_colour() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    !refused && !dumb
}

/// Whether what goes to stdout may have colour.
pub(crate) fn stdout_has_colour() -> bool {
    io::stdout().is_terminal() && likes_colour()
}
