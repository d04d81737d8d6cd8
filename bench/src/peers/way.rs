//! The ways to one server for many: Kennel's, those of others, and none.

use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use super::broker::Broker;
use super::subject::Subject;
use crate::people::People;
use crate::place::{self, Place};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A server for each client.
    Direct,
    /// The same behind Kennel.
    Solo,
    Kennel,
    RmcpMux,
    McpProxy,
    Supergateway,
    /// Another's client for the broker of `supergateway`.
    McpRemote,
    FastMcp,
}

impl Kind {
    pub(super) const ALL: [Kind; 8] = [
        Kind::Direct,
        Kind::Solo,
        Kind::Kennel,
        Kind::RmcpMux,
        Kind::McpProxy,
        Kind::Supergateway,
        Kind::McpRemote,
        Kind::FastMcp,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Direct => "direct",
            Kind::Solo => "kennel, solo",
            Kind::Kennel => "kennel",
            Kind::RmcpMux => "rmcp-mux",
            Kind::McpProxy => "mcp-proxy",
            Kind::Supergateway => "supergateway",
            Kind::McpRemote => "supergateway + mcp-remote",
            Kind::FastMcp => "fastmcp",
        }
    }

    pub(super) fn is_peer(self) -> bool {
        !matches!(self, Kind::Direct | Kind::Solo | Kind::Kennel)
    }

    /// Every client has a server of its own.
    pub(super) fn is_alone(self) -> bool {
        matches!(self, Kind::Direct | Kind::Solo)
    }
}

/// A way that is open: whatever stands in the middle runs.
#[derive(Debug)]
pub(super) struct Way {
    kind: Kind,
    subject: Subject,
    place: Place,
    broker: Option<Broker>,
    /// What each client starts, of a broker.
    client: Vec<OsString>,
}

impl Way {
    /// `peers`: where they are installed.
    pub(super) fn open(kind: Kind, subject: Subject, peers: &Path) -> io::Result<Way> {
        let place = Place::new()?;
        let (broker, client) = match kind {
            Kind::Direct | Kind::Solo | Kind::Kennel => (None, Vec::new()),
            _ => {
                let server = subject.command(place.dir(), "shared")?;
                let (broker, client) = start_broker(kind, &server, peers, place.dir())?;
                (Some(broker), client)
            }
        };
        Ok(Way {
            kind,
            subject,
            place,
            broker,
            client,
        })
    }

    /// Starts the client of this number.
    pub(super) fn command(&self, number: usize) -> io::Result<Command> {
        let dir = self.place.dir();
        let own = || self.subject.command(dir, &format!("own-{number}"));
        match self.kind {
            Kind::Direct => self.place.command_of(place::Way::Direct, &own()?),
            Kind::Solo => self.place.command_of(place::Way::Solo, &own()?),
            Kind::Kennel => Ok(self.place.share(&self.subject.command(dir, "shared")?)),
            _ => {
                let mut command = Command::new(&self.client[0]);
                command.args(&self.client[1..]);
                Ok(command)
            }
        }
    }

    /// What stands in the middle; it may have children.
    pub(super) fn middle(&self) -> io::Result<Option<u32>> {
        match self.kind {
            Kind::Direct | Kind::Solo => Ok(None),
            Kind::Kennel => self.place.daemon().map(Some),
            _ => Ok(self.broker.as_ref().map(Broker::pid)),
        }
    }

    /// Everyone this way needs for these clients.
    pub(super) fn people(&self, clients: &[u32]) -> io::Result<People> {
        let middle = self.middle()?;
        Ok(People::below(clients.iter().copied().chain(middle)))
    }

    /// The servers among them.
    pub(super) fn servers(&self, clients: &[u32]) -> io::Result<Vec<u32>> {
        let people = match self.middle()? {
            Some(middle) => People::below([middle]),
            None => People::below(clients.iter().copied()),
        };
        Ok(people.servers(self.subject.mark()))
    }
}

/// Starts a broker and waits until it is ready. Also returns the command of a client.
fn start_broker(
    kind: Kind,
    server: &[OsString],
    peers: &Path,
    dir: &Path,
) -> io::Result<(Broker, Vec<OsString>)> {
    if kind == Kind::RmcpMux {
        return start_rmcp_mux(server, peers, dir);
    }
    let address = free_address()?;
    let (broker, client) = match kind {
        Kind::McpProxy => mcp_proxy(server, peers, address)?,
        Kind::FastMcp => fast_mcp(server, peers, dir, address)?,
        _ => supergateway(kind, server, peers, address)?,
    };
    let broker = Broker::start(broker, || TcpStream::connect(address).is_ok())?;
    Ok((broker, client))
}

