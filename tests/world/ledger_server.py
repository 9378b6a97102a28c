"""An MCP server by FastMCP whose tools leave a line in a ledger file: what is written there really happened.

Each line: {"tool", "arguments", "idempotency_key", "pid"}. Arguments: --port PORT --ledger FILE.
"""

import argparse
import asyncio
import json
import os

import mcp_types as types
from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--ledger", required=True)
options = parser.parse_args()

server = FastMCP("ledger")


def key_of(ctx: Context):
    meta = ctx.request_context.meta if ctx.request_context else None
    if meta is None:
        return None
    fields = meta if isinstance(meta, dict) else meta.model_dump(by_alias=True)
    return fields.get("countersign/idempotency-key")


def write(ctx: Context, tool: str, **arguments) -> None:
    line = {"tool": tool, "arguments": arguments, "idempotency_key": key_of(ctx), "pid": os.getpid()}
    with open(options.ledger, "a", encoding="utf-8") as ledger:
        ledger.write(json.dumps(line) + "\n")
        ledger.flush()
        os.fsync(ledger.fileno())


@server.tool
async def charge(amount: float, ctx: Context) -> str:
    """Charge the card on file."""
    write(ctx, "charge", amount=amount)
    return f"charged {amount:g}"


@server.tool
async def lookup_order(order_id: str, ctx: Context) -> dict:
    """Look up an order."""
    write(ctx, "lookup_order", order_id=order_id)
    return {"order_id": order_id, "state": "paid"}


@server.tool
async def slow(ms: int, ctx: Context) -> str:
    """Write to the ledger, then wait before answering; reports progress four times a second."""
    write(ctx, "slow", ms=ms)
    for waited in range(0, ms, 250):
        await ctx.report_progress(waited, ms)
        await asyncio.sleep(min(250, ms - waited) / 1000)
    return f"waited {ms} ms"


@server.tool
async def ask(question: str, ctx: Context):
    """Ask a person, and write to the ledger what the answer was."""
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "default": "nobody"}, "sure": {"type": "boolean"}},
        "required": ["sure"],
    }
    answer = (ctx.input_responses or {}).get("q")
    if answer is None:
        params = types.ElicitRequestFormParams(message=question, requested_schema=schema)
        requests = {"q": types.ElicitRequest(params=params)}
        return types.InputRequiredResult(input_requests=requests, request_state="state-1")
    write(ctx, "ask", action=answer.action, content=answer.content, state=ctx.request_state)
    return f"{answer.action}: {answer.content}"


@server.tool
async def fail(ctx: Context) -> str:
    """Always fail."""
    write(ctx, "fail")
    raise ToolError("The card was declined.")


if __name__ == "__main__":
    server.run(transport="http", host="127.0.0.1", port=options.port, show_banner=False)
