"""A report as the body of a GitHub check run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from warpwatch.server.reports.markdown import markdown
from warpwatch.server.reports.model import ERRORS, FAILURES, MEANINGS, Report, ReportRow
from warpwatch.server.reports.words import cases_text, finding_name, fold, reason, sentence

NAME = "warpwatch"
MAX_ANNOTATIONS = 50
MAX_TEXT = 65_535
_CONCLUSIONS = {"success": "success", "failure": "failure", "error": "action_required"}


def check_run(report: Report, folder: str) -> dict[str, Any]:
    """The body of `POST /repos/…/check-runs`.

    folder: where the repository keeps its operators, used to point at their files.
    """
    body: dict[str, Any] = {
        "name": NAME,
        "head_sha": report.head_sha or "",
        "external_id": str(report.submission_id or report.head_sha),
        "status": "in_progress" if report.conclusion == "pending" else "completed",
        "started_at": report.created_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "output": {
            "title": report.summary[:255],
            "summary": markdown(report, MAX_TEXT),
            "annotations": [
                _annotation(*found, folder, report.device_names) for found in fold(report.rows)[:MAX_ANNOTATIONS]
            ],
        },
    }
    if report.url:
        body["details_url"] = report.url
    if report.conclusion != "pending":
        body["conclusion"] = _CONCLUSIONS[report.conclusion]
    return body


def _annotation(row: ReportRow, cases: list[str], folder: str, device_names: Mapping[str, str]) -> dict[str, Any]:
    place = " ".join(part for part in (row.operator, row.variant, cases_text(cases)) if part)
    level = "failure" if row.kind in FAILURES else "warning" if row.kind in ERRORS else "notice"
    return {
        "path": f"{folder.strip('/')}/{row.operator}.py",
        "start_line": 1,
        "end_line": 1,
        "annotation_level": level,
        "title": f"{finding_name(row)}: {place}"[:255],
        "message": f"{sentence(row, device_names)}. {reason(row) or MEANINGS[row.kind]}",
        "raw_details": "\n".join(filter(None, (row.decided_by, row.url, row.replay))),
    }
