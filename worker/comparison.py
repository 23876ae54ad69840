"""Compares two commits on one device, in rounds of fresh children that are alive at once and measured in turn."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import mean, median
from typing import Any, TypeVar

from warpwatch.contract.environment import Environment
from warpwatch.contract.measurement import JUDGED, LAUNCH, PROTOCOLS
from warpwatch.contract.messages import SampleReply
from warpwatch.contract.outcome import Comparison, Finding, Outcome
from warpwatch.contract.rounds import (
    ROUNDS,
    StopRule,
    confirmed_ratio,
    judge_controls,
    launch_seems_changed,
    wait_share,
)
from warpwatch.contract.spec import BUDGET_NS, JobRequest, JobSpec
from warpwatch.contract.words import Reason, Status
from warpwatch.worker.compared_side import ComparedSide, SharedPlan, SideError, agree_on_plan
from warpwatch.worker.crowd import drop_at_once, drop_idle_at_once, load_at_once, rehearse_at_once
from warpwatch.worker.gate import counts_as_fit, expect_healthy
from warpwatch.worker.measurer import describe
from warpwatch.worker.plan import JobPlan, with_pairs
from warpwatch.worker.reporter import BoundedReporter, CannotRunError, Stopped
from warpwatch.worker.tools import Tools

Pair = tuple[str, str]
"""A variant and the key of a case."""
Key = tuple[str, str, str]
"""A pair and one of the device kind's JUDGED metrics, of which the first stands for the device's time."""
_Name = TypeVar("_Name", Pair, Key)
_CHILDREN = 3
"""Children of each side that start at once. Each holds a CUDA context of half a gigabyte."""
_MOST_BYTES_AT_ONCE = 2**26
"""Bytes that a call may move for both sides to verify it at once. In float64 and with what bounds its error an oracle
takes many times as much."""
MIN_ROUNDS = 6
"""With fewer rounds no interval holds the median in 95 of 100 cases."""
TYPICAL = {"cuda": 0.5, "cpu": 0.1, LAUNCH: 0.1}
"""The quantile that represents a slice, per device kind, and of a slice of `launch`.

Other load on a CPU only adds time, so the fastest tenth of a slice shows the time of the code; its median also shows
how busy the machine was.
"""
TURNS = {"cuda": 1, "cpu": 8}
"""How often a round measures A B B A, per device kind.

