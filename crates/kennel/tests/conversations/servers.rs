//! The servers that are talked to, and what they are asked.

use std::ffi::OsString;
use std::path::PathBuf;

use kennel_testkit::{Scope, bin, tool};
use serde_json::{Value, json};

pub(crate) struct Server {
    pub(crate) line: Vec<OsString>,
    /// Requests after the handshake: method and params.
    pub(crate) asked: Vec<(&'static str, Value)>,
    /// What an answer says, so that no conversation is about nothing.
    pub(crate) said: &'static str,
    /// Where it keeps what it is told, if it does.
    memory: Option<PathBuf>,
}

impl Server {
    pub(crate) fn forget_everything(&self) {
        let Some(memory) = &self.memory else {
            return;
        };
        if memory.exists() {
            std::fs::remove_dir_all(memory).unwrap();
        }
        std::fs::create_dir(memory).unwrap();
    }
}

/// What `cargo xtask test` installed from npm and PyPI.
pub(crate) fn bed() -> PathBuf {
    let bed = std::env::var_os("TESTKIT_BED").map(PathBuf::from);
    bed.expect("the testbed: run these tests with `cargo xtask test`")
}

/// The server that does as it is told.
pub(crate) fn obedient() -> Server {
    Server {
        line: vec![bin("tk-server").into()],
        asked: vec![
            ("slow", json!({"ms": 300})),
            ("echo", json!({"grüße": "😀", "n": 1.0e2})),
            ("no/such/method", json!({})),
        ],
        said: "\"slow\"",
        memory: None,
    }
}

/// `examples/notes`: a server that guards itself, and watches who started it.
pub(crate) fn notes(scope: &Scope) -> Server {
    let memory = scope.path("notes");
    Server {
        // Kennel's own variables do not reach a server; its store's lock is to be in our place all the same.
        line: vec![
            "env".into(),
            format!("KENNEL_RUNTIME_DIR={}", scope.runtime_dir().display()).into(),
            bin("notes").into(),
            "serve".into(),
            "--db".into(),
            memory.join("notes.db").into(),
        ],
        asked: vec![
            ("tools/list", json!({})),
            call(
                "add_note",
                json!({"title": "grüße", "text": "x".repeat(100_000)}),
            ),
            call("put_note", json!({"key": "k", "text": "a 😀 note"})),
            call("search_notes", json!({"query": "😀"})),
            call("get_note", json!({"id": 1})),
            call("list_notes", json!({"limit": 1})),
            call("get_note", json!({"id": 99})),
            call("nonsense", json!({})),
            ("no/such/method", json!({})),
        ],
        said: "a 😀 note",
        memory: Some(memory),
    }
}

/// The reference server of the protocol's makers (npm).
pub(crate) fn everything() -> Server {
    let package = "npm/node_modules/@modelcontextprotocol/server-everything/dist/index.js";
    let mut slow = call(
        "trigger-long-running-operation",
        json!({"duration": 0.5, "steps": 2}),
    );
    slow.1["_meta"] = json!({"progressToken": "how far"});
    Server {
        line: vec![tool("node").unwrap().into(), bed().join(package).into()],
        asked: vec![
            slow,
            ("tools/list", json!({})),
            call("echo", json!({"message": "grüße 😀"})),
            call("get-tiny-image", json!({})),
            call("get-sum", json!({"a": 1, "b": 2.5})),
            ("resources/list", json!({})),
            ("resources/templates/list", json!({})),
            ("prompts/list", json!({})),
            ("prompts/get", json!({"name": "simple-prompt"})),
            ("no/such/method", json!({})),
        ],
        said: "Long running operation completed",
        memory: None,
    }
}

/// A server made with the Python SDK (PyPI).
pub(crate) fn python(scope: &Scope) -> Server {
    let script = scope.path("server.py");
    let text = "\
from mcp.server import MCPServer
import asyncio
server = MCPServer('bed')
@server.tool()
def add(a: int, b: int) -> int:
    return a + b
@server.tool()
async def slow(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return 'awake'
@server.resource('bed://grüße')
def greeting() -> str:
    return 'grüße 😀'
server.run()
";
    std::fs::write(&script, text).unwrap();
    Server {
        line: vec![bed().join("python/bin/python").into(), script.into()],
        asked: vec![
            call("slow", json!({"seconds": 0.3})),
            ("tools/list", json!({})),
            call("add", json!({"a": 20, "b": 22})),
            ("resources/list", json!({})),
            ("prompts/list", json!({})),
            call("nonsense", json!({})),
            ("no/such/method", json!({})),
        ],
        said: "awake",
        memory: None,
    }
}

fn call(tool: &str, arguments: Value) -> (&'static str, Value) {
    ("tools/call", json!({"name": tool, "arguments": arguments}))
}
