//! `kennel demo`: shows what Kennel does, with apps, shims, servers and a daemon of its own in a private runtime
//! directory, and measures the times. Leaves nothing behind.

mod dir;

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kennel_sys::process::{ProcessRef, children};
use kennel_sys::signals::Signals;
use kennel_sys::{Signal, events};

use crate::exit_code;
use crate::key_dir::DaemonRecord;
use dir::DemoDir;

/// Number of apps in the demo.
const APPS: usize = 10;
/// Maximum time for each step of the demo; longer means that it is broken.
const STEP_TIMEOUT: Duration = Duration::from_secs(20);

/// Prints a line of the demo. Not `println!`, which panics: if stdout cannot be written, the demo ends and cleans up.
macro_rules! demo_line {
    ($($words:tt)*) => { writeln!(io::stdout(), $($words)*) };
}

/// A process of the demo.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Part {
    /// An MCP server that answers every request with its pid.
    Server,
    /// A server that ignores the end of its stdin and SIGTERM, and has a detached process.
    IgnoresStop,
}

impl Part {
    /// The part that this word on the command line names; used only by the demo.
    pub(crate) fn from_word(word: &OsStr) -> Option<Part> {
        match word.to_str()? {
            "server" => Some(Part::Server),
            "stubborn" => Some(Part::IgnoresStop),
            _ => None,
        }
    }
}

/// Whether the demo was interrupted: no new session starts, and no daemon is waited for.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

fn check_interrupted() -> io::Result<()> {
    match INTERRUPTED.load(Ordering::Relaxed) {
        true => Err(io::ErrorKind::Interrupted.into()),
        false => Ok(()),
    }
}

/// Runs the demo.
pub(crate) fn run() -> ExitCode {
    let signals = match Signals::catch(&[Signal::INT, Signal::TERM, Signal::HUP]) {
        Ok(signals) => signals,
        Err(error) => return crate::fail(&format!("cannot catch signals: {error}")),
    };
    let shown = DemoDir::create(&std::env::temp_dir()).and_then(|dir| {
        let ran = run_steps(&dir, &signals);
        let removed = dir.remove();
        ran.and_then(|signal| removed.map(|()| signal))
    });
    match shown {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(signal)) => ExitCode::from(exit_code::of_signal(signal)),
        Err(error) => crate::fail(&format!("the demo failed: {error}")),
    }
}

/// Runs the steps on a thread, so that they can be interrupted. Returns the signal that did so.
fn run_steps(dir: &DemoDir, signals: &Signals) -> io::Result<Option<Signal>> {
    let (done, closes_when_done) = io::pipe()?;
    let own = dir.path().to_owned();
    let thread = std::thread::spawn(move || {
        let result = steps(&own);
        drop(closes_when_done);
        result
    });
    events::sleep(&[signals, &done], &[], None)?;
    let signal = signals.next();
    if signal.is_some() {
        INTERRUPTED.store(true, Ordering::Relaxed);
        for child in children(std::process::id())? {
            // Its sessions notice that it is gone, and Kennel does the rest.
            child.signal(Signal::KILL)?;
        }
    }
    let result = thread
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("a step panicked")));
    match (signal, result) {
        (None, Ok(())) => Ok(None),
        (signal, result) => {
            dir.end_all_processes()?;
            signal.map_or(result.map(|()| None), |signal| Ok(Some(signal)))
        }
    }
}

fn steps(dir: &Path) -> io::Result<()> {
    demo_line!("Kennel runs between an app and its MCP server:  app -> kennel run -> server\n")?;
    let mut sessions = share_a_server(dir)?;
    kill_the_server(&mut sessions)?;
    kill_the_daemon(dir, &mut sessions)?;
    kill_an_app(dir)?;
    end_all(dir, sessions)
}

