//! `kennel demo`: what Kennel does, shown on apps, shims, servers and a daemon of its own, in a private runtime
//! directory, with times measured here. It leaves nothing behind.

mod stage;

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kennel_sys::process::{ProcessRef, children};
use kennel_sys::signals::Signals;
use kennel_sys::{Signal, events};

use crate::meeting::DaemonRecord;
use stage::Stage;

/// How many apps there are.
const APPS: usize = 10;
/// Nothing in the show takes this long unless it is broken.
const PATIENCE: Duration = Duration::from_secs(20);

/// A line of the show. Not `println!`: where it cannot be told, it is over, and cleared away.
macro_rules! tell {
    ($($words:tt)*) => { writeln!(io::stdout(), $($words)*) };
}

/// A process of the show.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Part {
    /// An MCP server that answers everything with its pid.
    Server,
    /// A server that ignores EOF and SIGTERM, and has a detached process.
    Stubborn,
}

impl Part {
    /// The part that a word on the command line names; for the demo itself.
    pub(crate) fn called(word: &OsStr) -> Option<Part> {
        match word.to_str()? {
            "server" => Some(Part::Server),
            "stubborn" => Some(Part::Stubborn),
            _ => None,
        }
    }
}

/// Somebody wants it to end: no session begins any more, and no daemon is waited for.
static OVER: AtomicBool = AtomicBool::new(false);

fn goes_on() -> io::Result<()> {
    match OVER.load(Ordering::Relaxed) {
        true => Err(io::ErrorKind::Interrupted.into()),
        false => Ok(()),
    }
}

/// Runs the show.
pub(crate) fn show() -> ExitCode {
    let signals = match Signals::catch(&[Signal::INT, Signal::TERM, Signal::HUP]) {
        Ok(signals) => signals,
        Err(error) => return crate::fail(&format!("cannot catch signals: {error}")),
    };
    let shown = Stage::set(&std::env::temp_dir()).and_then(|stage| {
        let performed = perform(&stage, &signals);
        let cleared = stage.clear();
        performed.and_then(|signal| cleared.map(|()| signal))
    });
    match shown {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(signal)) => ExitCode::from(128u8.wrapping_add(signal.as_raw() as u8)),
        Err(error) => crate::fail(&format!("the demo went wrong: {error}")),
    }
}

/// The acts on a thread, so that they can be broken off; the signal that did.
fn perform(stage: &Stage, signals: &Signals) -> io::Result<Option<Signal>> {
    let (done, closes_when_done) = io::pipe()?;
    let own = stage.path().to_owned();
    let acts = std::thread::spawn(move || {
        let played = acts(&own);
        drop(closes_when_done);
        played
    });
    events::wait(&[signals, &done], &[], None)?;
    let signal = signals.next();
    if signal.is_some() {
        OVER.store(true, Ordering::Relaxed);
        for child in children(std::process::id())? {
            // Whoever speaks to it hears that it is gone, and Kennel does the rest.
            child.signal(Signal::KILL)?;
        }
    }
    let played = acts
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("an act broke down")));
    match (signal, played) {
        (None, Ok(())) => Ok(None),
        (signal, played) => {
            stage.everybody_leaves()?;
            signal.map_or(played.map(|()| None), |signal| Ok(Some(signal)))
        }
    }
}

