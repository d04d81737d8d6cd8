//! What one peer can make Kennel hold, and what the others notice: at the default `--max-line`, each attack beside a
//! session that goes on asking.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

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
/// The same in a short run.
const SENT_QUICK: usize = 200;
/// How many requests without an answer.
const FLOOD: usize = 600_000;
const FLOOD_QUICK: usize = 50_000;
/// How long an app that reads nothing goes on so: all that is taken meanwhile is held.
const UNREAD: Duration = Duration::from_secs(2);
/// An attack that has not ended by then never does: a full one takes seconds.
const DEADLINE: Duration = Duration::from_secs(300);

/// Who sends what.
#[derive(Clone, Copy)]
enum Attack {
    Nothing,
    Request,
    Answer,
    Bare,
    Flood,
    Unread,
}

impl Attack {
    const ALL: [Attack; 6] = [
        Attack::Nothing,
        Attack::Request,
        Attack::Answer,
        Attack::Bare,
        Attack::Flood,
        Attack::Unread,
    ];

    fn name(self) -> &'static str {
        match self {
            Attack::Nothing => "nobody attacks",
            Attack::Request => "an app: endless request",
            Attack::Answer => "a server: endless answer",
            Attack::Bare => "no hello: endless line",
            Attack::Flood => "an app: unanswered requests",
            Attack::Unread => "an app: requests, nothing read",
        }
    }
}

pub(crate) fn run(options: &Options) -> io::Result<Outcome> {
    let mut rows = Vec::new();
    let mut bounds = Vec::new();
    let sent = options.count(SENT, SENT_QUICK);
    let flood = options.count(FLOOD, FLOOD_QUICK);
    for attack in Attack::ALL {
        let measured = measure(attack, sent, flood)?;
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
            "a peer that sends {sent} MB without a newline, or {flood} requests that nobody answers, at the default\n\
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

fn measure(attack: Attack, sent: usize, flood: usize) -> io::Result<Measured> {
    let place = Place::new()?;
    let mut victim = Route::start(place.command(Way::Daemon)?)?;
    victim.initialize()?;
    victim.confirm()?;
    let daemon = place.daemon()?;
    let mut attacker = Attacker::start(&place)?;
    let (mut stdin, stdout) = attacker.pipes()?;
    let socket = socket_of(&place)?;
    let sending = std::thread::spawn(move || {
        let sent = send(attack, &mut stdin, socket, sent, flood);
        // Closed, it would be the session's end.
        (sent, stdin)
    });
    let hearing = std::thread::spawn(move || hear_the_end(attack, stdout, flood));
    let least = Duration::from_secs(2);
    let (mut latencies, begun) = (Vec::new(), Instant::now());
    while begun.elapsed() < least || !(sending.is_finished() && hearing.is_finished()) {
        if begun.elapsed() > DEADLINE {
            let what = format!("{}: it does not end", attack.name());
            return Err(io::Error::other(what));
        }
        latencies.push(victim.echo("a request of the usual length, more or less")?);
    }
    let panicked = |_| io::Error::other("a thread of the attack panicked");
    let _stdout = hearing.join().map_err(panicked)??;
    let (sent, _stdin) = sending.join().map_err(panicked)?;
    // Without a hello, an attacker is hung up on: it need not get everything out.
    if !matches!(attack, Attack::Bare) {
        sent?;
    }
    latencies.sort();
    Ok(Measured {
        latencies,
        shim: peak(attacker.child.id())?,
        daemon: peak(daemon)?,
    })
}

/// Sends all of an attack: `sent` megabytes, or `flood` requests.
fn send(
    attack: Attack,
    stdin: &mut ChildStdin,
    socket: PathBuf,
    sent: usize,
    flood: usize,
) -> io::Result<()> {
    match attack {
        Attack::Nothing => Ok(()),
        Attack::Bare => endless(UnixStream::connect(socket)?, sent),
        Attack::Request => {
            endless(&mut *stdin, sent)?;
            // The end of the line, so that it gets its answer.
            stdin.write_all(b"\"}}\n")
        }
        Attack::Answer => {
            let bytes = sent << 20;
            // The server answers the second when it has written all of the first answer.
            let lines = format!(
                "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"long\",\"params\":{{\"bytes\":{bytes}}}}}\n\
                 {{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"echo\",\"params\":{{}}}}\n"
            );
            stdin.write_all(lines.as_bytes())
        }
        Attack::Flood | Attack::Unread => {
            for id in 1..=flood {
                writeln!(
                    stdin,
                    r#"{{"jsonrpc":"2.0","id":{id},"method":"slow","params":{{"ms":60000}}}}"#
                )?;
            }
            Ok(())
        }
    }
}

/// Reads the answers that an attacker gets, until the attack is over; an attack that is not refused is no measurement.
/// Returns the open pipe: closed, it would be the session's end.
fn hear_the_end(
    attack: Attack,
    from: ChildStdout,
    flood: usize,
) -> io::Result<BufReader<ChildStdout>> {
    // Which answer must be an error, and which is the last one.
    let (refused, last) = match attack {
        Attack::Nothing | Attack::Bare => (None, 0),
        Attack::Request => (Some(1), 1),
        Attack::Answer => (Some(1), 2),
        // All that came before it were taken or refused.
        Attack::Flood | Attack::Unread => (Some(flood), flood),
    };
    if matches!(attack, Attack::Unread) {
        #[expect(
            clippy::disallowed_methods,
            reason = "nothing happens that it could wait for"
        )]
        std::thread::sleep(UNREAD);
    }
    let (mut from, mut line, mut is_refused) = (BufReader::new(from), Vec::new(), false);
    loop {
        line.clear();
        if from.read_until(b'\n', &mut line)? == 0 {
            return Err(io::Error::other("the attacker's session ended"));
        }
        let Ok(answer) = serde_json::from_slice::<Value>(&line) else {
            continue;
        };
        let id = answer["id"].as_u64().map(|id| id as usize);
        is_refused |= id.is_some() && id == refused && answer.get("error").is_some();
        if id != Some(last) {
            continue;
        }
        if refused.is_some() && !is_refused {
            let what = format!("{}: it was not refused", attack.name());
            return Err(io::Error::other(what));
        }
        return Ok(from);
    }
}

/// A session that attacks. Its server is its own: a slow one must not be the other session's.
struct Attacker {
    child: Child,
}

impl Attacker {
    fn start(place: &Place) -> io::Result<Attacker> {
        let mut command: Command = place.command(Way::Daemon)?;
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Attacker { child })
    }

    /// Begins the session; what is read next is the answer to that.
    fn pipes(&mut self) -> io::Result<(ChildStdin, ChildStdout)> {
        let pipes = (self.child.stdin.take(), self.child.stdout.take());
        let (Some(mut stdin), Some(stdout)) = pipes else {
            return Err(io::Error::other("the attacker has no pipes"));
        };
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
        Ok((stdin, stdout))
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
