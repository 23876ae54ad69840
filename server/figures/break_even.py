"""After how many calls a variant's set-up has paid for itself, from the results of one job."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from warpwatch.db.reads.work import ResultView
from warpwatch.server.figures.formats import duration, plural

_SETUP = "setup"


def break_even(results: Sequence[ResultView]) -> dict[int, str]:
    """A sentence for every result that has a set-up, by the result's id; the rival is the fastest other variant of its
    case."""
    return {
        row.id: _sentence(row, setup, results)
        for row in results
        if row.median_ns and (setup := setup_of(row)) is not None
    }


def setup_of(row: ResultView) -> float | None:
    """Nanoseconds that the variant takes before its first call; None where it prepares nothing."""
    return next((metric.median_ns for metric in row.measured if metric.metric == _SETUP), None)


def calls_to_pay(setup_ns: float, call_ns: float, rival_ns: float) -> int | None:
    """Calls after which `setup_ns` more at the start and `call_ns` each are less than `rival_ns` each; None for never."""
    if call_ns >= rival_ns:
        return None
    return max(1, ceil(setup_ns / (rival_ns - call_ns)))


def _sentence(row: ResultView, setup_ns: float, results: Sequence[ResultView]) -> str:
    rivals = [
        r for r in results if r.case == row.case and r.variant != row.variant and r.status == "ok" and r.median_ns
    ]
    prefix = f"Its set-up takes {duration(setup_ns)}"
    if not rivals or row.median_ns is None:
        return f"{prefix}; there is no other variant to hold it against."
    rival = min(rivals, key=lambda r: r.median_ns or 0.0)
    calls = calls_to_pay(setup_ns - (setup_of(rival) or 0.0), row.median_ns, rival.median_ns or 0.0)
    if calls is None:
        return f"{prefix} and never pays: {rival.variant} is as fast per call."
    return f"{prefix} and pays after {plural(calls, 'call')}, against {rival.variant}."
