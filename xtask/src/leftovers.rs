//! After the tests: checks that no process that they started is left.
//!
//! Every process of a run inherits a mark in its environment. A process that removed its environment cannot be found; tests
//! that start such processes check them themselves.

use std::time::{Duration, Instant};

use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;

/// The variable that marks processes of a run. Not a `KENNEL_…` one, because those are removed on the way.
pub(crate) const MARK: &str = "TESTKIT_RUN";

/// Time for a process that was already signalled to exit on a busy machine.
const EXIT_TIME: Duration = Duration::from_secs(2);

/// A process that outlived the tests.
#[derive(Debug)]
pub(crate) struct Leftover {
    process: ProcessRef,
    command_line: String,
}

/// Finds, lists and ends the processes with this mark that outlived the tests; returns whether there were none.
pub(crate) fn none_left(mark: &str) -> bool {
    let leftovers = still_there_after(EXIT_TIME, marked(mark));
    if leftovers.is_empty() {
        println!("no process is left");
        return true;
    }
    for leftover in &leftovers {
        println!("{:>8}  {}", leftover.process.pid(), leftover.command_line);
    }
    println!("tests left {} processes behind", leftovers.len());
    end(mark, leftovers);
    false
}

/// Waits for all of them, and returns those that have not ended after `time`.
fn still_there_after(time: Duration, mut leftovers: Vec<Leftover>) -> Vec<Leftover> {
    let deadline = Instant::now() + time;
    leftovers.retain(|leftover| {
        let left = deadline.saturating_duration_since(Instant::now());
        !leftover.process.wait(Some(left)).unwrap_or(false)
    });
    leftovers
}

fn end(mark: &str, mut leftovers: Vec<Leftover>) {
    // A process may fork before it is killed: repeat until none is found.
    for _ in 0..100 {
        for leftover in &leftovers {
            if let Err(error) = leftover.process.signal(Signal::KILL) {
                println!("cannot end {}: {error}", leftover.process.pid());
            }
        }
        still_there_after(EXIT_TIME, leftovers);
        leftovers = marked(mark);
        if leftovers.is_empty() {
            return;
        }
    }
    println!("{} of them could not be ended", leftovers.len());
}

/// The living processes with this mark.
fn marked(mark: &str) -> Vec<Leftover> {
    let wanted = format!("{MARK}={mark}");
    let Ok(proc) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    proc.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|&pid| environment_has(pid, &wanted))
        .filter_map(|pid| {
            let process = ProcessRef::open(pid).ok()?;
            let command_line = command_line(pid);
            // Checked again after the process was opened: the pid may have been reused (rule 6).
            (environment_has(pid, &wanted) && process.is_alive()).then_some(Leftover {
                process,
                command_line,
            })
        })
        .collect()
}

fn environment_has(pid: u32, wanted: &str) -> bool {
    // Unreadable files belong to another user, so not to this run; or the process is gone.
    std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environ| {
        environ
            .split(|&byte| byte == 0)
            .any(|pair| pair == wanted.as_bytes())
    })
}

fn command_line(pid: u32) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<_> = bytes
        .split(|&byte| byte == 0)
        .map(String::from_utf8_lossy)
        .collect();
    words.join(" ").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Stdio};

    use kennel_testkit::{Scope, wait_for};

    use super::*;

    /// Sleeps until its stdin ends, when the test drops the child.
    fn marked_process(scope: &Scope, mark: &str) -> Child {
        let mut command = scope.command("cat");
        command
            .env(MARK, mark)
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        command.spawn().expect("cat starts")
    }

    #[test]
    fn a_process_that_outlived_its_tests_is_found_and_ended() {
        let scope = Scope::new("leftover");
        let mark = scope.dir().display().to_string();
        let mut child = marked_process(&scope, &mark);
        // Right after an exec a process shows no environment for a moment.
        let found = wait_for("it is found", || {
            Some(marked(&mark)).filter(|found| !found.is_empty())
        });
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].process.pid(), child.id());
        assert_eq!(found[0].command_line, "cat");
        assert!(!none_left(&mark));
        assert!(none_left(&mark), "a zombie is dead");
        child.wait().expect("our child");
    }

    #[test]
    fn a_process_of_another_run_is_left_alone() {
        let scope = Scope::new("stranger");
        let mark = scope.dir().display().to_string();
        let mut child = marked_process(&scope, &format!("{mark}-other"));
        assert!(none_left(&mark));
        assert!(
            child.try_wait().expect("our child").is_none(),
            "still running"
        );
    }
}
