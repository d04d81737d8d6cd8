//! A scripted MCP client: JSON lines to a process and from it, every wait with a deadline (lesson 42).

use std::io::{BufRead as _, BufReader, PipeWriter, Read, Write as _};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use serde_json::{Value, json};

use crate::canary::Canary;
use crate::keeper::Keeper;
use crate::wait::{DEADLINE, wait_for};

/// A started process with pipes at stdin, stdout and stderr.
#[derive(Debug)]
pub struct Client {
    child: Child,
    stdin: Option<PipeWriter>,
    stdout: Receiver<String>,
    stderr: Receiver<String>,
    next_id: u64,
    /// The runtime directory that the process uses, if it was set.
    runtime_dir: Option<PathBuf>,
    _keeper: Option<Keeper>,
}

/// The end of a process, with its unread output.
#[derive(Debug)]
pub struct Ended {
    /// Its exit status.
    pub status: ExitStatus,
    /// The unread lines of its stdout.
    pub stdout: String,
    /// All of its stderr.
    pub stderr: String,
}

/// Runs a command that ends by itself, with empty stdin.
#[track_caller]
pub fn run(command: &mut Command) -> Ended {
    let mut client = Client::start(command);
    client.close();
    client.wait()
}

impl Client {
    /// Starts the command with pipes on its stdin, stdout and stderr.
    #[track_caller]
    pub fn start(command: &mut Command) -> Client {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let stdin = child.stdin.take().map(OwnedFd::from);
        Client {
            stdin: stdin.map(PipeWriter::from),
            stdout: lines_of("stdout", child.stdout.take().expect("stdout is a pipe")),
            stderr: lines_of("stderr", child.stderr.take().expect("stderr is a pipe")),
            child,
            next_id: 1,
            runtime_dir: runtime_dir(command),
            _keeper: None,
        }
    }

    /// Starts the command with pipes that a [`Keeper`] holds: they stay open when the command dies, and this process, an
    /// ancestor, does not hold them.
    #[track_caller]
    pub fn start_with_kept_pipes(command: &mut Command) -> Client {
        let (keeper, pipes) =
            Keeper::start().unwrap_or_else(|error| panic!("cannot start cat: {error}"));
        let mut child = command
            .stdin(pipes.input)
            .stdout(pipes.output)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        // The command keeps its pipe ends until it gets others.
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Client {
            stdin: Some(pipes.writer),
            stdout: lines_of("stdout", pipes.reader),
            stderr: lines_of("stderr", child.stderr.take().expect("stderr is a pipe")),
            child,
            next_id: 1,
            runtime_dir: runtime_dir(command),
            _keeper: Some(keeper),
        }
    }

    /// Starts the command and performs the MCP handshake.
    #[track_caller]
    pub fn begin(command: &mut Command) -> Client {
        let mut client = Client::start(command);
        client.initialize();
        client
    }

    /// The process id of what was started.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The MCP handshake. Returns the answer to `initialize`.
    #[track_caller]
    pub fn initialize(&mut self) -> Value {
        let id = self.ask_to_initialize();
        let answer = self.answer(id);
        self.look_for_the_canary();
        let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        self.say(&format!("{initialized}\n"));
        answer["result"].clone()
    }

    /// Searches for the canary while shim, daemon, warden and server are alive and their records exist.
    fn look_for_the_canary(&self) {
        let canary = Canary::of_run();
        canary.look_at_arguments();
        canary.look_below(self.runtime_dir.iter());
    }

    /// Sends the `initialize` request without waiting. Returns its id.
    pub fn ask_to_initialize(&mut self) -> u64 {
        self.send(
            "initialize",
            json!({
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": { "name": "testkit", "version": "0" },
            }),
        )
    }

