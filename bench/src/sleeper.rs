//! One client that reads nothing, and nine that work: what is left of their speed.
//!
//! There are two daemons, each with nine clients and a tenth: one tenth is idle, the other asleep on more than all
//! pipes hold, for the whole time. The nines work in turns, so that whatever else this machine does meets both; and
//! in both the server speaks to all now and then.

use std::io::{self, Write};
use std::process::ChildStdin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::caller::{Caller, Tool};
use crate::place::Place;
use crate::report::{Bound, Report, Row};
use crate::stats::median;
use crate::{Options, Outcome, beside_us};

const WORK: Tool = Tool {
    name: "work",
    argument: "tag",
    echoes: true,
};
const WORKING: usize = 9;
/// The nine keep at least nine tenths of their speed.
const FEWER_PERCENT: f64 = 10.0;
/// What the daemon may hold: the most that is kept for one that does not read, twice, for a buffer may be doubled
/// just then, and the daemon itself.
const DAEMON_MB: f64 = 300.0;
/// What the sleeper asks before it falls asleep: so many requests, each of so many bytes.
const REQUESTS: usize = 96;
const REQUEST: usize = 128 << 10;
/// After so many calls of the first client the server speaks to all, and says so much.
const NEWS_EVERY: usize = 50;
const NEWS: usize = 4 << 10;

pub(crate) fn run(options: &Options) -> io::Result<Outcome> {
    // Half a minute of work beside it, and another half meanwhile: it sleeps for one.
    let turns = options.count(33, 3);
    let turn = Duration::from_millis(if options.quick { 500 } else { 1000 });
    let place = Place::new()?;
    let mut beside_a_sleeper = Nine::gather(&place, "asleep")?;
    let daemon = place.daemon()?;
    let sleeper = Sleeper::start(beside_a_sleeper.attach("the tenth")?)?;
    let mut beside_an_idle_one = Nine::gather(&place, "idle")?;
    let mut idle = beside_an_idle_one.attach("the tenth")?;

    let mut paces = Vec::new();
    for _ in 0..turns {
        let pair = std::thread::scope(|threads| {
            threads.spawn(|| idle.listen(2 * turn));
            // In another order each time.
            match paces.len() % 2 {
                0 => {
                    let idle = beside_an_idle_one.pace(turn)?;
                    Ok::<_, io::Error>((idle, beside_a_sleeper.pace(turn)?))
                }
                _ => {
                    let asleep = beside_a_sleeper.pace(turn)?;
                    Ok((beside_an_idle_one.pace(turn)?, asleep))
                }
            }
        });
        paces.push(pair?);
    }
    let most_mb = peak_of(daemon)?;
    let slept = sleeper.since.elapsed();
    drop(sleeper);
    let report = Report {
        benchmark: "sleeper",
        about: format!(
            "calls per second of {WORKING} clients that share a server with a tenth: one that is idle, and one\n\
             that has asked {REQUESTS} times {} KB and reads nothing for {} s in one stretch. They take turns,\n\
             {turns} times {} ms each; medians, and the median of the ratios of neighbours. `rss`: the most\n\
             that the daemon ever had.",
            REQUEST >> 10,
            slept.as_secs(),
            turn.as_millis()
        ),
        columns: vec!["calls_per_s", "rss_mb"],
        rows: vec![
            Row {
                name: "beside an idle one".to_owned(),
                numbers: vec![Some(median(paces.iter().map(|pair| pair.0))), None],
            },
            Row {
                name: "beside a sleeper".to_owned(),
                numbers: vec![Some(median(paces.iter().map(|pair| pair.1))), Some(most_mb)],
            },
        ],
        bounds: vec![
            Bound {
                what: "calls beside a sleeper are fewer:".to_owned(),
                value: median(
                    paces
                        .iter()
                        .map(|(idle, asleep)| 100.0 * (1.0 - asleep / idle)),
                ),
                unit: " %",
                at_most: FEWER_PERCENT,
                aim: None,
            },
            Bound {
                what: "the daemon holds at most".to_owned(),
                value: most_mb,
                unit: " MB",
                at_most: DAEMON_MB,
                aim: None,
            },
        ],
    };
    Ok(report.print(options))
}

/// Nine who work, and the daemon that they and a tenth share.
struct Nine<'a> {
    place: &'a Place,
    /// Sets their daemon apart: it stands in the environment of their server.
    name: &'static str,
    clients: Vec<Caller>,
}

impl Nine<'_> {
    fn gather<'a>(place: &'a Place, name: &'static str) -> io::Result<Nine<'a>> {
        let mut nine = Nine {
            place,
            name,
            clients: Vec::new(),
        };
        for number in 0..WORKING {
            let client = nine.attach(&format!("client {number}"))?;
            nine.clients.push(client);
        }
        Ok(nine)
    }

    fn attach(&self, name: &str) -> io::Result<Caller> {
        let mut command = self.place.share(&[beside_us("tk-shared")?.into()]);
        command.env("BENCH_BESIDE", self.name);
        Caller::attach(command, WORK, name).map(|(caller, _)| caller)
    }

    /// Calls per second of all of them.
    fn pace(&mut self, time: Duration) -> io::Result<f64> {
        pace(&mut self.clients, time)
    }
}

fn pace(clients: &mut [Caller], time: Duration) -> io::Result<f64> {
    let news = json!({"level": "error", "tag": "n".repeat(NEWS)});
    let calls = AtomicUsize::new(0);
    let begun = Instant::now();
    let ended: io::Result<()> = std::thread::scope(|threads| {
        let working: Vec<_> = clients
            .iter_mut()
            .enumerate()
            .map(|(number, client)| {
                let (calls, news) = (&calls, &news);
                threads.spawn(move || {
                    let mut done = 0;
                    while begun.elapsed() < time {
                        client.call()?;
                        done += 1;
                        if number == 0 && done % NEWS_EVERY == 0 {
                            client.call_other("log", news)?;
                        }
                    }
                    calls.fetch_add(done, Ordering::Relaxed);
                    Ok(())
                })
            })
            .collect();
        let mut ended = working
            .into_iter()
            .map(|it| it.join().expect("it does not panic"));
        ended.try_for_each(|it| it)
    });
    ended?;
    Ok(calls.into_inner() as f64 / begun.elapsed().as_secs_f64())
}

/// The most that a process has ever had in memory, in megabytes.
fn peak_of(pid: u32) -> io::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
    let kilobytes: f64 = kilobytes.ok_or_else(|| io::Error::other("an odd status"))?;
    Ok(kilobytes / 1024.0)
}

/// It has asked much, and reads nothing. Dropping it ends it.
struct Sleeper {
    since: Instant,
    /// `None` only while it is dropped.
    caller: Option<Caller>,
    /// Gives back its input, which stays open as long as it lives.
    writing: Option<JoinHandle<ChildStdin>>,
}

impl Sleeper {
    fn start(mut caller: Caller) -> io::Result<Sleeper> {
        let mut input = caller.take_input().ok_or(io::ErrorKind::BrokenPipe)?;
        let writing = std::thread::spawn(move || {
            let params = json!({"name": "work", "arguments": {"tag": "x".repeat(REQUEST)}});
            for number in 0..REQUESTS {
                let id = format!("asleep {number}");
                let request =
                    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
                // It waits as long as nothing is taken; when its process ends, that ends, too.
                if writeln!(input, "{request}").is_err() {
                    break;
                }
            }
            input
        });
        Ok(Sleeper {
            since: Instant::now(),
            caller: Some(caller),
            writing: Some(writing),
        })
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        drop(self.caller.take());
        let _ = self.writing.take().map(JoinHandle::join);
    }
}
