"""Sentences about a row of a report, shared by all output formats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from warpwatch.contract.commit_ids import short_sha
from warpwatch.contract.words import Status
from warpwatch.server.reports.formats import change, duration, headline, interval, plural
from warpwatch.server.reports.model import KINDS, ReportRow

_SHOWN = 600
_PREDICATES = {
    Status.CRASHED: "crashed",
    Status.TIMED_OUT: "timed out",
    Status.OUT_OF_MEMORY: "ran out of memory",
    Status.BUILD_FAILED: "did not build",
    Status.UNREADABLE: "left unreadable results",
    Status.MISSING_DEPENDENCY: "misses a dependency",
    "cancelled": "was cancelled",
}
"""Of the findings `failed` and `not_run`, by status."""
_NO_ADJECTIVES = ("blind", "mismatch")
"""Kinds of rows whose names do not follow "is"."""
_OF_ALL_CASES = (Status.BUILD_FAILED, Status.MISSING_DEPENDENCY)
"""Statuses that a variant has on all its cases for one reason."""


def fold(rows: Iterable[ReportRow]) -> list[tuple[ReportRow, list[str]]]:
    """Rows with their cases: a variant that did not build is one finding, on however many cases."""
    groups: dict[object, tuple[ReportRow, list[str]]] = {}
    for number, row in enumerate(rows):
        place = (row.kind, row.operator, row.variant, row.device, row.head_sha, row.message, row.right_at)
        key = place if row.status in _OF_ALL_CASES else number
        groups.setdefault(key, (row, []))[1].extend([row.case] if row.case else [])
    return list(groups.values())


def finding_name(row: ReportRow) -> str:
    """The finding in a few words: how something failed, or which of two signals changed. What is over is named by what
    it was: "wrong, fixed later"."""
    told = _PREDICATES.get(row.status) if row.kind in ("failed", "not_run", "fixed") else None
    if row.kind == "fixed":
        was = "slower" if row.ratio is not None else "wrong" if row.status == Status.WRONG else "failed"
        return f"{told or _signal(row) + was}, {KINDS['fixed']}"
    return told or f"{_signal(row)}{KINDS[row.kind]}"


def _signal(row: ReportRow) -> str:
    return f"{row.statement.signal} " if row.statement.signal is not None and row.ratio is not None else ""


def cases_text(cases: list[str]) -> str:
    """The case, or their number; "all" without any."""
    return plural(len(cases), "case") if len(cases) > 1 else cases[0] if cases else "all"


def ratio_text(row: ReportRow) -> str:
    """+12.3 % (+11.9 … +12.8 %), with what later commits made of it; empty where nothing was compared."""
    if row.ratio is None:
        return ""
    text = change(row.ratio)
    if row.low is not None and row.high is not None:
        text += f" ({interval(row.low, row.high)})"
    if row.fixed_by_sha is not None:
        return f"{text}, fixed by {short_sha(row.fixed_by_sha)}"
    return f"{text}, of which {change(row.left_ratio)} is left" if row.left_ratio is not None else text


def times_text(row: ReportRow) -> str:
    """12.3 µs → 15.0 µs; empty where nothing was compared."""
    if row.base_ns is None or row.head_ns is None:
        return ""
    return f"{duration(row.base_ns)} → {duration(row.head_ns)}"


def sentence(row: ReportRow, device_names: Mapping[str, str]) -> str:
    """The finding in one line: what, where, between which commits, how much. device_names: by key."""
    name, kind = finding_name(row), f"{_signal(row)}{KINDS[row.kind]}"
    text = f"{row.cell} {name}"
    if name == kind:
        text = f"{row.cell}: {kind}" if row.kind in _NO_ADJECTIVES else f"{row.cell} {_signal(row)}is {KINDS[row.kind]}"
    if row.kind == "fixed":
        text = f"{row.cell}: {name},"
    text += f" on {device_names.get(row.device, row.device)} at {short_sha(row.head_sha)}"
    if row.base_sha:
        text += f" vs baseline {short_sha(row.base_sha)}"
    return text if row.ratio is None else f"{text}: {ratio_text(row)}"


def change_text(subject: str, merged_sha: str | None, merged_subject: str | None) -> str:
    """The subject of the commit behind a change, with the commit of the branch that it merged, where that is known."""
    return f"{subject}; in the merged branch {short_sha(merged_sha)} {merged_subject}" if merged_sha else subject


def reason(row: ReportRow) -> str:
    """The message of the row, of a traceback its last line, cut to a readable length."""
    message = row.message.strip()
    text = " ".join((headline(message) if message.startswith("Traceback") else message).split())
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]} …"
    if row.right_at is not None:
        return f"{text} (right again at {short_sha(row.right_at)})".strip()
    return f"{text} (also failing at baseline)" if row.is_known_before and text else text
