"""A FastMCP server with every kind of tool, in both eras, for the tests.

Options: --port PORT, --ledger FILE (one JSON line for each effect that really happened), --tasks (`slow_charge` goes on by
itself and is asked for; needs fastmcp[tasks]), --event-store (streams that can be resumed).
"""

import argparse
import asyncio
import json
import os

import uvicorn
from fastmcp import Context, FastMCP

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--ledger", required=True)
parser.add_argument("--tasks", action="store_true")
parser.add_argument("--event-store", action="store_true")
options = parser.parse_args()

server = FastMCP("bench")
if options.tasks:
    from fastmcp_tasks import TasksExtension

    server.add_extension(TasksExtension())


def write(tool: str, **arguments) -> None:
    with open(options.ledger, "a", encoding="utf-8") as ledger:
        ledger.write(json.dumps({"tool": tool, "arguments": arguments, "pid": os.getpid()}) + "\n")
        ledger.flush()
        os.fsync(ledger.fileno())


@server.tool(task=True if options.tasks else None)
async def slow_charge(amount: float, ms: int) -> str:
    """Charge the card on file, and take that long to say so."""
    write("slow_charge", amount=amount)
    await asyncio.sleep(ms / 1000)
    return f"charged {amount:g}"


@server.tool
async def drop(ms: int, ctx: Context) -> str:
    """Close the stream of this very call half way; the answer comes to whoever resumes it."""
    write("drop", ms=ms)
    await asyncio.sleep(ms / 2000)
    await ctx.close_sse_stream()
    await asyncio.sleep(ms / 2000)
    return "survived the drop"


if __name__ == "__main__":
    more = {}
    if options.event_store:
        from fastmcp.server.event_store import EventStore

        more = {"event_store": EventStore(), "retry_interval": 300}
    app = server.http_app(transport="http", **more)
    uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="warning", timeout_graceful_shutdown=1)
