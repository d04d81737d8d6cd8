//! The program `kennel`. All of it is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    kennel::main()
}
