//! `kennel demo`: what Kennel does, shown on apps, shims, servers and a daemon of its own, in a private runtime
//! directory, with times measured here. It leaves nothing behind.
#![expect(
    clippy::print_stdout,
    reason = "the demo is a show for the person who asked for it"
)]

use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;

/// How many apps there are.
const APPS: usize = 10;
/// Nothing in the show takes this long unless it is broken.
const PATIENCE: Duration = Duration::from_secs(20);

/// A process of the show.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum Part {
    /// An MCP server that answers everything with its pid.
    Server,
    /// A server that ignores EOF and SIGTERM, and has a detached process.
    Stubborn,
}

/// Runs the show.
pub(crate) fn show() -> ExitCode {
    let stage = std::env::temp_dir().join(format!("kennel-demo-{}", std::process::id()));
    let shown = std::fs::create_dir(&stage).and_then(|()| acts(&stage));
    let cleared = std::fs::remove_dir_all(&stage);
    match shown.and(cleared) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => crate::fail(&format!("the demo went wrong: {error}")),
    }
}

fn acts(stage: &Path) -> io::Result<()> {
    println!("Kennel stands between an app and its tool server:  app -> kennel run -> server\n");

    println!(
        "1. {APPS} apps begin a session with the same server. One server runs where {APPS} would."
    );
    let mut sessions = Vec::new();
    for _ in 0..APPS {
        sessions.push(Session::begin(stage, Part::Server, true)?);
    }
    let server = the_one_server(&mut sessions)?;
    let daemon = daemon_of(stage)?;
    println!(
        "   running:  {APPS} sessions, one daemon ({}), one server ({})",
        daemon.pid(),
        server.pid()
    );

    println!("\n2. The server is killed with -9. All sessions go on with a new one.");
    let killed = Instant::now();
    server.signal(Signal::KILL)?;
    server.wait(Some(PATIENCE))?;
    let new = the_one_server(&mut sessions)?;
    println!(
        "   server {} -> {}, all {APPS} answering again after {}",
        server.pid(),
        new.pid(),
        since(killed)
    );

    println!("\n3. The daemon is killed with -9. All sessions go on with a new daemon.");
    let killed = Instant::now();
    daemon.signal(Signal::KILL)?;
    daemon.wait(Some(PATIENCE))?;
    the_one_server(&mut sessions)?;
    println!(
        "   daemon {} -> {}, all {APPS} answering again after {}",
        daemon.pid(),
        daemon_of(stage)?.pid(),
        since(killed)
    );

    println!(
        "\n4. An app is killed with -9 while another process keeps its pipe open, so that EOF never comes;"
    );
    println!("   and its server ignores SIGTERM and has a detached process of its own.");
    let stubborn = Session::begin(stage, Part::Stubborn, false)?;
    let everyone = stubborn.tree()?;
    let pids: Vec<String> = everyone
        .iter()
        .map(|process| process.pid().to_string())
        .collect();
    println!(
        "   running:  app {}, and behind it {}",
        stubborn.app.id(),
        pids.join(", ")
    );
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
    println!(
        "   nothing left after {} (it was given 300 ms to end by itself, and 300 ms after SIGTERM)",
        since(killed)
    );

    println!(
        "\n5. The apps are done. When nobody came back for a while, server and daemon go too."
    );
    let done = Instant::now();
    let daemon = daemon_of(stage)?;
    for session in sessions {
        session.end()?;
    }
    if !daemon.wait(Some(PATIENCE))? {
        return Err(io::Error::other("the daemon is still there"));
    }
    println!("   nothing left after {} (it lingered 500 ms)", since(done));
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
    from: BufReader<ChildStdout>,
    asked: u32,
}

impl Session {
    fn begin(stage: &Path, part: Part, shared: bool) -> io::Result<Session> {
        let (stdin, to): (PipeReader, PipeWriter) = io::pipe()?;
        let part = match part {
            Part::Server => "server",
            Part::Stubborn => "stubborn",
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
            .spawn()?;
        let from = BufReader::new(app.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?);
        let mut session = Session {
            app,
            to: Some(to),
            from,
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
        // One that was under way when a server died is answered with an error: ask again, as an app would.
        for _ in 0..50 {
            self.asked += 1;
            writeln!(
                to,
                r#"{{"jsonrpc":"2.0","id":{},"method":"{method}","params":{params}}}"#,
                self.asked
            )?;
            let mut line = String::new();
            self.from.read_line(&mut line)?;
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
        let mut line = vec![self.app.id()];
        let mut everyone = Vec::new();
        while let Some(parent) = line.pop() {
            let children =
                std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"))?;
            for pid in children
                .split_whitespace()
                .filter_map(|pid| pid.parse().ok())
            {
                line.push(pid);
                everyone.extend(ProcessRef::open(pid));
            }
        }
        Ok(everyone)
    }

    /// Kills the app; what is returned keeps its pipe open.
    fn kill_app(mut self) -> io::Result<Option<PipeWriter>> {
        self.app.kill()?;
        self.app.wait()?;
        Ok(self.to.take())
    }

    fn end(mut self) -> io::Result<()> {
        self.to = None;
        self.app.wait().map(drop)
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
    let daemons: PathBuf = stage.join("run/daemons");
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        for entry in std::fs::read_dir(&daemons)? {
            let record = std::fs::read(entry?.path().join("daemon.json")).unwrap_or_default();
            let record: Option<crate::meeting::DaemonRecord> = serde_json::from_slice(&record).ok();
            if let Some(process) = record.and_then(|record| record.process()) {
                return Ok(process);
            }
        }
        kennel_sys::events::sleep(&[], &[], Some(Duration::from_millis(5)))?;
    }
    Err(io::Error::other("no daemon is there"))
}

/// Plays a server.
pub(crate) fn play(part: Part) -> ExitCode {
    if let Part::Stubborn = part {
        let _deaf = kennel_sys::signals::Signals::catch(&[Signal::TERM, Signal::INT, Signal::HUP]);
        let detached = Command::new("setsid")
            .args(["sleep", "1000"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        let _ = answer();
        loop {
            // EOF means nothing to it.
            let _ = kennel_sys::events::sleep(&[], &[], None);
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
        println!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{{"pid":{}}}}}"#,
            std::process::id()
        );
    }
    Ok(())
}
