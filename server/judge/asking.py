"""Asks for trials: which job is to tell something about a regression, of what, and how soon."""

from __future__ import annotations

from typing import Any

from warpwatch.contract.words import Answer, Cause, Purpose
from warpwatch.db.reads.judging import MemberRow, TrialState
from warpwatch.db.reads.query import Session
from warpwatch.db.regressions import attach_compare_job, unsettle
from warpwatch.db.trials import NewTrial, ask
from warpwatch.server.history.mirror import record
from warpwatch.server.judge.answers import severity
from warpwatch.server.judge.dossier import CONFIRMING, RegressionContext
from warpwatch.server.verdicts.thresholds import thresholds_of

CONFIRM_PRIORITY = -1
"""Below ordinary work, which new commits are; db.trials.keep_share sees to it that trials get on all the same."""
CODE_PRIORITY = -2
"""Where no time stands out and only code has changed, nothing waits for the answer."""
MAX_PAIRS = 6
"""Series that one suspicion is about; the most changed ones come first."""


def ask_trial(
    session: Session,
    dossier: RegressionContext,
    purpose: Purpose,
    base_sha: str,
    head_sha: str,
    members: list[MemberRow],
    rounds: int | None = None,
) -> None:
    """Asks for one trial of these series at two commits."""
    state = dossier.regression
    ids = record(session, dossier.mirror, state.repository_id, list(dict.fromkeys([base_sha, head_sha])))
    by_code = state.cause == Cause.CODE and purpose in CONFIRMING
    job_id = ask(
        session,
        NewTrial(
            regression_id=state.id,
            repository_id=state.repository_id,
            operator_id=state.operator_id,
            device_id=state.device_id,
            kind="check" if dossier.is_broken else "compare",
            purpose=purpose,
            base_commit_id=ids[base_sha],
            head_commit_id=ids[head_sha],
            spec=_check_spec(members)
            if dossier.is_broken
            else _compare_spec(members, rounds or thresholds_of(state.device_kind).rounds),
            priority=CODE_PRIORITY if by_code else CONFIRM_PRIORITY,
        ),
    )
    unsettle(session, state.id)
    if purpose == Purpose.CONFIRM and not dossier.is_broken:
        attach_compare_job(session, state.id, job_id)


def is_plain(members: list[MemberRow], device_kind: str) -> bool:
    """Whether every series changed by so much that few rounds show on which side of a commit the change lies."""
    return bool(members) and all(severity(member.ratio) >= thresholds_of(device_kind).plain_ratio for member in members)


def asked_before(dossier: RegressionContext, base_sha: str, head_sha: str) -> list[TrialState]:
    """The trials of these two commits; of something broken, those that checked the second one."""
    return [
        one for one in dossier.trials if one.head_sha == head_sha and (dossier.is_broken or one.base_sha == base_sha)
    ]


def may_ask(before: list[TrialState]) -> bool:
    """Whether a question may be asked, after these trials of it: at first, and once more when the answer was unsure.

    Not where somebody or something ended the job of the last one: a person may have it tried again.
    """
    if not before:
        return True
    return len(before) < 2 and before[-1].answer == Answer.UNSURE and before[-1].job_state == "done"


def _compare_spec(members: list[MemberRow], rounds: int) -> dict[str, Any]:
    worst_first = sorted(members, key=lambda member: severity(member.ratio or member.suspected_ratio), reverse=True)
    return {"pairs": [[member.variant, member.case] for member in worst_first], "seed": 0, "rounds": rounds}


def _check_spec(members: list[MemberRow]) -> dict[str, Any]:
    variants, cases = (sorted({getattr(member, name) for member in members}) for name in ("variant", "case"))
    return {"suite": "quick", "variants": variants, "cases": cases, "seed": 0}
