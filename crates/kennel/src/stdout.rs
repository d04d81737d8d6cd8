//! The output of a command on stdout. `println!` panics if stdout cannot be written (a full disk); here the command
//! fails with an error. All text is escaped: it may contain text from other programs.

use std::fmt;
use std::io::{self, Write as _};
use std::path::Path;

use kennel_sys::escape;
use serde::Serialize;

/// Prints a line on stdout.
macro_rules! print_line {
    () => { $crate::stdout::print(format_args!("")) };
    ($($arguments:tt)*) => { $crate::stdout::print(format_args!($($arguments)*)) };
}
pub(crate) use print_line;

/// Prints a line; see [`print_line`].
pub(crate) fn print(arguments: fmt::Arguments<'_>) {
    print_styled(&escape::printable_lines(&arguments.to_string()));
}

/// Prints a line that may have colours; the caller has escaped text from other programs.
pub(crate) fn print_styled(line: &str) {
    check_written(writeln!(io::stdout(), "{line}"));
}

/// Prints a value as JSON.
pub(crate) fn json(value: &impl Serialize) {
    let text = serde_json::to_string(value).expect("plain values");
    print_styled(&escape::json(&text));
}

/// Serializes a path for JSON: bytes that are not UTF-8 are replaced.
pub(crate) fn path_in_json<S: serde::Serializer>(
    path: &Path,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

/// Prints text without a newline at its end.
pub(crate) fn print_partial(text: &str) {
    let mut stdout = io::stdout();
    check_written(
        stdout
            .write_all(escape::printable_lines(text).as_bytes())
            .and_then(|()| stdout.flush()),
    );
}

/// Exits with an error if the output could not be written, even if the command did its work.
fn check_written(result: io::Result<()>) {
    if let Err(error) = result {
        crate::fail(&format!("cannot write to stdout: {error}"));
        std::process::exit(1);
    }
}
