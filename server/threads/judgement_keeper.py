"""The thread that ends judgements: it stops those that are decided or over budget, and signs receipts."""

from __future__ import annotations

import logging
import time

from warpwatch.contract.words import JudgementVerdict
from warpwatch.db.database import Database
from warpwatch.db.errors import EngineError
from warpwatch.db.judgements import OpenJudgement, decide, end_judgement, list_judged_jobs, list_open
from warpwatch.db.reads.query import Session
from warpwatch.db.submissions import cancel_submission
from warpwatch.server.judge.judgements import FINAL, combine, has_ended, judge_cases, state
from warpwatch.server.receipts import receipt_key, sign_receipt
from warpwatch.server.threads.background import Background
from warpwatch.settings import Settings

PAUSE_SECONDS = 1.0
FAILED_PAUSE_SECONDS = 60.0
"""Before a judgement is looked at again that could not be judged."""
_log = logging.getLogger(__name__)


class JudgementKeeper(Background):
    """Looks at every open judgement once a second. What goes wrong with one of them stays with it."""

    def __init__(self, settings: Settings, database: Database) -> None:
        super().__init__("judgements", "judgements of patches", PAUSE_SECONDS)
        self._settings = settings
        self._database = database
        self._failed: dict[int, float] = {}
        """When to look again at judgements that could not be judged, by their ids."""

    def sweep(self) -> None:
        with self._database.session() as session:
            for judgement in list_open(session):
                if time.monotonic() < self._failed.get(judgement.id, 0.0):
                    continue
                try:
                    with session.begin_nested():
                        self._follow(session, judgement)
                    self._failed.pop(judgement.id, None)
                except EngineError:
                    raise
                except Exception:  # noqa: BLE001 - one judgement must not keep the others, whatever is wrong with it.
                    self._failed[judgement.id] = time.monotonic() + FAILED_PAUSE_SECONDS
                    _log.exception("judgement %d could not be judged; the others go on", judgement.id)

    def _follow(self, session: Session, judgement: OpenJudgement) -> None:
        """Decides what can be decided; the receipt is written once no job of the judgement runs any more."""
        number = judgement.submission_id
        jobs = list_judged_jobs(session, number) if number is not None else []
        public = judge_cases([job for job in jobs if job.cases is None], judgement.device_kind)
        hidden = judge_cases([job for job in jobs if job.cases is not None], judgement.device_kind)
        verdict = JudgementVerdict(judgement.verdict) if judgement.verdict else combine(public, hidden)
        if number is None or not jobs:
            verdict = JudgementVerdict.CANCELLED
        elif verdict is None and sum(job.seconds for job in jobs) > judgement.budget_seconds:
            verdict = JudgementVerdict.OVER_BUDGET
        if number is not None and not has_ended(jobs):
            if verdict is not None and verdict in FINAL and judgement.verdict is None:
                decide(session, judgement.id, verdict)
                cancel_submission(session, number)
            return
        assert verdict is not None
        statement = state(judgement, jobs, public, hidden, verdict, (self._settings.server_url, int(time.time())))
        receipt = sign_receipt(receipt_key(self._settings.home), statement)
        end_judgement(session, judgement.id, verdict, hidden.at_least, receipt)
