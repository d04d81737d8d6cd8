//! An app and its session: its requests, and whether the answers belong to them.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

use kennel_sys::process::ProcessRef;
use kennel_testkit::{Keeper, KeptPipes, Rng};
use serde_json::Value;

use crate::processes::files_of;
use crate::rules::Broken;

/// Maximum number of open requests per app.
const MAX_OPEN: usize = 24;
/// Maximum line length of the sessions: the smallest that Kennel accepts.
const MAX_LINE: usize = 256 * 1024;
/// Maximum number of bytes kept of a session's stderr.
const MAX_STDERR: usize = 4096;

/// The processes between the app and its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wrapping {
    /// None: this process is the app.
    Nothing,
    /// The app is a process that only starts the session; a [`Keeper`] holds its pipes, and they stay open when it dies.
    Held,
    /// A shell that passes its stdio on.
    Launcher,
    /// A launcher in another time namespace: the session, and a daemon that it starts, have other clocks than the rest.
    Tomorrow,
}

/// The kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Answers requests concurrently; its tools have side effects.
    Many,
    /// Answers one line at a time, with the same bytes.
    Plain,
    /// Starts a detached service, and answers from there.
    Backed,
    /// As `Many`, and it has left detached processes that ignore signals.
    Family,
}

/// A line from the stdout of an app's session, by the number of the app; `None` at its end.
pub(crate) type SessionLine = (usize, Option<String>);

#[derive(Debug)]
pub(crate) struct App {
    pub(crate) number: usize,
    pub(crate) shared: bool,
    pub(crate) kind: Kind,
    pub(crate) wrapping: Wrapping,
    child: Child,
    /// The started process by identity: after it is reaped, its pid may be reused.
    pub(crate) starter: ProcessRef,
    stdin: Option<PipeWriter>,
    /// The link of its stdin in `/proc/<pid>/fd`. A process with this link belongs to its session.
    pipe: PathBuf,
    /// The file to which the shell writes the pid of the session.
    output: PathBuf,
    shim: Option<ProcessRef>,
    pub(crate) open: BTreeMap<String, What>,
    next_id: u64,
    pub(crate) ready: bool,
    /// Why this session may end, if it may.
    pub(crate) may_end: Option<String>,
    /// Whether it has ended, or its stdout has.
    pub(crate) over: bool,
    /// Side effects that must happen at most once, and whether they were acknowledged.
    pub(crate) effects: BTreeMap<String, bool>,
    pub(crate) answers: u64,
    pub(crate) errors: u64,
    said: Arc<Mutex<String>>,
    /// The read end of a full stderr that is never read.
    _unread: Option<OwnedFd>,
    /// Holds its pipes. This process is an ancestor, and would count as its app if it held them.
    _keeper: Option<Keeper>,
}

/// What a request asks for.
#[derive(Debug)]
pub(crate) enum What {
    Initialize,
    /// A tool, with the expected answer.
    Tool(String),
    /// A line that must come back unchanged.
    Echo(String),
    /// An answer that is longer than the session accepts: an error is expected instead.
    TooLong,
    /// Any answer.
    Any,
}

impl App {
    /// Starts an app. `line` is the session's command line; `command` has its environment.
    pub(crate) fn start(
        number: usize,
        (shared, kind, wrapping): (bool, Kind, Wrapping),
        mut command: Command,
        output: &Path,
        lines: Sender<SessionLine>,
    ) -> std::io::Result<App> {
        let (unread, stderr) = stderr_for(number, &mut command)?;
        command.env("KENNEL_MAX_LINE", "256K");
        let (keeper, pipes) = match wrapping {
            Wrapping::Nothing => {
                let ((input, writer), (reader, output)) = (std::io::pipe()?, std::io::pipe()?);
                let pipes = KeptPipes {
                    input,
                    output,
                    writer,
                    reader,
                };
                (None, pipes)
            }
            _ => {
                let (keeper, pipes) = Keeper::start()?;
                (Some(keeper), pipes)
            }
        };
        let pipe = std::fs::read_link(format!("/proc/self/fd/{}", pipes.input.as_raw_fd()))?;
        let mut child = command
            .stdin(pipes.input)
            .stdout(pipes.output)
            .stderr(stderr)
            .spawn()?;
        // It holds the session's pipe ends.
        drop(command);
        let starter = ProcessRef::open(child.id())?;
        std::thread::spawn(move || {
            for line in BufReader::new(pipes.reader).lines() {
                let Ok(line) = line else { break };
                if lines.send((number, Some(line))).is_err() {
                    return;
                }
            }
            let _ = lines.send((number, None));
        });
        let said = Arc::new(Mutex::new(String::new()));
        if let Some(stderr) = child.stderr.take() {
            listen(stderr, said.clone());
        }
        let mut app = App {
            number,
            shared,
            kind,
            wrapping,
            stdin: Some(pipes.writer),
            pipe,
            starter,
            shim: None,
            output: output.to_owned(),
            open: BTreeMap::new(),
            next_id: 0,
            ready: false,
            may_end: None,
            over: false,
            effects: BTreeMap::new(),
            answers: 0,
            errors: 0,
            said,
            _unread: unread,
            _keeper: keeper,
            child,
        };
        app.initialize();
        Ok(app)
    }

