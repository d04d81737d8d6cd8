//! The official clients, in their own languages. What they read is copied on the way, byte for byte.

use std::path::{Path, PathBuf};
use std::process::Command;

use kennel_testkit::{Client, Scope, tool};
use serde_json::{Value, json};

use crate::servers::{self, Server, bed};
use crate::ways::sounds_the_same;

/// Copies what a server says into a file, between it and its client.
const COPY: &str = r#"copy=$1; shift; "$@" | tee "$copy""#;

/// Asks what `TESTKIT_ASKED` says, one after the other, of the server that the arguments start. An error is
/// an answer. Where clients are to meet, nobody asks before two are there.
const TYPESCRIPT: &str = r#"
import { readdirSync, writeFileSync } from "node:fs";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { CreateMessageRequestSchema, ResultSchema } from "@modelcontextprotocol/sdk/types.js";
const [command, ...args] = process.argv.slice(2);
const transport = new StdioClientTransport({ command, args, env: process.env });
const client = new Client({ name: "bed", version: "0" }, { capabilities: { sampling: {} } });
client.setRequestHandler(CreateMessageRequestSchema, () => ({
  role: "assistant", model: "none", content: { type: "text", text: "grüße from the client" },
}));
await client.connect(transport);
const meeting = process.env.TESTKIT_MEETING;
if (meeting) {
  writeFileSync(`${meeting}/${process.pid}`, "");
  while (readdirSync(meeting).length < 2) await new Promise((later) => setTimeout(later, 20));
}
let answers = 0;
for (const [method, params] of JSON.parse(process.env.TESTKIT_ASKED)) {
  await client.request({ method, params }, ResultSchema).catch((error) => {
    if (error.code === undefined) throw error;
  });
  answers += 1;
}
console.log(`${answers} answers`);
await client.close();
"#;

const PYTHON: &str = r#"
import asyncio, json, os, sys
from mcp import ClientSession, StdioServerParameters, types
from mcp.client.stdio import stdio_client

async def sample(context, params):
    text = types.TextContent(type="text", text="grüße from the client")
    return types.CreateMessageResult(role="assistant", model="none", content=text)

async def main():
    parameters = StdioServerParameters(command=sys.argv[1], args=sys.argv[2:], env=dict(os.environ))
    answers = 0
    async with stdio_client(parameters) as (read, write):
        async with ClientSession(read, write, sampling_callback=sample) as session:
            await session.initialize()
            if meeting := os.environ.get("TESTKIT_MEETING"):
                open(f"{meeting}/{os.getpid()}", "w").close()
                while len(os.listdir(meeting)) < 2:
                    await asyncio.sleep(0.02)
            for method, params in json.loads(os.environ["TESTKIT_ASKED"]):
                try:
                    await session.send_request(types.Request[dict, str](method=method, params=params), types.Result)
                except Exception as error:
                    if not hasattr(error, "error"):
                        raise
                answers += 1
    print(f"{answers} answers")

asyncio.run(main())
"#;

#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_the_official_typescript_client_hears_the_same() {
    let scope = Scope::new("ts-sdk");
    hears_the_same(&scope, &typescript(&scope));
}

#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_the_official_python_client_hears_the_same() {
    let scope = Scope::new("py-sdk");
    hears_the_same(&scope, &python(&scope));
}

/// A client's command line.
pub(crate) type Script = [PathBuf; 2];

pub(crate) fn typescript(scope: &Scope) -> Script {
    let script = scope.path("client.mjs");
    std::fs::write(&script, TYPESCRIPT).unwrap();
    // Its packages are looked for beside it.
    let packages = bed().join("npm/node_modules");
    std::os::unix::fs::symlink(packages, scope.path("node_modules")).unwrap();
    [tool("node").unwrap(), script]
}

pub(crate) fn python(scope: &Scope) -> Script {
    let script = scope.path("client.py");
    std::fs::write(&script, PYTHON).unwrap();
    [bed().join("python/bin/python"), script]
}

#[track_caller]
fn hears_the_same(scope: &Scope, client: &Script) {
    let mut everything = servers::everything();
    let sample = json!({"name": "trigger-sampling-request", "arguments": {"prompt": "say it"}});
    everything.asked.push(("tools/call", sample));
    for server in [everything, servers::python(scope), servers::notes(scope)] {
        let heard = sounds_the_same(scope, &server, |command| {
            let copy = scope.path("copy");
            let mut listening = listen(scope, client, &server, &command, &copy);
            hear(Client::start(&mut listening), &server, &copy)
        });
        let all = heard.concat();
        assert!(all.contains(server.said), "{all}");
    }
}

/// The client, with what it reads of `command` copied.
pub(crate) fn listen(
    scope: &Scope,
    client: &Script,
    server: &Server,
    command: &Command,
    copy: &Path,
) -> Command {
    let mut line = scope.command(&client[0]);
    line.args(&client[1..])
        .args(["sh", "-c", COPY, "sh"])
        .arg(copy)
        .arg(command.get_program())
        .args(command.get_args())
        .env("TESTKIT_ASKED", asked(server));
    line
}

/// What it has read when it ends, all answers in it.
#[track_caller]
pub(crate) fn hear(mut client: Client, server: &Server, copy: &Path) -> Vec<String> {
    client.close();
    let ended = client.wait();
    let all = format!("{} answers", server.asked.len());
    assert_eq!(ended.stdout.trim(), all, "{}", ended.stderr);
    let heard = std::fs::read_to_string(copy).unwrap();
    heard.split_inclusive('\n').map(str::to_owned).collect()
}

fn asked(server: &Server) -> String {
    let pairs: Vec<Value> = server
        .asked
        .iter()
        .map(|(method, params)| json!([method, params]))
        .collect();
    Value::from(pairs).to_string()
}
