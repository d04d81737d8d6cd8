//! A simple threaded program with a guard.
//!
//! `tk-guarded [store=PATH] [coexist] [legacy=PATH] [owner=PID] [owner-env=NAME] [parent=off] [linger=MS] [grace=MS]
//! [max-idle=MS]`. It prints `guarded`, obeys the lines of its stdin (`lease`, `traffic`, `end-lease`, `stop`, `child-env
//! NAME`), and prints `ended: REASON`.
#![expect(
    clippy::print_stdout,
    reason = "what happens to it is for the test that started it"
)]

use std::io::BufRead;
use std::process::{Command, ExitCode};
use std::time::Duration;

use kennel_guard::{Guard, GuardBuilder, Lease};

fn main() -> ExitCode {
    let mut builder = Guard::builder("tk-guarded");
    for argument in std::env::args().skip(1) {
        builder = obey(builder, &argument);
    }
    let guard = match builder.acquire() {
        Ok(guard) => guard,
        Err(refusal) => {
            println!("refused: {refusal}");
            return ExitCode::FAILURE;
        }
    };
    for notice in guard.notices() {
        println!("notice: {notice}");
    }
    println!("guarded");
    std::thread::scope(|threads| {
        // Not joined, because it may block in a read.
        std::thread::Builder::new()
            .spawn_scoped(threads, || {
                let reason = guard.wait();
                println!("ended: {reason}");
                std::process::exit(0);
            })
            .expect("a thread");
        let mut leases: Vec<Lease> = Vec::new();
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["lease"] => leases.push(guard.lease()),
                ["traffic"] => leases.iter().for_each(Lease::traffic),
                ["end-lease"] => drop(leases.pop()),
                ["stop"] => guard.stop(),
                ["child-env", name] => println!("child sees: {}", seen_by_child(name)),
                _ => panic!("tk-guarded does not know {line:?}"),
            }
            println!("done: {line}");
        }
        println!("eof");
    });
    ExitCode::SUCCESS
}

fn obey(builder: GuardBuilder, argument: &str) -> GuardBuilder {
    let millis = |text: &str| Duration::from_millis(text.parse().expect("milliseconds"));
    match argument.split_once('=').unwrap_or((argument, "")) {
        ("store", path) => builder.store(path),
        ("coexist", _) => builder.coexist(),
        ("legacy", path) => builder.legacy_lock(path),
        ("owner", pid) => builder.owner(pid),
        ("owner-env", name) => builder.owner_from_env(name),
        ("parent", "off") => builder.watch_parent(false),
        ("linger", time) => builder.linger(millis(time)),
        ("grace", time) => builder.grace(millis(time)),
        ("max-idle", time) => builder.max_idle(millis(time)),
        _ => panic!("tk-guarded does not know {argument:?}"),
    }
}

fn seen_by_child(name: &str) -> String {
    let output = Command::new("sh")
        .args(["-c", &format!("printf %s \"${{{name}-unset}}\"")])
        .output()
        .expect("sh starts");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
