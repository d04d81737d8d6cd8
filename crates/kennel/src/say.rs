//! What a command answers, on stdout. `println!` panics where nothing can be written (a full disk); here its person is
//! told. Whatever is said is escaped: much of it comes from outside.

use std::fmt;
use std::io::{self, Write as _};
use std::path::Path;

use kennel_sys::escape;
use serde::Serialize;

/// A line on stdout.
macro_rules! say {
    () => { $crate::say::line(format_args!("")) };
    ($($words:tt)*) => { $crate::say::line(format_args!($($words)*)) };
}
pub(crate) use say;

pub(crate) fn line(words: fmt::Arguments<'_>) {
    styled(&escape::printable_lines(&words.to_string()));
}

/// A line that may have colours; whoever made it has escaped what it got from outside.
pub(crate) fn styled(line: &str) {
    written(writeln!(io::stdout(), "{line}"));
}

/// A value, for programs.
pub(crate) fn json(value: &impl Serialize) {
    let text = serde_json::to_string(value).expect("plain values");
    styled(&escape::json(&text));
}

/// A path as JSON can have it: what is not UTF-8 in it is replaced.
pub(crate) fn path_in_json<S: serde::Serializer>(
    path: &Path,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

/// Words that end no line, or end it themselves.
pub(crate) fn part(words: &str) {
    let mut stdout = io::stdout();
    written(
        stdout
            .write_all(escape::printable_lines(words).as_bytes())
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
