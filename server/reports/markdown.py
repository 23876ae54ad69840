"""A report as Markdown, short enough for a comment on GitHub."""

from __future__ import annotations

import re
from collections.abc import Mapping

from warpwatch.contract.commit_ids import short_sha
from warpwatch.server.reports.model import KINDS, MEANINGS, Report, ReportRow
from warpwatch.server.reports.sensitivity import detectable_text
from warpwatch.server.reports.words import cases_text, finding_name, fold, ratio_text, reason, times_text

LIMIT = 65_536
"""Characters that GitHub takes in a comment."""
MARKER = "<!-- warpwatch -->"
"""Marks the comment, so that CI can find and replace it."""
_ROOM_FOR_THE_END = 600
_LAST_COLUMNS = ("device", "time", "change", "evidence")
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~@$])")
_ICONS = {"success": "✅", "failure": "❌", "error": "⚠️", "pending": "⏳"}


def markdown(report: Report, limit: int = LIMIT) -> str:
    """Headline, table of findings and their reproduce commands; at most `limit` characters."""
    text = _head(report)
    has_commits = report.has_older_commits
    if report.rows:
        names = ("finding", "operator", "variant", "case", *(("commit",) * has_commits), *_LAST_COLUMNS)
        text += f"\n| {' | '.join(names)} |\n{'|---' * len(names)}|\n"
    shown: list[ReportRow] = []
    rows = fold(report.rows)
    # Every row has details below the table, so the table gets half of the space.
    for row, cases in rows:
        line = _line(row, cases, report.device_names, has_commits=has_commits)
        if len(text) + len(line) > limit // 2:
            break
        text += line
        shown.append(row)
    hidden = len(rows) - len(shown) + report.left_out
    if hidden:
        text += f"\n{hidden} more: {_run(report)}\n"
    text += _details(shown, limit - len(text))
    return text + _detectable(report, limit - len(text)) + _end(report)


def _head(report: Report) -> str:
    baseline = f" vs baseline `{short_sha(report.base_sha)}`" if report.base_sha else ""
    head = f"`{short_sha(report.head_sha)}`" if report.head_sha else "nothing"
    traded = f"\nBeside the time: {escape(report.traded)}\n" if report.traded else ""
    return (
        f"{MARKER}\n### {_ICONS[report.conclusion]} Warpwatch: {escape(report.summary)}\n\n"
        f"{head}{baseline} of {escape(report.repository)}, {_run(report)}\n{traded}"
        f"\n{escape(report.sensitivity.summary)}.\n"
    )


def _run(report: Report) -> str:
    """The run with its page, which none has without a server and a CI job."""
    return _link(f"run {report.submission_id}" if report.submission_id else "measured without a server", report.url)


def _link(text: str, url: str) -> str:
    return f"[{text}]({url})" if url else text


def _line(row: ReportRow, cases: list[str], device_names: Mapping[str, str], *, has_commits: bool) -> str:
    status = "–" if row.status == "ok" else escape(row.status.replace("_", " "))
    cells = (
        f"**{finding_name(row)}**",
        escape(row.operator),
        escape(row.variant or "–"),
        escape(cases_text(cases)),
        *((f"`{short_sha(row.head_sha)}`",) * has_commits),
        escape(device_names.get(row.device, row.device)),
        escape(times_text(row)) or "–",
        escape(ratio_text(row)) or status,
        _link(escape(row.decided_by), row.url),
    )
    return f"| {' | '.join(cells)} |\n"


def _details(rows: list[ReportRow], room: int) -> str:
    """The message and reproduce command of each row, folded; as many rows as fit into `room` characters."""
    opening, closing = "\n<details><summary>Details and how to reproduce</summary>\n\n", "\n</details>\n"
    room -= len(opening) + len(closing) + _ROOM_FOR_THE_END
    text = ""
    for row in rows:
        message = f": {escape(reason(row))}" if row.message else ""
        replay = row.replay.replace("```", "'''")
        part = f"**{escape(row.cell)}** {finding_name(row)}{message}\n" + (f"```\n{replay}\n```\n" if replay else "")
        if len(text) + len(part) > room:
            break
        text += part
    return f"{opening}{text}{closing}" if text else ""


def _detectable(report: Report, room: int) -> str:
    """The smallest slow-down that is found in each case, folded, the least sensitive first; as many as fit."""
    opening, closing = "\n<details><summary>Smallest slow-down found with 95 %</summary>\n\n", "\n</details>\n"
    room -= len(opening) + len(closing) + _ROOM_FOR_THE_END
    text = ""
    for case in report.sensitivity.by_case:
        name = " ".join(part for part in (case.operator, case.variant, case.case) if part)
        device = report.device_names.get(case.device, case.device)
        line = f"- {escape(name)} on {escape(device)}: {escape(detectable_text(case))} ({case.source})\n"
        if len(text) + len(line) > room:
            break
        text += line
    return f"{opening}{text}{closing}" if text else ""


def _end(report: Report) -> str:
    shown = [kind for kind in KINDS if kind in report.counts][:3]
    lines = [f"{KINDS[kind]}: {MEANINGS[kind]}" for kind in shown]
    if report.unchanged:
        names = ", ".join(report.unchanged[:5]) + (" …" if len(report.unchanged) > 5 else "")
        lines.append(f"Unchanged, so not {'compared' if report.base_sha else 'measured'}: {escape(names[:150])}.")
    return "".join(f"\n<sub>{line}</sub>\n" for line in lines)


def escape(text: str) -> str:
    """Escapes Markdown, line breaks and @mentions."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split())).replace("\\@", "@\u200b")
