//! From the kill of a process to the event: `ProcessRef::wait` against a bare pidfd and poll.
//!
//! Both wait in a thread of their own that is asleep before the kill comes, and take turns kill by kill,
//! changing who goes first, so that whatever else the machine does meets both alike.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use kennel_sys::process::ProcessRef;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::gettid;
use serde_json::json;

use crate::stats::{median, micros, percentile, ratio};
use crate::{Options, Outcome};

/// Kennel may take this many times what the bare loop takes, at the median and in the tail.
const BOUND: f64 = 1.5;

/// An odd number, so that the median is one of them.
const BATCHES: usize = 3;

/// Kills before the first that counts: code and page tables are cold then, for whoever goes first.
const WARM_UP: usize = 10;

pub(crate) fn run(options: &Options) -> io::Result<Outcome> {
    for _ in 0..WARM_UP {
        one_kill(Waiter::Bare)?;
        one_kill(Waiter::Kennel)?;
    }
    let count = options.count(500, 30);
    let batches = (0..BATCHES)
        .map(|_| Batch::measure(count))
        .collect::<io::Result<Vec<_>>>()?;

    let p50 = median(batches.iter().map(|batch| batch.ratio(50)));
    let p99 = median(batches.iter().map(|batch| batch.ratio(99)));
    let outcome = match p50 <= BOUND && p99 <= BOUND {
        true => Outcome::Pass,
        false => Outcome::Fail,
    };
    options.tell(as_json(&batches, p50, p99, outcome), || {
        print_table(&batches, p50, p99, outcome);
    });
    Ok(outcome)
}

/// Who waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waiter {
    /// `pidfd_open` and `poll`, nothing else.
    Bare,
    /// `ProcessRef::open` and `ProcessRef::wait`.
    Kennel,
}

/// A waiter that has its process in view.
enum Watch {
    Bare(OwnedFd),
    Kennel(ProcessRef),
}

impl Waiter {
    fn watch(self, pid: u32) -> io::Result<Watch> {
        match self {
            Waiter::Bare => {
                let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
                let pid = pid.expect("the kernel gives out pids that are positive numbers");
                Ok(Watch::Bare(pidfd_open(pid, PidfdFlags::empty())?))
            }
            Waiter::Kennel => Ok(Watch::Kennel(ProcessRef::open(pid)?)),
        }
    }
}

impl Watch {
    fn wait(&self) -> io::Result<()> {
        match self {
            Watch::Bare(handle) => {
                let mut events = [PollFd::new(handle, PollFlags::IN)];
                while poll(&mut events, None)? == 0 {}
            }
            Watch::Kennel(process) => while !process.wait(None)? {},
        }
        Ok(())
    }
}

/// The times of one batch, each list sorted.
struct Batch {
    bare: Vec<Duration>,
    kennel: Vec<Duration>,
}

impl Batch {
    fn measure(count: usize) -> io::Result<Batch> {
        let (mut bare, mut kennel) = (Vec::new(), Vec::new());
        for round in 0..count {
            if round % 2 == 0 {
                bare.push(one_kill(Waiter::Bare)?);
                kennel.push(one_kill(Waiter::Kennel)?);
            } else {
                kennel.push(one_kill(Waiter::Kennel)?);
                bare.push(one_kill(Waiter::Bare)?);
            }
        }
        bare.sort();
        kennel.sort();
        Ok(Batch { bare, kennel })
    }

    fn ratio(&self, percent: usize) -> f64 {
        ratio(
            percentile(&self.kennel, percent),
            percentile(&self.bare, percent),
        )
    }
}

/// The time from just before the kill to the return of the wait.
fn one_kill(waiter: Waiter) -> io::Result<Duration> {
    let mut victim = Victim::start()?;
    let pid = victim.0.id();
    // Opened here, so that the waiting thread does nothing but wait, whoever waits.
    let watch = waiter.watch(pid)?;
    let (ready, started) = mpsc::channel();
    let waiting = thread::spawn(move || {
        ready
            .send(gettid().as_raw_pid())
            .expect("the killer listens until it has this");
        watch.wait()?;
        Ok(Instant::now())
    });
    until_asleep(
        started
            .recv()
            .expect("the waiter says who it is before it waits"),
    )?;
    let killed = Instant::now();
    victim.0.kill()?;
    let noticed: io::Result<Instant> = waiting.join().expect("the waiter does not panic");
    Ok(noticed? - killed)
}

