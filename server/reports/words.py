"""Sentences about a row of a report, shared by all output formats."""

from __future__ import annotations

from warpwatch.server.figures.formats import change, duration, interval
from warpwatch.server.reports.model import KINDS, ReportRow

_SHOWN = 600


def ratio_text(row: ReportRow) -> str:
    """+12.3 % (+11.9 … +12.8 %), with what later commits made of it; empty where nothing was compared."""
    if row.ratio is None:
        return ""
    text = change(row.ratio)
    if row.low is not None and row.high is not None:
        text += f" ({interval(row.low, row.high)})"
    if row.fixed_by_sha is not None:
        return f"{text}, fixed by {row.fixed_by_sha[:9]}"
    return f"{text}, of which {change(row.left_ratio)} is left" if row.left_ratio is not None else text


def times_text(row: ReportRow) -> str:
    """12.3 µs → 15.0 µs; empty where nothing was compared."""
    if row.base_ns is None or row.head_ns is None:
        return ""
    return f"{duration(row.base_ns)} → {duration(row.head_ns)}"


def sentence(row: ReportRow) -> str:
    """The finding in one line: what, where, how much, between which commits."""
    text = f"{row.cell} is {KINDS[row.kind]}" + (
        f" ({row.status.replace('_', ' ')})" if row.kind in ("failed", "not_run") else ""
    )
    if row.ratio is not None:
        text += f": {ratio_text(row)}"
    text += f" on {row.device} at {row.head_sha[:9]}"
    return text + (f" vs baseline {row.base_sha[:9]}" if row.base_sha else "")


def change_text(subject: str, merged_sha: str | None, merged_subject: str | None) -> str:
    """The subject of the commit behind a change, with the commit of the branch that it merged, where that is known."""
    return f"{subject}; in the merged branch {merged_sha[:9]} {merged_subject}" if merged_sha else subject


def reason(row: ReportRow) -> str:
    """The message of the row, cut to a readable length."""
    text = " ".join(row.message.split())
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]} …"
    return f"{text} (also failing at baseline)" if row.is_known_before and text else text
