"""A child that runs `attack.py` of its worktree at each request and replies with what it printed; no torch."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path

root = Path(sys.argv[sys.argv.index("--root") + 1])
libraries = sys.argv[sys.argv.index("--libraries") + 1]
reply_fd = int(os.environ["WARPWATCH_REPLY_FD"])


def send(message: object) -> None:
    os.write(reply_fd, json.dumps(message).encode() + b"\n")


send({"event": "ready", "contract": 1, "torch": "none"})
for line in sys.stdin:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            exec((root / "attack.py").read_text(), {"libraries": libraries})
        except OSError as error:
            print(error.strerror)
    send({"id": json.loads(line)["id"], "reply": {"status": "ok", "message": printed.getvalue().strip()}})
