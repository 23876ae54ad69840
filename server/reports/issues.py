"""The issue of a confirmed regression: what changed, the evidence, how to measure it again; in Markdown."""

from __future__ import annotations

from warpwatch.contract.rounds import times_of_rounds
from warpwatch.db.regressions import RegressionDetail, RegressionRow, RegressionSeriesRow
from warpwatch.server.reports.formats import change, duration, interval
from warpwatch.server.reports.markdown import escape
from warpwatch.server.reports.wording import change_headline

_MOST_SERIES = 50
_MOST_MESSAGES = 5
_SHOWN = 600
_ENDINGS = {
    "fixed": "It is fixed",
    "reverted": "Its cause is reverted",
    "accepted": "It is accepted",
    "invalid": "It is marked as invalid",
}


def issue_marker(server_url: str, regression_id: int) -> str:
    """Marks the issue of one regression of one server, so that it is found again."""
    return f"<!-- warpwatch {server_url}/regressions/{regression_id} -->"


def issue_title(row: RegressionRow, device_name: str) -> str:
    return f"{row.operator} on {device_name}: {change_headline(row)}"[:255]


def issue_text(detail: RegressionDetail, server_url: str, device_name: str) -> str:
    """All that the page of the regression says in a few lines, behind the marker."""
    row = detail.regression
    link = f"{server_url}/regressions/{row.id}"
    parts = [
        issue_marker(server_url, row.id),
        _ending(row),
        f"**{escape(row.operator)}** on {escape(device_name)}: {escape(change_headline(row))}. "
        f"[Evidence, chart and traces]({link})",
        _origin(row),
        _table(detail.series),
        *_messages(detail.series),
        f"To measure it again:\n```\n{detail.replay.replace('```', '')}\n```" if detail.replay else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _ending(row: RegressionRow) -> str:
    words = _ENDINGS.get(row.state, "")
    if row.verdict != "confirmed":
        words = "It is not confirmed any more"
    if not words:
        return ""
    return f"**{words}{f' by {row.fixed_by_sha}' if row.fixed_by_sha else ''}.**"


def _origin(row: RegressionRow) -> str:
    commit = f"{row.head_sha} by {escape(row.head_author)}: {escape(row.head_subject)}"
    if row.merged_culprit_sha:
        merged = f"{row.merged_culprit_sha} by {escape(row.merged_author or '')}: {escape(row.merged_subject or '')}"
        return f"Commit {merged}, merged with {row.head_sha}"
    if row.culprit_sha or not row.commits_between:
        return f"Commit {commit}"
    return f"One of {row.commits_between + 1} commits after {row.base_sha}, up to {commit}"


def _table(series: list[RegressionSeriesRow]) -> str:
    shown = [row for row in series if row.verdict == "confirmed"] or series
    lines = [_line(row) for row in shown[:_MOST_SERIES]]
    head = "| case | variant | metric | before → after | change | rounds |\n|---|---|---|---|---|---|\n"
    left = len(shown) - len(lines)
    return head + "".join(lines) + (f"\n{left} more on the page.\n" if left else "")


def _line(row: RegressionSeriesRow) -> str:
    if row.head_status is not None:
        times, ratio = f"{row.base_status or '–'} → {row.head_status}", "–"
    else:
        times = " → ".join(map(duration, times_of_rounds(row.base_ns, row.head_ns)))
        ratio = f"{change(row.ratio)} ({interval(row.low, row.high)})" if row.ratio is not None else "–"
    cells = (row.case, row.variant, row.metric, times, ratio, str(min(len(row.base_ns), len(row.head_ns)) or "–"))
    return f"| {' | '.join(escape(cell) for cell in cells)} |\n"


def _messages(series: list[RegressionSeriesRow]) -> list[str]:
    failing = [row for row in series if row.message][:_MOST_MESSAGES]
    return [f"{escape(f'{row.variant} {row.case}')}: {escape(row.message[:_SHOWN])}" for row in failing]
