"""Reads the reports of submissions whose end somebody waits for, no more often than they can have news."""

from __future__ import annotations

from warpwatch.db.reads.query import Session
from warpwatch.db.reads.reports import count_pending, read_report_facts
from warpwatch.server.reports.build import build_report
from warpwatch.server.reports.model import FAILED, Report


class OpenReports:
    """Of one notifier, which looks at all open submissions in each of its rounds."""

    def __init__(self, server_url: str) -> None:
        self._server_url = server_url
        self._pending: dict[int, int] = {}
        """Number of pending jobs and verdicts of each open submission at the last round."""

    def read_news(self, session: Session, submission_id: int) -> Report | None:
        """The report of a submission that came to its end, or that fails whatever is still to come."""
        pending = count_pending(session, submission_id)
        if pending and self._pending.get(submission_id) == pending:
            # No job has ended since the last round, and a report is read from many rows.
            return None
        self._pending[submission_id] = pending
        facts = read_report_facts(session, submission_id)
        if facts is None:
            return None
        report = build_report(facts, self._server_url)
        if not report.pending:
            del self._pending[submission_id]
        return report if not report.pending or report.exit_code == FAILED else None
