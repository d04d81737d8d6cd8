//! The official clients, while what is behind their sessions is killed: nothing but answers reaches them.

use std::path::PathBuf;

use kennel_testkit::{Client, Scope, full, tool};
use serde_json::{Value, json};

use crate::stage::{LOSSES, have_begun, kill, session};

/// Each line on stdin is a round: a read and a side effect, both held by so many servers. Says how they went, how
/// the read came along, and everything else that it noticed.
const TYPESCRIPT: &str = r#"
import { createInterface } from "node:readline";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
const [command, ...args] = process.argv.slice(2);
const transport = new StdioClientTransport({ command, args, env: process.env });
const client = new Client({ name: "bed", version: "0" });
const odd = [];
client.onerror = (error) => odd.push(`${error}`);
client.onclose = () => odd.push("closed");
client.fallbackNotificationHandler = async (told) => { odd.push(told.method); };
await client.connect(transport);
await client.listTools();
await client.setLoggingLevel("debug");
await client.subscribeResource({ uri: "a:1" });
for await (const line of createInterface({ input: process.stdin })) {
  const hold = Number(line);
  const progress = [];
  const held = { tag: line, hold, steps: 3, ms: 150 };
  const read = client.callTool({ name: "read", arguments: held }, undefined, {
    onprogress: (step) => progress.push(step.progress),
  });
  const work = client.callTool({ name: "work", arguments: { tag: line, hold } })
    .then(() => "done", (error) => `${error.code} ${error.data?.outcome}`);
  const text = (await read).content[0].text;
  console.log(JSON.stringify({ text, work: await work, progress, odd }));
}
await client.close();
"#;

const PYTHON: &str = r#"
import asyncio, json, os, sys
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

async def main():
    parameters = StdioServerParameters(command=sys.argv[1], args=sys.argv[2:], env=dict(os.environ))
    odd, progress = [], []

    async def told(message):
        name = type(getattr(message, "root", message)).__name__
        if name != "ProgressNotification":
            odd.append(repr(message) if isinstance(message, Exception) else name)

    async def step(value, total=None, message=None):
        progress.append(value)

    async def call(session, name, arguments, **more):
        try:
            return (await session.call_tool(name, arguments, **more)).content[0].text
        except Exception as error:
            return f"{error.error.code} {error.error.data['outcome']}"

    async with stdio_client(parameters) as (read, write):
        async with ClientSession(read, write, message_handler=told) as session:
            await session.initialize()
            await session.list_tools()
            await session.set_logging_level("debug")
            await session.subscribe_resource("a:1")
            loop = asyncio.get_running_loop()
            while line := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
                progress.clear()
                held = {"tag": line, "hold": int(line), "steps": 3, "ms": 150}
                text, work = await asyncio.gather(
                    call(session, "read", held, progress_callback=step),
                    call(session, "work", {"tag": line, "hold": int(line)}),
                )
                print(json.dumps({"text": text, "work": work, "progress": progress, "odd": odd}), flush=True)

asyncio.run(main())
"#;

fn bed() -> PathBuf {
    let bed = std::env::var_os("TESTKIT_BED").map(PathBuf::from);
    bed.expect("the testbed: run these tests with `cargo xtask test`")
}

/// Two rounds on each way, with a kill in each; on the most different ways, unless there is time for all.
fn notices_nothing(program: PathBuf, script: &str, name: &str) {
    let losses = match full() {
        true => LOSSES.to_vec(),
        false => vec![LOSSES[0], LOSSES[3]],
    };
    for (way, victim) in losses {
        let scope = Scope::new("official");
        let file = scope.path(name);
        std::fs::write(&file, script).unwrap();
        // Its packages are looked for beside it.
        let packages = bed().join("npm/node_modules");
        std::os::unix::fs::symlink(packages, scope.path("node_modules")).unwrap();
        let server = session(&scope, way, "app", &[]);
        let mut command = scope.command(&program);
        command
            .arg(file)
            .arg(server.get_program())
            .args(server.get_args());
        for (variable, value) in server.get_envs() {
            if let Some(value) = value {
                command.env(variable, value);
            }
        }
        let mut client = Client::start(&mut command);
        for round in 1..=2 {
            client.say(&format!("{round}\n"));
            // Two in each round, and the read once more.
            have_begun(&scope, 3 * round - 1);
            kill(&scope, victim);
            let said = client.line().unwrap_or_else(|| client.stderr_so_far());
            let said: Value = serde_json::from_str(&said).unwrap_or_else(|_| panic!("{said}"));
            let progress: Vec<f64> = serde_json::from_value(said["progress"].clone()).unwrap();
            assert!(progress.is_sorted_by(|one, other| one < other), "{said}");
            assert_eq!(progress.last(), Some(&3.0), "{way:?} {victim:?}: {said}");
            let rest = json!({
                "text": round.to_string(), "work": "-32603 unknown",
                "progress": said["progress"], "odd": [],
            });
            assert_eq!(said, rest, "{way:?} {victim:?}");
        }
        client.close();
        let ended = client.wait();
        assert!(ended.status.success(), "{}", ended.stderr);
    }
}

#[test]
fn needs_testbed_the_official_typescript_client_notices_nothing_but_answers() {
    notices_nothing(tool("node").unwrap(), TYPESCRIPT, "client.mjs");
}

#[test]
fn needs_testbed_the_official_python_client_notices_nothing_but_answers() {
    notices_nothing(bed().join("python/bin/python"), PYTHON, "client.py");
}
