//! The program on a platform that is not served yet. `run` becomes the server and says so once; all other commands
//! fail.

use std::process::{Command, ExitCode};

pub(crate) fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    let is_run = words.next().is_some_and(|word| word == "run");
    let mut server = words.skip_while(|word| word != "--").skip(1);
    match (is_run, server.next()) {
        (true, Some(program)) => {
            crate::fail("this platform is not served yet: the server runs without kennel");
            let error = kennel_sys::program::become_program(Command::new(&program).args(server));
            crate::fail(&format!("{}: {error}", program.display()));
            let not_found = error.kind() == std::io::ErrorKind::NotFound;
            ExitCode::from(if not_found { 127 } else { 126 })
        }
        _ => crate::fail(
            "this platform is not served yet; only `kennel run -- COMMAND` works, without kennel",
        ),
    }
}