fn acts(stage: &Path) -> io::Result<()> {
    tell!("Kennel stands between an app and its tool server:  app -> kennel run -> server\n")?;

    tell!(
        "1. {APPS} apps begin a session with the same server. One server runs where {APPS} would."
    )?;
    let mut sessions = Vec::new();
    for _ in 0..APPS {
        sessions.push(Session::begin(stage, Part::Server, true)?);
    }
    let server = the_one_server(&mut sessions)?;
    let daemon = daemon_of(stage)?;
    tell!(
        "   running:  {APPS} sessions, one daemon ({}), one server ({})",
        daemon.pid(),
        server.pid()
    )?;

    tell!("\n2. The server is killed with -9. All sessions go on with a new one.")?;
    let killed = Instant::now();
    server.signal(Signal::KILL)?;
    server.wait(Some(PATIENCE))?;
    let new = the_one_server(&mut sessions)?;
    tell!(
        "   server {} -> {}, all {APPS} answering again after {}",
        server.pid(),
        new.pid(),
        since(killed)
    )?;

    tell!("\n3. The daemon is killed with -9. All sessions go on with a new daemon.")?;
    let killed = Instant::now();
    daemon.signal(Signal::KILL)?;
    daemon.wait(Some(PATIENCE))?;
    the_one_server(&mut sessions)?;
    tell!(
        "   daemon {} -> {}, all {APPS} answering again after {}",
        daemon.pid(),
        daemon_of(stage)?.pid(),
        since(killed)
    )?;

    tell!(
        "\n4. An app is killed with -9 while another process keeps its pipe open, so that EOF never comes;"
    )?;
    tell!("   and its server ignores SIGTERM and has a detached process of its own.")?;
    let stubborn = Session::begin(stage, Part::Stubborn, false)?;
    let everyone = stubborn.tree()?;
    let pids: Vec<String> = everyone
        .iter()
        .map(|process| process.pid().to_string())
        .collect();
    tell!(
        "   running:  app {}, and behind it {}",
        stubborn.app.id(),
        pids.join(", ")
    )?;
    let killed = Instant::now();
    let _held = stubborn.kill_app()?;
    for process in &everyone {
        if !process.wait(Some(PATIENCE))? {
            return Err(io::Error::other(format!(
                "process {} is still there",
                process.pid()
            )));
        }
    }
    tell!(
        "   nothing left after {} (it was given 300 ms to end by itself, and 300 ms after SIGTERM)",
        since(killed)
    )?;

    tell!("\n5. The apps are done. When nobody came back for a while, server and daemon go too.")?;
    let done = Instant::now();
    let daemon = daemon_of(stage)?;
    for session in sessions {
        session.end()?;
    }
    if !daemon.wait(Some(PATIENCE))? {
        return Err(io::Error::other("the daemon is still there"));
    }
    tell!("   nothing left after {} (it lingered 500 ms)", since(done))?;
    Ok(())
}

/// The server that answers all of them.
fn the_one_server(sessions: &mut [Session]) -> io::Result<ProcessRef> {
    let mut servers = Vec::new();
    for session in sessions {
        servers.push(session.server()?);
    }
    servers.dedup_by_key(|server| server.pid());
    match servers.len() {
        1 => Ok(servers.remove(0)),
        several => Err(io::Error::other(format!("{several} servers run, not one"))),
    }
}

fn since(start: Instant) -> String {
    format!("{:.1} ms", start.elapsed().as_secs_f64() * 1000.0)
}

/// An app with its session. The app is a shell that waits; we speak for it.
struct Session {
    app: Child,
    to: Option<PipeWriter>,
    from: Option<BufReader<ChildStdout>>,
    asked: u32,
}

impl Session {
    fn begin(stage: &Path, part: Part, shared: bool) -> io::Result<Session> {
        goes_on()?;
        let (stdin, to): (PipeReader, PipeWriter) = io::pipe()?;
        let (part, stderr) = match part {
            Part::Server => ("server", Stdio::inherit()),
            // A session whose app is gone says so; here that is the story.
            Part::Stubborn => ("stubborn", Stdio::null()),
        };
        let share = if shared { "always" } else { "never" };
        let program = std::env::current_exe()?;
        // The app's own stdin is another one: so the shim knows it for the app, and not for a launcher.
        let line = format!(
            "exec 3<&0 </dev/null; '{0}' run --share {share} --linger 500ms --stop-after 300ms,300ms -- '{0}' demo {part} <&3 & exec 3<&-; wait",
            program.display()
        );
        let mut app = Command::new("sh")
            .args(["-c", &line])
            .env("KENNEL_RUNTIME_DIR", stage.join("run"))
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()?;
        let from = BufReader::new(app.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?);
        let mut session = Session {
            app,
            to: Some(to),
            from: Some(from),
            asked: 0,
        };
        session.ask(
            "initialize",
            r#"{"protocolVersion":"2025-06-18","capabilities":{}}"#,
        )?;
        Ok(session)
    }

