"""A child that runs the code of each request in place of a harness; no torch. `send` writes to its reply channel."""

from __future__ import annotations

import json
import os
import sys

reply_fd = int(os.environ["WARPWATCH_REPLY_FD"])


def send(*messages: object) -> None:
    os.write(reply_fd, b"".join(json.dumps(message).encode() + b"\n" for message in messages))


send({"event": "ready"})
for line in sys.stdin:
    request = json.loads(line)
    if request["verb"] == "ping":
        send({"id": request["id"], "reply": {}})
    else:
        exec(request["variant"], {"send": send, "id": request["id"], "reply_fd": reply_fd})
