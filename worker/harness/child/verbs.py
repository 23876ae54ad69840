"""Implements each verb of the protocol. serve.py turns exceptions of kernel code into statuses."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter

import torch

from warpwatch import native
from warpwatch.contract.catalogue import Catalogue
from warpwatch.contract.environment import Environment
from warpwatch.contract.measurement import Counter
from warpwatch.contract.messages import (
    BenchReply,
    CanaryReply,
    CasesReply,
    CeilingsReply,
    CheckReply,
    ProfileReply,
    Request,
    SampleReply,
)
from warpwatch.contract.words import Status
from warpwatch.operator import Operator

from ..bench import Prepared, bench, plan_prepared
from ..checks.check import check
from ..checks.default_stream import judge_in_order, prepare_in_order
from ..checks.probes import ProbeHistory
from ..checks.reference import ReferenceChecks
from ..checks.rest import IdleTimes, expect_rest
from ..failures import Refusal, WrongResultError
from ..guards.integrity import TamperGuard, watch
from ..problem import CaseProblem, Progress
from ..profile.counters import run_counted
from ..profile.launches import LaunchRecording
from ..profile.profiling import profile_problem
from ..timers.ceilings import inspect, measure_bounds, measure_ceilings
from ..timers.warm_up import rehearse
from ..turns import ChildTurns
from .builder import last_lines
from .environment import read_environment, read_versions
from .loader import Loader, case_entry, find
from .measured import MeasuredFolders
from .tuning import compile_candidates_at_once

_KEPT_SHARE = 1 / 32
"""Of the device's memory: what a child keeps for its next measurement beside seven others."""


@dataclass(frozen=True, slots=True)
class ChildSettings:
    """The arguments of a child.

    root: the worktree. operators: the folder of operator files in it. libraries: the folder of the native libraries
    that were built for it. threads: CPU threads to use. cores: CPUs that the process may use. measured: where the
    packages lie that the operators measure, None where they lie in the worktree like all else.
    """

    root: Path
    operators: str
    device: torch.device
    libraries: Path
    threads: int
    cores: int
    measured: MeasuredFolders | None = None


