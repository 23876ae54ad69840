"""All that is known of one regression while its next step is decided."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from warpwatch.contract.words import Answer, Purpose, Verdict
from warpwatch.db.reads import judging
from warpwatch.db.reads.judging import MemberRow, RegressionState, TrialState
from warpwatch.db.reads.query import Session
from warpwatch.db.regressions import lock
from warpwatch.db.triage import SERVICE, triage
from warpwatch.server.history.mirror import Mirror, Mirrors

CONFIRMING = (Purpose.CONFIRM, Purpose.RETRY)


@dataclass(frozen=True)
class RegressionContext:
    """A regression with its series, the trials of it in the order they were asked for, and its repository."""

    regression: RegressionState
    members: list[MemberRow]
    trials: list[TrialState]
    mirror: Mirror

    @property
    def is_broken(self) -> bool:
        return self.regression.direction == "broken"

    @property
    def waits(self) -> bool:
        """Whether a trial has not answered yet."""
        return any(trial.answer == Answer.PENDING for trial in self.trials)

    @cached_property
    def confirming(self) -> list[TrialState]:
        """The answered trials of the whole range, in the order of their answers."""
        found = [
            one for one in self.trials if one.purpose in CONFIRMING and one.answered_at and one.base_sha != one.head_sha
        ]
        return sorted(found, key=lambda trial: (trial.answered_at, trial.id))

    @property
    def whole(self) -> TrialState | None:
        """The trial that confirmed the whole range."""
        return next((trial for trial in reversed(self.confirming) if trial.answer == Answer.CHANGED), None)

    def having(self, *verdicts: Verdict) -> list[MemberRow]:
        """Its series with one of the verdicts."""
        return [member for member in self.members if member.verdict in verdicts]


def open_context(session: Session, mirrors: Mirrors, regression_id: int) -> RegressionContext:
    """What is known of a regression, which nobody else decides on until the transaction ends."""
    lock(session, regression_id)
    state = judging.read_state(session, regression_id)
    members, trials = judging.list_members(session, regression_id), judging.list_trials(session, regression_id)
    return RegressionContext(state, members, trials, mirrors.of(state.repository_url))


def remark(session: Session, regression_id: int, text: str) -> None:
    """Writes into the history of a regression what the service did to it."""
    triage(session, [regression_id], author=SERVICE, note=text, fields={})
