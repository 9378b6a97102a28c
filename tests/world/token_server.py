"""An MCP server by FastMCP that takes the JWT access tokens of one issuer, and says so in its protected resource metadata.

Arguments: --port PORT --issuer URL. Its tool `whoami` tells whom the token names.
"""

import argparse

import uvicorn
from fastmcp import FastMCP
from fastmcp.server.auth import RemoteAuthProvider
from fastmcp.server.auth.providers.jwt import JWTVerifier
from fastmcp.server.dependencies import get_access_token

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--issuer", required=True)
options = parser.parse_args()

base = f"http://127.0.0.1:{options.port}"
verifier = JWTVerifier(
    jwks_uri=f"{options.issuer}/jwks", issuer=options.issuer, audience=f"{base}/mcp", algorithm="ES256"
)
auth = RemoteAuthProvider(
    token_verifier=verifier,
    authorization_servers=[options.issuer],
    base_url=base,
    scopes_supported=["runs:read", "runs:write"],
)
server = FastMCP("tokens", auth=auth)


@server.tool
def whoami() -> dict:
    token = get_access_token()
    return {"client": token.client_id, "scopes": token.scopes} if token else {}


uvicorn.run(server.http_app(), host="127.0.0.1", port=options.port, log_level="warning")
