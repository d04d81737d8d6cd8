// Each line on stdin is a round: a read and a side effect, both held by so many servers. Says how they went, how
// the read came along, and everything else that it noticed.
import { createInterface } from "node:readline";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
const [command, ...args] = process.argv.slice(2);
const transport = new StdioClientTransport({ command, args, env: process.env });
const client = new Client({ name: "bed", version: "0" });
const odd = [];
let progress = [];
client.onerror = (error) => {
  // Where this client reads progress and the answer after it at once, it has let go of the token by the time it looks
  // at the progress.
  const late = /unknown token: (.*)$/.exec(error.message);
  if (late) progress.push(JSON.parse(late[1]).params.progress);
  else odd.push(`${error}`);
};
client.onclose = () => odd.push("closed");
client.fallbackNotificationHandler = async (told) => { odd.push(told.method); };
await client.connect(transport);
await client.listTools();
await client.setLoggingLevel("debug");
await client.subscribeResource({ uri: "a:1" });
for await (const line of createInterface({ input: process.stdin })) {
  const hold = Number(line);
  progress = [];
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
