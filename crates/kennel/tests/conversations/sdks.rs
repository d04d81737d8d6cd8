//! The official clients, in their own languages. What they read is copied on the way, byte for byte.

use std::path::Path;
use std::process::Command;

use kennel_testkit::{Scope, run, tool};
use serde_json::{Value, json};

use crate::servers::{self, Server, bed};
use crate::ways::sounds_the_same;

/// Copies what a server says into a file, between it and its client.
const COPY: &str = r#"copy=$1; shift; "$@" | tee "$copy""#;

/// Asks what `TESTKIT_ASKED` says, one after the other, of the server that the arguments start. An error is
/// an answer.
const TYPESCRIPT: &str = r#"
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
fn needs_testbed_the_official_typescript_client_hears_the_same() {
    let scope = Scope::new("ts-sdk");
    // Where its packages are found: beside them.
    let place = bed()
        .join("npm")
        .join(format!("client-{}.mjs", std::process::id()));
    let script = Removed(&place);
    std::fs::write(script.0, TYPESCRIPT).unwrap();
    hears_the_same(&scope, &[tool("node").unwrap().as_path(), script.0]);
}

#[test]
fn needs_testbed_the_official_python_client_hears_the_same() {
    let scope = Scope::new("py-sdk");
    let script = scope.path("client.py");
    std::fs::write(&script, PYTHON).unwrap();
    hears_the_same(&scope, &[&bed().join("python/bin/python"), &script]);
}

/// A file that is not the scope's to remove.
struct Removed<'a>(&'a Path);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.0);
    }
}

#[track_caller]
fn hears_the_same(scope: &Scope, client: &[&Path]) {
    let mut everything = servers::everything();
    let sample = json!({"name": "trigger-sampling-request", "arguments": {"prompt": "say it"}});
    everything.asked.push(("tools/call", sample));
    for server in [everything, servers::python(scope), servers::notes(scope)] {
        let heard = sounds_the_same(scope, &server, |command| {
            hear(scope, client, &server, &command)
        });
        let all = heard.concat();
        assert!(all.contains(server.said), "{all}");
    }
}

fn hear(scope: &Scope, client: &[&Path], server: &Server, command: &Command) -> Vec<String> {
    let copy = scope.path("copy");
    let mut line = scope.command(client[0]);
    line.args(&client[1..])
        .args(["sh", "-c", COPY, "sh"])
        .arg(&copy)
        .arg(command.get_program())
        .args(command.get_args())
        .env("TESTKIT_ASKED", asked(server));
    let ended = run(&mut line);
    let all = format!("{} answers", server.asked.len());
    assert_eq!(ended.stdout.trim(), all, "{}", ended.stderr);
    let heard = std::fs::read_to_string(&copy).unwrap();
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
