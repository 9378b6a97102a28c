"""An MCP server by the official Python SDK that tells changes of its tools (`subscriptions/listen`). Argument: --port PORT."""

import argparse

from mcp.server.mcpserver import Context, MCPServer

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int, required=True)
options = parser.parse_args()

server = MCPServer("listen")


@server.tool()
def echo(text: str) -> str:
    return text


@server.tool()
async def grow(name: str, ctx: Context) -> str:
    server.add_tool(lambda: name, name=name, description="added while it runs")
    await ctx.notify_tools_changed()
    return "added " + name


if __name__ == "__main__":
    server.run("streamable-http", host="127.0.0.1", port=options.port)
