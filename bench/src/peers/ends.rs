//! Ends: of an app, of a server, of what stands in the middle. What did not happen once is not waited for again.

use std::io::{self, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use kennel_sys::Signal;
use kennel_sys::events;
use kennel_sys::process::ProcessRef;
use kennel_sys::tree;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

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

/// How long the session of an app may take to begin.
const BEGINNING: Duration = Duration::from_secs(20);

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
        let mut stdout = child.stdout.take().expect("it is piped");
        let mut app = App {
            child,
            everyone: Vec::new(),
        };
        let ready = says(&mut stdout, "ready");
        app.everyone = tree::below(&ProcessRef::open(app.child.id())?)?;
        ready?;
        // What the server says of itself may have come first.
        let mut to = app.child.stdin.as_ref().expect("it is piped");
        to.write_all(b"ping\n")?;
        says(&mut stdout, "pong")?;
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

/// Waits for these words of an app, though not for ever.
fn says(app: &mut ChildStdout, words: &str) -> io::Result<()> {
    let deadline = Instant::now() + BEGINNING;
    let (mut heard, line) = (Vec::new(), format!("{words}\n"));
    while heard.len() < line.len() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let left = Timespec::try_from(left).expect("a short time");
        if poll(&mut [PollFd::new(app, PollFlags::IN)], Some(&left))? > 0 {
            let mut chunk = [0; 16];
            match app.read(&mut chunk)? {
                0 => break,
                count => heard.extend_from_slice(&chunk[..count]),
            }
        }
    }
    match heard == line.as_bytes() {
        true => Ok(()),
        false => Err(io::Error::other("an app's session did not begin")),
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
