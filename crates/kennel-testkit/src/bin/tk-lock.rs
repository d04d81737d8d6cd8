//! `tk-lock hold DIR NAME [--shared] [--record NAME]`, `tk-lock old PATH`, `tk-lock legacy PATH`: holds a lock, prints
//! `held`, and releases it at the end of stdin. If it is refused, the exit code is 1 and the reason is on stderr. `tk-lock
//! contend DIR NAME ROUNDS [--remove]` takes and releases it repeatedly, `tk-lock bequeath DIR NAME` dies and leaves it to
//! a child, `tk-lock probe PATH` checks it.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the answer is for the test that asked"
)]

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use kennel_sys::lock::{Lock, LockError, Mode, Record, legacy, probe_path};
use kennel_sys::runtime_dir::{Access, RuntimeDir};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["hold", dir, name, ref options @ ..] => hold(dir, name, options),
        ["old", path] => old_server(Path::new(path)),
        ["legacy", path] => until_released(legacy::hold(path)),
        ["contend", dir, name, rounds, ref options @ ..] => {
            let rounds = rounds.parse().expect("a number of rounds");
            contend(dir, name, rounds, options.contains(&"--remove"))
        }
        ["bequeath", dir, name] => bequeath(dir, name),
        ["probe", path] => {
            let path = Path::new(path);
            println!("{}", probe_path(path).holder_text(path).unwrap_or_default());
            ExitCode::SUCCESS
        }
        _ => panic!("usage: tk-lock hold|old|legacy|contend|bequeath|probe …"),
    }
}

fn hold(dir: &str, name: &str, options: &[&str]) -> ExitCode {
    let dir = RuntimeDir::ensure(dir).expect("a directory of ours");
    let mode = if options.contains(&"--shared") {
        Mode::Shared
    } else {
        Mode::Exclusive
    };
    let lock = Lock::acquire(&dir, name, mode);
    if let (Ok(lock), ["--record", name]) = (&lock, options) {
        lock.write_record(&Record::of_this_process(name).expect("our own identity"))
            .expect("a record");
    }
    until_released(lock.map(Some))
}

/// An old server: locks its pid file exclusively, and follows none of Kennel's rules.
fn old_server(path: &Path) -> ExitCode {
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .expect("its pid file");
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => until_released(Ok(None)),
        Err(errno) => {
            eprintln!("another instance is running ({errno})");
            ExitCode::FAILURE
        }
    }
}

fn until_released(lock: Result<Option<Lock>, LockError>) -> ExitCode {
    match lock {
        Ok(_lock) => {
            println!("held");
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Ends like a killed process: nothing is released, and a child has the lock.
fn bequeath(dir: &str, name: &str) -> ExitCode {
    let dir = RuntimeDir::ensure(dir).expect("a directory of ours");
    let lock = Lock::acquire(&dir, name, Mode::Exclusive).expect("a free lock");
    rustix::io::fcntl_setfd(lock.as_fd(), rustix::io::FdFlags::empty()).expect("our own file");
    let heir = Command::new("sleep")
        .arg("1000")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("an heir");
    println!("{}", heir.id());
    std::process::exit(0);
}

/// Takes the lock `rounds` times, and each time checks that no other process has it. Prints how often.
fn contend(dir: &str, name: &str, rounds: u32, remove: bool) -> ExitCode {
    let dir = RuntimeDir::ensure(dir).expect("a directory of ours");
    let witness = format!("{name}.witness");
    let record = Record::of_this_process("contender").expect("our own identity");
    let (mut won, mut lost) = (0, 0);
    while won < rounds {
        let lock = match Lock::acquire(&dir, name, Mode::Exclusive) {
            Ok(lock) => lock,
            Err(LockError::Held { .. }) => {
                lost += 1;
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        won += 1;
        dir.open_file(&witness, Access::CreateNew)
            .expect("nobody else is inside");
        lock.write_record(&record).expect("a record");
        dir.unlink(&witness).expect("our own witness");
        if remove {
            lock.remove(&dir).expect("our own lock file");
        }
    }
    println!("won {won}, lost {lost}");
    ExitCode::SUCCESS
}
