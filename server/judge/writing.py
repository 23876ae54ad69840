"""Writes the steps of a regression, suspicions and repeats, within the one transaction that judges a job.

Nothing here calls git.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby

from warpwatch.contract.case import parse_case
from warpwatch.contract.commit_ids import short_sha
from warpwatch.contract.rounds import launch_seems_changed
from warpwatch.contract.spec import JobSpec
from warpwatch.contract.words import Answer, ChangeDirection, JobKind, Purpose, Signal, Status, Verdict
from warpwatch.db.reads import judging
from warpwatch.db.reads.judging import KnownChange, RegressionFacts, RegressionState
from warpwatch.db.reads.observed import RoundsRow
from warpwatch.db.reads.query import Session
from warpwatch.db.reads.reports import read_report_facts
from warpwatch.db.regressions import (
    SeriesDecision,
    SuspectedSeries,
    add_members,
    attach_compare_job,
    copy_members,
    decide,
    decide_series,
    lock,
    move,
    name_merge,
    open_suspicion,
    settle,
    turn,
    unsettle,
)
from warpwatch.db.submissions import may_repeat, repeat, retell
from warpwatch.db.triage import SERVICE, set_triage, triage
from warpwatch.db.trials import NewTrial, answer, ask, find_imported, record
from warpwatch.db.unjudged import EndedJob
from warpwatch.server.verdicts.context import RegressionContext
from warpwatch.server.verdicts.held import PairVerdict, classify_comparison, classify_pairs
from warpwatch.server.verdicts.paired import severity
from warpwatch.server.verdicts.steps import (
    AskTrial,
    DecideVerdict,
    Dismiss,
    Evidence,
    MergeInto,
    Narrow,
    NewSuspicion,
    OpenOpposite,
    OpenResidual,
    RecordAnswer,
    Settle,
    Step,
    TurnDirection,
)
from warpwatch.server.verdicts.table import next_step
from warpwatch.server.verdicts.thresholds import kind_of_time, thresholds_of


class ContextChangedError(Exception):
    """Another process changed what the steps were decided from: read again and decide anew."""


@dataclass(frozen=True, slots=True)
class VerdictWriter:
    """Writes steps and suspicions of one operator on one device.

    ids: row ids of the commits that steps name, by full commit id. imported_job_id: the job that is judged, where it
    was imported. Nothing can be measured for it here, so only imported jobs become trials.
    """

    session: Session
    operator_id: int
    device_id: int
    ids: Mapping[str, int]
    imported_job_id: int | None = None

    def write_steps(self, facts: RegressionFacts, steps: Iterable[Step]) -> None:
        """Locks the regression, makes sure that it is as it was read, and writes the steps in their order.

        ContextChangedError when any of the facts has changed.
        """
        lock(self.session, facts.regression.id)
        if judging.read_facts(self.session, facts.regression.id) != facts:
            raise ContextChangedError
        for step in steps:
            self._write(facts.regression, step)

    def suspect(self, suspicion: NewSuspicion, *, is_final: bool = False, note: str = "") -> bool:
        """Opens a suspicion and asks for its trial, unless all of it is known already or a trial has not answered yet;
        whether it is one.

        Of an imported job there is no suspicion without an imported trial, unless history has the last word (is_final):
        then it stays suspected, and settled. note: what its history is to say of it.
        """
        ends = (self.ids[suspicion.base_sha], self.ids[suspicion.head_sha])
        if self.imported_job_id is not None and not is_final:
            kind = JobKind.CHECK if suspicion.direction == ChangeDirection.BROKEN else JobKind.COMPARE
            trial = NewTrial(0, 0, self.operator_id, self.device_id, kind, Purpose.CONFIRM, *ends, JobSpec(), 0)
            if find_imported(self.session, trial, self.imported_job_id) is None:
                return False
        regression_id = open_suspicion(
            self.session,
            operator_id=self.operator_id,
            device_id=self.device_id,
            base_commit_id=ends[0],
            head_commit_id=ends[1],
            direction=suspicion.direction,
            ratio=suspicion.ratio,
            series=suspicion.series,
            cause=suspicion.cause,
        )
        if regression_id is not None:
            # The new series are untried: the step is to wait or to ask for a trial of the whole range, without git.
            facts = judging.read_facts(self.session, regression_id)
            self._write(facts.regression, next_step(RegressionContext(facts)))
            if note:
                _note(self.session, regression_id, note)
        return True

    def withdraw(self, changes: Iterable[KnownChange]) -> None:
        """Dismisses suspicions that nothing decides, because later readings show no such changes."""
        for change in changes:
            lock(self.session, change.id)
            state = judging.read_state(self.session, change.id)
            if state.verdict == Verdict.SUSPECTED and state.settled_at is not None:
                decide(self.session, change.id, Verdict.DISMISSED)
                _note(self.session, change.id, "later readings show no such change")
                retell(self.session, change.head_commit_id, state.operator_id)

    def _write(self, regression: RegressionState, step: Step) -> None:
        session = self.session
        match step:
            case TurnDirection():
                if not turn(session, regression.id):
                    raise ContextChangedError
                _note(session, regression.id, step.note)
            case RecordAnswer():
                most = step.worst
                numbers = (most.ratio, most.low, most.high) if most else (None, None, None)
                answer(session, step.trial_id, step.answer, step.message, *numbers)
                joined = [{"regression_id": regression.id, "series_id": item.series_id} for item in step.joined]
                add_members(session, joined)
                decide_series(session, regression.id, step.decisions)
            case OpenOpposite() | OpenResidual():
                self.suspect(step.suspicion)
            case AskTrial():
                self._ask(regression, step)
            case DecideVerdict():
                _decide(session, regression.id, Verdict.CONFIRMED, step.evidence)
                _note(session, regression.id, step.note)
            case Dismiss():
                *causes, verdict = step.notes
                for cause in causes:
                    _note(session, regression.id, cause)
                _decide(session, regression.id, step.verdict, step.evidence)
                _note(session, regression.id, verdict)
                settle(session, regression.id)
            case Narrow():
                self._narrow(regression, step)
            case MergeInto():
                copy_members(session, regression.id, step.other_id)
                if step.known_series:
                    news = [item for item in step.evidence.decisions if item.series_id not in step.known_series]
                    decide_series(session, step.other_id, news)
                elif step.evidence.worst is not None:
                    _decide(session, step.other_id, Verdict.CONFIRMED, step.evidence)
                note = f"regression {regression.id}, of a wider range, turned out to be the same change"
                _note(session, step.other_id, note)
                settle(session, step.other_id)
                set_triage(session, regression.id, "invalid", SERVICE, f"the same change as regression {step.other_id}")
            case Settle():
                if step.note:
                    _note(session, regression.id, step.note)
                settle(session, regression.id)
            case _:
                pass

    def _ask(self, regression: RegressionState, step: AskTrial) -> None:
        session, ids = self.session, self.ids
        spec = step.spec
        if step.purpose in (Purpose.CONFIRM, Purpose.PROVE) and self.imported_job_id is None:
            spec = replace(spec, pairs=self._with_step(spec.pairs))
        trial = NewTrial(
            regression_id=regression.id,
            repository_id=regression.repository_id,
            operator_id=self.operator_id,
            device_id=self.device_id,
            kind=step.kind,
            purpose=step.purpose,
            base_commit_id=ids[step.base_sha],
            head_commit_id=ids[step.head_sha],
            spec=spec,
            priority=step.priority,
            merge_commit_id=ids[step.merge_sha] if step.merge_sha is not None else None,
        )
        if self.imported_job_id is None:
            job_id = ask(session, trial)
        else:
            imported_id = find_imported(session, trial, self.imported_job_id)
            if imported_id is None:
                _note(
                    session,
                    regression.id,
                    f"no file holds a {step.kind} of {short_sha(step.base_sha)} and {short_sha(step.head_sha)}",
                )
                settle(session, regression.id)
                return
            job_id = imported_id
            record(session, regression.id, job_id, trial.base_commit_id, trial.head_commit_id, step.purpose)
        unsettle(session, regression.id)
        if step.purpose == Purpose.CONFIRM and step.kind == JobKind.COMPARE:
            attach_compare_job(session, regression.id, job_id)

    def _with_step(self, pairs: Sequence[tuple[str, str]] | None) -> list[tuple[str, str]] | None:
        """The pairs, and the training step of the first backward pass among them where that has a series: it shows
        whether what a pass gained or lost has moved into the other pass."""
        if pairs is None:
            return None
        for variant, key in pairs:
            with suppress(ValueError):
                case = parse_case(key)
                pair = variant, replace(case, direction="step").key
                if case.direction in ("bwd", "fwd_train") and pair not in pairs and self._is_timed(*pair):
                    return [*pairs, pair]
        return list(pairs)

    def _is_timed(self, variant: str, case: str) -> bool:
        return judging.has_series(self.session, self.operator_id, self.device_id, variant, case)

    def _narrow(self, regression: RegressionState, step: Narrow) -> None:
        session, ids = self.session, self.ids
        is_moved = (step.base_sha, step.head_sha) != (regression.base_sha, regression.head_sha)
        if is_moved and move(session, regression.id, ids[step.base_sha], ids[step.head_sha]) is not None:
            raise ContextChangedError
        merge = step.merge
        if merge is None:
            name_merge(session, regression.id)
        else:
            merged_range = (ids[merge.base_sha], ids[merge.head_sha])
            name_merge(session, regression.id, merge.cause, merged_range, merge.commits)
        if step.evidence is not None:
            _decide(session, regression.id, Verdict.CONFIRMED, step.evidence)
        if step.note:
            _note(session, regression.id, step.note)
        # Wider ranges that could not be bisected, and in which this change was located later, are closed.
        for wider in judging.list_wider(session, regression.id):
            set_triage(session, wider, "invalid", SERVICE, f"narrowed down to regression {regression.id}")


def _decide(session: Session, regression_id: int, verdict: Verdict, evidence: Evidence) -> None:
    """Writes a verdict with the numbers and traces of the trial that shows it."""
    trial, most = evidence.trial, evidence.worst
    if trial.kind == JobKind.COMPARE:
        attach_compare_job(session, regression_id, trial.job_id)
    base_trace_id, head_trace_id = (
        judging.find_trace(session, trial.job_id, commit_id, most.series_id) if most else None
        for commit_id in (trial.base_commit_id, trial.head_commit_id)
    )
    decide(
        session,
        regression_id,
        verdict,
        ratio=most.ratio if most else None,
        low=most.low if most else None,
        high=most.high if most else None,
        series=evidence.decisions,
        base_trace_id=base_trace_id,
        head_trace_id=head_trace_id,
    )


def _note(session: Session, regression_id: int, text: str) -> None:
    """Writes into the history of a regression what the service did to it."""
    triage(session, [regression_id], author=SERVICE, note=text, fields={})


# --- comparisons that test no regression ------------------------------------------------------------------------


def confirm_imported(session: Session, job: EndedJob, device_kind: str, rounds: Sequence[RoundsRow]) -> None:
    """One confirmed change for each direction in which series of an imported comparison changed."""
    measured = [row for row in rounds if row.status == Status.OK]
    verdicts = {
        row.series_id: classify_comparison(
            row.base_ns,
            row.head_ns,
            kind_of_time(device_kind, row.metric, row.protocol),
            len(measured),
            job.spec.stop,
            row.reason,
        )
        for row in measured
    }
    is_recorded = False
    for direction in (ChangeDirection.SLOWER, ChangeDirection.FASTER):
        changed = {number: verdict for number, verdict in verdicts.items() if verdict.outcome == direction}
        if changed:
            is_recorded = _confirm(session, job, direction, changed, is_recorded=is_recorded)


def _confirm(
    session: Session,
    job: EndedJob,
    direction: ChangeDirection,
    changed: Mapping[int, PairVerdict],
    *,
    is_recorded: bool,
) -> bool:
    """is_recorded: whether the job is the trial of another change already; of one job there is one trial."""
    assert job.base_commit_id is not None
    most = max(changed.values(), key=lambda verdict: severity(verdict.ratio))
    regression_id = open_suspicion(
        session,
        operator_id=job.operator_id,
        device_id=job.device_id,
        base_commit_id=job.base_commit_id,
        head_commit_id=job.commit_id,
        direction=direction,
        ratio=most.ratio,
        series=[SuspectedSeries(number, verdict.ratio) for number, verdict in changed.items()],
    )
    if regression_id is None:
        return is_recorded
    decisions = [
        SeriesDecision(number, Verdict.CONFIRMED, verdict.ratio, verdict.low, verdict.high)
        for number, verdict in changed.items()
    ]
    if not is_recorded:
        trial_id = record(session, regression_id, job.id, job.base_commit_id, job.commit_id)
        answer(session, trial_id, Answer.CHANGED, "", most.ratio, most.low, most.high)
    attach_compare_job(session, regression_id, job.id)
    confirmed = Verdict.CONFIRMED
    of_most = next(number for number, verdict in changed.items() if verdict is most)
    base_trace_id, head_trace_id = (
        judging.find_trace(session, job.id, commit_id, of_most) for commit_id in (job.base_commit_id, job.commit_id)
    )
    decide(
        session,
        regression_id,
        confirmed,
        ratio=most.ratio,
        low=most.low,
        high=most.high,
        series=decisions,
        base_trace_id=base_trace_id,
        head_trace_id=head_trace_id,
    )
    settle(session, regression_id)
    return True


def repeat_unsure(session: Session, submission_id: int) -> None:
    """Repeats what is unsure once all comparisons of a submission have ended: how sure each must be depends on their
    number."""
    facts = read_report_facts(session, submission_id) if may_repeat(session, submission_id) else None
    pairs = [pair for pair in facts.pairs if pair.status == "ok"] if facts else []
    unsure = [
        pair
        for pair in pairs
        if (pair.metric != Signal.LAUNCH or launch_seems_changed(pair.base_ns, pair.head_ns))
        and classify_pairs(
            pair.base_ns,
            pair.head_ns,
            kind_of_time(pair.cell.device_kind, pair.metric, pair.protocol),
            len(pairs),
            pair.reason,
        ).outcome
        == "unsure"
    ]
    for job_id, group in groupby(sorted(unsure, key=lambda pair: pair.job_id), key=lambda pair: pair.job_id):
        pairs_of_job = list(group)
        rounds = thresholds_of(pairs_of_job[0].cell.device_kind).more_rounds
        cells = dict.fromkeys((pair.cell.variant or "", pair.cell.case or "") for pair in pairs_of_job)
        repeat(session, job_id, list(cells), rounds)
