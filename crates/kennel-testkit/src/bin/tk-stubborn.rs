//! A server that misbehaves: it ignores EOF and SIGTERM, goes by another name, and leaves detached
//! processes behind. Everyone signs the roll, so that a test can tell who is left.
//!
//! `tk-stubborn ROLL stay`: signs, ignores everything, stays.
//! `tk-stubborn ROLL family N`: N detached (forked twice, `setsid`) ones that stay, then stays itself.
//! `tk-stubborn ROLL bare N`: the same, and the detached ones have an empty environment.
//! `tk-stubborn ROLL runner N`: starts a family of N and exits at once, as launchers do.
//! `tk-stubborn ROLL swarm N`: N children, each in a session of its own, then stays.
//! `tk-stubborn ROLL polite`: signs, and exits at EOF.
//! `tk-stubborn ROLL levels N M`: a launcher with N launchers below it, each with M workers. Each ignores EOF and adds
//! itself to the file `ROLL.terminated` on SIGTERM; a launcher exits at once then, a worker takes a moment.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kennel_sys::Signal;
use kennel_sys::signals::Signals;
use kennel_testkit::sign_roll;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [roll, words @ ..] = &words[..] else {
        panic!("usage: tk-stubborn ROLL WHAT [N]");
    };
    let roll = Path::new(roll);
    match words {
        ["stay"] => stay(roll),
        ["session"] => {
            leave_the_session();
            stay(roll)
        }
        // Half of a double fork: its child outlives it, in a new session.
        ["detach"] => {
            leave_the_session();
            start(roll, &["stay"], true);
        }
        ["family", n] => {
            (0..number(n)).for_each(|_| detach(roll, true));
            stay(roll)
        }
        ["bare", n] => {
            (0..number(n)).for_each(|_| detach(roll, false));
            stay(roll)
        }
        ["runner", n] => start(roll, &["family", n], true),
        ["swarm", n] => {
            (0..number(n)).for_each(|_| start(roll, &["session"], true));
            stay(roll)
        }
        ["polite"] => {
            sign_roll(roll);
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
        }
        ["levels", launchers, workers] => {
            (0..number(launchers)).for_each(|_| start(roll, &["launcher", workers], true));
            end_on_term(roll, Duration::ZERO)
        }
        ["launcher", workers] => {
            (0..number(workers)).for_each(|_| start(roll, &["worker"], true));
            end_on_term(roll, Duration::ZERO)
        }
        ["worker"] => end_on_term(roll, Duration::from_millis(100)),
        _ => panic!("tk-stubborn does not know {words:?}"),
    }
}

fn detach(roll: &Path, keep_environment: bool) {
    let mut command = this_program(roll, &["detach"], keep_environment);
    let status = command.status().expect("the first of two forks starts");
    assert!(status.success(), "the first of two forks went well");
}

#[expect(
    clippy::zombie_processes,
    reason = "a server that does not look after its children is what this is"
)]
fn start(roll: &Path, words: &[&str], keep_environment: bool) {
    this_program(roll, words, keep_environment)
        .spawn()
        .expect("this program starts again");
}

fn this_program(roll: &Path, words: &[&str], keep_environment: bool) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(roll).args(words).stdout(Stdio::inherit());
    if !keep_environment {
        command.env_clear();
    }
    command
}

fn leave_the_session() {
    rustix::process::setsid().expect("a fresh child leads no group");
}

fn stay(roll: &Path) {
    rustix::thread::set_name(c"innocent").expect("a short name");
    let _deaf = Signals::catch(&[Signal::TERM, Signal::INT, Signal::HUP]);
    sign_roll(roll);
    kennel_testkit::show_system_calls();
    loop {
        let _ = kennel_sys::events::sleep(&[], &[], None);
    }
}

/// Stays until SIGTERM, records it, waits and exits.
fn end_on_term(roll: &Path, time: Duration) {
    let signals = Signals::catch(&[Signal::TERM]).expect("signals can be caught");
    sign_roll(roll);
    let mut terminated = roll.as_os_str().to_owned();
    terminated.push(".terminated");
    let mut until = None;
    loop {
        let left = until.map(|until: Instant| until.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return;
        }
        kennel_sys::events::sleep(&[&signals], &[], left).expect("a sleep");
        while signals.next().is_some() {
            sign_roll(Path::new(&terminated));
            until.get_or_insert_with(|| Instant::now() + time);
        }
    }
}

fn number(text: &str) -> u32 {
    text.parse().expect("a number")
}
