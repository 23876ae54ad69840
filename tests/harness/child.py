"""Starts the real child as the worker does, and sends it requests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, TypeVar

from tests.worker.conftest import Diary
from warpwatch.contract.codec import from_json, to_json
from warpwatch.contract.messages import Request
from warpwatch.worker import levels
from warpwatch.worker.building import BuildRequest, LibraryStore, build

ROOT = Path(__file__).parent.parent.parent
BOOTSTRAP = ROOT / "warpwatch" / "worker" / "harness" / "child" / "bootstrap.py"
T = TypeVar("T")


def lay_out_libraries(root: Path, cache: Path, *operators: str) -> None:
    """Builds operators' libraries for the CPU as the worker does, and lays them out for a child with this cache."""
    confinement, store = levels.confinement(cache.parent, None), LibraryStore(cache.parent / "store")
    for operator in operators:
        request = BuildRequest(root, "csrc", operator, "cpu")
        build(request, store, confinement, 300, Diary()).lay_out(cache / operator)


class Harness:
    """A running child.

    packages: a folder of installed packages. events: the progress events of the latest request.
    """

    def __init__(
        self,
        root: Path,
        cache: Path,
        *,
        device: str = "cpu",
        operators: str = "kernels",
        contract: int = 1,
        packages: str = "",
    ) -> None:
        receiving, sending = os.pipe()
        words = {
            "root": root,
            "operators": operators,
            "contract": contract,
            "device": device,
            "libraries": cache,
            "threads": 1,
        }
        arguments = [word for name, value in words.items() for word in (f"--{name}", str(value))]
        self.log = cache.parent / f"{cache.name}-{Path(operators).name}-{contract}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(BOOTSTRAP), *arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=[sending],
                cwd=root,
                text=True,
                env={**os.environ, "WARPWATCH_REPLY_FD": str(sending), "PYTHONPATH": packages},
            )
        os.close(sending)
        self._replies = os.fdopen(receiving)
        self._requests = 0
        self.events: list[dict[str, Any]] = []
        self.greeting = self._receive()

    def ask(self, kind: type[T], verb: str, **fields: Any) -> T:
        """Sends one request and returns the reply, decoded as the worker decodes it."""
        self._requests += 1
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(to_json(Request(self._requests, verb, **fields))) + "\n")
        self.process.stdin.flush()
        self.events = []
        while True:
            message = self._receive()
            assert message["id"] == self._requests
            if "reply" in message:
                return from_json(kind, message["reply"])
            self.events.append(message)

    def stop(self) -> int:
        """Closes the requests, as a parent that exits does, and returns the exit status."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        code = self.process.wait(timeout=60)
        self._replies.close()
        return code

    def _receive(self) -> dict[str, Any]:
        line = self._replies.readline()
        assert line, f"the child is gone: {self.log.read_text()}"
        message: dict[str, Any] = json.loads(line)
        return message
