//! Kennel runs local MCP servers exactly as long as they are needed. This library is the program; `main.rs` calls
//! [`main`].

#![cfg_attr(
    all(target_os = "linux", kennel_unserved),
    expect(
        dead_code,
        unused_imports,
        reason = "checked against a platform that is not served, and not run on it"
    )
)]

#[cfg(target_os = "linux")]
mod checked_dir;
#[cfg(target_os = "linux")]
mod cli;
#[cfg(target_os = "linux")]
mod confined;
#[cfg(target_os = "linux")]
mod daemon;
#[cfg(target_os = "linux")]
mod demo;
#[cfg(target_os = "linux")]
mod doctor;
#[cfg(target_os = "linux")]
mod duration;
#[cfg(target_os = "linux")]
mod election;
#[cfg(target_os = "linux")]
mod exit_code;
#[cfg(all(target_os = "linux", feature = "fuzzing"))]
#[doc(hidden)]
pub mod for_fuzzing;
#[cfg(target_os = "linux")]
mod former_key;
#[cfg(target_os = "linux")]
mod guard;
#[cfg(target_os = "linux")]
mod hex;
#[cfg(target_os = "linux")]
mod interpreter;
#[cfg(target_os = "linux")]
mod json_record;
#[cfg(target_os = "linux")]
mod kept;
#[cfg(target_os = "linux")]
mod key;
#[cfg(target_os = "linux")]
mod key_dir;
#[cfg(target_os = "linux")]
mod known_variables;
#[cfg(target_os = "linux")]
mod lines;
#[cfg(target_os = "linux")]
mod listing;
#[cfg(target_os = "linux")]
mod logs;
#[cfg(target_os = "linux")]
mod names;
#[cfg(target_os = "linux")]
mod printed;
#[cfg(target_os = "linux")]
mod ps;
#[cfg(target_os = "linux")]
mod purge;
#[cfg(target_os = "linux")]
mod reference;
#[cfg(target_os = "linux")]
mod refused;
#[cfg(target_os = "linux")]
mod run;
#[cfg(target_os = "linux")]
mod search_path;
#[cfg(target_os = "linux")]
mod server_process;
#[cfg(target_os = "linux")]
mod sharing;
#[cfg(target_os = "linux")]
mod shim;
#[cfg(target_os = "linux")]
mod size;
#[cfg(target_os = "linux")]
mod sources;
#[cfg(target_os = "linux")]
mod start_error;
#[cfg(target_os = "linux")]
mod stderr;
#[cfg(target_os = "linux")]
mod stdout;
#[cfg(target_os = "linux")]
mod stop;
#[cfg(target_os = "linux")]
mod stopped;
#[cfg(target_os = "linux")]
mod terminal;
#[cfg(target_os = "linux")]
mod this_build;
#[cfg(target_os = "linux")]
mod timers;
#[cfg(target_os = "linux")]
mod top;
#[cfg(any(not(target_os = "linux"), kennel_unserved))]
mod unserved;
#[cfg(target_os = "linux")]
mod values;
#[cfg(target_os = "linux")]
mod wrap;

use std::process::ExitCode;

#[cfg(not(target_os = "linux"))]
use kennel_sys::escape;

/// Runs the program with the arguments of this process. Returns its exit code.
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
pub fn main() -> ExitCode {
    stderr::report_panics();
    // Before anything else: a warden is started often and should be small and fast. Only Kennel starts these commands,
    // under separate names so that `ps` tells them apart.
    let mut arguments = std::env::args_os().skip(1);
    let word = arguments.next();
    if word.as_deref().is_none_or(|word| word != "daemon") {
        // A starter with blocked signals passes that on, and no signal could end this process. A daemon that becomes a
        // newer build keeps them blocked on purpose until it can catch them.
        kennel_sys::signals::unblock_all();
    }
    match word.as_deref().and_then(|word| word.to_str()) {
        Some("warden") => return kennel_sys::tree::warden_main(arguments).into(),
        Some("daemon") => return daemon::main(arguments),
        Some("guardian") => return guard::guardian(arguments),
        Some("demo") => {
            let part = arguments.next();
            if let Some(part) = part.as_deref().and_then(demo::Part::from_word) {
                return demo::run_part(part);
            }
        }
        _ => {}
    }
    // While the process that started this one still runs (lesson 19).
    let origin = kennel_sys::starter::capture();
    cli::run(origin)
}

/// Runs the program with the arguments of this process. Returns its exit code.
#[cfg(any(not(target_os = "linux"), kennel_unserved))]
pub fn main() -> ExitCode {
    unserved::main()
}

/// Reports an error on stderr, and returns the exit code for a failure. stdout is for MCP.
pub(crate) fn fail(message: &str) -> ExitCode {
    say(&format!("kennel: {message}"));
    ExitCode::FAILURE
}

/// Reports an error on stderr, and returns this exit code.
#[cfg(target_os = "linux")]
pub(crate) fn fail_with(code: u8, message: &str) -> ExitCode {
    fail(message);
    ExitCode::from(code)
}

#[cfg(target_os = "linux")]
/// Reports a problem on stderr that does not stop the command.
pub(crate) fn warn(message: &str) {
    say(&format!("kennel: warning: {message}"));
}

#[cfg(target_os = "linux")]
use stderr::print as say;

#[cfg(not(target_os = "linux"))]
#[expect(
    clippy::print_stderr,
    reason = "the one place for Kennel's own words on this platform"
)]
fn say(text: &str) {
    eprintln!("{}", escape::printable_lines(text));
}
