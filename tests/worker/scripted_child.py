"""A child that speaks the protocol and misbehaves as its variant's name says.

It stands in for the harness where torch would only cost time.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

reply_fd = int(os.environ["WARPWATCH_REPLY_FD"])
CASES = ("n=1,f32,fwd", "n=2,f32,fwd")
VARIANTS = {"good": False, "native": True, "wrong": False}


def send(message: object) -> None:
    os.write(reply_fd, json.dumps(message).encode() + b"\n")


def behave(name: str, request: dict[str, Any]) -> dict[str, Any]:
    reply: dict[str, Any] = {"status": "ok"}
    if name == "segfault":
        ctypes.string_at(0)
    elif name == "loop":
        print("looping", flush=True)
        while True:
            pass
    elif name == "sleep":
        subprocess.Popen(["sleep", "1000"])
        subprocess.Popen(["setsid", "sleep", "1001"])
        time.sleep(1000)
    elif name == "abort":
        os.abort()
    elif name == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif name == "exit":
        os._exit(3)
    elif name == "close":
        os.close(reply_fd)
        time.sleep(1000)
    elif name == "nonsense":
        os.write(reply_fd, b"{nonsense\n")
        time.sleep(1000)
    elif name == "unknown field":
        reply["surprise"] = 1
    elif name == "memory":
        os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n")
        os.abort()
    elif name.startswith("shim"):
        os.write(2, b"Exception in aoti_torch: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
        if name == "shim crash":
            ctypes.string_at(0)
        reply = {"status": "crashed", "message": "RuntimeError: torch_call_dispatcher API call failed"}
    elif name == "hoard":
        try:
            ctypes.memset(ctypes.create_string_buffer(2**33), 1, 1)
        except MemoryError:
            reply = {"status": "out_of_memory", "message": "MemoryError"}
    elif name == "chatter":
        while True:
            print("x" * 200)
    elif name == "environment":
        reply["message"] = json.dumps(dict(os.environ))
    elif name == "network":
        try:
            socket.create_connection(("127.0.0.1", int(request["seed"])), timeout=2)
            reply["message"] = "connected"
        except OSError as error:
            reply["message"] = str(error)
    elif name == "look":
        path = Path(request["case"])
        reply["message"] = path.read_text() if path.is_file() else "not there"
    elif name == "fork bomb":
        try:
            for _ in range(10000):
                if os.fork() == 0:
                    time.sleep(1000)
        except OSError as error:
            reply["message"] = str(error)
    elif name.startswith("times"):
        send({"id": request["id"], "event": "turn", "use": request["case"]})
        if name == "times then dies":
            sys.stdin.readline()
            os.abort()
        reply["message"] = str([json.loads(sys.stdin.readline())["verb"]])
    return reply


send({"event": "ready", "contract": 1, "torch": "none"})
for line in sys.stdin:
    request = json.loads(line)
    if request["verb"] == "ping":
        send({"id": request["id"], "reply": {}})
        continue
    if request["variant"] == "forger":
        send({"id": request["id"], "reply": {"status": "ok"}})
    send({"id": request["id"], "event": "progress", "done": 0, "total": 1, "text": "working"})
    times = {"boast": {"samples": 1e9}, "no times": {"samples": -1}}.get(request["variant"])
    send({"id": request["id"], "reply": behave(request["variant"], request), "times": times})
