//! Tests that are expected to fail, and whatever they leave behind.
//!
//! A mistake may well be one that leaves processes, and a test that is killed tidies nothing up. A mark in their environment
//! does not find a daemon, which keeps nothing of it: so all that loses its parent becomes our child, and is ended.

use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus, Stdio};

use kennel_sys::process::ProcessRef;
use kennel_sys::signals::Signals;
use kennel_sys::{events, tree};

use crate::Outcome;

/// What came of a command.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    /// What it wrote to stderr.
    pub(super) said: Vec<u8>,
}

/// Runs it to its end, or to an interrupt: then it is `None`. Either way nothing that it started is left.
pub(super) fn run(command: &mut Command, interrupts: &Signals) -> Outcome<Option<Ended>> {
    // Each time: what a build has left by now, a compiler's cache say, is no leftover of a test.
    tree::become_subreaper()?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut stderr = child.stderr.take().ok_or("stderr is a pipe")?;
    let said = std::thread::spawn(move || {
        let mut said = Vec::new();
        stderr.read_to_end(&mut said).map(|_| said)
    });
    let ended = end_of(&mut child, interrupts);
    tree::end_strays(&[], None)?;
    let Some(status) = ended? else {
        return Ok(None);
    };
    // Nobody is left who could hold the other end.
    let said = said.join().map_err(|_| "nobody reads stderr")??;
    Ok(Some(Ended { status, said }))
}

/// Waits for it; `None` if somebody interrupts us.
fn end_of(child: &mut Child, interrupts: &Signals) -> Outcome<Option<ExitStatus>> {
    let process = match ProcessRef::open(child.id()) {
        Ok(process) => process,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Some(child.wait()?)),
        Err(error) => return Err(error.into()),
    };
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if interrupts.next().is_some() {
            return Ok(None);
        }
        events::sleep(&[&interrupts], &[&process], None)?;
    }
}

#[cfg(test)]
mod tests {
    use kennel_sys::Signal;
    use kennel_testkit::{Scope, bin, wait_for};

    use super::*;

    /// One that stays, and two that are detached and have no environment.
    const EVERYONE: usize = 3;
    const FAILS: &str = "\
        \"$0\" \"$1\" bare 2 2>/dev/null &
        until [ \"$(wc -l <\"$1\")\" -eq 3 ]; do sleep 0.01; done
        echo alas >&2
        exit 7";

    #[test]
    #[ignore = "needs a process without other tests: cargo xtask test"]
    fn what_a_failed_test_leaves_behind_is_ended() {
        let scope = Scope::new("keeper");
        std::fs::write(scope.roll(), "").expect("a roll");
        let interrupts = Signals::catch(&[Signal::INT]).expect("a signal");
        let mut command = scope.command("sh");
        command.args(["-c", FAILS]).arg(bin("tk-stubborn"));
        let ended = run(command.arg(scope.roll()), &interrupts).expect("it runs");
        let ended = ended.expect("nobody interrupts it");
        assert_eq!(ended.status.code(), Some(7));
        assert_eq!(ended.said, b"alas\n");
        assert_eq!(scope.signed().len(), EVERYONE);
        assert!(scope.survivors().is_empty());
    }

    #[test]
    #[ignore = "needs a process without other tests: cargo xtask test"]
    fn an_interrupt_ends_a_test_with_all_it_started() {
        let scope = Scope::new("keeper");
        let interrupts = Signals::catch(&[Signal::INT]).expect("a signal");
        let mut command = scope.command(bin("tk-stubborn"));
        command.arg(scope.roll()).args(["bare", "2"]);
        let ended = std::thread::scope(|threads| {
            threads.spawn(|| {
                wait_for("everyone", || {
                    (scope.signed().len() == EVERYONE).then_some(())
                });
                let me = ProcessRef::me().expect("this process");
                assert!(me.signal(Signal::INT).expect("a signal to ourselves"));
            });
            run(&mut command, &interrupts).expect("it runs")
        });
        assert!(ended.is_none());
        assert!(scope.survivors().is_empty());
    }
}
