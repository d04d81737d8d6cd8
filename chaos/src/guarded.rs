//! A guarded server, its owner and its visitors.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use crate::app::listen;

#[derive(Debug)]
pub(crate) struct Guarded {
    // In a mutex, because rules with a shared reference check whether it has ended.
    owner: Mutex<Child>,
    guard: Mutex<Child>,
    pub(crate) visitors: Vec<TcpStream>,
    port: Arc<Mutex<Option<u16>>>,
    said: Arc<Mutex<String>>,
    may_end: bool,
}

impl Guarded {
    pub(crate) fn start(owner: Child, mut command: Command) -> std::io::Result<Guarded> {
        let mut guard = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let port = Arc::new(Mutex::new(None));
        let output = port.clone();
        let stdout = guard.stdout.take().expect("it is piped");
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some(port) = line.strip_prefix("listening ") {
                    *output.lock().expect("no panic while locked") = port.parse().ok();
                }
            }
        });
        let said = Arc::new(Mutex::new(String::new()));
        listen(guard.stderr.take().expect("it is piped"), said.clone());
        Ok(Guarded {
            owner: Mutex::new(owner),
            guard: Mutex::new(guard),
            visitors: Vec::new(),
            port,
            said,
            may_end: false,
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.guard.lock().expect("no panic while locked").id()
    }

    pub(crate) fn owner(&self) -> u32 {
        self.owner.lock().expect("no panic while locked").id()
    }

    pub(crate) fn said(&self) -> String {
        self.said.lock().expect("no panic while locked").clone()
    }

    pub(crate) fn allow_end(&mut self) {
        self.may_end = true;
    }

    /// Connects a visitor, if the server listens already.
    pub(crate) fn visit(&mut self) -> bool {
        let port = *self.port.lock().expect("no panic while locked");
        let visitor = port.and_then(|port| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok());
        let came = visitor.is_some();
        // A server whose owner is gone may decide to end while a visitor connects.
        if came && has_ended(&self.owner) {
            self.may_end = true;
        }
        self.visitors.extend(visitor);
        came
    }

    pub(crate) fn is_owned(&self) -> bool {
        !has_ended(&self.owner)
    }

    pub(crate) fn has_ended(&self) -> bool {
        has_ended(&self.guard)
    }

    pub(crate) fn is_needed(&self) -> bool {
        self.is_owned() || !self.visitors.is_empty()
    }

    /// Whether it has ended though an owner or a visitor needs it.
    pub(crate) fn ended_too_early(&self) -> bool {
        !self.may_end && self.has_ended() && self.is_needed()
    }

    pub(crate) fn end_owner(&mut self) {
        let mut owner = self.owner.lock().expect("no panic while locked");
        let _ = owner.kill();
        let _ = owner.wait();
        self.visitors.clear();
    }
}

fn has_ended(child: &Mutex<Child>) -> bool {
    let mut child = child.lock().expect("no panic while locked");
    matches!(child.try_wait(), Ok(Some(_)))
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.end_owner();
        let mut guard = self.guard.lock().expect("no panic while locked");
        let _ = guard.kill();
        let _ = guard.wait();
    }
}
