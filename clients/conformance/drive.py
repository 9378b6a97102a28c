#!/usr/bin/env python3
"""Drives one client scenario of the official MCP conformance suite through the REST interface.

The suite starts a server for the scenario and runs `drive.py SERVER_URL`. Two runs follow: one that only reads the catalog,
and one whose scripted model calls what the scenario plans, or else every tool that was offered. What the server asks for
is accepted. Ends with 0 when the runs came to their end. Which protocol revision is spoken is the product's affair.

Environment: COUNTERSIGN_URL and COUNTERSIGN_TOKEN (scopes runs:read runs:write mcp:write) say where the product is;
MCP_CONFORMANCE_SCENARIO and MCP_CONFORMANCE_CONTEXT come from the suite.
"""

import fcntl
import json
import os
import sys
import time
import urllib.error
import urllib.request

PATIENCE_S = 25
OVER = {"completed", "stopped", "failed", "cancelled"}
SAMPLES = {"string": "us-west1", "integer": 2, "number": 2.5, "boolean": True, "array": [], "object": {}, "null": None}

# Scenarios whose server asks the user something.
ASKING = {"elicitation-sep1034-client-defaults", "sep-2322-client-request-state"}

# Scenarios whose server describes itself so that no token may be asked for.
UNTRUSTWORTHY = {"auth/resource-mismatch", "auth/metadata-issuer-mismatch"}

# The scenario that wants to be told what schema it serves, and by which tool.
ECHOING = {"json-schema-2020-12-preservation": ("json_schema_2020_12_tool", "json_schema_echo")}

# The arguments of tools for which the suite plans none. All others take none.
ARGUMENTS = {"add_numbers": {"a": 2, "b": 3}, "lookup_user": {"id": "ada"}, "valid_tool": {"region": "us-west1"}}


# What the server of such a scenario is registered as.
REGISTERED = "conformance"


class Problem(Exception):
    """A request that the product refused."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status} {text}")
        self.status = status


def ask(method: str, path: str, body: dict | None = None) -> dict:
    """One request to the product."""
    request = urllib.request.Request(os.environ["COUNTERSIGN_URL"] + path, method=method)
    request.add_header("authorization", "Bearer " + os.environ["COUNTERSIGN_TOKEN"])
    request.add_header("content-type", "application/json")
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(request, data, timeout=PATIENCE_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as problem:
        raise Problem(problem.code, problem.read().decode()) from None


def content_for(schema: dict) -> dict:
    """A form filled in by somebody who leaves every default as it is."""
    fields = schema.get("properties", {})
    return {name: SAMPLES[field["type"]] for name, field in fields.items() if "default" not in field}


def over(run: dict) -> dict:
    """The run once it has ended; what its servers ask for meanwhile is accepted."""
    path = f"/v1/runs/{run['id']}"
    deadline = time.monotonic() + PATIENCE_S
    answered: set[str] = set()
    while run["status"] not in OVER:
        if time.monotonic() > deadline:
            sys.exit(f"the run did not end: {json.dumps(run)}")
        for wanted in run["pending"].get("inputs", []):
            if wanted["input_id"] not in answered:
                answered.add(wanted["input_id"])
                content = content_for(wanted["requested_schema"])
                ask("POST", f"{path}/inputs/{wanted['input_id']}", {"action": "accept", "content": content})
        time.sleep(0.05)
        run = ask("GET", path)
    return run


def run_with(entry: dict, script: list[dict], secrets: dict) -> dict:
    """A run of the scripted model with this server, to its end. A server that could not be reached is tried once more: at its
    first message the suite compiles schemas, and answers nobody for seconds on a busy machine."""
    model = {"provider": "scripted", "name": "conformance", "script": script}
    body = {"model": model, "input": "Call what there is.", "mcp": [entry], "secrets": secrets}
    try:
        run = ask("POST", "/v1/runs", body)
    except Problem as problem:
        if problem.status != 502:
            raise
        run = ask("POST", "/v1/runs", body)
    return over(run)


def given(arguments: dict) -> dict:
    """The arguments without those that are null: the plan has one where the tool's own schema takes a boolean, which the
    gate would stop. What is checked, that no header tells of it, holds for one that is not given as well."""
    return {name: value for name, value in arguments.items() if value is not None}


def echoed(scenario: str, url: str) -> list[dict]:
    """The call that gives a server its tool's schema back, as the registry saw it."""
    shown, echo = ECHOING[scenario]
    ask("PUT", f"/v1/mcp-servers/{REGISTERED}", {"url": url})
    seen = ask("POST", f"/v1/mcp-servers/{REGISTERED}/probe", {})
    schema = next(tool["input_schema"] for tool in seen["tools"] if tool["name"] == shown)
    return [{"name": echo, "arguments": {"schema": schema}}]


def main() -> None:
    # The suite starts all scenarios at once, and some of them are judged by the clock: they take turns. The lock ends with
    # the process.
    turn = open(__file__, encoding="utf-8")
    fcntl.flock(turn, fcntl.LOCK_EX)
    scenario = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    entry = {"url": sys.argv[1]}
    if scenario in ASKING:
        entry["elicitation"] = "ask"
    secrets = {}
    secret = context.get("private_key_pem") or context.get("client_secret")
    if secret or scenario in UNTRUSTWORTHY:
        secrets["client"] = secret or "of-nobody"
        client = context.get("client_id", "nobody")
        entry["auth"] = {"scheme": "oauth-client-credentials", "client_id": client, "secret": "client"}

    run = run_with(entry, [{"text": "Nothing to do."}], secrets)
    catalog = run["binding"]["mcp"]
    tools = catalog["tools"] if catalog else {}
    planned = context.get("toolCalls") or [{"name": tool, "arguments": ARGUMENTS.get(tool, {})} for tool in tools]
    calls = [{"name": call["name"], "arguments": given(call["arguments"])} for call in planned]
    if scenario in ECHOING:
        calls = echoed(scenario, sys.argv[1])
    if calls:
        run = run_with(entry, [{"tool_calls": calls}, {"text": "Done."}], secrets)
    print(json.dumps(run))
    if run["status"] != "completed":
        sys.exit(1)


if __name__ == "__main__":
    try:
        main()
    except Problem as problem:
        sys.exit(str(problem))
