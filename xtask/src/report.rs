//! The steps of a run: each is announced with its expected time, timed, and listed at the end.

use std::io;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use kennel_sys::Signal;
use kennel_sys::signals::Signals;

use crate::Outcome;
use crate::plan::{Plan, clock};

/// The steps so far. Ctrl-C ends the current step, which shares our process group, and skips the following ones, but not
/// the summary.
#[derive(Debug)]
pub(crate) struct Report {
    plan: Plan,
    start: Instant,
    steps: Vec<Step>,
    interrupts: Signals,
    interrupted: bool,
}

#[derive(Debug)]
struct Step {
    name: String,
    took: Duration,
    passed: bool,
}

impl Report {
    pub(crate) fn new(plan: Plan) -> io::Result<Report> {
        Ok(Report {
            plan,
            start: Instant::now(),
            steps: Vec::new(),
            interrupts: Signals::catch(&[Signal::INT])?,
            interrupted: false,
        })
    }

    /// Runs one step under its heading; returns whether it passed. An error counts as a failure.
    pub(crate) fn step(&mut self, name: &str, work: impl FnOnce() -> Outcome<bool>) -> bool {
        if self.interrupted {
            return false;
        }
        self.step_even_if_interrupted(name, work)
    }

    /// [`Report::step`], also after an interrupt, for cleanup.
    pub(crate) fn step_even_if_interrupted(
        &mut self,
        name: &str,
        work: impl FnOnce() -> Outcome<bool>,
    ) -> bool {
        println!("\n── {name}{} ──", self.heading(name));
        let start = Instant::now();
        let passed = work().unwrap_or_else(|error| {
            eprintln!("xtask: {name}: {error}");
            false
        });
        let took = start.elapsed();
        if passed {
            self.plan.took(name, took);
        }
        let verdict = if passed { "ok" } else { "FAILED" };
        let (took_words, total) = (clock(took), clock(self.start.elapsed()));
        println!("{name}: {verdict} in {took_words}; {total} since the start");
        self.steps.push(Step {
            name: name.to_owned(),
            took,
            passed,
        });
        self.interrupted |= self.interrupts.next().is_some();
        passed
    }

    /// The heading of a step, with its expected time.
    fn heading(&self, name: &str) -> String {
        let expected = self.plan.expected(name);
        match self.plan.place(name) {
            Some((at, of)) => format!(" ({at} of {of}; expected: {expected})"),
            None => String::new(),
        }
    }

    /// Prints which steps passed and failed, and returns the exit code.
    pub(crate) fn close(&self) -> ExitCode {
        println!("\n── summary ──");
        for Step { name, took, passed } in &self.steps {
            let verdict = if *passed { "ok" } else { "FAILED" };
            println!("{verdict:>8}  {name} ({:.1} s)", took.as_secs_f64());
        }
        println!("{:>8}  in {} in total", "", clock(self.start.elapsed()));
        if self.interrupted {
            println!("interrupted: steps that are not listed did not run");
        }
        if self.passed() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }

    fn passed(&self) -> bool {
        !self.interrupted && self.steps.iter().all(|step| step.passed)
    }
}

/// Runs a command; returns whether it succeeded.
pub(crate) fn succeeds(command: &mut Command) -> Outcome<bool> {
    match command.status() {
        Ok(status) => Ok(status.success()),
        Err(error) => {
            Err(format!("cannot run {}: {error}", command.get_program().display()).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use kennel_sys::process::ProcessRef;
    use kennel_testkit::wait_for;

    use super::*;

    #[test]
    fn one_failed_step_fails_the_run() {
        let mut report = Report::new(Plan::default()).expect("a report");
        assert!(report.step("good", || Ok(true)));
        assert!(report.passed());
        assert!(!report.step("bad", || Ok(false)));
        assert!(report.step("good again", || Ok(true)));
        assert!(!report.passed());
    }

    #[test]
    fn a_step_that_cannot_run_fails() {
        let mut report = Report::new(Plan::default()).expect("a report");
        assert!(!report.step("absent", || succeeds(&mut Command::new("/nonexistent"))));
        assert!(!report.passed());
    }

    #[test]
    fn an_interrupt_skips_later_steps_but_not_the_cleanup() {
        let mut report = Report::new(Plan::default()).expect("a report");
        let me = ProcessRef::me().expect("this process");
        assert!(me.signal(Signal::INT).expect("a signal to ourselves"));
        // Another thread may receive the signal, a moment later.
        wait_for("the interrupt is noticed", || {
            report.step("interrupted", || Ok(true));
            report.interrupted.then_some(())
        });
        assert!(!report.step("skipped", || unreachable!("after an interrupt")));
        assert!(report.step_even_if_interrupted("tidying up", || Ok(true)));
        assert!(!report.passed());
    }
}
