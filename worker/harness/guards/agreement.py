"""Rules that independent testimonies about one call must keep: times of several clocks, and counts of launches.

Pure functions of numbers. `find_disagreement` holds the metrics of one bench against each other. `find_skipped_work`
and `expect_work_in_replays` ask whether every launch of a replayed CUDA graph does the work of a call: a replay repeats
the same numbers, so code could leave out what it has computed before, at capture or on the device.
docs/decisions/cheats.md says what is known of the differences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from warpwatch.contract.words import Fault

from ..failures import WrongResultError

CYCLES = "cycles"
"""Nanoseconds of a call by the cycle counter and the timer of the multiprocessors, without any event of the host."""
BUSY = "busy"
"""Nanoseconds in which at least one kernel, copy or fill of an eager call runs, by the device's own stamps."""


@dataclass(frozen=True, slots=True)
class TimeRule:
    """`metric` takes at least `share` of `witness`, less `slack_ns`.

    serial: it holds only for calls on one stream: a graph may run in parallel what eager launches do not, and other
    streams begin while the timed one sleeps.
    """

    metric: str
    witness: str
    share: float
    slack_ns: float
    serial: bool = False


RULES = (
    # Kernels in a graph start up to 1 µs earlier, and the profiler adds up to 0.3 µs to each short one.
    TimeRule("graph", BUSY, 0.75, 2_000, serial=True),
    # Both time eager calls. Where few input sets exist, the stamped calls find data in the cache, which is faster.
    TimeRule("cold", BUSY, 0.6, 2_000, serial=True),
    # The input sets of `call` may fit into the L2, and those of the stamped calls do not.
    TimeRule("call", BUSY, 0.4, 2_000),
    # Both time replays of the same graphs; every kernel launch of a process may become 0.3 µs slower in between.
    TimeRule("graph", CYCLES, 0.75, 1_000),
    TimeRule(CYCLES, "graph", 0.75, 1_000),
)
"""The known differences between two ways to time the same call."""

REPEATED_SHARE, REPEATED_SLACK_NS = 0.8, 3_000
"""A replay on repeated numbers that takes less than this share of the same replay on new numbers leaves out work."""
TIMED_SHARE, TIMED_SLACK_NS = 0.6, 10_000
"""The same for launches that repeat their buffers within a graph, against launches that see each buffer once.

The two graphs have different lengths, and the second follows copies of its inputs, so less is known of the difference.
"""
_ROUNDS = (2, 4, 8)
"""A suspicion is followed by more rounds."""
_LONG_NS = 20_000_000
"""A pass that takes longer is timed once per turn: it hardly varies."""


@dataclass(frozen=True, slots=True)
class CallTimes:
    """The times in ns of one call on a GPU by several timers, BUSY and CYCLES included, and facts to store beside the
    results.

    facts: how far replays on repeated numbers and buffers are from those on new ones, how many kernels, copies and
    fills an eager and a captured call launch, and the share of their time in which any of them runs. is_parallel:
    whether the call uses several streams; None where no timer has seen that.
    """

    times: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, float] = field(default_factory=dict)
    is_parallel: bool | None = None

    def __or__(self, newer: CallTimes) -> CallTimes:
        """Both together; of what both say, the newer."""
        is_parallel = self.is_parallel if newer.is_parallel is None else newer.is_parallel
        return CallTimes({**self.times, **newer.times}, {**self.facts, **newer.facts}, is_parallel)

    @property
    def notes(self) -> tuple[str, ...]:
        """Differences that no rule forbids: a library may launch less while it is captured."""
        captured, eager = (self.facts.get(name, 0.0) for name in ("captured_launches", "eager_launches"))
        if not 0 < captured < eager:
            return ()
        return (f"A captured call launches {captured:g} kernels, copies and fills, and an eager one {eager:g}",)

    def find_disagreement(self) -> tuple[str, str] | None:
        return find_disagreement(self.times, is_parallel=bool(self.is_parallel))


def find_disagreement(times: Mapping[str, float], *, is_parallel: bool) -> tuple[str, str] | None:
    """The first rule that the times in ns break, as (the metric that is too short, its witness); None when all hold."""
    for rule in RULES:
        if rule.metric not in times or rule.witness not in times or (rule.serial and is_parallel):
            continue
        if times[rule.metric] < rule.share * times[rule.witness] - rule.slack_ns:
            return rule.metric, rule.witness
    return None


def find_skipped_work(added: Sequence[int], sets: int) -> int | None:
    """The first captured call that adds fewer nodes to its graph than the calls on first-seen buffers; None if none.

    added: nodes that each captured call added, in order; the first `sets` calls see their buffers for the first time.
    The very first call may add more than all others.
    """
    usual = min(added[: max(sets, 1)], default=0)
    return next((index for index, count in enumerate(added) if count < usual), None)


def expect_equal_launches(added: Sequence[int], sets: int) -> None:
    """Raises WrongResultError when a captured call on a repeated buffer launches less than one on a new buffer."""
    index = find_skipped_work(added, sets)
    if index is not None:
        raise WrongResultError(
            f"The variant leaves out launches while a CUDA graph is captured: call {index + 1} of {len(added)}, on a "
            f"buffer that it has seen, adds {added[index]} operations, and one on a new buffer {min(added[:sets])}",
            Fault.SKIPPED_LAUNCH,
        )


@dataclass(frozen=True, slots=True)
class ReplayTimes:
    """Nanoseconds of one pass through all input sets.

    new_ns: every launch on new numbers. repeated_ns: the same graph on the numbers of the replay before. timed_ns: the
    graph that is timed, whose launches repeat their buffers.
    """

    new_ns: float
    repeated_ns: float
    timed_ns: float

    @property
    def repeated_share(self) -> float:
        return self.repeated_ns / self.new_ns

    @property
    def timed_share(self) -> float:
        return self.timed_ns / self.new_ns

    @property
    def skips_repeated(self) -> bool:
        """Whether launches leave out work when they see the numbers that they saw last."""
        return self.repeated_ns < REPEATED_SHARE * self.new_ns - REPEATED_SLACK_NS

    @property
    def skips_timed(self) -> bool:
        """Whether launches leave out work on buffers that come again within one graph."""
        return self.timed_ns < TIMED_SHARE * (self.new_ns - TIMED_SLACK_NS)


def expect_work_in_replays(
    new: Callable[[], float], repeated: Callable[[], float], timed: Callable[[], float]
) -> ReplayTimes:
    """Raises WrongResultError when replays are much faster as soon as numbers or buffers repeat.

    new, repeated, timed: take one time as in ReplayTimes. Other work on the device makes replays slower and never
    faster, so the fastest of each kind compare fairly.
    """
    times = ReplayTimes(math.inf, math.inf, math.inf)
    for rounds in _ROUNDS:
        for _ in range(rounds):
            times = ReplayTimes(
                min(times.new_ns, new()), min(times.repeated_ns, repeated()), min(times.timed_ns, timed())
            )
            if times.new_ns > _LONG_NS:
                break
        if not (times.skips_repeated or times.skips_timed):
            return times
    share = times.repeated_share if times.skips_repeated else times.timed_share
    where = "on repeated numbers" if times.skips_repeated else "on buffers that come again in the timed CUDA graph"
    raise WrongResultError(
        f"The variant leaves out work that it did before: a replay {where} takes {share:.0%} of one on new numbers",
        Fault.CACHED_RESULT,
    )
