//! `kennel` keeps local tool servers alive exactly as long as somebody needs them.

// Everything but the last, and words for people, needs what only a served platform has.
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod cli;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod complaint;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod confined;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod daemon;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod demo;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod doctor;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod duration;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod election;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod former_key;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod guard;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod interpreter;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod judged_dir;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod kept;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod key;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod known_variables;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod listing;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod logs;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod meeting;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod names;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod output;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod printed;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod ps;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod purge;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod random_word;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod reference;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod refused;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod run;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod say;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod sharing;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod shim;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod size;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod sources;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod start_error;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod stop;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod stopped;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod terminal;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod this_build;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod timers;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod top;
#[cfg(any(not(target_os = "linux"), kennel_unserved))]
mod unserved;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod values;
#[cfg(all(target_os = "linux", not(kennel_unserved)))]
mod wrap;

use std::process::ExitCode;

#[cfg(any(not(target_os = "linux"), kennel_unserved))]
use kennel_sys::escape;

#[cfg(all(target_os = "linux", not(kennel_unserved)))]
fn main() -> ExitCode {
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

#[cfg(any(not(target_os = "linux"), kennel_unserved))]
fn main() -> ExitCode {
    unserved::main()
}

/// Tells the person that it did not work. stdout belongs to MCP.
pub(crate) fn fail(message: &str) -> ExitCode {
    say(&format!("kennel: {message}"));
    ExitCode::FAILURE
}

#[cfg(all(target_os = "linux", not(kennel_unserved)))]
/// Tells the person something that does not keep it from working.
pub(crate) fn warn(message: &str) {
    say(&format!("kennel: warning: {message}"));
}

#[cfg(all(target_os = "linux", not(kennel_unserved)))]
use complaint::say;

#[cfg(any(not(target_os = "linux"), kennel_unserved))]
#[expect(
    clippy::print_stderr,
    reason = "the one place for Kennel's own words on this platform"
)]
fn say(text: &str) {
    eprintln!("{}", escape::printable_lines(text));
}
