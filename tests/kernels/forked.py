"""Runs commands of `warpwatch` in forks of one process that has imported what they import: to import torch takes longer
than most of them. A fork ends without the end of an interpreter, so not even what is registered for it runs.

As a program, `forked.py MODULE...`, it reads a line of JSON for each command and answers with its exit status.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn


class ForkedCommands:
    """The process. modules: what it imports. variables: what its environment has beside this process's own."""

    def __init__(self, folder: Path, *modules: str, **variables: str) -> None:
        self._folder = folder
        command = [sys.executable, "-P", __file__, *modules]
        self._process = subprocess.Popen(
            command, env=os.environ | variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """One command, as typed in this folder."""
        output, errors = self._folder / "output", self._folder / "errors"
        request = {"folder": str(folder), "words": words, "variables": variables}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request | {"output": str(output), "errors": str(errors)}) + "\n")
        self._process.stdin.flush()
        status = int(self._process.stdout.readline())
        return subprocess.CompletedProcess(words, status, output.read_text(), errors.read_text())

    def close(self) -> None:
        self._process.communicate()


def main(*modules: str) -> None:
    for module in modules:
        importlib.import_module(module)
    # Otherwise the collector would copy all that a fork shares with this process.
    gc.freeze()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            run(json.loads(line))
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def run(request: dict[str, Any]) -> NoReturn:
    os.chdir(request["folder"])
    sys.path.insert(0, request["folder"])
    os.environ.update(request["variables"])
    for descriptor, path in ((1, request["output"]), (2, request["errors"])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), descriptor)
    sys.argv[1:] = request["words"]
    status = 1
    try:
        runpy.run_module("warpwatch", run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - printed as the interpreter would
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # The end of an interpreter that has imported torch copies and clears all of its memory.
        os._exit(status)


if __name__ == "__main__":
    main(*sys.argv[1:])
