# The same as official.mjs, with the other official client.
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
