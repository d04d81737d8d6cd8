//! A client at work: requests to a server by some way, and its answers.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// A server, and the way to it. Dropping it closes the server's input and waits for the end.
#[derive(Debug)]
pub(crate) struct Route {
    child: Child,
    /// `None` only while it is dropped.
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    asked: u64,
    answer: Vec<u8>,
}

impl Route {
    pub(crate) fn start(mut command: Command) -> io::Result<Route> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let to = child.stdin.take();
        let from = BufReader::new(child.stdout.take().expect("it is piped"));
        Ok(Route {
            child,
            to,
            from,
            asked: 0,
            answer: Vec::new(),
        })
    }

    /// The process that was started: the server itself, or what stands before it.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks, and waits for the answer, which echoes `text`; tells how long that took.
    pub(crate) fn echo(&mut self, text: &str) -> io::Result<Duration> {
        self.ask("echo", &format!("{{\"text\":\"{text}\"}}"), text)
    }

    /// The handshake, up to the answer to `initialize`.
    pub(crate) fn initialize(&mut self) -> io::Result<Duration> {
        let client = r#""capabilities":{},"clientInfo":{"name":"bench","version":"0"}"#;
        let params = format!(r#"{{"protocolVersion":"2025-06-18",{client}}}"#);
        self.ask("initialize", &params, "serverInfo")
    }

    /// The end of the handshake, for servers that wait for it.
    pub(crate) fn confirm(&mut self) -> io::Result<()> {
        let to = self.to.as_mut().expect("it is not dropped");
        to.write_all(b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n")
    }

    /// Asks, and waits for the answer, in which something is expected; tells how long that took. What it says by
    /// itself meanwhile is passed over.
    pub(crate) fn ask(
        &mut self,
        method: &str,
        params: &str,
        expected: &str,
    ) -> io::Result<Duration> {
        self.asked += 1;
        let id = self.asked;
        let line = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\",\"params\":{params}}}\n"
        );
        self.answer.clear();
        // Before the clock: a long answer's memory is no part of its way.
        self.answer.reserve(line.len() + 1024);
        let to = self.to.as_mut().expect("it is not dropped");
        let asked = Instant::now();
        to.write_all(line.as_bytes())?;
        let took = loop {
            self.from.read_until(b'\n', &mut self.answer)?;
            let took = asked.elapsed();
            let head = &self.answer[..self.answer.len().min(64)];
            if !head.windows(8).any(|bytes| bytes == b"\"method\"") {
                break took;
            }
            self.answer.clear();
        };
        let answer = String::from_utf8_lossy(&self.answer);
        match answer.contains(expected) {
            true => Ok(took),
            false => Err(io::Error::other(format!("a wrong answer to {method}"))),
        }
    }
}

impl Drop for Route {
    fn drop(&mut self) {
        drop(self.to.take());
        let _ = self.child.wait();
    }
}