/// Returns when a thread of this process sleeps: the only thing left for it to sleep on is the exit.
fn until_asleep(thread: i32) -> io::Result<()> {
    let path = format!("/proc/self/task/{thread}/stat");
    loop {
        #[expect(
            clippy::disallowed_methods,
            reason = "the kernel has no event for a thread that falls asleep"
        )]
        thread::sleep(Duration::from_millis(1));
        let stat = std::fs::read_to_string(&path)?;
        // The state is the first letter behind the name, and a name may hold brackets itself.
        let state = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.chars().next());
        if state == Some('S') {
            return Ok(());
        }
    }
}

/// A process to be killed. Dropping it makes sure, and reaps it.
struct Victim(Child);

impl Victim {
    fn start() -> io::Result<Victim> {
        let child = Command::new("sleep")
            .arg("1000")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Victim(child))
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // Neither can fail for a child that was not reaped yet.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn print_table(batches: &[Batch], p50: f64, p99: f64, outcome: Outcome) {
    println!("exit-event: a process is killed; how long until the one who waits for it knows?");
    println!();
    println!(
        "From just before the kill to the return of the wait, in microseconds. The waiter sleeps"
    );
    println!(
        "already when the kill comes. `bare` is pidfd_open and poll, `kennel` is ProcessRef::wait;"
    );
    println!(
        "they take turns kill by kill. A machine has other things to do, and a tail of few values"
    );
    println!("is easily bent: so each batch gives its own ratios, and their medians are judged.");
    println!();
    println!(
        "{} kills each in every batch, {BATCHES} batches",
        batches[0].bare.len()
    );
    println!();
    println!("batch    bare p50  kennel p50  ratio    bare p99  kennel p99  ratio");
    for (number, batch) in batches.iter().enumerate() {
        let [bare50, kennel50, bare99, kennel99] = batch.percentiles();
        let (ratio50, ratio99) = (batch.ratio(50), batch.ratio(99));
        println!(
            "{:<7}{bare50:>10.1}{kennel50:>12.1}{ratio50:>7.2}{bare99:>12.1}{kennel99:>12.1}{ratio99:>7.2}",
            number + 1,
        );
    }
    println!(
        "{:<7}{:>10}{:>12}{p50:>7.2}{:>12}{:>12}{p99:>7.2}",
        "median", "", "", "", ""
    );
    println!();
    let word = outcome.word();
    println!(
        "{word}: p50 {p50:.2}x and p99 {p99:.2}x of the bare loop; at most {BOUND}x is allowed"
    );
}

impl Batch {
    /// p50 of both, then p99 of both, in microseconds.
    fn percentiles(&self) -> [f64; 4] {
        [
            micros(percentile(&self.bare, 50)),
            micros(percentile(&self.kennel, 50)),
            micros(percentile(&self.bare, 99)),
            micros(percentile(&self.kennel, 99)),
        ]
    }
}

fn as_json(batches: &[Batch], p50: f64, p99: f64, outcome: Outcome) -> serde_json::Value {
    let kills = batches[0].bare.len();
    let batches: Vec<_> = batches
        .iter()
        .map(|batch| {
            let [bare50, kennel50, bare99, kennel99] = batch.percentiles();
            json!({
                "bare": { "p50_us": bare50, "p99_us": bare99 },
                "kennel": { "p50_us": kennel50, "p99_us": kennel99 },
                "ratio": { "p50": batch.ratio(50), "p99": batch.ratio(99) },
            })
        })
        .collect();
    json!({
        "benchmark": "exit-event",
        "kills_per_batch": kills,
        "batches": batches,
        "median_ratio": { "p50": p50, "p99": p99 },
        "bound": BOUND,
        "pass": outcome == Outcome::Pass,
    })
}
