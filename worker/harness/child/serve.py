"""The child's request loop: writes one reply per request unless kernel code ends the process."""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import gc
import json
import os
import re
import sys
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import IO, Any

import torch

from warpwatch.contract.activities import Activity
from warpwatch.contract.codec import from_json, to_json
from warpwatch.contract.messages import (
    PING,
    TURN,
    BenchReply,
    CanaryReply,
    CasesReply,
    CeilingsReply,
    CheckReply,
    ProfileReply,
    Request,
    SampleReply,
)
from warpwatch.contract.words import LaneUse
from warpwatch.operator import CONTRACT

from ..failures import Failure, describe
from ..turns import STOPWATCH, ChildTurns
from .measured import MeasuredFolders
from .verbs import ChildSettings, Verbs

ACTIVITIES = {
    "check": Activity.VERIFY,
    "bench": Activity.VERIFY,
    "profile": Activity.SAMPLES,
    "rehearse": Activity.WARM_UP,
    "plan": Activity.WARM_UP,
    "prepare": Activity.WARM_UP,
    "sample": Activity.SAMPLES,
    "testify": Activity.VERIFY,
    "finish": Activity.VERIFY,
}
"""The activity that the time of a request counts for, unless the code of the request measures another activity.
Requests that are missing here are no measurement."""
EXIT_POISONED = 3
"""Exit status after a failure that leaves the device context unusable."""

FAILURE_REPLIES: dict[str, Any] = {
    "cases": CasesReply,
    "check": CheckReply,
    "bench": BenchReply,
    "profile": ProfileReply,
    "rehearse": SampleReply,
    "plan": SampleReply,
    "prepare": SampleReply,
    "sample": SampleReply,
    "testify": SampleReply,
    "finish": SampleReply,
    "ceilings": CeilingsReply,
    "bounds": CeilingsReply,
    "canary": CanaryReply,
}
VERBS = (*FAILURE_REPLIES, "catalogue", "environment", PING)
UNTIMED = {"cases", "check", "catalogue", "environment"}
"""Requests whose answers hold no times."""


class CannotServeError(Exception):
    """The child cannot serve with its arguments; the message says what to change."""


class HarnessServer:
    """Reads requests and writes replies until the requests end."""

    def __init__(self, arguments: argparse.Namespace, requests: IO[str], replies: IO[str]) -> None:
        if arguments.contract != CONTRACT:
            raise CannotServeError(
                f"The commit requires contract {arguments.contract}, and this service supports contract {CONTRACT}: "
                "change `contract` in warpwatch.toml, or update the service"
            )
        self._requests = requests
        self._replies = replies
        self._device = _open_device(arguments.device)
        torch.set_num_threads(arguments.threads)
        faulthandler.enable()
        # The last lines that kernel code prints before a crash must reach the log.
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        self._request_id = 0
        self._verbs = Verbs(_child_settings(arguments, self._device), ChildTurns(self._take_turn))

    def run(self) -> int:
        """Serves all requests; returns the exit status."""
        # Imported modules stay alive, so freezing them makes each garbage collection a thousand times faster.
        gc.freeze()
        self._write({"event": "ready", "contract": CONTRACT, "torch": str(torch.__version__)})
        for line in self._requests:
            self._verbs.idle.end()
            request = from_json(Request, json.loads(line))
            failure = self._answer(request)
            if failure is not None and failure.poisoned:
                # Destructors of a lost CUDA context may abort or hang, so the process ends without them.
                sys.stdout.flush()
                os._exit(EXIT_POISONED)
            self._verbs.idle.begin()
        return 0

    def _take_turn(self, use: LaneUse) -> None:
        """Returns once the parent grants this use of the device; the process ends with its parent."""
        self._write({"id": self._request_id, "event": "turn", "use": use})
        line = self._requests.readline()
        if not line or from_json(Request, json.loads(line)).verb != TURN:
            raise SystemExit("The parent granted no turn")

    def _answer(self, request: Request) -> Failure | None:
        """Writes the reply; returns the failure, None after a success."""
        self._request_id = request.id
        if request.verb not in VERBS:
            raise ValueError(f"unknown verb {request.verb!r}; known are {', '.join(VERBS)}")

        def progress(done: int, total: int, text: str) -> None:
            self._write({"id": request.id, "event": "progress", "done": done, "total": total, "text": text})

        if request.verb == PING:
            self._write({"id": request.id, "reply": {}})
            return None
        if request.verb not in UNTIMED:
            copy_shared()
        try:
            activity = ACTIVITIES.get(request.verb)
            with STOPWATCH.measure(activity) if activity is not None else nullcontext():
                reply = getattr(self._verbs, request.verb)(request, progress)
            failure = None
        except (Exception, SystemExit) as error:
            if request.verb not in FAILURE_REPLIES:
                raise
            self._verbs.forget()
            failure = describe(error, self._device)
            details: dict[str, Any] = {}
            if request.verb in ("check", "bench"):
                details = {"fault": failure.fault, "subjects": failure.subjects}
            if request.verb == "check":
                details["seed"] = request.seed
            reply = FAILURE_REPLIES[request.verb](failure.status, failure.message, **details)
        state = {"times": to_json(STOPWATCH.take()), "compiles": "torch._dynamo" in sys.modules}
        self._write({"id": request.id, "reply": to_json(reply), **state})
        return failure

    def _write(self, message: dict[str, Any]) -> None:
        self._replies.write(json.dumps(message, allow_nan=False) + "\n")
        self._replies.flush()


