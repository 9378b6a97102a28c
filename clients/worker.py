#!/usr/bin/env python3
"""A worker: fetches calls of one tool, carries them out, and gives their results. Standard library only.

    COUNTERSIGN_URL=http://127.0.0.1:8080 COUNTERSIGN_TOKEN=… python3 worker.py payments.process 1.0.0
"""
import json, os, sys, threading, time, urllib.error, urllib.request

URL, TOKEN = os.environ.get("COUNTERSIGN_URL"), os.environ.get("COUNTERSIGN_TOKEN")
if not URL or not TOKEN or len(sys.argv) < 3:
    sys.exit("worker.py TOOL VERSION, with COUNTERSIGN_URL and COUNTERSIGN_TOKEN (scope workers) in the environment")
NAME = os.environ.get("WORKER_ID", f"py-{os.getpid()}")


def post(path, body):
    headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), headers)
    while True:
        try:
            with urllib.request.urlopen(request, timeout=90) as answer:
                return json.load(answer)
        except OSError as fault:  # a server that restarts; each of these requests may be repeated
            if isinstance(fault, urllib.error.HTTPError) and fault.code < 500:
                raise
            time.sleep(1)


def handle(call):
    """The work itself. `call["idempotency_key"]` is the same for every attempt of one call."""
    return {"paid": call["input"], "key": call["idempotency_key"]}


def keep(call, done):
    """Says that this worker lives, until the call is done."""
    while not done.wait(float(os.environ.get("WORKER_BEAT_S", "5"))):
        post(f"/v1/worker-calls/{call['id']}/heartbeat", {"lease": call["lease"]})


def work(call):
    done = threading.Event()
    threading.Thread(target=keep, args=(call, done), daemon=True).start()
    try:
        result = {"output": handle(call)}
    except Exception as fault:  # what went wrong is the model's to read
        result = {"error": {"code": "tool-error", "message": str(fault) or "failed"}}
    done.set()
    post(f"/v1/worker-calls/{call['id']}/result", {"lease": call["lease"], **result})


tools = [{"tool": sys.argv[1], "version": sys.argv[2], "max_concurrency": 4}]
while True:
    for call in post(f"/v1/workers/{NAME}/claims", {"tools": tools, "max": 4, "wait_ms": 20000})["calls"]:
        threading.Thread(target=work, args=(call,), daemon=True).start()
