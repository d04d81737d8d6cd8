//! A client that calls a tool: it knows its own answers from those of others, and does not wait for ever.

use std::io::{self, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};

/// No answer takes longer, unless it never comes.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long one that nobody talks to any more may take to end by itself.
const FAREWELL: Duration = Duration::from_secs(1);

/// A tool, which is told something.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    pub(crate) argument: &'static str,
    /// It says it again, so that an answer shows whose it is.
    pub(crate) echoes: bool,
}

/// A session by stdin and stdout. Dropping it ends its process.
#[derive(Debug)]
pub(crate) struct Caller {
    child: Child,
    /// `None` when somebody else writes, or it is dropped.
    to: Option<ChildStdin>,
    from: ChildStdout,
    /// Read, and not looked at yet.
    heard: Vec<u8>,
    tool: Tool,
    /// Whose words these are.
    name: String,
    asked: u64,
}

/// How a call went.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Called {
    pub(crate) took: Duration,
    /// The answer was to what somebody else had asked.
    pub(crate) astray: bool,
}

impl Caller {
    /// Starts it, and shakes hands; tells how long it took from the start to the answer to `initialize`.
    pub(crate) fn attach(
        mut command: Command,
        tool: Tool,
        name: &str,
    ) -> io::Result<(Caller, Duration)> {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let started = Instant::now();
        let mut child = command.spawn()?;
        let to = child.stdin.take();
        let from = child.stdout.take().expect("it is piped");
        let mut caller = Caller {
            child,
            to,
            from,
            heard: Vec::new(),
            tool,
            name: name.to_owned(),
            asked: 0,
        };
        let params = json!({
            "protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": {"name": name, "version": "0"},
        });
        let id = caller.ask("initialize", &params)?;
        let (_, at) = caller.answer(id, PATIENCE)?;
        caller.say(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))?;
        Ok((caller, at - started))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Calls the tool, and waits for its answer.
    pub(crate) fn call(&mut self) -> io::Result<Called> {
        self.call_within(PATIENCE)
    }

    /// The same, and does not wait longer than this.
    pub(crate) fn call_within(&mut self, patience: Duration) -> io::Result<Called> {
        let words = format!("{} says {}", self.name, self.asked);
        let params = json!({"name": self.tool.name, "arguments": {self.tool.argument: words}});
        let asked = Instant::now();
        let id = self.ask("tools/call", &params)?;
        let (answer, at) = self.answer(id, patience)?;
        let text = answer["result"]["content"][0]["text"].as_str();
        let text = text.filter(|_| answer["result"]["isError"] != true);
        let text = text.ok_or_else(|| io::Error::other(format!("not an answer: {answer}")))?;
        Ok(Called {
            took: at - asked,
            astray: self.tool.echoes && !text.contains(&words),
        })
    }

    /// Whether its process is gone: nobody will answer any more.
    pub(crate) fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)) | Err(_))
    }

    /// Calls another tool than the usual one.
    pub(crate) fn call_other(&mut self, tool: &str, arguments: &Value) -> io::Result<()> {
        let id = self.ask("tools/call", &json!({"name": tool, "arguments": arguments}))?;
        self.answer(id, PATIENCE).map(drop)
    }

    /// Reads what is said to all, for so long.
    pub(crate) fn listen(&mut self, time: Duration) {
        let deadline = Instant::now() + time;
        while self.line(deadline).is_ok() {}
    }

    /// Its input, for somebody who writes and does not read.
    pub(crate) fn take_input(&mut self) -> Option<ChildStdin> {
        self.to.take()
    }

    fn ask(&mut self, method: &str, params: &Value) -> io::Result<u64> {
        self.asked += 1;
        let id = self.asked;
        self.say(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))?;
        Ok(id)
    }

    fn say(&mut self, message: &Value) -> io::Result<()> {
        let line = format!("{message}\n");
        let to = self.to.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        to.write_all(line.as_bytes())
    }

    /// The answer to this request, and when it was there.
    fn answer(&mut self, id: u64, patience: Duration) -> io::Result<(Value, Instant)> {
        let deadline = Instant::now() + patience;
        loop {
            let line = self.line(deadline)?;
            let at = Instant::now();
            // What is no message is of no interest here: some say hello on stdout.
            let Ok(message) = serde_json::from_slice::<Value>(&line) else {
                continue;
            };
            if message["id"] == id && message.get("method").is_none() {
                return Ok((message, at));
            }
        }
    }

    fn line(&mut self, deadline: Instant) -> io::Result<Vec<u8>> {
        loop {
            if let Some(end) = self.heard.iter().position(|&byte| byte == b'\n') {
                let rest = self.heard.split_off(end + 1);
                return Ok(std::mem::replace(&mut self.heard, rest));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).expect("a short time");
            if poll(&mut [PollFd::new(&self.from, PollFlags::IN)], Some(&left))? == 0 {
                return Err(io::Error::other("no answer"));
            }
            let mut chunk = [0; 16 * 1024];
            match self.from.read(&mut chunk)? {
                0 => return Err(io::Error::other("it ended")),
                count => self.heard.extend_from_slice(&chunk[..count]),
            }
        }
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        drop(self.to.take());
        // To the end of its output, if that comes.
        self.listen(FAREWELL);
        // Our own child, and not reaped yet: it is nobody else.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
