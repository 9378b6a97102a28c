"""An MCP server by FastMCP whose tools cover what a client must cope with. Both protocol eras, at /mcp.

Tools: add (structured), slow (progress), put (idempotent write), charge and slow_charge (not idempotent), slow_drop, fail, big,
ask (elicitation), tool_add and tool_remove (the list changes while it runs). Arguments: --port PORT, and as needed --stdio, --tasks
(`slow` and `slow_charge` may run as tasks; needs fastmcp[tasks]), --event-store (streams can be resumed), --stateless, --json, --sessions (the newer era
is refused, as by a server that never heard of it), --ledger FILE (one JSON line for each write that really happened).
"""

import argparse
import asyncio
import json
import os
from typing import Annotated

import mcp_types as types
from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.tools import Tool
from pydantic import BaseModel, Field

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int)
parser.add_argument("--stdio", action="store_true")
parser.add_argument("--tasks", action="store_true")
parser.add_argument("--event-store", action="store_true")
parser.add_argument("--stateless", action="store_true")
parser.add_argument("--json", action="store_true")
parser.add_argument("--sessions", action="store_true")
parser.add_argument("--ledger")
options = parser.parse_args()

server = FastMCP("bench", version="1")
if options.tasks:
    from fastmcp_tasks import TasksExtension

    server.add_extension(TasksExtension())

READS = types.ToolAnnotations(readOnlyHint=True, openWorldHint=False)
WRITES_AGAIN = types.ToolAnnotations(readOnlyHint=False, destructiveHint=False, idempotentHint=True)
WRITES_ONCE = types.ToolAnnotations(readOnlyHint=False, destructiveHint=False, idempotentHint=False)

store: dict[str, str] = {}


def write(tool: str, **arguments) -> None:
    if options.ledger:
        with open(options.ledger, "a", encoding="utf-8") as ledger:
            ledger.write(json.dumps({"tool": tool, "arguments": arguments, "pid": os.getpid()}) + "\n")
            ledger.flush()
            os.fsync(ledger.fileno())


class Sum(BaseModel):
    total: int
    parts: list[int]


@server.tool(annotations=READS)
def add(a: int, b: int) -> Sum:
    """Add two numbers; the answer is structured."""
    return Sum(total=a + b, parts=[a, b])


@server.tool(annotations=READS, task=True if options.tasks else None)
async def slow(seconds: Annotated[float, Field(le=60)], ctx: Context, steps: int = 4) -> str:
    """Take a while and report progress."""
    for step in range(steps):
        await ctx.report_progress(step, steps, f"step {step}")
        await asyncio.sleep(seconds / steps)
    return f"slept {seconds}"


@server.tool(annotations=WRITES_ONCE, task=True if options.tasks else None)
async def slow_charge(amount: float, ms: int) -> str:
    """Charge the card on file, and take that long to say so."""
    write("slow_charge", amount=amount)
    await asyncio.sleep(ms / 1000)
    return f"charged {amount:g}"


@server.tool(annotations=WRITES_ONCE)
async def slow_drop(seconds: float, ctx: Context) -> str:
    """Close the call's own stream half way; needs --event-store."""
    write("slow_drop", seconds=seconds)
    await asyncio.sleep(seconds / 2)
    await ctx.close_sse_stream()
    await asyncio.sleep(seconds / 2)
    return "survived the drop"


@server.tool(annotations=WRITES_ONCE)
def charge(account: str, cents: int) -> dict:
    """Charge an account; each call is one more line in the ledger."""
    write("charge", account=account, cents=cents)
    return {"charged": cents, "account": account}


@server.tool(annotations=WRITES_AGAIN)
def put(key: str, value: str) -> dict:
    """Store a value."""
    write("put", key=key)
    store[key] = value
    return {"size": len(store)}


@server.tool(annotations=READS)
def fail(kind: str = "tool") -> str:
    """Say no (tool), or break unexpectedly (crash)."""
    if kind == "tool":
        raise ToolError("the tool says no")
    raise RuntimeError("broken inside")


@server.tool(annotations=READS)
def big(kib: int = 64) -> str:
    """Answer with a large text."""
    return "x" * (kib * 1024)


class Answer(BaseModel):
    sure: bool
    name: str = "nobody"


ANSWER_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "default": "nobody"}, "sure": {"type": "boolean"}},
    "required": ["sure"],
}


@server.tool(annotations=WRITES_ONCE)
async def ask(question: str, ctx: Context):
    """Ask the user: a request to a client with a session, an input that is required from one without."""
    if not ctx._is_modern_protocol():
        answer = await ctx.elicit(question, Answer)
        data = getattr(answer, "data", None)
        write("ask", action=answer.action)
        return f"{answer.action}: {json.dumps(data.model_dump() if data else None, sort_keys=True)}"
    got = (ctx.input_responses or {}).get("q")
    if got is None:
        params = types.ElicitRequestFormParams(message=question, requested_schema=ANSWER_SCHEMA)
        return types.InputRequiredResult(input_requests={"q": types.ElicitRequest(params=params)}, request_state="state-1")
    write("ask", action=got.action, state=ctx.request_state)
    return f"{got.action}: {json.dumps(got.content, sort_keys=True)}"


@server.tool(annotations=WRITES_ONCE)
async def tool_add(name: str, ctx: Context) -> str:
    """Add a tool, and say that the list changed."""

    async def added(x: str = "") -> str:
        return f"{name}:{x}"

    server.add_tool(Tool.from_function(added, name=name, description=f"Added while running: {name}"))
    await ctx.send_notification(types.ToolListChangedNotification())
    return "added " + name


@server.tool(annotations=WRITES_ONCE)
async def tool_remove(name: str, ctx: Context) -> str:
    """Remove a tool, and say that the list changed."""
    server.local_provider.remove_tool(name)
    await ctx.send_notification(types.ToolListChangedNotification())
    return "removed " + name


def with_sessions_only(app):
    """The same server, but what is said in the newer era is refused before it gets there."""

    async def refuse(send) -> None:
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 400, "headers": headers})
        error = {"code": -32000, "message": "Bad Request: Server not initialized"}
        body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()
        await send({"type": "http.response.body", "body": body})

    async def call(scope, receive, send) -> None:
        if scope["type"] == "http" and (b"mcp-protocol-version", b"2026-07-28") in scope["headers"]:
            await refuse(send)
        else:
            await app(scope, receive, send)

    return call


def main() -> None:
    if options.stdio:
        server.run(transport="stdio", show_banner=False)
        return
    import uvicorn

    how = {"json_response": options.json, "stateless_http": options.stateless}
    if options.event_store:
        from fastmcp.server.event_store import EventStore

        how.update(event_store=EventStore(), retry_interval=300)
    app = server.http_app(transport="http", **how)
    if options.sessions:
        app = with_sessions_only(app)
    uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="warning", timeout_graceful_shutdown=1)


if __name__ == "__main__":
    main()
