//! Ends: of an app, of a server, of what stands in the middle. What did not happen once is not waited for again.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kennel_sys::Signal;
use kennel_sys::events;
use kennel_sys::process::ProcessRef;
use kennel_sys::tree;

use super::measure::{Measure, NEVER};
use super::team::Team;
use super::way::Way;
use crate::beside_us;
use crate::stats::micros;

/// How long a call may take before it is made again: what was under way when somebody died may never be answered.
const AGAIN: Duration = Duration::from_secs(1);
/// Between an error and the next call.
const BREATH: Duration = Duration::from_millis(5);
/// How long a session may take to come to rest: one that dies while it writes dies of that.
const REST: Duration = Duration::from_millis(300);

/// From the kill of an app to nothing left of what was started for it.
pub(super) fn app_death(
    team: &mut Team<'_>,
    number: usize,
    is_held: bool,
    patience: Duration,
) -> io::Result<()> {
    let measure = match is_held {
        true => Measure::GoneHeld,
        false => Measure::Gone,
    };
    if team.was_never(measure) {
        return Ok(());
    }
    // Somebody else is there before, and stays: it is the end of one app among several.
    if team.clients.is_empty() {
        let (client, _) = team.client(0)?;
        team.clients.push(client);
    }
    // None of those who are there: what is kept for a client is its own.
    let command = team.open()?.command(1000 + number)?;
    let app = App::start(&command, is_held)?;
    let started = app.started()?;
    let took = app.kill(&started, patience)?;
    team.note(measure, took);
    Ok(())
}

/// From the kill of the server to the next answer in the same session.
pub(super) fn server_death(team: &mut Team<'_>, patience: Duration) -> io::Result<()> {
    recover(team, Measure::ServerKilled, patience, |way, client| {
        Ok(way.servers(&[client])?.first().copied())
    })
}

/// The same, of what stands in the middle.
pub(super) fn broker_death(team: &mut Team<'_>, patience: Duration) -> io::Result<()> {
    recover(team, Measure::BrokerKilled, patience, |way, _| way.middle())
}

fn recover(
    team: &mut Team<'_>,
    measure: Measure,
    patience: Duration,
    who: impl Fn(&Way, u32) -> io::Result<Option<u32>>,
) -> io::Result<()> {
    if team.was_never(measure) {
        return Ok(());
    }
    let mut client = match team.clients.pop() {
        Some(client) => client,
        None => team.client(0)?.0,
    };
    client.call()?;
    // Some have nobody there between two calls, or nobody in the middle.
    let Some(victim) = who(team.open()?, client.pid())? else {
        return Ok(());
    };
    let victim = ProcessRef::open(victim)?;
    let killed = Instant::now();
    victim.signal(Signal::KILL)?;
    let took = loop {
        let left = patience.saturating_sub(killed.elapsed());
        if left.is_zero() {
            break NEVER;
        }
        match client.call_within(left.min(AGAIN)) {
            Ok(called) if !called.astray => break micros(killed.elapsed()) / 1000.0,
            Err(_) if client.has_ended() => break NEVER,
            // An error is an answer: it is asked again, though not all the time.
            _ => events::sleep(&[], &[], Some(BREATH))?,
        }
    };
    team.note(measure, took);
    drop(client);
    team.close();
    Ok(())
}

/// An app that started a client, as apps do. Dropping it ends it, and whoever it started.
struct App {
    child: Child,
    everyone: Vec<ProcessRef>,
}

impl App {
    /// Returns when its session has shaken hands.
    fn start(client: &Command, is_held: bool) -> io::Result<App> {
        let mut command = Command::new(beside_us("tk-app")?);
        if is_held {
            command.arg("hold");
        }
        command
            .arg("--")
            .arg(client.get_program())
            .args(client.get_args());
        for (name, value) in client.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let stdout = child.stdout.take().expect("it is piped");
        let mut app = App {
            child,
            everyone: Vec::new(),
        };
        let mut says = BufReader::new(stdout).lines();
        let ready = says.next().transpose()?;
        app.everyone = tree::below(&ProcessRef::open(app.child.id())?)?;
        if ready.as_deref() != Some("ready") {
            return Err(io::Error::other("an app's session did not begin"));
        }
        // What the server says of itself may have come first.
        let mut to = app.child.stdin.as_ref().expect("it is piped");
        to.write_all(b"ping\n")?;
        says.next().transpose()?;
        events::sleep(&[], &[], Some(REST))?;
        app.everyone = tree::below(&ProcessRef::open(app.child.id())?)?;
        Ok(app)
    }

    /// The client and whoever is below it, and not the one that holds the pipe.
    fn started(&self) -> io::Result<Vec<ProcessRef>> {
        let is_holder = |process: &ProcessRef| {
            let words = process.command_line().unwrap_or_default();
            words.first().is_some_and(|word| word == "sleep")
        };
        let everyone = self.everyone.iter().filter(|process| !is_holder(process));
        everyone
            .map(|process| ProcessRef::open(process.pid()))
            .collect()
    }

    fn kill(mut self, started: &[ProcessRef], patience: Duration) -> io::Result<f64> {
        let killed = Instant::now();
        self.child.kill()?;
        for process in started {
            let left = patience.saturating_sub(killed.elapsed());
            if !process.wait(Some(left))? {
                return Ok(NEVER);
            }
        }
        Ok(micros(killed.elapsed()) / 1000.0)
    }
}

impl Drop for App {
    fn drop(&mut self) {
        // Our own child, and not reaped yet: it is nobody else.
        let _ = self.child.kill();
        let _ = self.child.wait();
        for process in &self.everyone {
            let _ = process.signal(Signal::KILL);
        }
    }
}
