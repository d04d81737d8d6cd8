//! The ways to one server for many: Kennel's, those of others, and none.

use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use kennel_sys::events;
use kennel_sys::tree::{Ladder, Launch, Report, Tree};

use crate::beside_us;
use crate::place::Place;

/// How long a broker may take until it listens.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A server for each client.
    Direct,
    Kennel,
    RmcpMux,
    McpProxy,
    Supergateway,
}

impl Kind {
    pub(super) const ALL: [Kind; 5] = [
        Kind::Direct,
        Kind::Kennel,
        Kind::RmcpMux,
        Kind::McpProxy,
        Kind::Supergateway,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Direct => "direct",
            Kind::Kennel => "kennel",
            Kind::RmcpMux => "rmcp-mux",
            Kind::McpProxy => "mcp-proxy",
            Kind::Supergateway => "supergateway",
        }
    }

    pub(super) fn is_peer(self) -> bool {
        !matches!(self, Kind::Direct | Kind::Kennel)
    }
}

/// What all ways need.
#[derive(Debug)]
pub(super) struct Ground {
    pub(super) place: Place,
    /// Where the peers are installed.
    pub(super) peers: PathBuf,
    /// The server.
    pub(super) server: Vec<OsString>,
}

/// A way that is open: whatever stands in the middle runs.
#[derive(Debug)]
pub(super) struct Way {
    pub(super) kind: Kind,
    broker: Option<Broker>,
    /// What each client starts; Kennel's is [`Place::share`].
    client: Vec<OsString>,
}

impl Way {
    pub(super) fn open(kind: Kind, ground: &Ground) -> io::Result<Way> {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let npm = |package: &str| {
            let script = ground.peers.join("npm/node_modules").join(package);
            let script = installed(script)?;
            Ok::<_, io::Error>(vec![OsString::from("node"), script.into()])
        };
        let (broker, client) = match kind {
            Kind::Direct => (None, ground.server.clone()),
            Kind::Kennel => (None, Vec::new()),
            Kind::RmcpMux => {
                let socket = ground.place.dir().join("rmcp-mux.sock");
                let program = |name| installed(ground.peers.join("cargo/bin").join(name));
                let mut broker = vec![program("rmcp-mux")?.into(), "--socket".into()];
                broker.push(socket.clone().into());
                // It serves five at a time, unless it is told otherwise.
                broker.extend(words(&[
                    "--max-active-clients",
                    "64",
                    "--log-level",
                    "error",
                ]));
                broker.extend(["--cmd".into(), ground.server[0].clone(), "--".into()]);
                broker.extend(ground.server[1..].iter().cloned());
                let broker = Broker::start(broker, || UnixStream::connect(&socket).is_ok())?;
                let client = vec![
                    program("rmcp-mux-proxy")?.into(),
                    "--socket".into(),
                    socket.into(),
                ];
                (Some(broker), client)
            }
            Kind::McpProxy => {
                let program = OsString::from(installed(ground.peers.join("python/bin/mcp-proxy"))?);
                let address = free_address()?;
                let mut broker = vec![program.clone()];
                broker.extend(words(&[
                    "--log-level",
                    "ERROR",
                    "--host",
                    "127.0.0.1",
                    "--port",
                ]));
                broker.extend([address.port().to_string().into(), "--".into()]);
                broker.extend(ground.server.iter().cloned());
                let broker = Broker::start(broker, || TcpStream::connect(address).is_ok())?;
                let url = format!("http://{address}/sse");
                let mut client = vec![program];
                client.extend(words(&["--log-level", "ERROR", &url]));
                (Some(broker), client)
            }
            Kind::Supergateway => {
                let program = npm("supergateway/dist/index.js")?;
                let address = free_address()?;
                let line = ground.server.iter().map(|word| word.to_string_lossy());
                let line = line.collect::<Vec<_>>().join(" ");
                let mut broker = program.clone();
                let port = address.port().to_string();
                broker.extend(words(&[
                    "--stdio",
                    &line,
                    "--port",
                    &port,
                    "--logLevel",
                    "none",
                ]));
                let broker = Broker::start(broker, || TcpStream::connect(address).is_ok())?;
                let mut client = program;
                let url = format!("http://{address}/sse");
                client.extend(words(&["--sse", &url, "--logLevel", "none"]));
                (Some(broker), client)
            }
        };
        Ok(Way {
            kind,
            broker,
            client,
        })
    }

    /// Starts a client.
    pub(super) fn command(&self, ground: &Ground) -> Command {
        match self.kind {
            Kind::Kennel => ground.place.share(&ground.server),
            _ => {
                let mut command = Command::new(&self.client[0]);
                command.args(&self.client[1..]);
                command
            }
        }
    }

    /// What stands in the middle; it may have children.
    pub(super) fn middle(&self, ground: &Ground) -> io::Result<Option<u32>> {
        match self.kind {
            Kind::Direct => Ok(None),
            Kind::Kennel => ground.place.daemon().map(Some),
            _ => Ok(self.broker.as_ref().map(|broker| broker.pid)),
        }
    }
}

fn installed(program: PathBuf) -> io::Result<PathBuf> {
    match program.is_file() {
        true => Ok(program),
        false => Err(io::Error::other("not installed")),
    }
}

/// Nobody's, at this moment.
fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// A program of somebody else's that stands in the middle. Dropping it ends it and all it has started; so does
/// our own end, however that comes.
#[derive(Debug)]
struct Broker {
    tree: Tree,
    pid: u32,
    /// Some end when their input does.
    input: Option<OwnedFd>,
}

impl Broker {
    /// Waits until it is ready.
    fn start(command: Vec<OsString>, is_ready: impl Fn() -> bool) -> io::Result<Broker> {
        let (read, write) = io::pipe()?;
        let null = || std::fs::File::options().write(true).open("/dev/null");
        let tree = Launch {
            server: command,
            warden: vec![beside_us("kennel")?.into(), "warden".into()],
            stdio: [read.into(), null()?.into(), null()?.into()],
            env: None,
            cwd: Some(Path::new("/").into()),
            ladder: Ladder {
                after_eof: Duration::from_millis(500),
                after_term: Duration::from_millis(500),
            },
            records: None,
        }
        .start()?;
        let pid = match tree.next_report()? {
            Some(Report::Started { pid, .. }) => pid,
            _ => return Err(io::Error::other("it does not start")),
        };
        let broker = Broker {
            tree,
            pid,
            input: Some(write.into()),
        };
        let deadline = Instant::now() + PATIENCE;
        while !is_ready() {
            if Instant::now() > deadline {
                return Err(io::Error::other("it does not listen"));
            }
            // It says nothing when it is ready; it can only be tried.
            events::sleep(&[], &[], Some(Duration::from_millis(20)))?;
        }
        Ok(broker)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.tree.stop();
        let _ = self.tree.wait();
    }
}