/// The commands of a broker and of its client.
type Commands = (Vec<OsString>, Vec<OsString>);

/// The only broker that listens on a Unix socket.
fn start_rmcp_mux(
    server: &[OsString],
    peers: &Path,
    dir: &Path,
) -> io::Result<(Broker, Vec<OsString>)> {
    let socket = dir.join("rmcp-mux.sock");
    let program = |name| installed(peers.join("cargo/bin").join(name));
    let mut broker = vec![program("rmcp-mux")?.into(), "--socket".into()];
    broker.push(socket.clone().into());
    // The default is five clients at a time.
    broker.extend(words(&[
        "--max-active-clients",
        "128",
        "--log-level",
        "error",
    ]));
    broker.extend(["--cmd".into(), server[0].clone(), "--".into()]);
    broker.extend(server[1..].iter().cloned());
    let broker = Broker::start(broker, || UnixStream::connect(&socket).is_ok())?;
    let client = vec![
        program("rmcp-mux-proxy")?.into(),
        "--socket".into(),
        socket.into(),
    ];
    Ok((broker, client))
}

fn mcp_proxy(server: &[OsString], peers: &Path, address: SocketAddr) -> io::Result<Commands> {
    let program = OsString::from(installed(peers.join("python/bin/mcp-proxy"))?);
    let port = address.port().to_string();
    let quiet = ["--log-level", "ERROR"];
    let mut broker = vec![program.clone()];
    broker.extend(words(&quiet));
    broker.extend(words(&["--host", "127.0.0.1", "--port", &port, "--"]));
    broker.extend(server.iter().cloned());
    let mut client = vec![program];
    client.extend(words(&quiet));
    client.push(format!("http://{address}/sse").into());
    Ok((broker, client))
}

fn fast_mcp(
    server: &[OsString],
    peers: &Path,
    dir: &Path,
    address: SocketAddr,
) -> io::Result<Commands> {
    let program = OsString::from(installed(peers.join("fastmcp/bin/fastmcp"))?);
    let port = address.port().to_string();
    let config = dir.join("fastmcp.json");
    let server: Vec<_> = server.iter().map(|word| word.to_string_lossy()).collect();
    let server = json!({"command": server[0], "args": server[1..]});
    std::fs::write(&config, json!({"mcpServers": {"it": server}}).to_string())?;
    let quiet = ["--no-banner", "--log-level", "ERROR"];
    let mut broker = vec![program.clone(), "run".into(), config.into()];
    broker.extend(words(&["--transport", "http", "--host", "127.0.0.1"]));
    broker.extend(words(&["--port", &port]));
    broker.extend(words(&quiet));
    let url = format!("http://{address}/mcp");
    let mut client = vec![program, "run".into(), url.into()];
    client.extend(words(&quiet));
    Ok((broker, client))
}

/// `supergateway`, with its own client or with `mcp-remote`.
fn supergateway(
    kind: Kind,
    server: &[OsString],
    peers: &Path,
    address: SocketAddr,
) -> io::Result<Commands> {
    let npm = |script: &str| {
        let script = installed(peers.join("npm/node_modules").join(script))?;
        Ok::<_, io::Error>(vec![OsString::from("node"), script.into()])
    };
    let program = npm("supergateway/dist/index.js")?;
    let port = address.port().to_string();
    let line = server.iter().map(|word| word.to_string_lossy());
    let line = line.collect::<Vec<_>>().join(" ");
    let quiet = ["--logLevel", "none"];
    let mut broker = program.clone();
    broker.extend(words(&["--stdio", &line, "--port", &port]));
    broker.extend(words(&quiet));
    let url = format!("http://{address}/sse");
    let client = match kind {
        Kind::McpRemote => {
            let mut client = npm("mcp-remote/dist/proxy.js")?;
            client.extend(words(&[&url, "--transport", "sse-only", "--allow-http"]));
            client
        }
        _ => {
            let mut client = program;
            client.extend(words(&["--sse", &url]));
            client.extend(words(&quiet));
            client
        }
    };
    Ok((broker, client))
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
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