def count_once(arguments: argparse.Namespace) -> None:
    """Calls the operator, variant and case in `arguments.count` once, for Nsight Compute to record."""
    operator, variant, case, seed = arguments.count
    torch.set_num_threads(arguments.threads)
    verbs = Verbs(_child_settings(arguments, _open_device(arguments.device)))
    verbs.count(Request(0, "count", operator, variant, case, int(seed)))


def _child_settings(arguments: argparse.Namespace, device: torch.device) -> ChildSettings:
    a = arguments
    measured = MeasuredFolders(tuple(a.measured), frozenset(a.packages.split(","))) if a.measured else None
    return ChildSettings(a.root, a.operators, device, a.libraries, a.threads, a.cores, measured)


def _open_device(name: str) -> torch.device:
    device = torch.device(name)
    if device.type not in ("cpu", "cuda"):
        raise CannotServeError(f"unknown device {name!r}: use cpu, or cuda:0 and so on")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise CannotServeError(f"{name} is not available: torch {torch.__version__} finds no CUDA device")
        device = torch.device("cuda", device.index or 0)
        if device.index >= torch.cuda.device_count():
            raise CannotServeError(
                f"{name} is not available: this machine has {torch.cuda.device_count()} CUDA devices, counted from 0"
            )
        torch.cuda.set_device(device)
    return device


MADV_POPULATE_WRITE = 23


@cache
@STOPWATCH.measure(Activity.START)
def copy_shared() -> None:
    """Takes pages of its own, in the order of their addresses, for all that this process shares with its template. Only
    the first call does: what a process has written since is its own.

    Else it would copy each where it first writes to it: within what it measures, and scattered over the memory, which
    makes calls with cold caches slower on virtual machines. Kernels before 5.14 refuse, and then it does so. This takes
    as long as all else at the start of a child, so a child that measures no times does without.
    """
    if not os.access("/proc/self/pagemap", os.R_OK):
        return
    libc, page = ctypes.CDLL(None), os.sysconf("SC_PAGE_SIZE")
    maps = Path("/proc/self/maps").read_text().splitlines()
    with Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
        for span, rights in (line.split(maxsplit=2)[:2] for line in maps):
            if not (rights.startswith("rw") and rights.endswith("p")):
                continue
            begin, end = (int(address, 16) for address in span.split("-"))
            pagemap.seek(begin // page * 8)
            # The highest bit of an entry says that the page is there.
            for run in re.finditer(rb"[\x80-\xff]+", pagemap.read((end - begin) // page * 8)[7::8]):
                address, size = begin + run.start() * page, len(run[0]) * page
                libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), MADV_POPULATE_WRITE)
