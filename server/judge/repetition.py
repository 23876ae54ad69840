"""What a comparison that somebody asked for leaves open is taken again, once and for longer."""

from __future__ import annotations

from itertools import groupby

from warpwatch.db.reads.query import Session
from warpwatch.db.reads.reports import read_report_facts
from warpwatch.db.submissions import may_repeat, repeat
from warpwatch.server.verdicts.held import classify_pairs
from warpwatch.server.verdicts.thresholds import thresholds_of


def repeat_unsure(session: Session, submission_id: int) -> None:
    """Repeats what is unsure once all comparisons of a submission have ended: how sure each must be depends on their
    number."""
    facts = read_report_facts(session, submission_id) if may_repeat(session, submission_id) else None
    pairs = [pair for pair in facts.pairs if pair.status == "ok"] if facts else []
    unsure = [
        pair
        for pair in pairs
        if classify_pairs(pair.base_ns, pair.head_ns, pair.cell.device_kind, len(pairs), pair.reason).outcome
        == "unsure"
    ]
    for job_id, group in groupby(sorted(unsure, key=lambda pair: pair.job_id), key=lambda pair: pair.job_id):
        pairs_of_job = list(group)
        rounds = thresholds_of(pairs_of_job[0].cell.device_kind).more_rounds
        cells = [(pair.cell.variant or "", pair.cell.case or "") for pair in pairs_of_job]
        repeat(session, job_id, cells, rounds)
