"""An MCP server over stdio, written by hand so that it can misbehave in every way a real one might.

What stands in its ledger really happened: each start, each call, each signal. Standard library only."""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time

arguments = argparse.ArgumentParser()
arguments.add_argument("--ledger", required=True)
arguments.add_argument("--mode", default="")
arguments = arguments.parse_args()
MODES = set(arguments.mode.split(","))
OUT = threading.Lock()


def note(event, **more):
    with open(arguments.ledger, "a") as ledger:
        ledger.write(json.dumps({"event": event, "pid": os.getpid(), **more}) + "\n")


def write(text):
    with OUT:
        sys.stdout.write(text)
        sys.stdout.flush()


def answer(id, result):
    write(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}) + "\n")


def text(value):
    return {"content": [{"type": "text", "text": value}]}


def call(id, name, given):
    note("call", tool=name, given=given)
    if name == "charge":
        answer(id, text("charged"))
    elif name == "env":
        answer(id, text(json.dumps({"env": dict(os.environ), "cwd": os.getcwd()})))
    elif name == "slow":
        time.sleep(given["ms"] / 1000)
        answer(id, text("done"))
    elif name == "exit":
        os._exit(3)
    elif name == "half":
        write('{"jsonrpc":"2.0","id":%d,"result":{"cont' % id)
        os._exit(0)
    elif name == "bytes":
        with OUT:
            sys.stdout.buffer.write(bytes.fromhex(given["hex"]).replace(b"@ID@", b"%d" % id) + b"\n")
            sys.stdout.buffer.flush()
    elif name == "hang":
        pass
    elif name == "giant":
        write('{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"' % id)
        for _ in range(given["kib"]):
            write("x" * 1024)
        write('"}]}}\n')
    elif name == "giant-noise":
        write("x" * 1024 * given["kib"] + "\n")
    elif name == "flood":
        while True:
            write("y" * 1024)
    elif name == "noise":
        for number in range(given["lines"]):
            write("\x1b[32minfo\x1b[0m step %d\n\n[1,2]\n{\"level\":30,\"msg\":\"hi\"}\n" % number)
        answer(id, text("done"))
    elif name == "endless-noise":
        while True:
            write("a line of a log\n" * 100)
    elif name == "complain":
        for _ in range(given["kib"]):
            sys.stderr.write("the token is %s " % os.environ.get("TOKEN") + "z" * 1024)
        sys.stderr.write("\n")
        sys.stderr.flush()
        answer(id, text("done"))
    elif name == "pings":
        for number in range(given["times"]):
            write('{"jsonrpc":"2.0","id":"p%d","method":"ping"}\n' % number)
        answer(id, text("done"))
    elif name == "notices":
        for number in range(given["times"]):
            params = {"level": "info", "data": number}
            write(json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": params}) + "\n")
        write(json.dumps({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}) + "\n")
        answer(id, text("done"))
    elif name == "deaf":
        signal.pause()
    else:
        answer(id, {"isError": True, **text("unknown")})


def initialize(id, params):
    version = params.get("protocolVersion")
    answer(id, {
        "protocolVersion": version if version in ("2025-06-18", "2025-11-25") else "2025-11-25",
        "capabilities": {"tools": {"listChanged": True}},
        "serverInfo": {"name": "bad", "version": "1"},
    })


def serve():
    threads = []
    for line in sys.stdin:
        message = json.loads(line)
        method, id = message.get("method"), message.get("id")
        if method == "server/discover":
            note("discover")
            if "exits-at-discover" in MODES:
                os._exit(4)
            if "silent-at-discover" not in MODES:
                error = {"code": -32601, "message": "Method not found"}
                write(json.dumps({"jsonrpc": "2.0", "id": id, "error": error}) + "\n")
        elif method == "initialize":
            note("initialize")
            initialize(id, message["params"])
        elif method == "tools/list":
            answer(id, {"tools": [{"name": "charge", "inputSchema": {"type": "object"}}]})
        elif method == "tools/call":
            params = message["params"]
            work = (id, params["name"], params.get("arguments") or {})
            if params["name"] == "deaf":
                call(*work)
            threads.append(threading.Thread(target=call, args=work, daemon=True))
            threads[-1].start()
        elif method == "notifications/cancelled":
            note("cancelled", request=message["params"].get("requestId"))
    note("input-closed")


def main():
    note("start")
    if "launcher" in MODES:
        again = [sys.executable, __file__, "--ledger", arguments.ledger]
        return subprocess.Popen(again).wait()
    if "fails" in MODES:
        sys.stderr.write("cannot start: bad token %s\n" % os.environ.get("TOKEN"))
        return 7
    if "child" in MODES:
        child = subprocess.Popen(["sleep", "1000"])
        note("child", child=child.pid)
    if "stray" in MODES:
        child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        note("child", child=child.pid)
    if "stubborn" in MODES:
        signal.signal(signal.SIGTERM, lambda *_: note("term"))
    if "banner" in MODES:
        write("bad-server v1.0\n\n\x1b[1mlistening\x1b[0m on stdio\r\n{not json}\n")
    serve()
    while "stubborn" in MODES:
        time.sleep(1)
    return 0


sys.exit(main())
