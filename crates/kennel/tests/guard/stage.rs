//! What the tests stand on: owners that die, servers that listen, clients that ask.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kennel_sys::net;
use kennel_sys::process::ProcessRef;
use kennel_testkit::{DEADLINE, Scope, bin, run, wait_for};
use serde_json::Value;

pub(crate) use kennel_testkit::free_port;

pub(crate) const LOCALHOST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

/// Long enough to be told from nothing, short enough to be waited for.
pub(crate) const GRACE: Duration = Duration::from_millis(400);

pub(crate) fn kennel(scope: &Scope) -> Command {
    scope.command(env!("CARGO_BIN_EXE_kennel"))
}

/// `kennel guard` with these options before the server that does as it is told.
pub(crate) fn guard(scope: &Scope, options: &[&str], server: &[&str]) -> Command {
    let mut command = kennel(scope);
    command.args(["guard", "--stop-after", "300ms"]);
    if !options.contains(&"--grace") {
        command.args(["--grace", "400ms"]);
    }
    command
        .args(options)
        .arg("--")
        .arg(bin("tk-ports"))
        .args(server)
        .stdin(Stdio::null());
    command
}

/// One that somebody else may own: it waits to be ended.
pub(crate) fn owner(scope: &Scope) -> Child {
    scope.command("sleep").arg("1000").spawn().unwrap()
}

/// Killed and reaped: nothing is left of it.
pub(crate) fn kill(owner: &mut Child) {
    owner.kill().unwrap();
    owner.wait().unwrap();
}

/// A guarded server in our foreground, and where it listens.
pub(crate) struct Guarded {
    pub(crate) child: Child,
    pub(crate) port: u16,
}

impl Guarded {
    /// On a port of its own that is not named to the guard.
    pub(crate) fn start(scope: &Scope, options: &[&str]) -> Guarded {
        Guarded::with(scope, options, &["127.0.0.1:0"], |_| {})
    }

    pub(crate) fn with(
        scope: &Scope,
        options: &[&str],
        server: &[&str],
        change: impl FnOnce(&mut Command),
    ) -> Guarded {
        let mut command = guard(scope, options, server);
        change(&mut command);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        // Nobody reads on: what it says later must not stop it.
        std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
        let port = line.trim().strip_prefix("listening ").map(str::parse);
        let port = port.unwrap_or_else(|| panic!("no port: {line:?}")).unwrap();
        Guarded { child, port }
    }

    pub(crate) fn connect(&self) -> Visitor {
        Visitor::to(LOCALHOST, self.port)
    }

    /// It ended by itself; its exit code.
    #[track_caller]
    pub(crate) fn ends(&mut self) -> Option<i32> {
        let status = wait_for("the guard to end", || self.child.try_wait().unwrap());
        assert!(!listens(self.port), "its port is free");
        status.code()
    }

    /// It is there for as long as `time`, and after.
    #[track_caller]
    pub(crate) fn stays_for(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            assert_eq!(self.child.try_wait().unwrap(), None, "the guard ended");
            pause(Duration::from_millis(10));
        }
        assert!(listens(self.port), "the server ended");
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // The scope ends what is left; a child is reaped by its parent.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection that asks.
pub(crate) struct Visitor {
    stream: BufReader<TcpStream>,
}

impl Visitor {
    #[track_caller]
    pub(crate) fn to(address: IpAddr, port: u16) -> Visitor {
        let stream = wait_for(&format!("a connection to port {port}"), || {
            TcpStream::connect(SocketAddr::new(address, port)).ok()
        });
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        Visitor {
            stream: BufReader::new(stream),
        }
    }

    #[track_caller]
    pub(crate) fn ask(&mut self, what: &str) -> String {
        writeln!(self.stream.get_mut(), "{what}").unwrap();
        let mut answer = String::new();
        self.stream.read_line(&mut answer).unwrap();
        answer.trim_end().to_owned()
    }

    /// The process that answers.
    #[track_caller]
    pub(crate) fn server(&mut self) -> ProcessRef {
        ProcessRef::open(self.ask("pid").parse().unwrap()).unwrap()
    }
}

/// Whether anybody listens on a port. Nobody is connected to: that would be a session.
pub(crate) fn listens(port: u16) -> bool {
    let listeners = net::listeners().unwrap();
    listeners.iter().any(|it| it.address.port() == port)
}

#[track_caller]
pub(crate) fn wait_until_it_listens(port: u16) {
    wait_for(&format!("somebody to listen on {port}"), || {
        listens(port).then_some(())
    });
}

/// What `kennel ps` shows.
#[track_caller]
pub(crate) fn listing(scope: &Scope) -> Vec<Value> {
    let ended = run(kennel(scope).args(["ps", "--json"]));
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    serde_json::from_str(&ended.stdout).unwrap()
}

/// A command that ends with this code: its stdout and stderr.
#[track_caller]
pub(crate) fn ends_with(code: i32, command: &mut Command) -> (String, String) {
    let ended = run(command);
    assert_eq!(ended.code(), Some(code), "{}{}", ended.stdout, ended.stderr);
    (ended.stdout, ended.stderr)
}

#[track_caller]
pub(crate) fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

pub(crate) fn pause(time: Duration) {
    kennel_sys::events::sleep(&[], &[], Some(time)).unwrap();
}
