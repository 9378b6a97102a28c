"""An MCP server by the FastMCP of the official SDK, version 1, that asks people to choose in its session.

Its form is what pydantic makes of a type: each enumeration is a definition that fields refer to. Arguments: --port PORT.
"""

import argparse
import enum

import pydantic
from mcp.server.fastmcp import Context, FastMCP

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int, required=True)
options = parser.parse_args()

server = FastMCP("choosing", host="127.0.0.1", port=options.port)


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"


class Choice(pydantic.BaseModel):
    color: Color
    second: Color = Color.GREEN
    third: Color | None = None
    others: list[Color] = []


@server.tool()
async def choose(ctx: Context) -> str:
    """Ask a person to choose, and say what they chose."""
    answer = await ctx.session.elicit("Which?", Choice.model_json_schema(), ctx.request_id)
    return f"{answer.action} {Choice.model_validate(answer.content).model_dump_json()}"


if __name__ == "__main__":
    server.run(transport="streamable-http")