Bursts of other work on a CPU last longer than a slice, so they mostly affect neighbouring slices alike.
"""
LIMITED_TURNS = {"cuda": 1, "cpu": 4}
"""The same where the time for the rounds is limited: twice as many rounds narrow an interval more than twice as many
slices in each."""
_LEAST_SLICE_NS, _MOST_SLICE_NS = 1_000_000, 25_000_000
"""Slices on a CPU where the time for the rounds is limited. Many short ones tell more than few long ones."""


def compare(plan: JobPlan, tools: Tools, reporter: BoundedReporter) -> Outcome:
    """Paired rounds of every (variant, case) of the specification, where it names none of all that it chooses; a
    profile per side of those that changed most.

    The rounds of an interrupted run count where the environment is the same.
    """
    plan = with_pairs(plan, reporter)
    request, checkouts, earlier = plan.request, plan.checkouts, plan.earlier
    base_checkout, head_checkout = checkouts
    host = head_checkout.host
    # The first children answer questions. To open a GPU would disturb the look at it, so others then start later.
    count = certain_rounds(request.spec, 0, host.kind) if counts_as_fit(host.device, host.last_canary) else 0
    # Those that were started for another job are older than what they would be compared with.
    drop_idle_at_once(checkouts)
    for checkout in checkouts:
        checkout.start_spares(count if checkout.running else count + 1, reporter)
    if request.spec.toolchains is None:
        expect_one_interpreter(base_checkout.environment(reporter), head_checkout.environment(reporter))
    environment = head_checkout.environment_of(plan.sources, reporter)
    outcome = Outcome(environment, tools.peaks(head_checkout, reporter))
    expect_healthy(head_checkout, host.device, outcome.peaks, reporter, host.last_canary)
    limits = tools.time_limits(outcome.peaks, reporter)
    load_at_once(checkouts, request.operator, reporter)
    base = ComparedSide("base", plan, base_checkout, reporter, limits)
    head = ComparedSide("head", plan, head_checkout, reporter, limits)
    base.load()
    head.load()
    rounds = _Rounds(request, base, head, reporter)
    if earlier is not None and earlier.environment_key == environment.key:
        rounds.take_over(earlier.comparisons)
    outcome = rounds.run(
        replace(
            outcome,
            catalogue=head.catalogue,
            base_catalogue=base.catalogue,
            derived_cases=[*{case.key: case for case in (*base.derived, *head.derived)}.values()],
        )
    )
    return outcome if request.patch is None else replace(outcome, base_build=base.build, build=head.build)


@dataclass(frozen=True, slots=True)
class _Slices:
    """Times in ns of the slices of a round by one metric. waited: slices with a wait, over the slice before of that
    side."""

    base: list[float] = field(default_factory=list)
    head: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)


class _Rounds:
    """Rounds of every pair.

    Each round starts both children anew. Where memory and code lie, and at which of two speeds a process runs, stays
    the same for its life, so more slices of the same two processes would make a difference between the processes look
    like one between the commits.
    """

    def __init__(self, request: JobRequest, base: ComparedSide, head: ComparedSide, reporter: BoundedReporter) -> None:
        self._base = base
        self._head = head
        self._sides = {side.name: side for side in (base, head)}
        self._plans: dict[Pair, SharedPlan] = {}
        self._reporter = reporter
        self._rounds = planned_rounds(request.spec)
        self._started = 0
        self._checkouts = (base.checkout, head.checkout)
        self._request = request
        self._stop = request.spec.stop
        self._is_limited = self._stop is not None and self._stop.seconds is not None
        self._budget_ns, self._slices = plan_slices(request.spec, head.checkout.host.kind)
        kind = head.checkout.host.kind
        self._device_metric, *_ = self._judged = JUDGED[kind]
        self._comparisons: dict[Key, Comparison] = {
            (*pair, metric): Comparison(*pair, metric, PROTOCOLS[kind], Status.OK, "")
            for pair in request.spec.pairs or []
            for metric in self._judged
        }
        self._whole_rounds = dict(self._comparisons)

    def take_over(self, comparisons: Iterable[Comparison]) -> None:
        """Goes on from the rounds of an interrupted run."""
        for earlier in comparisons:
            metric = LAUNCH if earlier.metric == LAUNCH else self._device_metric
            key = (earlier.variant, earlier.case, metric)
            mine = self._comparisons.get(key)
            if mine is None or mine.protocol != earlier.protocol:
                continue
            self._comparisons[key] = earlier
            if metric == self._device_metric and earlier.status is not Status.OK:
                self._comparisons.pop((*key[:2], LAUNCH), None)
        self._whole_rounds = dict(self._comparisons)

    def run(self, outcome: Outcome) -> Outcome:
        """The outcome with the comparisons and traces; Stopped with the whole rounds until then."""
        try:
            self._take_rounds()
            outcome = replace(outcome, comparisons=[*self._comparisons.values()])
            return self._with_traces(outcome)
        except Stopped as stopped:
            stopped.outcome = replace(outcome, comparisons=[*self._whole_rounds.values()])
            raise

    def _take_rounds(self) -> None:
        """Rounds until all pairs are decided; Stopped between two of them to make room for a more urgent job."""
        begin = time.monotonic()
        undecided = self._list_open()
        first = min((len(self._comparisons[key].ratios) for key in undecided), default=0)
        try:
            for index in range(first, self._rounds):
                undecided = self._list_open()
                pairs = [*dict.fromkeys(key[:2] for key in undecided)]
                if not pairs or (self._stop and self._stop.is_time_over(index, time.monotonic() - begin)):
                    break
                # Every run takes a round at least, however often it makes room.
                urgent_job_id = self._reporter.should_yield() if index > first else None
                if urgent_job_id is not None:
                    raise Stopped(f"job {urgent_job_id} is more urgent", urgent_job_id)
                self._reporter.progress(index, self._rounds, f"round {index + 1} of {self._rounds}")
                self._renew_children(index, pairs)
                # An earlier run may have taken this round of one metric and not of the other.
                lacking = [key for key in undecided if len(self._comparisons[key].ratios) <= index]
                for pair in dict.fromkeys(key[:2] for key in lacking):
                    self._round(pair, index, [key[2] for key in lacking if key[:2] == pair])
                self._whole_rounds = dict(self._comparisons)
        finally:
            drop_idle_at_once(self._checkouts)

    def _list_open(self) -> list[Key]:
        """The undecided comparisons. After the device's time is decided, `launch` goes on alone only where it seems to
        have changed."""
        undecided = list_undecided(self._comparisons, self._stop)
        pairs = {key[:2] for key in undecided if key[2] != LAUNCH}
        rounds = self._comparisons
        return [
            key
            for key in undecided
            if key[2] != LAUNCH or key[:2] in pairs or launch_seems_changed(rounds[key].base_ns, rounds[key].head_ns)
        ]

    def _with_traces(self, outcome: Outcome) -> Outcome:
        for (variant, case, metric), comparison in self._comparisons.items():
            count = len(comparison.ratios)
            name = f"{case} {LAUNCH}" if metric == LAUNCH else case
            shown = f" after {count} rounds, {median(comparison.ratios) - 1:+.2%}" if count else ""
            self._reporter.log(f"compare {variant} {name} {comparison.status}{shown} {comparison.message}".rstrip())
        profiles: dict[str, list[Finding]] = {"base": [], "head": []}
        for pair, side in product(self._explained(), (self._base, self._head)):
            finding = side.measurer.measure("profile", *pair)
            self._reporter.log(f"{side.name}: {describe('profile', finding)}")
            profiles[side.name].append(finding)
        self._reporter.progress(self._rounds, self._rounds, "")
        return replace(outcome, findings=profiles["head"], base_findings=profiles["base"])

    def _explained(self) -> list[Pair]:
        """The pairs that get a trace of each side: of every variant those whose device time changed most, up and down.
        Traces say nothing where there is no change, and somebody waits where the time is limited."""
        changed: dict[tuple[str, bool], Comparison] = {}
        device_times = [item for item in self._comparisons.values() if item.metric != LAUNCH]
        for comparison in device_times if not self._is_limited else ():
            is_same = self._stop is not None and self._stop.excludes_change(comparison.ratios)
            if comparison.status is not Status.OK or is_same:
                continue
            key = (comparison.variant, median(comparison.ratios) > 1)
            changed[key] = max(comparison, changed.get(key, comparison), key=_size_of_change)
        return [(comparison.variant, comparison.case) for comparison in changed.values()]

    def _renew_children(self, index: int, pairs: list[Pair]) -> None:
        """Gives both sides a fresh child, which has loaded the operator.

        Children of several rounds start at once, and none while others are timed: opening a GPU disturbs them.
        """
        if index < self._started:
            for checkout in self._checkouts:
                checkout.retire_child()
            return
        count = certain_rounds(self._request.spec, index, self._head.checkout.host.kind)
        self._started = index + count
        for checkout in self._checkouts:
            checkout.start_spares(count, self._reporter)
        drop_at_once(self._checkouts)
        load_at_once(self._checkouts, self._request.operator, self._reporter)
        if self._head.checkout.host.kind == "cuda":
            self._rehearse(pairs)

    def _rehearse(self, pairs: list[Pair]) -> None:
        """Lets all children use once what they will: with the smallest case of each direction and precision, which
        takes least."""
        entries = [(pair, entry) for pair in pairs if (entry := self._head.entry_of(pair[1])) is not None]
        smallest: dict[tuple[str, str], Pair] = {}
        for pair, entry in sorted(entries, key=lambda item: item[1].bytes):
            smallest.setdefault((entry.direction, entry.precision), pair)
        for pair in smallest.values():
            rehearse_at_once(self._checkouts, self._request.operator, *pair, self._request.spec.seed, self._reporter)

    def _round(self, pair: Pair, index: int, metrics: Sequence[str]) -> None:
        """One more round of these metrics of a pair, with what the controls say against each. The first failure ends
        the pair."""
        kind = self._base.checkout.host.kind
        turns = turns_of(index, kind, is_limited=self._is_limited)
        sides = [self._sides[turn.side] for turn in turns[:2]]
        try:
            prepared = self._prepare(pair, sides, metrics)
            missing = {name: reply.no_launch for name, reply in prepared.items() if reply.no_launch}
            if LAUNCH in metrics and missing:
                self._end_launch(pair, missing)
                metrics = [metric for metric in metrics if metric != LAUNCH]
            slices = self._take_slices(pair, turns, metrics) if metrics else {}
            # Where the time is limited, later rounds than the first compute the same; on a GPU `finish` also leaves the
            # memory to the other side.
            if index == 0 or not self._is_limited or kind != "cpu":
                self._verify(pair, sides, slices)
        except SideError as error:
            self._end_pair(pair, error)
            return
        for metric, times in slices.items():
            base, head = times.base, times.head
            before = self._comparisons[*pair, metric]
            base_ns, head_ns = middle(base, head)
            first, second = base[::2], base[1::2]
            longer = replace(
                before,
                metric=metric if metric == LAUNCH else prepared[self._head.name].metric or metric,
                base_ns=[*before.base_ns, base_ns],
                head_ns=[*before.head_ns, head_ns],
                again=[*before.again, middle_ratio(first, second)],
                waited=[*before.waited, median(times.waited)],
            )
            confirmed = confirmed_ratio(kind, metric, longer.base_ns)
            reason = judge_controls(longer.again, longer.waited, confirmed, longer.ratios)
            self._comparisons[*pair, metric] = replace(longer, reason=reason)

    def _prepare(self, pair: Pair, sides: list[ComparedSide], metrics: Sequence[str]) -> dict[str, SampleReply]:
        """Prepares both sides by one plan; at once, unless one of them times something for it: half of the time goes to
        replays until the clocks have settled."""
        if pair not in self._plans:
            self._plans[pair] = agree_on_plan(sides, *pair, self._budget_ns, self._slices)
        agreed = self._plans[pair]
        replies = self._ask(sides, pair, "prepare", in_turn=agreed.in_turn, plan=agreed.plan, metrics=[*metrics])
        measured = {name: reply.metric for name, reply in replies.items()}
        if self._device_metric in metrics and measured["base"] != measured["head"]:
            message = f"the base is measured as {measured['base']}, the head as {measured['head']}"
            raise SideError(None, SampleReply(Status.UNSUPPORTED, message))
        return replies

    def _take_slices(self, pair: Pair, turns: list[Turn], metrics: Sequence[str]) -> dict[str, _Slices]:
        """The times of the slices of each metric, taken in turn; `launch` of both sides on the core of the first."""
        kind = self._base.checkout.host.kind
        core: int | None = None
        slices = {metric: _Slices() for metric in metrics}
        for turn in turns:
            side = self._sides[turn.side]
            waits = {
                metric: wait_share(kind, metric, times.base) if turn.waits else 0.0 for metric, times in slices.items()
            }
            wait, launch_wait = waits.get(self._device_metric, 0.0), waits.get(LAUNCH, 0.0)
            reply = self._ask([side], pair, "sample", wait=wait, launch_wait=launch_wait, core=core)[side.name]
            core = reply.core
            if LAUNCH in slices and not reply.launch_ns:
                self._end_launch(pair, {side.name: reply.no_launch})
                del slices[LAUNCH]
                if not slices:
                    break
            for metric, times in slices.items():
                is_launch = metric == LAUNCH
                sample_ns = typical(reply.launch_ns if is_launch else reply.samples_ns, LAUNCH if is_launch else kind)
                of_side = times.base if side is self._base else times.head
                if turn.waits:
                    times.waited.append(sample_ns / of_side[-1])
                else:
                    of_side.append(sample_ns)
        return slices

    def _end_launch(self, pair: Pair, missing: Mapping[str, str]) -> None:
        """Ends the comparison of `launch` where one side has none, and removes it where neither has. missing: why, by
        side."""
        key = (*pair, LAUNCH)
        if len(missing) == len(self._sides):
            del self._comparisons[key]
            return
        ((name, message),) = missing.items()
        self._comparisons[key] = ended(self._comparisons[key], Status.UNSUPPORTED, f"{name}: no launch: {message}")

    def _verify(self, pair: Pair, sides: list[ComparedSide], metrics: Iterable[str]) -> None:
        """Verifies what was timed on both sides, first what times something itself, one side after the other: where two
        processes use a GPU at once, even the fastest of many short replays on new numbers takes two to three times as
        long as one on repeated numbers, as if honest code left out work. The oracles of large cases fit into memory one
        after the other, too."""
        if self._head.checkout.host.kind == "cuda" and self._device_metric in metrics:
            self._ask(sides, pair, "testify")
        entry = self._head.entry_of(pair[1])
        self._ask(sides, pair, "finish", in_turn=entry is None or entry.bytes > _MOST_BYTES_AT_ONCE)

    def _ask(
        self, sides: list[ComparedSide], pair: Pair, verb: str, *, in_turn: bool = True, **fields: Any
    ) -> dict[str, SampleReply]:
        """The replies of these sides by name, one after another or at once; SideError for the first that failed."""
        replies: dict[str, SampleReply] = {}
        if in_turn:
            for side in sides:
                replies[side.name] = side.ask(verb, *pair, self._budget_ns, self._slices, **fields)
                if replies[side.name].status is not Status.OK:
                    break
        else:
            sent = {side.name: side.send(verb, *pair, self._budget_ns, self._slices, **fields) for side in sides}
            # All replies are taken, whatever the first one says.
            replies = {name: receive() for name, receive in sent.items()}
        for name, reply in replies.items():
            if reply.status is not Status.OK:
                raise SideError(self._sides[name], reply)
        return replies

    def _end_pair(self, pair: Pair, error: SideError) -> None:
        """Ends the comparison of the device's time, and removes that of `launch`; a child that still runs frees what
        `prepare` allocated."""
        for side in (self._base, self._head):
            if side.checkout.running:
                side.ask("finish", *pair, self._budget_ns, self._slices)
        message = error.reply.message if error.side is None else f"{error.side.name}: {error.reply.message}"
        reason = Reason.BASE_FAILED if error.side is self._base else None
        key = (*pair, self._device_metric)
        self._comparisons[key] = ended(self._comparisons[key], error.reply.status, message, reason)
        self._comparisons.pop((*pair, LAUNCH), None)


def expect_one_interpreter(base: Environment, head: Environment) -> None:
    """CannotRunError where the two commits are measured in different environments."""
    if base.key != head.key:
        raise CannotRunError(
            "the two commits ask for different interpreters, so a comparison would not be about their code; name both "
            "as toolchains, and `warpwatch compare --base` tells code and toolchain apart",
            reason=Reason.INTERPRETER_MISMATCH,
        )


def certain_rounds(spec: JobSpec, index: int, device_kind: str) -> int:
    """How many rounds surely follow from round `index` on, at most `_CHILDREN`; one on a CPU, which more children would
    fill."""
    if device_kind != "cuda":
        return 1
    look = spec.stop.next_look(index) if spec.stop is not None else None
    return min(_CHILDREN, (look or planned_rounds(spec)) - index)


def planned_rounds(spec: JobSpec) -> int:
    """The most rounds that a comparison takes."""
    return max(MIN_ROUNDS, spec.rounds or ROUNDS)


def plan_slices(spec: JobSpec, device_kind: str) -> tuple[int, int]:
    """(nanoseconds of all slices of a pair on one side, their number), which the harness divides. On a CPU a limit of
    time makes slices so short that the usual rounds of all pairs fit."""
    budget_ns, seconds = spec.budget_ns or BUDGET_NS, spec.stop.seconds if spec.stop is not None else None
    if seconds is None or device_kind != "cpu":
        return budget_ns, planned_rounds(spec) if seconds is None else ROUNDS
    # Half of the time goes to what a round needs besides.
    count = 2 * ROUNDS * max(1, len(spec.pairs or ())) * len(turns_of(0, device_kind, is_limited=True))
    slice_ns = min(max(int(seconds * 1e9 / count), _LEAST_SLICE_NS), _MOST_SLICE_NS)
    return min(slice_ns * ROUNDS, budget_ns), ROUNDS


def list_undecided(comparisons: Mapping[_Name, Comparison], stop: StopRule | None) -> list[_Name]:
    """The keys of those that need another round: that have not failed, and whose rounds do not decide yet."""
    return [
        key
        for key, comparison in comparisons.items()
        if comparison.status is Status.OK and not (stop and _is_decided(comparison, stop))
    ]


def _is_decided(comparison: Comparison, stop: StopRule) -> bool:
    """Whether the rounds decide, as far as the controls allow: rounds that miss a wait exclude no change."""
    stop = stop.of_metric(comparison.metric, comparison.base_ns)
    if comparison.reason is Reason.CONTROL_MISSED and stop.excludes_change(comparison.ratios):
        return False
    return comparison.reason is not Reason.CONTROL_MOVED and stop.is_met(comparison.ratios)


def _size_of_change(comparison: Comparison) -> float:
    ratio = median(comparison.ratios)
    return max(ratio, 1 / ratio)


def ended(comparison: Comparison, status: Status, message: str, reason: Reason | None = None) -> Comparison:
    """The comparison without its rounds."""
    return replace(
        comparison,
        status=status,
        message=message,
        reason=reason,
        base_ns=[],
        head_ns=[],
        again=[],
        waited=[],
        cells=None,
    )


def typical(samples_ns: list[float], device_kind: str) -> float:
    """The time in ns that represents a slice."""
    ordered = sorted(samples_ns)
    return ordered[round(TYPICAL[device_kind] * (len(ordered) - 1))]


def middle(base_ns: list[float], head_ns: list[float]) -> tuple[float, float]:
    """The times in ns, (base, head), that represent a round: those of the pair of neighbouring slices with the median
    ratio, or the mean of the two middle pairs."""
    pairs = sorted(zip(base_ns, head_ns, strict=True), key=lambda pair: pair[1] / pair[0])
    chosen = pairs[(len(pairs) - 1) // 2 : len(pairs) // 2 + 1]
    return mean(base for base, _ in chosen), mean(head for _, head in chosen)


def middle_ratio(before_ns: list[float], after_ns: list[float]) -> float:
    """The median ratio of slices to those before them."""
    return median(after / before for before, after in zip(before_ns, after_ns, strict=True))


@dataclass(frozen=True, slots=True)
class Turn:
    """A slice of a round. side: base or head. waits: whether it is the control with a wait, over the slice of this side
    before it."""

    side: str
    waits: bool = False


def turns_of(index: int, device_kind: str, *, is_limited: bool = False) -> list[Turn]:
    """The slices of round `index` in their order. In A B B A a steady drift cancels, and A is the base in every second
    round. After each A B B A comes a control with a wait: a fifth of all slices. is_limited: whether the time for the
    rounds is.

    On a CPU both sides wait in turn, and each A B B A is followed by B A A B. A busy system lets those wait longer that
    ran last, so with the base's waits alone the base ran for three fifths of the time, and was slower than itself.
    """
    first, second = ("base", "head") if index % 2 == 0 else ("head", "base")
    turns: list[Turn] = []
    for number in range((LIMITED_TURNS if is_limited else TURNS)[device_kind]):
        near, far = (first, second) if number % 2 == 0 else (second, first)
        waiting = far if device_kind == "cpu" else "base"
        turns += [Turn(near), Turn(far), Turn(far), Turn(near), Turn(waiting, waits=True)]
    return turns
