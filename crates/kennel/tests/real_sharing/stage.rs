//! What the tests stand on: the servers of the testbed, and who runs.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use kennel_testkit::{Scope, run, tool, wait_for};
use serde_json::Value;

/// A server's command line.
pub(crate) type Line = Vec<OsString>;

/// What `cargo xtask test` installed from npm and PyPI.
pub(crate) fn bed() -> PathBuf {
    let bed = std::env::var_os("TESTKIT_BED").map(PathBuf::from);
    bed.expect("the testbed: run these tests with `cargo xtask test`")
}

/// The file behind a package of the protocol's makers.
pub(crate) fn package(name: &str) -> PathBuf {
    let packages = bed().join("npm/node_modules/@modelcontextprotocol");
    packages.join(name).join("dist/index.js")
}

pub(crate) fn node(script: &Path) -> Line {
    vec![tool("node").unwrap().into(), script.into()]
}

pub(crate) fn everything() -> Line {
    node(&package("server-everything"))
}

pub(crate) fn memory() -> Line {
    node(&package("server-memory"))
}

/// A server of both eras (Python SDK 2.x).
pub(crate) fn dual(scope: &Scope) -> Line {
    let text = "\
import os
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.subscriptions import InMemorySubscriptionBus
bus = InMemorySubscriptionBus()
server = MCPServer('dual', subscriptions=bus)
@server.tool()
def pid() -> int:
    return os.getpid()
@server.tool()
def listeners() -> int:
    return len(bus._listeners)
@server.tool()
async def touch(uri: str, ctx: Context) -> str:
    await ctx.notify_resource_updated(uri)
    return 'touched'
server.run()
";
    let script = scope.path("dual.py");
    std::fs::write(&script, text).unwrap();
    vec![bed().join("python/bin/python").into(), script.into()]
}

/// `kennel run` as an app would write it, with these options.
pub(crate) fn through(scope: &Scope, options: &[&str], line: &Line) -> Command {
    let mut command = scope.command(env!("CARGO_BIN_EXE_kennel"));
    command.arg("run").args(options).arg("--").args(line);
    command
}

pub(crate) fn always(scope: &Scope, line: &Line) -> Command {
    through(scope, &["--share", "always"], line)
}

pub(crate) fn direct(scope: &Scope, line: &Line) -> Command {
    let mut command = scope.command(&line[0]);
    command.args(&line[1..]);
    command
}

pub(crate) fn listing(scope: &Scope) -> Vec<Value> {
    let mut ps = scope.command(env!("CARGO_BIN_EXE_kennel"));
    let ended = run(ps.args(["ps", "--json"]));
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    serde_json::from_str(&ended.stdout).unwrap()
}

/// How many clients each server of the shared entries has, most first, once `wanted` is to be seen.
#[track_caller]
pub(crate) fn clients_per_server_are(scope: &Scope, wanted: &[u64]) {
    wait_for(&format!("servers with {wanted:?} clients"), || {
        let mut clients: Vec<u64> = shared_servers(scope)
            .iter()
            .map(|server| server["clients"].as_u64().unwrap())
            .collect();
        clients.sort_unstable_by(|one, other| other.cmp(one));
        (clients == wanted).then_some(())
    });
}

pub(crate) fn shared_servers(scope: &Scope) -> Vec<Value> {
    let shared = listing(scope).into_iter();
    let shared = shared.filter(|entry| entry["mode"] == "shared");
    shared
        .flat_map(|entry| entry["servers"].as_array().unwrap().clone())
        .collect()
}

/// Why the only solo session has a server of its own.
#[track_caller]
pub(crate) fn why_solo(scope: &Scope) -> String {
    wait_for("it is listed", || {
        let is_solo = |entry: &Value| entry["mode"] == "solo";
        let mut solo = listing(scope).into_iter().filter(is_solo);
        let why = solo.next()?["why"].as_str()?.to_owned();
        assert_eq!(solo.next(), None);
        Some(why)
    })
}
