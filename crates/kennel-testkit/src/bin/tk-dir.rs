//! `tk-dir [--umask OCTAL] [--wait] of-user|find|ensure PATH|fill PATH|xdg APP`: opens a runtime directory in a real
//! process. Prints its path; or, with exit code 1, the fix, and the error on stderr.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the answer is for the test that asked"
)]

use std::io::Read;
use std::process::ExitCode;

use kennel_sys::lock::{Lock, Mode, Record};
use kennel_sys::runtime_dir::{DirError, RuntimeDir};

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let mut word = words.next();
    if word.as_deref() == Some("--umask") {
        let bits = words.next().expect("an umask");
        let bits = u32::from_str_radix(&bits, 8).expect("an octal umask");
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(bits));
        word = words.next();
    }
    if word.as_deref() == Some("--wait") {
        // The test releases several of these processes at the same moment.
        println!("waiting");
        let _ = std::io::stdin().read(&mut [0]);
        word = words.next();
    }
    let found = match (word.as_deref(), words.next().as_deref()) {
        (Some("of-user"), None) => RuntimeDir::of_user().map(Some),
        (Some("find"), None) => RuntimeDir::find_of_user(),
        (Some("ensure"), Some(path)) => RuntimeDir::ensure(path).map(Some),
        (Some("fill"), Some(path)) => fill(path).map(Some),
        (Some("xdg"), Some(app)) => RuntimeDir::xdg(app).map(Some),
        _ => panic!(
            "usage: tk-dir [--umask OCTAL] [--wait] of-user|find|ensure PATH|fill PATH|xdg APP"
        ),
    };
    match found {
        Ok(Some(dir)) => println!("{}", dir.path().display()),
        Ok(None) => println!("nothing there"),
        Err(error) => {
            eprintln!("{error}");
            println!("{}", error.fix().unwrap_or_default());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Creates one file of each kind in a runtime directory.
fn fill(path: &str) -> Result<RuntimeDir, DirError> {
    let dir = RuntimeDir::ensure(path)?;
    let sub = dir.subdir("sub")?;
    sub.write_whole("file", b"content")?;
    let lock = Lock::acquire(&sub, "lock", Mode::Exclusive).expect("a lock of our own");
    lock.write_record(&Record::of_this_process("filler").expect("our own identity"))
        .expect("a record");
    Ok(dir)
}
