//! The program `kennel`; the library contains all of it.

use std::process::ExitCode;

fn main() -> ExitCode {
    kennel::main()
}
