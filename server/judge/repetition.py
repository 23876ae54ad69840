"""What a comparison that somebody asked for leaves open is taken again, once and for longer."""

from __future__ import annotations

from itertools import groupby

from db.reads.observed import list_pairs
from db.reads.query import Session
from db.submissions import may_repeat, repeat
from server.judge.asking import MORE_ROUNDS
from server.verdicts.held import hold


def repeat_unsure(session: Session, submission_id: int) -> None:
    """Repeats what is unsure once all comparisons of a submission have ended: how sure each must be depends on their number."""
    if not may_repeat(session, submission_id):
        return
    pairs = list_pairs(session, submission_id)
    unsure = [pair for pair in pairs if hold(pair.base_ns, pair.head_ns, pair.device_kind, len(pairs)).told == "unsure"]
    for job_id, group in groupby(sorted(unsure, key=lambda pair: pair.job_id), key=lambda pair: pair.job_id):
        repeat(session, job_id, pairs=[[pair.variant, pair.case] for pair in group], rounds=MORE_ROUNDS)