fn share_a_server(dir: &Path) -> io::Result<Vec<Session>> {
    demo_line!(
        "1. {APPS} apps begin a session with the same server. One server runs instead of {APPS}."
    )?;
    let mut sessions = Vec::new();
    for _ in 0..APPS {
        sessions.push(Session::begin(dir, Part::Server, true)?);
    }
    let (server, daemon) = (single_server(&mut sessions)?, daemon_of(dir)?);
    demo_line!(
        "   running:  {APPS} sessions, one daemon ({}), one server ({})",
        daemon.pid(),
        server.pid()
    )?;
    Ok(sessions)
}

fn kill_the_server(sessions: &mut [Session]) -> io::Result<()> {
    demo_line!("\n2. The server is killed with -9. All sessions go on with a new one.")?;
    let server = single_server(sessions)?;
    let killed = Instant::now();
    server.signal(Signal::KILL)?;
    server.wait(Some(STEP_TIMEOUT))?;
    let new = single_server(sessions)?;
    demo_line!(
        "   server {} -> {}, all {APPS} served again after {}",
        server.pid(),
        new.pid(),
        elapsed(killed)
    )
}

fn kill_the_daemon(dir: &Path, sessions: &mut [Session]) -> io::Result<()> {
    demo_line!("\n3. The daemon is killed with -9. All sessions go on with a new daemon.")?;
    let daemon = daemon_of(dir)?;
    let killed = Instant::now();
    daemon.signal(Signal::KILL)?;
    daemon.wait(Some(STEP_TIMEOUT))?;
    single_server(sessions)?;
    demo_line!(
        "   daemon {} -> {}, all {APPS} served again after {}",
        daemon.pid(),
        daemon_of(dir)?.pid(),
        elapsed(killed)
    )
}

fn kill_an_app(dir: &Path) -> io::Result<()> {
    demo_line!(
        "\n4. An app is killed with -9 while another process keeps its pipe open, so that EOF never comes;"
    )?;
    demo_line!("   and its server ignores SIGTERM and has a detached process of its own.")?;
    let stubborn = Session::begin(dir, Part::IgnoresStop, false)?;
    let everyone = stubborn.tree()?;
    let pids = everyone.iter().map(|process| process.pid().to_string());
    demo_line!(
        "   running:  app {}, and behind it {}",
        stubborn.app.id(),
        pids.collect::<Vec<_>>().join(", ")
    )?;
    let killed = Instant::now();
    let _held = stubborn.kill_app()?;
    for process in &everyone {
        await_end(process)?;
    }
    demo_line!(
        "   nothing left after {} (it was given 300 ms to end by itself, and 300 ms after SIGTERM)",
        elapsed(killed)
    )
}

fn end_all(dir: &Path, sessions: Vec<Session>) -> io::Result<()> {
    demo_line!("\n5. The apps exit. After 500 ms without a new one, server and daemon end too.")?;
    let done = Instant::now();
    let daemon = daemon_of(dir)?;
    for session in sessions {
        session.end()?;
    }
    await_end(&daemon)?;
    demo_line!(
        "   nothing left after {} (it lingered 500 ms)",
        elapsed(done)
    )
}

fn await_end(process: &ProcessRef) -> io::Result<()> {
    match process.wait(Some(STEP_TIMEOUT))? {
        true => Ok(()),
        false => Err(io::Error::other(format!(
            "process {} is still running",
            process.pid()
        ))),
    }
}