    /// Sends a request and returns its whole answer.
    #[track_caller]
    pub fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, params);
        self.answer(id)
    }

    /// Calls a tool and returns the call's result.
    #[track_caller]
    pub fn call(&mut self, tool: &str, arguments: Value) -> Value {
        self.try_call(tool, arguments)
            .unwrap_or_else(|| panic!("the server ended before it answered {tool}"))
    }

    /// Calls a tool; `None` if the server ended before it answered.
    #[track_caller]
    pub fn try_call(&mut self, tool: &str, arguments: Value) -> Option<Value> {
        let id = self.send(
            "tools/call",
            json!({ "name": tool, "arguments": arguments }),
        );
        self.try_answer(id).map(|answer| answer["result"].clone())
    }

    /// Sends a request without waiting. Returns its id.
    pub fn send(&mut self, method: &str, params: Value) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.say(&format!("{request}\n"));
        id
    }

    /// Writes text to the process's stdin as it is.
    pub fn say(&mut self, text: &str) {
        // A process that is gone does not read. The missing answer shows that.
        if let Some(stdin) = &mut self.stdin {
            let _ = stdin.write_all(text.as_bytes());
        }
    }

    /// The answer to the request `id`; lines before it are dropped.
    #[track_caller]
    pub fn answer(&mut self, id: u64) -> Value {
        self.try_answer(id).unwrap_or_else(|| {
            panic!(
                "the server ended before it answered request {id}: {}",
                self.stderr_so_far()
            )
        })
    }

    /// The answer to the request `id`; `None` if the server ended before it answered.
    #[track_caller]
    pub fn try_answer(&mut self, id: u64) -> Option<Value> {
        loop {
            let line = self.line()?;
            let message: Value = serde_json::from_str(&line).unwrap_or_else(|error| {
                panic!("stdout is the protocol (rule 12): {error}: {line}")
            });
            if message["id"] == id {
                return Some(message);
            }
        }
    }

    /// The next line of stdout; `None` at its end.
    #[track_caller]
    pub fn line(&mut self) -> Option<String> {
        next(&self.stdout, "a line of stdout")
    }

    /// Closes the process's stdin.
    pub fn close(&mut self) {
        Canary::of_run().look_below(self.runtime_dir.iter());
        self.stdin = None;
    }

    /// Kills the process with SIGKILL, and reaps it.
    pub fn kill(&mut self) {
        self.child.kill().expect("an own child can be killed");
        self.child.wait().expect("an own child can be reaped");
    }

    /// The exit status, if the process has ended.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        self.child
            .try_wait()
            .expect("an own child can be waited for")
    }

    /// Waits for the process to end by itself, with its stdin still open.
    #[track_caller]
    pub fn wait(mut self) -> Ended {
        let label = format!("process {} ends", self.pid());
        let status = wait_for(&label, || self.try_wait());
        Ended {
            status,
            stdout: rest(&self.stdout, "the end of stdout"),
            stderr: rest(&self.stderr, "the end of stderr"),
        }
    }

    /// The unread lines of stderr.
    pub fn stderr_so_far(&self) -> String {
        self.stderr.try_iter().map(|line| line + "\n").collect()
    }
}

impl Ended {
    /// The exit code; `None` after a signal.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }
}

fn runtime_dir(command: &Command) -> Option<PathBuf> {
    let mut set = command.get_envs();
    let place = set.find(|(name, _)| *name == "KENNEL_RUNTIME_DIR");
    place?.1.map(PathBuf::from)
}

fn lines_of(name: &'static str, stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines() {
            let Ok(line) = line else { return };
            Canary::of_run().hear(name, &line);
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

#[track_caller]
fn next(lines: &Receiver<String>, label: &str) -> Option<String> {
    match lines.recv_timeout(DEADLINE) {
        Ok(line) => Some(line),
        Err(RecvTimeoutError::Disconnected) => None,
        Err(RecvTimeoutError::Timeout) => panic!("still waiting after {DEADLINE:?}: {label}"),
    }
}

#[track_caller]
fn rest(lines: &Receiver<String>, label: &str) -> String {
    std::iter::from_fn(|| next(lines, label))
        .map(|line| line + "\n")
        .collect()
}