class StartTimes:
    """Seconds that a user of an operator waits in a new process: until its file and library are loaded, and until the
    first call of a variant has returned, with all that is compiled at run time."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._called: set[tuple[str, str]] = set()
        cache = os.environ.get("TRITON_CACHE_DIR")
        # Files in the folder of the compilers' caches are those of an earlier process with the same code.
        self._is_cold = cache is not None and not any(path.is_file() for path in Path(cache).parent.rglob("*"))

    def add(self, operator: str, seconds: float) -> None:
        """Loading took so long."""
        self._seconds[operator] = self._seconds.get(operator, 0.0) + seconds

    def take(self, problem: CaseProblem) -> bool:
        """Whether this is the first use of the variant."""
        key = problem.operator.name, problem.variant.name
        is_first = key not in self._called
        self._called.add(key)
        return is_first

    def complete(self, problem: CaseProblem, counters: Mapping[str, Counter], *, is_first: bool) -> dict[str, Counter]:
        """The counters of a reply: with the time of loading at the first use of a variant, and without that of the
        first call at a later use or where an earlier process had compiled the code."""
        counts = is_first and self._is_cold
        kept = {name: counter for name, counter in counters.items() if name != "first_call" or counts}
        seconds = self._seconds.get(problem.operator.name)
        if is_first and seconds is not None:
            kept["load"] = Counter("seconds", seconds, seconds, seconds, 1)
        return kept


class Verbs:
    """Serves requests about one commit on one device. Holds at most one prepared measurement. idle: is told when a
    request begins and ends."""

    def __init__(self, settings: ChildSettings, turns: ChildTurns | None = None) -> None:
        self._settings = settings
        self._turns = turns or ChildTurns()
        self.idle = IdleTimes(settings.device)
        # The guard must exist before any code of the commit is imported.
        self._guard = TamperGuard()
        self._loader = Loader(settings.root, settings.operators, self._guard, settings.measured)
        self._prepared: Prepared | None = None
        self._native_ready: set[str] = set()
        self._probed = ProbeHistory()
        self._start = StartTimes()
        self._references = ReferenceChecks()
        self._spared_modules = 0
        self._launches = LaunchRecording()
        native.configure_prebuilt(settings.libraries)

    def catalogue(self, request: Request, _progress: Progress) -> Catalogue:
        """The catalogue of the operator that the request names, or of all operators."""
        begin = perf_counter()
        try:
            return self._loader.catalogue(request.operator)
        finally:
            if request.operator is not None:
                self._start.add(request.operator, perf_counter() - begin)
            self._spare_imports()

    def cases(self, request: Request, _progress: Progress) -> CasesReply:
        """The undeclared cases that the request names and the operator can have."""
        operator = self._load(request)
        cases = [operator.find_case(key) for key in request.cases]
        return CasesReply(Status.OK, "", [case_entry(operator, case) for case in cases if case is not None])

    def environment(self, request: Request, _progress: Progress) -> Environment:
        environment = read_environment(self._settings.device, self._settings.threads, self._settings.cores)
        versions = read_versions(request.modules)
        return environment.with_facts({"distributions": versions}) if versions else environment

    def ceilings(self, _request: Request, _progress: Progress) -> CeilingsReply:
        return measure_ceilings(self._settings.device)

    def bounds(self, _request: Request, _progress: Progress) -> CeilingsReply:
        return measure_bounds()

    def canary(self, _request: Request, _progress: Progress) -> CanaryReply:
        return inspect(self._settings.device)

    def check(self, request: Request, progress: Progress) -> CheckReply:
        problem = self.problem(request)

        def run() -> CheckReply:
            history = ProbeHistory() if problem.is_in_order else self._probed
            return check(problem, request.seed, history, progress, self._launches)

        # Some settings that are watched are those of a stream.
        with problem.modes(), watch(self._guard):
            self._references.expect_usable(problem, request.seed)
            is_first = self._start.take(problem)
            reply = judge_in_order(problem, request.seed, run)
        return replace(reply, counters=self._start.complete(problem, reply.counters, is_first=is_first))

    def bench(self, request: Request, progress: Progress) -> BenchReply:
        problem = self.problem(request)
        try:
            is_first = self._start.take(problem)
            run = partial(bench, problem, request.seed, request.budget_ns, self._guard, progress)
            reply = judge_in_order(problem, request.seed, run)
            return replace(reply, counters=self._start.complete(problem, reply.counters, is_first=is_first))
        except WrongResultError:
            # To check every reference would make benches longer; to check those that accuse makes none longer.
            with problem.modes(), watch(self._guard):
                self._references.expect_usable(problem, request.seed)
            raise

    def profile(self, request: Request, _progress: Progress) -> ProfileReply:
        # The temp folder is the only one that the sandbox lets a child write to; the parent takes the trace from there.
        output = Path(tempfile.gettempdir(), _required(request.output, "output"))
        return profile_problem(self.problem(request), request, output, self._guard)

    def count(self, request: Request) -> None:
        """Makes one call for Nsight Compute to record; not a protocol verb, because `ncu` starts this process."""
        run_counted(self.problem(request), request.seed)

    def plan(self, request: Request, _progress: Progress) -> SampleReply:
        self._prepared = None
        problem, slice_ns = self.problem(request), _slice_ns(request)
        return plan_prepared(problem, request.seed, slice_ns, self._guard, request.sides, request.metrics)

    def prepare(self, request: Request, _progress: Progress) -> SampleReply:
        self._prepared = None
        problem, slice_ns = self.problem(request), _slice_ns(request)
        prepare = partial(Prepared, problem, request.seed, slice_ns, self._guard, request.plan, request.metrics)
        self._prepared = prepared = prepare_in_order(problem, request.seed, prepare)
        return SampleReply(Status.OK, prepared.note, [], prepared.metric, no_launch=prepared.no_launch)

    def sample(self, request: Request, _progress: Progress) -> SampleReply:
        return self._expect_prepared().sample(request.wait, request.launch_wait, request.core)

    def rehearse(self, request: Request, _progress: Progress) -> SampleReply:
        problem = self.problem(request)
        with watch(self._guard):
            rehearse(problem, request.seed)
        return SampleReply(Status.OK)

    def testify(self, _request: Request, _progress: Progress) -> SampleReply:
        return self._expect_prepared().testify()

    def finish(self, _request: Request, _progress: Progress) -> SampleReply:
        prepared = self._expect_prepared()
        self._prepared = None
        if self.idle.is_suspicious:
            expect_rest(self._settings.device)
        reply = prepared.finish()
        del prepared
        device = self._settings.device
        if device.type == "cuda":
            kept, total = torch.cuda.memory_reserved(device), torch.cuda.get_device_properties(device).total_memory
            # Others on the device may need it. To give it back takes 30 ms.
            if kept > _KEPT_SHARE * total:
                torch.cuda.empty_cache()
        return reply

    def forget(self) -> None:
        """Drops a prepared measurement after a failure."""
        self._prepared = None

    def _expect_prepared(self) -> Prepared:
        if self._prepared is None:
            raise Refusal(Status.SKIPPED, "No measurement is prepared: send `prepare` first, and again after a failure")
        return self._prepared

    def problem(self, request: Request) -> CaseProblem:
        """The problem that a request names, with its native library loaded."""
        operator = self._load(request)
        variant, case = find(operator, _required(request.variant, "variant"), _required(request.case, "case"))
        self._turns.start(request.lanes)
        is_gpu = self._settings.device.type == "cuda"
        if is_gpu:
            compile_candidates_at_once()
        if is_gpu and request.verb == "check":
            self._launches.open()
        else:
            self._launches.close()
        problem = CaseProblem(operator, variant, case, self._settings.device, self._turns)
        problem.refuse_unsupported()
        if variant.native and operator.name not in self._native_ready:
            self._load_native(operator)
        return problem

    def _load(self, request: Request) -> Operator:
        name, begin = _required(request.operator, "operator"), perf_counter()
        operator = self._loader.load(name)
        self._start.add(name, perf_counter() - begin)
        self._spare_imports()
        return operator

    def _spare_imports(self) -> None:
        """Spares all that was imported since the last call from garbage collections: torch.compile alone brings a
        million objects, and every bench collects once."""
        if len(sys.modules) != self._spared_modules:
            self._spared_modules = len(sys.modules)
            gc.collect()
            gc.freeze()

    def _load_native(self, operator: Operator) -> None:
        begin = perf_counter()
        try:
            for library in operator.uses or (operator.name,):
                native.load(library)
        except native.NativeUnavailable as error:
            raise Refusal(Status(error.status), last_lines(str(error))) from error
        if operator.native is not None:
            operator.native()
        self._start.add(operator.name, perf_counter() - begin)
        self._native_ready.add(operator.name)


def _slice_ns(request: Request) -> int:
    return request.budget_ns // max(1, request.rounds)


def _required(value: str | None, field: str) -> str:
    if value is None:
        raise ValueError(f"the request lacks {field}: set it to a name")
    return value