    fn ask(&mut self, method: &str, params: &str) -> io::Result<u32> {
        let to = self.to.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        let from = self.from.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        // One that was under way when a server died is answered with an error: ask again, as an app would.
        for _ in 0..50 {
            self.asked += 1;
            writeln!(
                to,
                r#"{{"jsonrpc":"2.0","id":{},"method":"{method}","params":{params}}}"#,
                self.asked
            )?;
            let mut line = String::new();
            if from.read_line(&mut line)? == 0 {
                return Err(io::Error::other("the session is gone"));
            }
            if let Some((_, result)) = line.split_once(r#""result":{"pid":"#) {
                let digits = result.split('}').next().unwrap_or_default();
                return digits.parse().map_err(io::Error::other);
            }
        }
        Err(io::Error::other("no answer from the server"))
    }

    /// The server that answers now.
    fn server(&mut self) -> io::Result<ProcessRef> {
        let pid = self.ask("tools/call", r#"{"name":"pid"}"#)?;
        ProcessRef::open(pid)
    }

    /// Everyone below the app.
    fn tree(&self) -> io::Result<Vec<ProcessRef>> {
        let mut line = children(self.app.id())?;
        let mut everyone = Vec::new();
        while let Some(process) = line.pop() {
            line.extend(children(process.pid())?);
            everyone.push(process);
        }
        Ok(everyone)
    }

    /// Kills the app. The process that is returned keeps its pipes open, and it alone: it is no ancestor of the session, as
    /// we are, so nobody takes it for the app.
    fn kill_app(mut self) -> io::Result<Holder> {
        let from = self.from.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let to = self.to.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let holder = Command::new("sleep")
            .arg("30")
            .stdin(from.into_inner())
            .stdout(to)
            .spawn()
            .map(Holder)?;
        self.app.kill()?;
        self.app.wait()?;
        Ok(holder)
    }

    fn end(mut self) -> io::Result<()> {
        self.to = None;
        self.app.wait().map(drop)
    }
}

/// A process that goes with the show.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Only where the show was broken off: end the app, and Kennel does the rest.
        let _ = self.app.kill();
        let _ = self.app.wait();
    }
}

fn daemon_of(stage: &Path) -> io::Result<ProcessRef> {
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        goes_on()?;
        if let Some(daemon) = daemons_of(stage)?.pop() {
            return Ok(daemon);
        }
        events::sleep(&[], &[], Some(Duration::from_millis(5)))?;
    }
    Err(io::Error::other("no daemon is there"))
}

/// Those that are on record and live.
fn daemons_of(stage: &Path) -> io::Result<Vec<ProcessRef>> {
    let mut daemons = Vec::new();
    let keys = match std::fs::read_dir(stage.join("run/daemons")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(daemons),
        keys => keys?,
    };
    for key in keys {
        let record = std::fs::read(key?.path().join("daemon.json")).unwrap_or_default();
        let record: Option<DaemonRecord> = serde_json::from_slice(&record).ok();
        daemons.extend(record.and_then(|record| record.process()));
    }
    Ok(daemons)
}

/// Plays a server.
pub(crate) fn play(part: Part) -> ExitCode {
    if let Part::Stubborn = part {
        let _deaf = Signals::catch(&[Signal::TERM, Signal::INT, Signal::HUP]);
        let detached = Command::new("setsid")
            .args(["sleep", "1000"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        let _ = answer();
        loop {
            // EOF means nothing to it.
            let _ = events::sleep(&[], &[], None);
            let _ = &detached;
        }
    }
    match answer() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn answer() -> io::Result<()> {
    for line in io::stdin().lock().lines() {
        let line = line?;
        let Some((_, rest)) = line.split_once(r#""id":"#) else {
            continue;
        };
        let id: String = rest.chars().take_while(char::is_ascii_digit).collect();
        tell!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{{"pid":{}}}}}"#,
            std::process::id()
        )?;
    }
    Ok(())
}