/// The one server that answers all of these sessions.
fn single_server(sessions: &mut [Session]) -> io::Result<ProcessRef> {
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

fn elapsed(start: Instant) -> String {
    format!("{:.1} ms", start.elapsed().as_secs_f64() * 1000.0)
}

/// An app with its session. The app is a shell that waits; the demo writes and reads in its place.
struct Session {
    app: Child,
    to: Option<PipeWriter>,
    from: Option<BufReader<ChildStdout>>,
    last_id: u32,
}

impl Session {
    fn begin(dir: &Path, part: Part, shared: bool) -> io::Result<Session> {
        check_interrupted()?;
        let (stdin, to): (PipeReader, PipeWriter) = io::pipe()?;
        let (part, stderr) = match part {
            Part::Server => ("server", Stdio::inherit()),
            // A session whose app is gone reports that on stderr; the demo shows it itself.
            Part::IgnoresStop => ("stubborn", Stdio::null()),
        };
        let share = if shared { "always" } else { "never" };
        let program = std::env::current_exe()?;
        // The app's own stdin is not the session's, so that the shim takes it for the app and not for a launcher.
        let line = format!(
            "exec 3<&0 </dev/null; '{0}' run --share {share} --linger 500ms --stop-after 300ms,300ms -- '{0}' demo {part} <&3 & exec 3<&-; wait",
            program.display()
        );
        let mut app = Command::new("sh")
            .args(["-c", &line])
            .env("KENNEL_RUNTIME_DIR", dir.join("run"))
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()?;
        let from = BufReader::new(app.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?);
        let mut session = Session {
            app,
            to: Some(to),
            from: Some(from),
            last_id: 0,
        };
        session.request(
            "initialize",
            r#"{"protocolVersion":"2025-06-18","capabilities":{}}"#,
        )?;
        Ok(session)
    }

    fn request(&mut self, method: &str, params: &str) -> io::Result<u32> {
        let to = self.to.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        let from = self.from.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        // A request that was in flight when a server was killed gets an error: send it again, as an app would.
        for _ in 0..50 {
            self.last_id += 1;
            writeln!(
                to,
                r#"{{"jsonrpc":"2.0","id":{},"method":"{method}","params":{params}}}"#,
                self.last_id
            )?;
            let mut line = String::new();
            if from.read_line(&mut line)? == 0 {
                return Err(io::Error::other("the session has ended"));
            }
            if let Some((_, result)) = line.split_once(r#""result":{"pid":"#) {
                let digits = result.split('}').next().unwrap_or_default();
                return digits.parse().map_err(io::Error::other);
            }
        }
        Err(io::Error::other("no answer from the server"))
    }

    /// The server that answers this session now.
    fn server(&mut self) -> io::Result<ProcessRef> {
        let pid = self.request("tools/call", r#"{"name":"pid"}"#)?;
        ProcessRef::open(pid)
    }

    /// All processes below the app.
    fn tree(&self) -> io::Result<Vec<ProcessRef>> {
        let mut line = children(self.app.id())?;
        let mut everyone = Vec::new();
        while let Some(process) = line.pop() {
            line.extend(children(process.pid())?);
            everyone.push(process);
        }
        Ok(everyone)
    }

    /// Kills the app. The returned process keeps its pipes open. It is not an ancestor of the session, as this process
    /// is, so the session does not take it for the app.
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

/// A child process that is killed when this is dropped.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Reached only if the demo was interrupted: end the app, and Kennel ends the rest.
        let _ = self.app.kill();
        let _ = self.app.wait();
    }
}

fn daemon_of(dir: &Path) -> io::Result<ProcessRef> {
    let started = Instant::now();
    while started.elapsed() < STEP_TIMEOUT {
        check_interrupted()?;
        if let Some(daemon) = daemons_of(dir)?.pop() {
            return Ok(daemon);
        }
        events::sleep(&[], &[], Some(Duration::from_millis(5)))?;
    }
    Err(io::Error::other("no daemon is running"))
}

/// The daemons that have a record and are running.
fn daemons_of(dir: &Path) -> io::Result<Vec<ProcessRef>> {
    let mut daemons = Vec::new();
    let keys = match std::fs::read_dir(dir.join("run/daemons")) {
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

/// Runs as one of the demo's servers.
pub(crate) fn run_part(part: Part) -> ExitCode {
    if let Part::IgnoresStop = part {
        let _deaf = Signals::catch(&[Signal::TERM, Signal::INT, Signal::HUP]);
        let detached = Command::new("setsid")
            .args(["sleep", "1000"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        let _ = answer();
        loop {
            // Ignores the end of stdin.
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
        demo_line!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{{"pid":{}}}}}"#,
            std::process::id()
        )?;
    }
    Ok(())
}