    fn initialize(&mut self) {
        let params = r#"{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"chaos","version":"0"}}"#;
        self.send("initialize", params, What::Initialize);
    }

    /// The process of its session, once it is known.
    pub(crate) fn shim(&mut self) -> Option<&ProcessRef> {
        if self.shim.is_none() {
            let pid = match self.wrapping {
                Wrapping::Nothing => Some(self.child.id()),
                Wrapping::Held | Wrapping::Launcher | Wrapping::Tomorrow => {
                    std::fs::read_to_string(&self.output)
                        .ok()
                        .and_then(|text| text.trim().parse().ok())
                }
            };
            // If it ended before it was known, its pid may have been reused.
            self.shim = pid
                .and_then(|pid| ProcessRef::open(pid).ok())
                .filter(|process| self.has_stdin_pipe(process));
        }
        self.shim.as_ref()
    }

    /// Whether this process has the other end of its pipe.
    fn has_stdin_pipe(&self, process: &ProcessRef) -> bool {
        files_of(process.pid()).contains(&self.pipe) && process.is_alive()
    }

    /// Whether the process that started it is gone, or has closed its side.
    pub(crate) fn has_left(&mut self) -> bool {
        self.stdin.is_none() || matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// Whether this is its session, the process that started it, or, before its session is known, one that may become it.
    pub(crate) fn is_session_or_starter(&mut self, process: &ProcessRef) -> bool {
        let same = |its: &ProcessRef| its.identity().same_process(process.identity());
        same(&self.starter)
            || match self.shim().map(same) {
                Some(same) => same,
                None => self.has_stdin_pipe(process),
            }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.stdin.is_some() && !self.over
    }

    pub(crate) fn leave(&mut self) {
        self.stdin = None;
        self.allow_end("its stdin was closed");
    }

    pub(crate) fn allow_end(&mut self, why: &str) {
        self.may_end.get_or_insert_with(|| why.to_owned());
    }

    pub(crate) fn said(&self) -> String {
        self.said.lock().expect("no panic while locked").clone()
    }

    /// Sends a random request that is possible now; returns a description.
    pub(crate) fn ask(&mut self, chance: &mut Rng, longest: u64) -> Option<&'static str> {
        if !self.ready || !self.is_open() || self.open.len() >= MAX_OPEN {
            return None;
        }
        let tag = format!("a{}r{}", self.number, self.next_id);
        let ms = chance.below(longest.max(1));
        let asked = match (self.kind, chance.below(10)) {
            (Kind::Backed, _) => self.any("tools/call", r#"{"name":"ask","arguments":{}}"#, "ask"),
            (Kind::Plain, 0) => self.any("die", "{}", "die"),
            (Kind::Plain, 2) => {
                let params = format!(r#"{{"bytes":{}}}"#, 2 * MAX_LINE);
                self.send("long", &params, What::TooLong);
                "long"
            }
            (Kind::Plain, 1) => self.any("slow", &format!(r#"{{"ms":{ms}}}"#), "slow"),
            (Kind::Plain, _) => {
                // Spacing that no JSON serializer produces.
                let params = format!(
                    r#"{{"z":1.0,"b":[1e2,  -0.0,12345678901234567890123],"s":"\u00e9\/","b":"{tag}"}}"#
                );
                let id = self.next_id();
                let back = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{params}}}"#);
                self.send_as(id, "echo", &params, What::Echo(back));
                "echo"
            }
            (_, 0) => self.any("ping", "{}", "ping"),
            (_, 1) => self.any("tools/list", "{}", "tools/list"),
            (_, 2 | 3) => self.tool("read", tag, ms, chance),
            (_, 4) => self.tool("put", tag, ms, chance),
            (_, _) => self.tool("work", tag, ms, chance),
        };
        Some(asked)
    }

    fn any(&mut self, method: &str, params: &str, name: &'static str) -> &'static str {
        self.send(method, params, What::Any);
        name
    }

    fn tool(&mut self, tool: &'static str, tag: String, ms: u64, chance: &mut Rng) -> &'static str {
        let steps = chance.below(3);
        let params = format!(
            r#"{{"name":"{tool}","arguments":{{"tag":"{tag}","ms":{ms},"steps":{steps}}},"_meta":{{"progressToken":"{tag}"}}}}"#
        );
        if tool == "work" {
            self.effects.insert(tag.clone(), false);
        }
        self.send("tools/call", &params, What::Tool(tag));
        tool
    }

    fn next_id(&mut self) -> String {
        self.next_id += 1;
        match self.next_id % 3 {
            0 => format!(r#""r{}""#, self.next_id),
            _ => self.next_id.to_string(),
        }
    }

    fn send(&mut self, method: &str, params: &str, what: What) {
        let id = self.next_id();
        self.send_as(id, method, params, what);
    }

    fn send_as(&mut self, id: String, method: &str, params: &str, what: What) {
        let line =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        self.open.insert(id, what);
        self.say(&line);
    }

    fn say(&mut self, line: &str) {
        if let Some(stdin) = &mut self.stdin {
            // A process that is gone does not read. Its end is judged elsewhere.
            let _ = stdin.write_all(format!("{line}\n").as_bytes());
        }
    }

    /// Handles a line of its session's stdout.
    pub(crate) fn handle_lines(&mut self, line: &str) -> Result<(), Broken> {
        let broken = |rule: &'static str, why: &str| {
            let why = format!("app {}: {why}: {line}", self.number);
            Err(Broken { rule, why })
        };
        let Ok(message) = serde_json::from_str::<Value>(line) else {
            return broken(STDOUT, "not a line of JSON");
        };
        if message["jsonrpc"] != "2.0" {
            return broken(STDOUT, "no JSON-RPC");
        }
        if message["method"].is_string() {
            if !message["id"].is_null() {
                return broken(ANSWERS, "an unexpected request");
            }
            let token = &message["params"]["progressToken"];
            let mine = format!("a{}r", self.number);
            if token
                .as_str()
                .is_some_and(|token| !token.starts_with(&mine))
            {
                return broken(ANSWERS, "another client's progress");
            }
            return Ok(());
        }
        let Some(asked) = self.open.remove(&message["id"].to_string()) else {
            return broken(ANSWERS, "a second answer, or an answer to no request");
        };
        let error = &message["error"];
        let well = error.is_null() && message.get("result").is_some();
        let clear = well || (error["code"].is_i64() && error["message"].is_string());
        if !clear {
            return broken(ANSWERS, "neither a result nor a clear error");
        }
        match asked {
            What::Tool(tag) if well => {
                if message["result"]["content"][0]["text"] != *tag {
                    return broken(ANSWERS, "the answer of another call");
                }
                if let Some(acknowledged) = self.effects.get_mut(&tag) {
                    *acknowledged = true;
                }
            }
            What::Echo(back) if well && back != line => {
                return broken(BYTES, &format!("not {back}"));
            }
            What::Initialize if well => {
                self.ready = true;
                self.say(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
                self.send("tools/list", "{}", What::Any);
            }
            What::TooLong if well => return broken(BOUNDS, "a line that is too long passed"),
            // Its server had died too often: a person would start it again.
            What::Initialize => self.leave(),
            What::Tool(_) | What::Echo(_) | What::TooLong | What::Any => {}
        }
        self.answers += u64::from(well);
        self.errors += u64::from(!well);
        Ok(())
    }

    /// Handles the end of the session: open requests get no answers any more.
    pub(crate) fn end(&mut self) {
        self.over = true;
        self.stdin = None;
        self.open.clear();
    }
}

pub(crate) const ANSWERS: &str = "4 every request gets exactly one answer";
pub(crate) const BYTES: &str = "11 bytes pass unchanged";
pub(crate) const BOUNDS: &str = "what one peer sends is bounded";
pub(crate) const STDOUT: &str = "12 stdout is the protocol";

impl Drop for App {
    fn drop(&mut self) {
        // The scope ends other processes; a child must be reaped by its parent.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The stderr of a session, and the read end that is never read. Every fourth app never reads its session's stderr, and that
/// pipe is full from the start.
fn stderr_for(number: usize, command: &mut Command) -> std::io::Result<(Option<OwnedFd>, Stdio)> {
    if number % 4 != 3 {
        return Ok((None, Stdio::piped()));
    }
    let (reader, writer) = full_pipe()?;
    // An invalid value, so that the session writes to stderr at once.
    command.env("KENNEL_MAX_IDLE", "no duration");
    Ok((Some(reader), Stdio::from(writer)))
}

/// A full pipe, which blocks writers.
fn full_pipe() -> std::io::Result<(OwnedFd, OwnedFd)> {
    use rustix::fs::OFlags;
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    rustix::fs::fcntl_setfl(&writer, OFlags::NONBLOCK)?;
    while rustix::io::write(&writer, &[b'x'; 4096]).is_ok() {}
    rustix::fs::fcntl_setfl(&writer, OFlags::empty())?;
    Ok((reader, writer))
}

/// Keeps the start of a stream, and discards the rest.
pub(crate) fn listen(mut stream: impl Read + Send + 'static, said: Arc<Mutex<String>>) {
    std::thread::spawn(move || {
        let mut buffer = [0u8; 4096];
        while let Ok(length @ 1..) = stream.read(&mut buffer) {
            let mut said = said.lock().expect("no panic while locked");
            if said.len() < MAX_STDERR {
                said.push_str(&String::from_utf8_lossy(&buffer[..length]));
            }
        }
    });
}
