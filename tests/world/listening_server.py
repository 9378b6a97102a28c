"""An MCP server by the official Python SDK that serves `subscriptions/listen` of 2026-07-28, at /mcp.

Tools: echo, and grow, which adds a tool and tells every listener that the list changed. Arguments: --port PORT, or --stdio.
"""

import argparse

from mcp.server.mcpserver import Context, MCPServer

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int)
parser.add_argument("--stdio", action="store_true")
options = parser.parse_args()

server = MCPServer("listening")


@server.tool()
def echo(text: str) -> str:
    """Say it again."""
    return text


@server.tool()
async def grow(name: str, ctx: Context) -> str:
    """Add a tool, and tell the listeners."""
    server.add_tool(lambda: name, name=name, description="Added while running")
    await ctx.notify_tools_changed()
    return "added " + name


if __name__ == "__main__":
    if options.stdio:
        server.run("stdio")
    else:
        server.run("streamable-http", host="127.0.0.1", port=options.port)
