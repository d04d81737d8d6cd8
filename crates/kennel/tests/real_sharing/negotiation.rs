//! The official clients of the modern era find out by themselves which one a server is of: through Kennel
//! as they do directly.

use std::process::Command;

use kennel_testkit::{Ended, Scope, run};

use crate::eras::ends_on_discover;
use crate::stage::{Line, always, bed, direct, dual, everything, through};

/// Says which version it speaks in the end, and what a tool answers.
const TYPESCRIPT: &str = r#"
import { Client } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
const [tool, command, ...args] = process.argv.slice(2);
const transport = new StdioClientTransport({ command, args, env: process.env });
const client = new Client({ name: "bed", version: "0" }, { versionNegotiation: { mode: "auto" } });
await client.connect(transport);
const { content } = await client.callTool({ name: tool, arguments: { message: "hello" } });
const told = tool === "pid" ? "a number" : content[0].text;
console.log(client.getNegotiatedProtocolVersion(), told);
await client.close();
"#;

const PYTHON: &str = r#"
import asyncio, os, sys
from mcp import Client, StdioServerParameters

async def main():
    tool, command, *args = sys.argv[1:]
    server = StdioServerParameters(command=command, args=args, env=dict(os.environ))
    async with Client(server, mode="auto") as client:
        result = await client.call_tool(tool, {"message": "hello"})
        told = "a number" if tool == "pid" else result.content[0].text
        print(client.protocol_version, told)

asyncio.run(main())
"#;

fn typescript(scope: &Scope) -> Line {
    let script = scope.path("client.mjs");
    std::fs::write(&script, TYPESCRIPT).unwrap();
    // Packages are looked for beside a script.
    let packages = bed().join("npm/node_modules");
    std::os::unix::fs::symlink(packages, scope.path("node_modules")).unwrap();
    crate::stage::node(&script)
}

fn python(scope: &Scope) -> Line {
    let script = scope.path("client.py");
    std::fs::write(&script, PYTHON).unwrap();
    vec![bed().join("python/bin/python").into(), script.into()]
}

#[track_caller]
fn finds_out(scope: &Scope, client: &Line, tool: &str, server: &Command) -> String {
    let mut command = direct(scope, client);
    command.arg(tool).arg(server.get_program());
    let Ended {
        status,
        stdout,
        stderr,
    } = run(command.args(server.get_args()));
    assert!(status.success(), "{stdout}{stderr}");
    stdout
}

#[track_caller]
fn finds_out_the_same(scope: &Scope, client: &Line, legacy: &[(&str, Line)]) {
    let dual = [("pid", dual(scope))];
    for (tool, line) in legacy.iter().chain(&dual) {
        let plain = finds_out(scope, client, tool, &direct(scope, line));
        let era = if *tool == "pid" { "2026-" } else { "2025-" };
        assert!(plain.starts_with(era), "{plain}");
        let auto = through(scope, &[], line);
        // The second of those who share finds something known.
        for way in [auto, always(scope, line), always(scope, line)] {
            assert_eq!(finds_out(scope, client, tool, &way), plain, "{way:?}");
        }
    }
}

#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_the_typescript_client_negotiates_as_it_does_directly() {
    let scope = Scope::new("ts-auto");
    let servers = [("echo", everything()), ("echo", ends_on_discover(&scope))];
    finds_out_the_same(&scope, &typescript(&scope), &servers);
}

/// It asks in the process it stays with, so one that ends on the question is none for it, but through a
/// shared server, which outlives the question.
#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_the_python_client_negotiates_as_it_does_directly() {
    let scope = Scope::new("py-auto");
    finds_out_the_same(&scope, &python(&scope), &[("echo", everything())]);
}
