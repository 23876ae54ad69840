"""Aligns two traces: which kernels were added or removed, and which took longer or shorter.

Pure: plain rows in, plain rows out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from warpwatch.db.traces import TraceDetail
from warpwatch.server.explanation.kernel_names import plain_name

CALLS_BEFORE_SUMMARIES = 2
"""Recorded calls of traces that were stored before traces included the count."""
NOTABLE_SHARE, NOTABLE_NS = 0.05, 200.0
"""Differences below these are noise, because a trace holds only a few calls."""
Pair = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class AlignmentStep:
    """One kernel, copy or torch operator of a call: how often it ran, and for how many nanoseconds, per call."""

    name: str
    count: float
    ns: float


@dataclass(frozen=True, slots=True)
class AlignedRow:
    """One kernel in both traces, per call. state: added | removed | longer | shorter | same, of the recorded
    calls; only paired rounds tell whether something became slower.

    a_name and b_name differ where only template arguments do. contribution: difference over the sum of all absolute
    differences.
    """

    state: str
    a_name: str | None
    b_name: str | None
    a_count: float
    b_count: float
    a_ns: float
    b_ns: float
    difference_ns: float
    contribution: float = 0.0


@dataclass(frozen=True, slots=True)
class RuntimeRow:
    """Calls of one CUDA runtime function per call."""

    name: str
    a: float
    b: float


@dataclass(frozen=True, slots=True)
class Alignment:
    """Two aligned traces. ordered: steps were matched by order as well as by name."""

    a_ns: float
    b_ns: float
    ordered: bool
    rows: list[AlignedRow]
    runtime: list[RuntimeRow]


def align_traces(a: TraceDetail, b: TraceDetail) -> Alignment:
    """`b` compared with `a`; rows sorted by contribution, runtime calls only where their count differs."""
    ordered = all("sequence" in trace.summary for trace in (a, b))
    left, right = (steps_of(trace, ordered) for trace in (a, b))
    names = sorted(a.runtime_calls.keys() | b.runtime_calls.keys())
    runtime = [RuntimeRow(name, a.runtime_calls.get(name, 0.0), b.runtime_calls.get(name, 0.0)) for name in names]
    changed = sorted((row for row in runtime if row.a != row.b), key=lambda row: -abs(row.b - row.a))
    return Alignment(
        sum(step.ns for step in left), sum(step.ns for step in right), ordered, align(left, right), changed
    )


def steps_of(trace: TraceDetail, ordered: bool) -> list[AlignmentStep]:
    """The steps of one call, in order or one per name."""
    if ordered:
        return [AlignmentStep(name, 1.0, ns) for name, ns in trace.summary["sequence"]]
    calls = trace.summary.get("calls", CALLS_BEFORE_SUMMARIES)
    return [AlignmentStep(kernel.name, kernel.calls / calls, kernel.total_ns / calls) for kernel in trace.kernels]


def align(a: list[AlignmentStep], b: list[AlignmentStep]) -> list[AlignedRow]:
    """Rows of both lists: matched by name in order, then by name wherever they are, then by name without template
    arguments.

    Pairs of the same two names become one row.
    """
    rows: dict[Hashable, AlignedRow] = {}
    for left, right in match_steps([step.name for step in a], [step.name for step in b]):
        row = _row(a[left] if left is not None else None, b[right] if right is not None else None)
        key = (row.a_name, row.b_name)
        rows[key] = _sum(rows[key], row) if key in rows else row
    total = sum(abs(row.difference_ns) for row in rows.values()) or 1.0
    classified = [replace(row, state=_state(row), contribution=row.difference_ns / total) for row in rows.values()]
    return sorted(classified, key=lambda row: -abs(row.difference_ns))


def match_steps(a: list[str], b: list[str]) -> list[Pair]:
    """Pairs of indices by name, in order where that is possible; every index of both lists exactly once."""
    blocks = SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
    pairs: list[Pair] = [(block.a + step, block.b + step) for block in blocks for step in range(block.size)]
    for name in (str, plain_name):
        pairs += _by_name(a, b, pairs, name)
    used_a, used_b = {left for left, _ in pairs}, {right for _, right in pairs}
    pairs += [(index, None) for index in range(len(a)) if index not in used_a]
    return pairs + [(None, index) for index in range(len(b)) if index not in used_b]


def _by_name(a: list[str], b: list[str], taken: Iterable[Pair], name: Callable[[str], str]) -> list[Pair]:
    """Pairs among the steps not taken yet: the first of a name with the first of the same name."""
    used = list(taken)
    used_a, used_b = {left for left, _ in used}, {right for _, right in used}
    waiting: dict[str, list[int]] = defaultdict(list)
    for index in range(len(b) - 1, -1, -1):
        if index not in used_b:
            waiting[name(b[index])].append(index)
    return [
        (index, waiting[name(text)].pop())
        for index, text in enumerate(a)
        if index not in used_a and waiting.get(name(text))
    ]


def _row(a: AlignmentStep | None, b: AlignmentStep | None) -> AlignedRow:
    a_count, a_ns = (a.count, a.ns) if a else (0.0, 0.0)
    b_count, b_ns = (b.count, b.ns) if b else (0.0, 0.0)
    return AlignedRow("", a.name if a else None, b.name if b else None, a_count, b_count, a_ns, b_ns, b_ns - a_ns)


def _sum(first: AlignedRow, second: AlignedRow) -> AlignedRow:
    return replace(
        first,
        a_count=first.a_count + second.a_count,
        b_count=first.b_count + second.b_count,
        a_ns=first.a_ns + second.a_ns,
        b_ns=first.b_ns + second.b_ns,
        difference_ns=first.difference_ns + second.difference_ns,
    )


def _state(row: AlignedRow) -> str:
    if row.a_name is None or row.b_name is None:
        return "added" if row.a_name is None else "removed"
    if abs(row.difference_ns) <= max(NOTABLE_SHARE * row.a_ns, NOTABLE_NS):
        return "same"
    return "longer" if row.difference_ns > 0 else "shorter"
