"""Compares the same program of two commits: whole runs in turn, so that a pair of runs is a round."""

from __future__ import annotations

import time
from dataclasses import replace

from warpwatch.contract.measurement import METRICS
from warpwatch.contract.outcome import Comparison, Outcome
from warpwatch.contract.spec import JobRequest
from warpwatch.contract.words import Reason, Status
from warpwatch.formats import VARIANT, ForeignResults
from warpwatch.project import Program
from warpwatch.worker.comparison import Pair, ended, expect_one_interpreter, list_undecided, planned_rounds
from warpwatch.worker.plan import JobPlan
from warpwatch.worker.programs import ProgramRunner, catalogue_of, expect_fit, identify, runner_of
from warpwatch.worker.reporter import CannotRunError, Reporter
from warpwatch.worker.tools import Tools


def compare_programs(plan: JobPlan, tools: Tools, reporter: Reporter) -> Outcome:
    """Paired rounds of every (variant, case) of the specification, or of all benchmarks that both commits have where it
    names none; each round runs the program of both commits once."""
    request, (base, head) = plan.request, plan.checkouts
    pairs = request.spec.pairs or []
    environment, peaks = identify(head, tools, reporter)
    if request.spec.toolchains is None:
        expect_one_interpreter(identify(base, tools, reporter)[0], environment)
    outcome = Outcome(environment, peaks)
    expect_fit(head, peaks, tools, reporter)
    sides = dict(zip(("base", "head"), plan.programs, strict=True))
    program = sides["head"] or sides["base"]
    assert program is not None
    metric = METRICS[environment.device_kind][0]
    comparisons = {pair: Comparison(*pair, metric, program.format, Status.OK) for pair in pairs}
    trouble = _trouble(sides)
    if trouble is not None and not pairs:
        raise CannotRunError(trouble[1], reason=trouble[2])
    if trouble is not None:
        return replace(outcome, comparisons=[ended(item, *trouble) for item in comparisons.values()])
    runners = {
        name: runner_of(checkout, side, reporter)
        for (name, side), checkout in zip(sides.items(), (base, head), strict=True)
        if side is not None
    }
    rounds = _Rounds(request, runners, comparisons, reporter, (metric, program.format))
    rounds.take_all()
    catalogues = {
        name: catalogue_of(runners[name].program, results) if results else None
        for name, results in rounds.newest.items()
    }
    return replace(
        outcome,
        catalogue=catalogues["head"],
        base_catalogue=catalogues["base"],
        comparisons=list(rounds.comparisons.values()),
    )


class _Rounds:
    """Rounds of whole runs. newest: what each side measured last; None before.

    comparisons: empty where the first round shows what there is to compare.
    """

    def __init__(
        self,
        request: JobRequest,
        runners: dict[str, ProgramRunner],
        comparisons: dict[Pair, Comparison],
        reporter: Reporter,
        kind: tuple[str, str],
    ) -> None:
        self._kind = kind
        self.comparisons = comparisons
        self.newest: dict[str, ForeignResults | None] = {"base": None, "head": None}
        self._runners = runners
        self._reporter = reporter
        self._rounds = planned_rounds(request.spec)
        self._stop = request.spec.stop

    def take_all(self) -> None:
        begin = time.monotonic()
        for index in range(self._rounds):
            if self.comparisons and not list_undecided(self.comparisons, self._stop):
                break
            if self._stop is not None and self._stop.is_time_over(index, time.monotonic() - begin):
                break
            self._reporter.progress(index, self._rounds, f"round {index + 1} of {self._rounds}")
            self._take(index)
        for (variant, case), item in self.comparisons.items():
            self._reporter.log(f"compare {variant} {case} {item.status} {item.message}".rstrip())
        self._reporter.progress(self._rounds, self._rounds, "")

    def _take(self, index: int) -> None:
        """Runs both programs, each first in every second round; the first failure ends all comparisons."""
        times: dict[str, dict[str, float]] = {}
        for name in ("base", "head") if index % 2 == 0 else ("head", "base"):
            run = self._runners[name].bench()
            if run.results is None:
                if not self.comparisons:
                    raise CannotRunError(f"{name}: {run.message}")
                reason = Reason.BASE_FAILED if name == "base" else None
                for pair in list_undecided(self.comparisons, self._stop):
                    message = f"{name}: {run.message}"
                    self.comparisons[pair] = ended(self.comparisons[pair], run.status, message, reason)
                return
            self.newest[name] = run.results
            times[name] = {item.name: item.median_ns for item in run.results.benchmarks if item.status is Status.OK}
        if not self.comparisons:
            shared = [case for case in times["head"] if case in times["base"]]
            if not shared:
                raise CannotRunError("the two commits have no benchmark in common")
            self.comparisons = {(VARIANT, case): Comparison(VARIANT, case, *self._kind, Status.OK) for case in shared}
        for pair in list_undecided(self.comparisons, self._stop):
            self.comparisons[pair] = _with_round(self.comparisons[pair], times)


def _with_round(item: Comparison, times: dict[str, dict[str, float]]) -> Comparison:
    for name in ("base", "head"):
        if item.case not in times[name]:
            reason = Reason.BASE_FAILED if name == "base" else None
            return ended(item, Status.SKIPPED, f"{name}: the program has no time of {item.case}", reason)
    base_ns, head_ns = [*item.base_ns, times["base"][item.case]], [*item.head_ns, times["head"][item.case]]
    return replace(item, base_ns=base_ns, head_ns=head_ns)


def _trouble(sides: dict[str, Program | None]) -> tuple[Status, str, Reason | None] | None:
    """Why the program of two commits cannot be compared; None where it can."""
    base, head = sides["base"], sides["head"]
    if base is None or head is None:
        name = "base" if base is None else "head"
        return Status.SKIPPED, f"{name}: there is no such program", Reason.BASE_FAILED if base is None else None
    if base.format != head.format:
        message = f"the base is timed by {base.format}, the head by {head.format}: two protocols are never compared"
        return Status.UNSUPPORTED, message, None
    return None
