//! What one peer can make Kennel hold, and what the others notice: at the default `--max-line`, each attack beside a
//! session that goes on asking.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use crate::crowd::socket_of;
use crate::place::{Place, Way};
use crate::report::{Bound, Report, Row};
use crate::route::Route;
use crate::stats::percentile;
use crate::{Options, Outcome};

/// The default of `--max-line`, in megabytes.
const MAX_LINE: f64 = 128.0;
/// What shim and daemon may hold, whatever a peer sends, in megabytes.
const MOST: f64 = 2.5 * MAX_LINE + 50.0;
/// How much an attacker sends, in megabytes: far more than anybody may hold.
const SENT: usize = 600;
/// How many requests without an answer.
const FLOOD: usize = 600_000;

/// Who sends what.
#[derive(Clone, Copy)]
enum Attack {
    Nothing,
    Request,
    Answer,
    Bare,
    Flood,
}

impl Attack {
    const ALL: [Attack; 5] = [
        Attack::Nothing,
        Attack::Request,
        Attack::Answer,
        Attack::Bare,
        Attack::Flood,
    ];

    fn name(self) -> &'static str {
        match self {
            Attack::Nothing => "nobody attacks",
            Attack::Request => "an app: endless request",
            Attack::Answer => "a server: endless answer",
            Attack::Bare => "no hello: endless line",
            Attack::Flood => "an app: unanswered requests",
        }
    }
}

pub(crate) fn run(options: &Options) -> io::Result<Outcome> {
    let mut rows = Vec::new();
    let mut bounds = Vec::new();
    for attack in Attack::ALL {
        let measured = measure(attack, options)?;
        rows.push(Row {
            name: attack.name().to_owned(),
            numbers: vec![
                Some(micros(&measured.latencies, 50)),
                Some(micros(&measured.latencies, 99)),
                Some(measured.latencies.len() as f64),
                Some(measured.shim),
                Some(measured.daemon),
            ],
        });
        for (who, peak) in [("shim", measured.shim), ("daemon", measured.daemon)] {
            bounds.push(Bound {
                what: format!("{}: the {who} holds at most", attack.name()),
                value: peak,
                unit: " MB",
                at_most: MOST,
                aim: None,
            });
        }
    }
    let report = Report {
        benchmark: "bounds",
        about: format!(
            "a peer that sends {SENT} MB without a newline, or {FLOOD} requests that nobody answers, at the default\n\
             --max-line of 128 MB; meanwhile another session of the same daemon asks. p50 and p99 are that one's;\n\
             shim is the attacker's, daemon the one of both: the most memory each ever had."
        ),
        columns: vec!["p50_us", "p99_us", "calls", "shim_mb", "daemon_mb"],
        rows,
        bounds,
    };
    Ok(report.print(options))
}

struct Measured {
    latencies: Vec<Duration>,
    shim: f64,
    daemon: f64,
}

fn measure(attack: Attack, options: &Options) -> io::Result<Measured> {
    let place = Place::new()?;
    let mut victim = Route::start(place.command(Way::Daemon)?)?;
    victim.initialize()?;
    victim.confirm()?;
    let daemon = place.daemon()?;
    let mut attacker = Attacker::start(&place)?;
    let (socket, sent) = (socket_of(&place)?, options.count(SENT, 200));
    let (mut stdin, flood) = (attacker.stdin.take(), options.count(FLOOD, 50_000));
    let sending = std::thread::spawn(move || {
        let mut send = || match (attack, &mut stdin) {
            (Attack::Bare, _) => endless(UnixStream::connect(&socket)?, sent),
            (Attack::Request, Some(stdin)) => endless(stdin, sent),
            (Attack::Answer, Some(stdin)) => {
                let bytes = sent << 20;
                let params = format!(r#"{{"bytes":{bytes}}}"#);
                writeln!(
                    stdin,
                    r#"{{"jsonrpc":"2.0","id":1,"method":"long","params":{params}}}"#
                )
            }
            (Attack::Flood, Some(stdin)) => {
                for id in 0..flood {
                    writeln!(
                        stdin,
                        r#"{{"jsonrpc":"2.0","id":{id},"method":"slow","params":{{"ms":60000}}}}"#
                    )?;
                }
                Ok(())
            }
            _ => Ok(()),
        };
        let sent: io::Result<()> = send();
        // Closed, it would be the session's end.
        (sent, stdin)
    });
    let least = Duration::from_secs(2);
    let (mut latencies, begun) = (Vec::new(), Instant::now());
    while begun.elapsed() < least || !sending.is_finished() {
        latencies.push(victim.echo("a request of the usual length, more or less")?);
    }
    // An attacker may be hung up on.
    let _stdin = sending.join();
    latencies.sort();
    Ok(Measured {
        latencies,
        shim: peak(attacker.child.id())?,
        daemon: peak(daemon)?,
    })
}

/// A session that attacks. Its server is its own: a slow one must not be the other session's.
struct Attacker {
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Attacker {
    fn start(place: &Place) -> io::Result<Attacker> {
        let mut command: Command = place.command(Way::Daemon)?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let mut stdin = child.stdin.take();
        if let Some(stdin) = &mut stdin {
            // Of another class than the victim: it has another process of the server.
            let class = r#""capabilities":{"experimental":{"attack":{}}},"clientInfo":{"name":"bench","version":"0"}"#;
            writeln!(
                stdin,
                r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{{"protocolVersion":"2025-06-18",{class}}}}}"#
            )?;
            writeln!(
                stdin,
                r#"{{"jsonrpc":"2.0","method":"notifications/initialized"}}"#
            )?;
        }
        Ok(Attacker { child, stdin })
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A request that does not end, of this many megabytes.
fn endless(mut to: impl Write, megabytes: usize) -> io::Result<()> {
    to.write_all(br#"{"jsonrpc":"2.0","id":1,"method":"echo","params":{"text":""#)?;
    let part = vec![b'x'; 1 << 20];
    for _ in 0..megabytes {
        to.write_all(&part)?;
    }
    Ok(())
}

/// The most memory that a process ever had, in megabytes.
fn peak(pid: u32) -> io::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    let missing = || io::Error::other("the kernel does not tell how much memory it had");
    Ok(kilobytes.ok_or_else(missing)? * 1024.0 / 1e6)
}

fn micros(latencies: &[Duration], percent: usize) -> f64 {
    percentile(latencies, percent).as_secs_f64() * 1e6
}
