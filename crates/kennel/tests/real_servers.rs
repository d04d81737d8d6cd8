//! Servers that people really use, behind `kennel run`: what a client hears is what it hears directly.
#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use kennel_testkit::{Client, Scope, run, tool};
use serde_json::{Value, json};

/// What `cargo xtask test` installed from npm and PyPI.
fn bed() -> PathBuf {
    let bed = std::env::var_os("TESTKIT_BED").map(PathBuf::from);
    bed.expect("the testbed: run these tests with `cargo xtask test`")
}

fn everything() -> Vec<OsString> {
    let package = "npm/node_modules/@modelcontextprotocol/server-everything/dist/index.js";
    vec![tool("node").unwrap().into(), bed().join(package).into()]
}

/// A server made with the Python SDK.
fn python(scope: &Scope) -> Vec<OsString> {
    let script = scope.path("server.py");
    let text = "from mcp.server import MCPServer\n\
        import time\n\
        server = MCPServer('bed')\n\
        @server.tool()\n\
        def add(a: int, b: int) -> int:\n    return a + b\n\
        @server.tool()\n\
        def slow(seconds: float) -> str:\n    time.sleep(seconds)\n    return 'awake'\n\
        server.run()\n";
    std::fs::write(&script, text).unwrap();
    vec![bed().join("python/bin/python").into(), script.into()]
}

fn direct(scope: &Scope, server: &[OsString]) -> Command {
    let mut command = scope.command(&server[0]);
    command.args(&server[1..]);
    command
}

fn through_kennel(scope: &Scope, server: &[OsString]) -> Command {
    through(scope, &[], server)
}

fn through_a_daemon(scope: &Scope, server: &[OsString]) -> Command {
    through(scope, &["--share", "always", "--linger", "100ms"], server)
}

fn through(scope: &Scope, options: &[&str], server: &[OsString]) -> Command {
    let mut command = scope.command(env!("CARGO_BIN_EXE_kennel"));
    command.arg("run").args(options).arg("--").args(server);
    command
}

/// The answers to a conversation, each as its own line.
fn converse(mut command: Command, asked: &[(&str, Value)]) -> Vec<String> {
    let mut client = Client::start(&mut command);
    let id = client.ask_to_initialize();
    let mut heard = vec![client.answer(id).to_string()];
    client.say("{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n");
    for (method, params) in asked {
        heard.push(client.request(method, params.clone()).to_string());
    }
    client.close();
    let ended = client.wait();
    assert!(ended.status.success(), "{}", ended.stderr);
    heard
}

fn call(tool: &str, arguments: Value) -> (&'static str, Value) {
    ("tools/call", json!({"name": tool, "arguments": arguments}))
}

#[test]
fn needs_testbed_server_everything_sounds_the_same() {
    let scope = Scope::new("everything");
    let asked = [
        ("tools/list", json!({})),
        call("echo", json!({"message": "grüße 😀"})),
        ("resources/list", json!({})),
        ("resources/templates/list", json!({})),
        ("prompts/list", json!({})),
        ("no/such/method", json!({})),
    ];
    let plain = converse(direct(&scope, &everything()), &asked);
    assert!(plain[2].contains("grüße 😀"), "{}", plain[2]);
    for kennel in [through_kennel, through_a_daemon] {
        assert_eq!(converse(kennel(&scope, &everything()), &asked), plain);
    }
    scope.nothing_left_within("after EOF", Duration::from_secs(60));
}

#[test]
fn needs_testbed_a_python_server_sounds_the_same() {
    let scope = Scope::new("python");
    let server = python(&scope);
    let asked = [
        ("tools/list", json!({})),
        call("add", json!({"a": 20, "b": 22})),
        call("slow", json!({"seconds": 0.2})),
        call("nonsense", json!({})),
    ];
    let plain = converse(direct(&scope, &server), &asked);
    assert!(plain[2].contains("42"), "{}", plain[2]);
    for kennel in [through_kennel, through_a_daemon] {
        assert_eq!(converse(kennel(&scope, &server), &asked), plain);
    }
    scope.nothing_left_within("after EOF", Duration::from_secs(60));
}

#[test]
fn needs_testbed_a_session_of_server_everything_survives_its_server() {
    let scope = Scope::new("everything-killed");
    let mut client = Client::begin(&mut through_kennel(&scope, &everything()));
    let echo = |client: &mut Client, text: &str| client.call("echo", json!({"message": text}));
    assert!(echo(&mut client, "one").to_string().contains("one"));
    let is_node = |process: &&kennel_sys::process::ProcessRef| {
        let name = std::fs::read_to_string(format!("/proc/{}/comm", process.pid()));
        name.is_ok_and(|name| name.starts_with("node") || name.starts_with("MainThread"))
    };
    let survivors = scope.survivors();
    let server = survivors.iter().find(is_node).expect("the server");
    server.signal(kennel_sys::Signal::KILL).unwrap();
    server.wait(None).unwrap();
    assert!(echo(&mut client, "two").to_string().contains("two"));
}

#[test]
fn needs_testbed_the_official_typescript_client_is_served() {
    let scope = Scope::new("ts-sdk");
    let script = bed().join("npm/kennel-client.mjs");
    let text = r#"
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
const [command, ...args] = process.argv.slice(2);
const transport = new StdioClientTransport({ command, args, env: process.env });
const client = new Client({ name: "bed", version: "0" });
await client.connect(transport);
const tools = await client.listTools();
const echo = await client.callTool({ name: "echo", arguments: { message: "from typescript" } });
console.log(tools.tools.length > 5, JSON.stringify(echo.content));
await client.close();
"#;
    std::fs::write(&script, text).unwrap();
    for kennel in [through_kennel, through_a_daemon] {
        let kennel = kennel(&scope, &everything());
        let mut command = scope.command(tool("node").unwrap());
        command
            .arg(&script)
            .arg(kennel.get_program())
            .args(kennel.get_args());
        let ended = run(&mut command);
        assert!(
            ended.stdout.contains("true") && ended.stdout.contains("from typescript"),
            "{}{}",
            ended.stdout,
            ended.stderr
        );
    }
    scope.nothing_left_within("after the client closed", Duration::from_secs(60));
}

#[test]
fn needs_testbed_the_official_python_client_is_served() {
    let scope = Scope::new("py-sdk");
    let server = python(&scope);
    let script = scope.path("client.py");
    let text = "import asyncio, sys, os\n\
        from mcp import ClientSession, StdioServerParameters\n\
        from mcp.client.stdio import stdio_client\n\
        async def main():\n\
        \x20   parameters = StdioServerParameters(command=sys.argv[1], args=sys.argv[2:], env=dict(os.environ))\n\
        \x20   async with stdio_client(parameters) as (read, write):\n\
        \x20       async with ClientSession(read, write) as session:\n\
        \x20           await session.initialize()\n\
        \x20           tools = await session.list_tools()\n\
        \x20           result = await session.call_tool('add', {'a': 40, 'b': 2})\n\
        \x20           print(len(tools.tools), result.content[0].text)\n\
        asyncio.run(main())\n";
    std::fs::write(&script, text).unwrap();
    for kennel in [through_kennel, through_a_daemon] {
        let kennel = kennel(&scope, &server);
        let mut command = scope.command(&server[0]);
        command
            .arg(&script)
            .arg(kennel.get_program())
            .args(kennel.get_args());
        let ended = run(&mut command);
        assert_eq!(ended.stdout.trim(), "2 42", "{}", ended.stderr);
    }
    scope.nothing_left_within("after the client closed", Duration::from_secs(60));
}
