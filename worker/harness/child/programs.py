"""Entry script of a child that runs a repository's own benchmark program. It needs the standard library alone.

It runs one shell command per request, in the worktree. What the command leaves in the temporary folder stays for the
next one, so a program is built once and run as often as the parent asks.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from typing import IO, Any

OUTPUT, PRINTED = "results.json", "printed"
"""Files in the temporary folder: where a program may write its results, and what it printed."""
BUILD = "build"
_SHELL = "/bin/sh"


def open_channels() -> tuple[IO[str], IO[str]]:
    """(requests, replies) on private descriptors, which no command inherits."""
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    descriptor = int(os.environ.pop("WARPWATCH_REPLY_FD"))
    os.set_inheritable(descriptor, False)
    return requests, os.fdopen(descriptor, "w", encoding="utf-8")


def visible_device(words: list[str], visible: str) -> dict[str, str]:
    """The variable that shows a program the one GPU that the worker measures on; words: of the command line."""
    device = words[words.index("--device") + 1] if "--device" in words else "cpu"
    kind, _, index = device.partition(":")
    if kind != "cuda":
        return {}
    names = [name for name in visible.split(",") if name]
    number = int(index or 0)
    return {"CUDA_VISIBLE_DEVICES": names[number] if number < len(names) else str(number)}


def run_command(command: str, folder: str) -> dict[str, Any]:
    """Runs a command to its end; the parent ends this process where it takes too long."""
    output = os.path.join(folder, OUTPUT)  # noqa: PTH118
    if os.path.lexists(output):
        os.remove(output)  # noqa: PTH107
    shutil.rmtree(f"{output}-bin", ignore_errors=True)
    build = os.path.join(folder, BUILD)  # noqa: PTH118
    os.makedirs(build, exist_ok=True)  # noqa: PTH103
    # `python` means the interpreter that the repository asks for.
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])  # noqa: PTH120
    environment = {**os.environ, "PATH": path, "WARPWATCH_OUTPUT": output, "WARPWATCH_BUILD": build}
    environment |= visible_device(sys.argv, os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    begin = time.monotonic()
    with open(os.path.join(folder, PRINTED), "wb") as printed:  # noqa: PTH118, PTH123
        code = subprocess.call([_SHELL, "-c", command], stdout=printed, env=environment)
    reply = {"status": "ok", "exit_code": code, "seconds": time.monotonic() - begin}
    return {**reply, "has_output": os.path.lexists(output)}


def main() -> int:
    requests, replies = open_channels()
    folder = tempfile.gettempdir()

    def write(message: dict[str, Any]) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    write({"event": "ready"})
    for line in requests:
        request = json.loads(line)
        reply = run_command(request["command"], folder) if request["verb"] == "run" else {}
        write({"id": request["id"], "reply": reply})
    return 0


if __name__ == "__main__":
    sys.exit(main())
