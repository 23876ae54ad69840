"""The request loop of a child that builds: it compiles one commit's native sources and runs none of its code.

It answers two requests: `key` (which library would it be?), before any compiler has seen the commit's sources, and
`build`. The library lands in the child's temporary folder, from which the parent takes it.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import tempfile
from pathlib import Path
from typing import IO

from warpwatch import native
from warpwatch.contract.codec import from_json, to_json
from warpwatch.contract.messages import PING, BuildReply, KernelResources, Request
from warpwatch.contract.words import Status
from warpwatch.operator import CONTRACT

FOLDER = "libraries"
"""Folder in the child's temporary folder that holds the new library."""
PR_SET_DUMPABLE = 4
LOG_LINES = 30
"""Lines of a compiler's output that a message quotes; the whole log is in the reply."""


def serve(arguments: argparse.Namespace, requests: IO[str], replies: IO[str]) -> int:
    """Serves requests until they end; returns the exit status."""
    # A source that takes over its compiler would reply in place of this process, through its descriptors in /proc.
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    sources = arguments.root / arguments.native
    native.configure(sources, Path(tempfile.gettempdir(), FOLDER), arguments.device, arguments.sanitize == "address")
    print(json.dumps({"event": "ready", "contract": CONTRACT, "torch": ""}), file=replies, flush=True)
    for line in requests:
        request = from_json(Request, json.loads(line))
        if request.verb == PING:
            print(json.dumps({"id": request.id, "reply": {}}), file=replies, flush=True)
            continue
        answer = {"key": native.find_key, "build": native.build}[request.verb]
        reply = to_reply(answer(request.operator or ""))
        print(json.dumps({"id": request.id, "reply": to_json(reply)}), file=replies, flush=True)
    return 0


def to_reply(built: native.Built) -> BuildReply:
    return BuildReply(
        status=Status(built.status),
        message="" if built.status == "ok" else last_lines(built.log),
        key=built.key,
        cached=built.cached,
        seconds=built.seconds,
        log=built.log,
        resources=[KernelResources(*kernel) for kernel in built.resources],
        compile_seconds=built.compile_seconds,
        code_hash=built.code_hash,
    )


def last_lines(log: str) -> str:
    """The end of a compiler's output, which holds the error."""
    return "\n".join(log.strip().splitlines()[-LOG_LINES:])
