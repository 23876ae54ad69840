"""Suspicions from a check: what was right before and is broken now is put to a trial, and bisected, like a change of
time."""

from __future__ import annotations

from collections import defaultdict
from itertools import groupby, pairwise

from warpwatch.contract.measurement import METRICS
from warpwatch.contract.words import Cause
from warpwatch.db.reads.judging import JobOrigin
from warpwatch.db.reads.observed import BAD, CheckRow, list_checks_around
from warpwatch.db.reads.query import Session
from warpwatch.db.regressions import EndedJob, SuspectedSeries, open_suspicion
from warpwatch.db.trials import ensure_series
from warpwatch.server.history.mirror import Mirrors
from warpwatch.server.judge.confirmation import advance
from warpwatch.server.judge.known import KnownRegressions


def suspect_breakage(session: Session, mirrors: Mirrors, job: EndedJob, origin: JobOrigin) -> None:
    """Opens a suspicion, and has it confirmed, for every range of commits in which something broke by a new check.

    All that broke in one range is one regression. Where an operator's sources are the same at both ends no commit broke
    it.
    """
    rows = list_checks_around(session, job.id)
    if not any(row.status in BAD for row in rows):
        return
    own = next(row for row in rows if row.commit_id == job.commit_id)
    mirror = mirrors.of(origin.repository_url)
    line = mirror.line(own.sha, {(row.ordinal, row.sha) for row in rows}, own.ordinal)
    broke: dict[tuple[int, int], list[tuple[CheckRow, CheckRow]]] = defaultdict(list)
    for _, group in groupby(rows, key=lambda row: (row.variant_id, row.case_id)):
        for base, head in _breaks([row for row in group if row.sha in line], job.commit_id):
            if not mirror.same_sources(origin.operator, base.sha, head.sha):
                broke[base.commit_id, head.commit_id].append((base, head))
    if broke:
        _open_all(session, mirrors, job, origin, broke)


def _breaks(rows: list[CheckRow], commit_id: int) -> list[tuple[CheckRow, CheckRow]]:
    """Where one variant on one case broke beside the commit that was checked: (right before, broken after)."""
    newest = [next(group) for _, group in groupby(rows, key=lambda row: row.commit_id)]
    return [
        (base, head)
        for base, head in pairwise(newest)
        if commit_id in (base.commit_id, head.commit_id) and base.status == "ok" and head.status in BAD
    ]


def _open_all(
    session: Session,
    mirrors: Mirrors,
    job: EndedJob,
    origin: JobOrigin,
    broke: dict[tuple[int, int], list[tuple[CheckRow, CheckRow]]],
) -> None:
    cells = [(base.variant_id, base.case_id) for pairs in broke.values() for base, _ in pairs]
    series = ensure_series(session, job.operator_id, job.device_id, cells, METRICS[origin.device_kind][0])
    oldest = min(base.ordinal for pairs in broke.values() for base, _ in pairs)
    known = KnownRegressions(session, job.operator_id, job.device_id, oldest)
    for (base_id, head_id), pairs in broke.items():
        members = [
            SuspectedSeries(series[base.variant_id, base.case_id], None, base.status, head.status)
            for base, head in pairs
            if not known.is_broken(series[base.variant_id, base.case_id], base.ordinal, head.ordinal)
        ]
        if not members:
            continue
        found = open_suspicion(
            session,
            operator_id=job.operator_id,
            device_id=job.device_id,
            base_commit_id=base_id,
            head_commit_id=head_id,
            direction="broken",
            ratio=None,
            series=members,
            cause=Cause.STATUS,
        )
        if found is not None:
            advance(session, mirrors, found)
