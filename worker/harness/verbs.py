"""What the child does for each verb of the protocol. Whatever kernel code raises here, serve.py turns into a status."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from warpwatch import native
from warpwatch.contract.catalogue import Catalogue
from warpwatch.contract.environment import Environment
from warpwatch.contract.messages import (
    BenchReply,
    BuildReply,
    CanaryReply,
    CeilingsReply,
    CheckReply,
    KernelResources,
    ProfileReply,
    Request,
    SampleReply,
)
from warpwatch.contract.words import Status
from warpwatch.operator import Operator

from .bench import Prepared, bench
from .canary import look
from .ceilings import measure_ceilings
from .check import check
from .counters import run_counted
from .environment import read_environment
from .failures import Refusal
from .integrity import TamperGuard, watch
from .loader import Loader, find
from .probe_context import Memory
from .problem import CaseProblem
from .profiling import profile_problem

LOG_LINES = 30
"""Last lines of a compiler's output that a message quotes; the whole log is in the build's own reply."""

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Setting:
    """What a child is started for.

    threads: CPU threads it uses; cores: CPUs it was given; sanitize: what it runs under, if anything.
    """

    root: Path
    operators: str
    native: str
    device: torch.device
    cache: Path
    threads: int
    cores: int
    sanitize: str = ""


class Verbs:
    """Answers requests about one commit on one device. Holds at most one prepared measurement."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        # Made before any code of the commit is imported.
        self._seal = TamperGuard()
        self._loader = Loader(setting.root, setting.operators, self._seal)
        self._prepared: Prepared | None = None
        self._native_ready: set[str] = set()
        self._opchecked: Memory = set()
        native.configure(
            setting.root / setting.native, setting.cache, setting.device.type, setting.sanitize == "address"
        )

    def catalogue(self, request: Request, _progress: Progress) -> Catalogue:
        """Of the operator that the request names, or of all."""
        return self._loader.catalogue(request.operator)

    def environment(self, _request: Request, _progress: Progress) -> Environment:
        return read_environment(self._setting.device, self._setting.threads, self._setting.cores)

    def ceilings(self, _request: Request, _progress: Progress) -> CeilingsReply:
        return measure_ceilings(self._setting.device)

    def canary(self, _request: Request, _progress: Progress) -> CanaryReply:
        return look(self._setting.device)

    def build(self, request: Request, _progress: Progress) -> BuildReply:
        built = native.build(_named(request.operator, "operator"))
        resources = [KernelResources(*kernel) for kernel in built.resources]
        message = "" if built.status == "ok" else last_lines(built.log)
        return BuildReply(
            Status(built.status),
            message,
            built.key,
            built.cached,
            built.seconds,
            built.log,
            resources,
            built.compile_seconds,
            built.code_hash,
        )

    def check(self, request: Request, progress: Progress) -> CheckReply:
        problem = self.problem(request)
        with watch(self._seal):
            return check(problem, request.seed, self._opchecked, progress)

    def bench(self, request: Request, progress: Progress) -> BenchReply:
        return bench(self.problem(request), request.seed, request.budget_ns, self._seal, progress)

    def profile(self, request: Request, _progress: Progress) -> ProfileReply:
        return profile_problem(self.problem(request), request, Path(_named(request.output, "output")))

    def count(self, request: Request) -> None:
        """One call for Nsight Compute to look at; no verb of the protocol, as it runs in a process that `ncu` started."""
        run_counted(self.problem(request), request.seed)

    def prepare(self, request: Request, _progress: Progress) -> SampleReply:
        self._prepared = None
        slice_ns = request.budget_ns // max(1, request.rounds)
        self._prepared = Prepared(self.problem(request), request.seed, slice_ns, self._seal)
        return SampleReply(Status.OK, self._prepared.note, [], self._prepared.metric)

    def sample(self, _request: Request, _progress: Progress) -> SampleReply:
        return self._require_prepared().sample()

    def finish(self, _request: Request, _progress: Progress) -> SampleReply:
        prepared = self._require_prepared()
        self._prepared = None
        reply = prepared.finish()
        del prepared
        if self._setting.device.type == "cuda":
            torch.cuda.empty_cache()
        return reply

    def forget(self) -> None:
        """Frees a prepared measurement that failed."""
        self._prepared = None

    def _require_prepared(self) -> Prepared:
        if self._prepared is None:
            raise Refusal(Status.SKIPPED, "nothing is prepared: send `prepare` first, and again after a failure")
        return self._prepared

    def problem(self, request: Request) -> CaseProblem:
        """The problem that a request names, with its native library loaded."""
        operator = self._loader.load(_named(request.operator, "operator"))
        variant, case = find(operator, _named(request.variant, "variant"), _named(request.case, "case"))
        problem = CaseProblem(operator, variant, case, self._setting.device)
        problem.refuse_unsupported()
        if variant.native:
            self._load_native(operator)
        return problem

    def _load_native(self, operator: Operator) -> None:
        if operator.name in self._native_ready:
            return
        try:
            for library in operator.uses or (operator.name,):
                native.load(library)
        except native.NativeUnavailable as error:
            raise Refusal(Status(error.status), last_lines(str(error))) from error
        if operator.native is not None:
            operator.native()
        self._native_ready.add(operator.name)


def last_lines(log: str) -> str:
    """The end of a compiler's output, which is where it says what is wrong."""
    return "\n".join(log.strip().splitlines()[-LOG_LINES:])


def _named(value: str | None, field: str) -> Any:
    if value is None:
        raise ValueError(f"the request lacks {field}")
    return value
