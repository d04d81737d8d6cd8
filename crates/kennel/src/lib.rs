//! `kennel` keeps local tool servers alive exactly as long as somebody needs them.

#![cfg_attr(
    all(target_os = "linux", kennel_unserved),
    expect(
        dead_code,
        unused_imports,
        reason = "checked against a platform that is not served, and not run on it"
    )
)]

#[cfg(target_os = "linux")]
mod cli;
#[cfg(target_os = "linux")]
mod complaint;
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
mod former_key;
#[cfg(target_os = "linux")]
mod guard;
#[cfg(target_os = "linux")]
mod interpreter;
#[cfg(target_os = "linux")]
mod judged_dir;
#[cfg(target_os = "linux")]
mod kept;
#[cfg(target_os = "linux")]
mod key;
#[cfg(target_os = "linux")]
mod known_variables;
#[cfg(target_os = "linux")]
mod listing;
#[cfg(target_os = "linux")]
mod logs;
#[cfg(target_os = "linux")]
mod meeting;
#[cfg(target_os = "linux")]
mod names;
#[cfg(target_os = "linux")]
mod output;
#[cfg(target_os = "linux")]
mod printed;
#[cfg(target_os = "linux")]
mod ps;
#[cfg(target_os = "linux")]
mod purge;
#[cfg(target_os = "linux")]
mod random_word;
#[cfg(target_os = "linux")]
mod reference;
#[cfg(target_os = "linux")]
mod refused;
#[cfg(target_os = "linux")]
mod run;
#[cfg(target_os = "linux")]
mod say;
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

/// What the program does with its arguments.
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
pub fn main() -> ExitCode {
    complaint::say_panics();
    // Before anything else is looked at: a warden is started often, and is to be small and quick. All of these are
    // started by Kennel itself, so that `ps` tells them apart; none is for people.
    let mut arguments = std::env::args_os().skip(1);
    let word = arguments.next();
    if word.as_deref().is_none_or(|word| word != "daemon") {
        // A starter that blocks signals passes that on, and nobody could end us. A daemon that becomes a newer build
        // holds them back on purpose until it can catch them.
        kennel_sys::signals::unblock_all();
    }
    match word.as_deref().and_then(|word| word.to_str()) {
        Some("warden") => return kennel_sys::tree::warden_main(arguments).into(),
        Some("daemon") => return daemon::main(arguments),
        Some("guardian") => return guard::guardian(arguments),
        Some("demo") => {
            let part = arguments.next();
            if let Some(part) = part.as_deref().and_then(demo::Part::called) {
                return demo::play(part);
            }
        }
        _ => {}
    }
    // While whoever started us is still there (lesson 19).
    let origin = kennel_sys::starter::capture();
    cli::run(origin)
}

/// What the program does with its arguments.
#[cfg(any(not(target_os = "linux"), kennel_unserved))]
pub fn main() -> ExitCode {
    unserved::main()
}

/// Tells the person that it did not work. stdout belongs to MCP.
pub(crate) fn fail(message: &str) -> ExitCode {
    say(&format!("kennel: {message}"));
    ExitCode::FAILURE
}

#[cfg(target_os = "linux")]
/// Tells the person something that does not keep it from working.
pub(crate) fn warn(message: &str) {
    say(&format!("kennel: warning: {message}"));
}

#[cfg(target_os = "linux")]
use complaint::say;

#[cfg(not(target_os = "linux"))]
#[expect(
    clippy::print_stderr,
    reason = "the one place for Kennel's own words on this platform"
)]
fn say(text: &str) {
    eprintln!("{}", escape::printable_lines(text));
}
