"""The number of calls after which the set-up of a variant pays off, from the results of one job."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from warpwatch.db.reads.work import ResultView
from warpwatch.server.figures.formats import duration, plural

_SETUP = "setup"


def break_even(results: Sequence[ResultView]) -> dict[int, str]:
    """A sentence per result with a set-up time, by result id; the rival is the fastest other variant of its case."""
    return {
        row.id: _sentence(row, setup, results)
        for row in results
        if row.median_ns and (setup := setup_of(row)) is not None
    }


def setup_of(row: ResultView) -> float | None:
    """Set-up time in nanoseconds; None for a variant without set-up."""
    return next((metric.median_ns for metric in row.measured if metric.metric == _SETUP), None)


def calls_to_pay(setup_ns: float, call_ns: float, rival_ns: float) -> int | None:
    """The least n with setup_ns + n · call_ns < n · rival_ns; None if there is none."""
    if call_ns >= rival_ns:
        return None
    return max(1, ceil(setup_ns / (rival_ns - call_ns)))


def _sentence(row: ResultView, setup_ns: float, results: Sequence[ResultView]) -> str:
    rivals = [
        r for r in results if r.case == row.case and r.variant != row.variant and r.status == "ok" and r.median_ns
    ]
    prefix = f"Set-up takes {duration(setup_ns)}"
    if not rivals or row.median_ns is None:
        return f"{prefix}; there is no other variant to compare with."
    rival = min(rivals, key=lambda r: r.median_ns or 0.0)
    calls = calls_to_pay(setup_ns - (setup_of(rival) or 0.0), row.median_ns, rival.median_ns or 0.0)
    if calls is None:
        return f"{prefix} and never pays off: {rival.variant} is as fast per call."
    return f"{prefix} and pays off after {plural(calls, 'call')} compared with {rival.variant}."
