"""How a row of a report is put into words, whatever form it is written in."""

from __future__ import annotations

from warpwatch.server.figures.formats import change
from warpwatch.server.reports.model import KINDS, ReportRow

_SHOWN = 600


def ratio_text(row: ReportRow) -> str:
    """+12.3 % (+11.9 % … +12.8 %); empty where nothing was compared."""
    if row.ratio is None:
        return ""
    if row.low is None or row.high is None:
        return change(row.ratio)
    return f"{change(row.ratio)} ({change(row.low)} … {change(row.high)})"


def sentence(row: ReportRow) -> str:
    """What was found, in one line: what, where, how much, between which commits."""
    said = f"{row.cell} is {KINDS[row.kind]}" + (
        f" ({row.status.replace('_', ' ')})" if row.kind in ("failed", "not_run") else ""
    )
    if row.ratio is not None:
        said += f": {ratio_text(row)}"
    said += f" on {row.device} at {row.head_sha[:9]}"
    return said + (f" against {row.base_sha[:9]}" if row.base_sha else "")


def reason(row: ReportRow) -> str:
    """What was said of it, cut to a length that people read."""
    text = " ".join(row.message.split())
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]} …"
    return f"{text} (so it was at the base)" if row.is_known_before and text else text
