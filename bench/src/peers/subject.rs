//! The servers that are put behind each broker.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use crate::beside_us;
use crate::caller::Tool;

/// Where the packages of the tests are.
const BED: &str = "TESTKIT_BED";
const EVERYTHING: &str = "npm/node_modules/@modelcontextprotocol/server-everything/dist/index.js";
const PYTHON: &str = "python/bin/python";
const IN_PYTHON: &str = "\
from mcp.server import MCPServer
server = MCPServer('echo', log_level='ERROR')
@server.tool(structured_output=False)
def echo(message: str) -> str:
    return message
server.run()
";
const ECHO: Tool = Tool {
    name: "echo",
    argument: "message",
    echoes: true,
};
const SEARCH: Tool = Tool {
    name: "search_notes",
    argument: "query",
    echoes: false,
};

/// A server that people use, or that is written as they write theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    /// `@modelcontextprotocol/server-everything`, on node.
    Everything,
    /// A tool of one line, with the Python SDK.
    Python,
    /// `examples/notes`, on SQLite.
    Notes,
}

impl Subject {
    pub(super) const ALL: [Subject; 3] = [Subject::Everything, Subject::Python, Subject::Notes];

    pub(super) fn name(self) -> &'static str {
        match self {
            Subject::Everything => "everything",
            Subject::Python => "python",
            Subject::Notes => "notes",
        }
    }

    pub(super) fn about(self) -> &'static str {
        match self {
            Subject::Everything => "@modelcontextprotocol/server-everything (node)",
            Subject::Python => "a server with the Python SDK",
            Subject::Notes => "notes (Rust, SQLite)",
        }
    }

    pub(super) fn tool(self) -> Tool {
        match self {
            Subject::Everything | Subject::Python => ECHO,
            Subject::Notes => SEARCH,
        }
    }

    /// Whether it can be started; why not, for people.
    pub(super) fn is_there(self) -> Result<(), String> {
        let file = match self {
            Subject::Notes => return Ok(()),
            Subject::Python => PYTHON,
            Subject::Everything => EVERYTHING,
        };
        match in_bed(file) {
            Some(path) if path.exists() => Ok(()),
            _ => Err(format!(
                "{BED} names no place with {file}: it needs npm and python3"
            )),
        }
    }

    /// What is in the command line of the server, and of whoever starts it.
    pub(super) fn mark(self) -> &'static str {
        match self {
            Subject::Everything => "server-everything/dist/index.js",
            Subject::Python => "echo_server.py",
            Subject::Notes => "notes serve",
        }
    }

    /// What to start. Each `store` is one server's own, where it keeps something.
    pub(crate) fn command(self, dir: &Path, store: &str) -> io::Result<Vec<OsString>> {
        let bed = |file| in_bed(file).ok_or(io::ErrorKind::NotFound);
        Ok(match self {
            Subject::Everything => vec!["node".into(), bed(EVERYTHING)?.into()],
            Subject::Python => {
                let script = dir.join("echo_server.py");
                // Once: a server whose script is written anew is not what it was, and Kennel replaces it.
                if !script.exists() {
                    std::fs::write(&script, IN_PYTHON)?;
                }
                vec![bed(PYTHON)?.into(), script.into()]
            }
            // Its lock is where Kennel's files are: here, whoever starts it.
            Subject::Notes => {
                let mut place = OsString::from("KENNEL_RUNTIME_DIR=");
                place.push(dir.join("notes"));
                let store = dir.join(format!("{store}.db"));
                vec![
                    "env".into(),
                    place,
                    beside_us("notes")?.into(),
                    "serve".into(),
                    "--db".into(),
                    store.into(),
                ]
            }
        })
    }
}

fn in_bed(file: &str) -> Option<PathBuf> {
    Some(PathBuf::from(std::env::var_os(BED)?).join(file))
}
