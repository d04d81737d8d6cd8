//! What a command answers, on stdout. `println!` panics where nothing can be written (a full disk); here its person is
//! told.

use std::fmt;
use std::io::{self, Write as _};

/// A line on stdout.
macro_rules! say {
    () => { $crate::say::line(format_args!("")) };
    ($($words:tt)*) => { $crate::say::line(format_args!($($words)*)) };
}
pub(crate) use say;

pub(crate) fn line(words: fmt::Arguments<'_>) {
    written(writeln!(io::stdout(), "{words}"));
}

/// Words that end no line, or end it themselves.
pub(crate) fn part(words: &str) {
    let mut stdout = io::stdout();
    written(
        stdout
            .write_all(words.as_bytes())
            .and_then(|()| stdout.flush()),
    );
}

/// An answer that nobody gets is a failure, whatever was done.
fn written(written: io::Result<()>) {
    if let Err(error) = written {
        crate::fail(&format!("cannot write to stdout: {error}"));
        std::process::exit(1);
    }
}
