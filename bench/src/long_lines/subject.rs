//! The servers that long lines are said to.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::beside_us;
use crate::place::{Place, Way};
use crate::route::Route;

/// Where the packages of the tests are.
const BED: &str = "TESTKIT_BED";
const EVERYTHING: &str = "npm/node_modules/@modelcontextprotocol/server-everything/dist/index.js";
const PYTHON: &str = "python/bin/python";
const ECHO_IN_PYTHON: &str = "\
from mcp.server import MCPServer
server = MCPServer('echo', log_level='ERROR')
@server.tool(structured_output=False)
def echo(message: str) -> str:
    return message
server.run()";

/// A server, and how to make it hear and say long lines.
#[derive(Debug)]
pub(super) struct Subject {
    pub(super) name: &'static str,
    kind: Kind,
    /// The lengths it takes.
    megabytes: &'static [usize],
    /// How many of each, in each batch.
    pub(super) lines: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Bare,
    Notes,
    Python,
    Everything,
}

impl Subject {
    pub(super) fn all() -> [Subject; 4] {
        let subject = |name, kind, megabytes, lines| Subject {
            name,
            kind,
            megabytes,
            lines,
        };
        [
            subject("bare echo", Kind::Bare, &[1, 8, 32], 5),
            subject("python", Kind::Python, &[1, 8, 32], 2),
            // The SDKs of these two do not take lines of 32 MB.
            subject("notes", Kind::Notes, &[1, 8], 2),
            // And this one takes seconds for one of 8 MB.
            subject("everything", Kind::Everything, &[1, 8], 1),
        ]
    }

    /// What is said to it. In a short run only the bare echo hears what is long: that of others takes seconds.
    pub(super) fn megabytes(&self, is_quick: bool) -> &'static [usize] {
        match self.kind {
            Kind::Bare => self.megabytes,
            _ if is_quick => &self.megabytes[..1],
            _ => self.megabytes,
        }
    }

    /// Whether Kennel's way is to stay within its bound. A server that does nothing at all is the floor, not a use.
    pub(super) fn is_judged(&self, way: Way) -> bool {
        self.kind != Kind::Bare || way != Way::Daemon
    }

    /// Whether it can be started; why not, for people.
    pub(super) fn is_there(&self) -> Result<(), String> {
        let file = match self.kind {
            Kind::Bare | Kind::Notes => return Ok(()),
            Kind::Python => PYTHON,
            Kind::Everything => EVERYTHING,
        };
        match in_bed(file) {
            Some(path) if path.exists() => Ok(()),
            _ => Err(format!(
                "{BED} names no place with {file}; `cargo xtask test` makes one in target/testbed"
            )),
        }
    }

    /// What to start; each way has a server of its own.
    pub(super) fn command(&self, place: &Place, way: Way) -> io::Result<Vec<OsString>> {
        let bed = |file| in_bed(file).ok_or(io::ErrorKind::NotFound);
        Ok(match self.kind {
            Kind::Bare => vec![beside_us("tk-server")?.into()],
            Kind::Notes => {
                let name = way.name().replace([' ', ','], "-");
                let store = place.dir().join(format!("{name}.db"));
                vec![
                    beside_us("notes")?.into(),
                    "serve".into(),
                    "--db".into(),
                    store.into(),
                ]
            }
            Kind::Python => vec![bed(PYTHON)?.into(), "-c".into(), ECHO_IN_PYTHON.into()],
            Kind::Everything => vec!["node".into(), bed(EVERYTHING)?.into()],
        })
    }

    /// Says `text` and hears it; tells how long that took.
    pub(super) fn talk(&self, route: &mut Route, text: &str) -> io::Result<Duration> {
        match self.kind {
            Kind::Bare => route.echo(text),
            Kind::Python | Kind::Everything => {
                let call = format!(r#"{{"name":"echo","arguments":{{"message":"{text}"}}}}"#);
                route.ask("tools/call", &call, text)
            }
            Kind::Notes => {
                let put =
                    format!(r#"{{"name":"put_note","arguments":{{"key":"k","text":"{text}"}}}}"#);
                let get = r#"{"name":"get_note","arguments":{"id":1}}"#;
                let written = route.ask("tools/call", &put, "id")?;
                Ok(written + route.ask("tools/call", get, text)?)
            }
        }
    }
}

fn in_bed(file: &str) -> Option<PathBuf> {
    Some(PathBuf::from(std::env::var_os(BED)?).join(file))
}
