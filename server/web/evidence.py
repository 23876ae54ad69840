"""The evidence of a regression as tabs. The page reads only what the chosen tab shows; each tab has an address."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from warpwatch.db.reads.causes import MOST_SERIES, BenchEvidence, read_evidence
from warpwatch.db.regressions import RegressionDetail
from warpwatch.db.traces import read_trace
from warpwatch.server.explanation.alignment import align_traces
from warpwatch.server.explanation.cases import CaseView
from warpwatch.server.explanation.causes import BUSY_FACTS, BusyHost, find_busy_host, list_circumstances
from warpwatch.server.explanation.choices import list_flips
from warpwatch.server.explanation.trace_files import load_trace
from warpwatch.server.explanation.traced_pairs import PictureState, contradicts, pair_calls, times_of_series
from warpwatch.server.figures.charts import rounds_figure
from warpwatch.server.figures.timelines import pair_svg
from warpwatch.server.history.diffs import read_source_diff
from warpwatch.server.http.service import settings_of
from warpwatch.server.web.render import PageScope, is_public

MOST_ROUNDS = 6
"""Cases whose rounds are drawn."""


class EvidenceTab(StrEnum):
    DIFF = "diff"
    TRACE = "trace"
    CODE = "code"
    ERRORS = "errors"
    HOST = "host"
    ROUNDS = "rounds"


TAB_NAMES = {
    EvidenceTab.DIFF: "Diff",
    EvidenceTab.TRACE: "Trace",
    EvidenceTab.CODE: "Machine code",
    EvidenceTab.ERRORS: "Numerical error",
    EvidenceTab.HOST: "Host",
    EvidenceTab.ROUNDS: "Rounds",
}


def read_tab(
    page: PageScope, detail: RegressionDetail, cases: Sequence[CaseView], asked: EvidenceTab | None
) -> dict[str, Any]:
    """What the page shows of the evidence: the tabs that have something to say, the contents of the chosen one, and
    whether the host was busy. A tab that was asked for and has nothing to say gives way to the first."""
    number = detail.regression.id
    # Errors of the worst series tell whether there is something to say.
    found = read_evidence(page.session, number, MOST_SERIES if asked == EvidenceTab.ERRORS else 1)
    bench, code, launched = found.bench, found.code, found.launched
    busy = find_busy_host(bench)
    measured = [view.series for view in cases if view.series.base_ns]
    has_trace = detail.base_trace_id is not None and detail.head_trace_id is not None
    filled = {
        # Results of a public repository are public, its sources may not be.
        EvidenceTab.DIFF: not is_public(page.request),
        EvidenceTab.TRACE: has_trace,
        EvidenceTab.CODE: code is not None or launched is not None,
        EvidenceTab.ERRORS: found.errors is not None,
        EvidenceTab.HOST: bench is not None and bool(bench.base or bench.head),
        EvidenceTab.ROUNDS: bool(measured),
    }
    first = next((name for name in EvidenceTab if filled[name]), None)
    tab = asked if asked is not None and filled[asked] else first
    contents: dict[str, Any] = {}
    if tab == EvidenceTab.DIFF:
        contents = _diff(page, detail)
    elif tab == EvidenceTab.TRACE:
        contents = _trace(page, detail)
    elif tab == EvidenceTab.CODE:
        flips = list_flips(launched.base, launched.head) if launched is not None else []
        contents = {"code": code, "launched": launched, "choices": flips}
    elif tab == EvidenceTab.ERRORS:
        contents = {"numbers": found.errors if tab == asked else read_evidence(page.session, number).errors}
    elif tab == EvidenceTab.HOST:
        contents = _host(bench, busy)
    elif tab == EvidenceTab.ROUNDS:
        contents = {"figures": [(series, rounds_figure(series)) for series in measured[:MOST_ROUNDS]]}
    tabs = [(name, TAB_NAMES[name]) for name in EvidenceTab if filled[name]]
    return contents | {"evidence": tab, "evidence_tabs": tabs, "busy": busy}


def _diff(page: PageScope, detail: RegressionDetail) -> dict[str, Any]:
    assert page.repository is not None
    row, settings = detail.regression, settings_of(page.request)
    return {"diff": read_source_diff(settings, page.repository, row.operator, row.base_sha, row.head_sha)}


def _trace(page: PageScope, detail: RegressionDetail) -> dict[str, Any]:
    """One call at base and one at head on one time axis, and the kernels that differ, unless they show the opposite of
    what the rounds decided."""
    traces = [read_trace(page.session, number) for number in (detail.base_trace_id, detail.head_trace_id) if number]
    if len(traces) < 2 or traces[0] is None or traces[1] is None:
        return {"pair": None, "picture": None, "kernels": None, "kernels_contradict": False}
    base, head = traces[0], traces[1]
    times = times_of_series(detail.series, head)
    pair = pair_calls(load_trace(page.session, base.id), load_trace(page.session, head.id), times)
    picture = pair_svg(pair.a, pair.b) if pair.state == PictureState.DRAWN and pair.a and pair.b else None
    kernels = align_traces(base, head)
    ratio = kernels.b_ns / kernels.a_ns if kernels.a_ns else None
    against = bool(times and ratio and contradicts(ratio, times.ratio))
    return {"pair": pair, "picture": picture, "kernels": kernels, "kernels_contradict": against}


def _host(bench: BenchEvidence | None, busy: BusyHost | None) -> dict[str, Any]:
    """Readings that differ between base and head, or while a benchmark ran. How busy the host was is said once."""
    rows = list_circumstances(bench)
    told = [row for row in rows if busy is None or row.name not in BUSY_FACTS]
    moved = [
        row
        for row in told
        if len({str(value) for value in (row.base_before, row.base_after, row.head_before, row.head_after)}) > 1
    ]
    return {"bench": bench, "circumstances": moved, "has_readings": bool(rows)}
