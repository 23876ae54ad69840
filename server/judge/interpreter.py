"""Judges an ended job: reads once, asks git outside any transaction, decides purely, and writes once.

The transaction that writes first proves that the job is not judged yet and that nothing changed since it was read;
otherwise everything starts over. Of several servers one judges a job, and the work of the others is void.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from warpwatch import git
from warpwatch.contract.measurement import METRICS
from warpwatch.contract.words import JobKind, JobState
from warpwatch.db.cards import save_card_offset
from warpwatch.db.database import Database
from warpwatch.db.job_sources import save_job_sources
from warpwatch.db.reads import judging
from warpwatch.db.reads.cards import list_other_drifts
from warpwatch.db.reads.job_sources import list_common_shifts, list_sources
from warpwatch.db.reads.judging import JobOrigin, KnownChange, RegressionFacts
from warpwatch.db.reads.observed import (
    BAD,
    CheckRow,
    ObservedReading,
    ReleaseReading,
    RoundsRow,
    list_checks_around,
    list_job_rounds,
    list_readings,
    list_release_readings,
)
from warpwatch.db.reads.query import Session
from warpwatch.db.regressions import EndedJob, claim_unjudged, mark_judged
from warpwatch.db.trials import IMPORTED, ensure_series, keep_share
from warpwatch.server.history.commits import write_down
from warpwatch.server.history.mirror import Mirrors
from warpwatch.server.judge.evidence import compare_code, read_merge, read_path, read_shifts
from warpwatch.server.judge.imported import confirm_imported
from warpwatch.server.judge.repetition import repeat_unsure
from warpwatch.server.judge.writing import ContextChangedError, write_steps, write_suspicion
from warpwatch.server.verdicts.breakage import Breakage, find_breakages, suspect_breakages
from warpwatch.server.verdicts.cards import (
    LEAST_DRIFTS,
    MOST_PAIRS,
    CardOffset,
    SeriesDrift,
    find_drifts,
    learn_offset,
    pair_cards,
)
from warpwatch.server.verdicts.context import RegressionContext
from warpwatch.server.verdicts.creep import release_levels
from warpwatch.server.verdicts.known import KnownRegressions
from warpwatch.server.verdicts.steps import AskTrial, Narrow, NewSuspicion, OpenOpposite, OpenResidual, Step
from warpwatch.server.verdicts.suspicion import SeriesWindow, find_candidates, find_suspicions, windows_of
from warpwatch.server.verdicts.table import plan_steps

Write = Callable[[Session], None]
"""What judging a job writes; ContextChangedError when it was decided from what is not true any more."""


@dataclass(frozen=True, slots=True)
class JobFacts:
    """All that judging an ended job starts from: either the regression that its trial is about, or what it measured.

    trial_id: of the trial that the job answers. known: the regressions of the operator and device near the readings.
    imported: rounds of a comparison that was made elsewhere. common: see list_common_shifts. sources: by commit, see
    list_sources. releases: what the series read at releases. drifts: of unchanged series of others on the card.
    """

    origin: JobOrigin
    trial_id: int | None = None
    regression: RegressionFacts | None = None
    readings: list[ObservedReading] = field(default_factory=list)
    checks: list[CheckRow] = field(default_factory=list)
    known: list[KnownChange] = field(default_factory=list)
    imported: list[RoundsRow] = field(default_factory=list)
    common: dict[tuple[int, int | None], float] = field(default_factory=dict)
    sources: dict[int, str] = field(default_factory=dict)
    releases: list[ReleaseReading] = field(default_factory=list)
    drifts: list[float] = field(default_factory=list)

    @property
    def oldest(self) -> int:
        """The ordinal of the oldest commit that the verdict looks at."""
        ordinals = [row.ordinal for row in self.readings] + [row.ordinal for row in self.releases]
        return min(ordinals + [row.ordinal for row in self.checks], default=0)


def judge_job(database: Database, mirrors: Mirrors, job: EndedJob, trial_share: float) -> None:
    """Draws every verdict that one ended job allows; nothing where another server was faster.

    trial_share: of a device's time, see db.trials.keep_share.
    """
    while True:
        with database.session() as session:
            facts = read_job(session, job)
        write = plan_job(database, mirrors, job, facts)
        try:
            with database.session() as session:
                if claim_unjudged(session, job):
                    write(session)
                    keep_share(session, job.device_id, trial_share)
                    mark_judged(session, job.id)
                return
        except ContextChangedError:
            # Whoever changed it got on with its own work, so this does not go on for ever.
            continue


def read_job(session: Session, job: EndedJob) -> JobFacts:
    """What judging a job starts from."""
    origin = judging.read_origin(session, job.id)
    trial = judging.find_trial(session, job.id)
    if trial is not None:
        return JobFacts(origin, trial.id, judging.read_facts(session, trial.regression_id))
    if job.state != JobState.DONE:
        return JobFacts(origin)
    if origin.origin in IMPORTED and job.kind == JobKind.COMPARE:
        return JobFacts(origin, imported=list_job_rounds(session, job.id))
    if job.kind == JobKind.BENCH:
        readings = list_readings(session, job.id)
        releases = list_release_readings(session, job.id)
        here = next((row.environment_id for row in readings if row.commit_id == job.commit_id), 0)
        commits = {row.commit_id for row in readings}
        common = list_common_shifts(session, job.operator_id, here, commits)
        sources = list_sources(session, readings[0].series_id, commits) if readings else {}
        drifts = [] if origin.card_id is None else list_other_drifts(session, origin.card_id, job.operator_id)
        facts = JobFacts(origin, readings=readings, common=common, sources=sources, releases=releases, drifts=drifts)
        return replace(facts, known=_list_known(session, job, facts.oldest))
    if job.kind == JobKind.CHECK and job.spec.sanitize is None:
        # A sanitizer finds what a plain check cannot see, so the two are not compared.
        checks = list_checks_around(session, job.id)
        oldest = min((row.ordinal for row in checks), default=0)
        return JobFacts(origin, checks=checks, known=_list_known(session, job, oldest))
    return JobFacts(origin)


def plan_job(database: Database, mirrors: Mirrors, job: EndedJob, facts: JobFacts) -> Write:
    """Decides what to write. No transaction is open meanwhile, so git may take its time."""
    imported_job_id = job.id if facts.origin.origin in IMPORTED else None
    if facts.regression is not None:
        return _plan_trial(mirrors, facts.regression, facts.trial_id, imported_job_id)
    if facts.imported:
        return lambda session: confirm_imported(session, job, facts.origin.device_kind, facts.imported)
    if imported_job_id is not None and not mirrors.of(facts.origin).path.is_dir():
        # Without the history nobody knows which commits are neighbours.
        return lambda session: None
    if facts.readings:
        return _plan_readings(database, mirrors, job, facts)
    if any(row.status in BAD for row in facts.checks):
        return _plan_checks(mirrors, job, facts)
    if job.kind == JobKind.COMPARE and imported_job_id is None:
        return lambda session: repeat_unsure(session, job.submission_id)
    return lambda session: None


def _plan_trial(mirrors: Mirrors, facts: RegressionFacts, trial_id: int | None, imported_job_id: int | None) -> Write:
    """The answer of a trial, and the steps that follow from it."""
    regression = facts.regression
    mirror = mirrors.of(regression)
    steps = plan_steps(
        RegressionContext(facts, ended_trial=trial_id),
        lambda step: read_path(mirror, regression.operator, step.base_sha, step.head_sha),
        # The commits of a merged branch cannot be measured for results that were imported.
        lambda step: (
            read_merge(mirror, regression.operator, step.base_sha, step.head_sha) if imported_job_id is None else ()
        ),
    )
    ids = {regression.base_sha: regression.base_commit_id, regression.head_sha: regression.head_commit_id}
    for trial in facts.trials:
        ids |= {trial.base_sha: trial.base_commit_id, trial.head_sha: trial.head_commit_id}
    unrecorded = [sha for sha in dict.fromkeys(_commits_of(steps)) if sha not in ids]
    infos = git.describe_many(mirror.path, unrecorded)

    def write(session: Session) -> None:
        all_ids = ids | write_down(session, regression.repository_id, infos)
        write_steps(session, facts, steps, all_ids, imported_job_id)

    return write


def _commits_of(steps: Iterable[Step]) -> Iterable[str]:
    """The commits that steps name, whether the database has them or not."""
    for step in steps:
        ends = step.suspicion if isinstance(step, OpenOpposite | OpenResidual) else step
        if isinstance(ends, AskTrial | Narrow | NewSuspicion):
            yield from (ends.base_sha, ends.head_sha)
        if isinstance(ends, AskTrial) and ends.merge_sha is not None:
            yield ends.merge_sha
        if isinstance(ends, Narrow) and ends.merge is not None:
            yield from (ends.merge.base_sha, ends.merge.head_sha)


def _plan_readings(database: Database, mirrors: Mirrors, job: EndedJob, facts: JobFacts) -> Write:
    """Suspicions from the new points of a bench job."""
    new_point = next((row for row in facts.readings if row.commit_id == job.commit_id), None)
    if new_point is None:
        return lambda session: None
    origin, mirror = facts.origin, mirrors.of(facts.origin)
    imported_job_id = job.id if origin.origin in IMPORTED else None
    measured = {(row.ordinal, row.sha) for row in facts.readings} | _ends_of(facts.known)
    measured |= {(row.ordinal, row.sha) for row in facts.releases}
    measured |= {(row.release_ordinal, row.release_sha) for row in facts.releases}
    line = mirror.line(new_point.sha, measured, new_point.ordinal, origin.trunk_sha)
    changes = _on_line(facts.known, line)
    known = KnownRegressions(changes)
    environment_id = new_point.environment_id
    logs = pair_cards(facts.readings, origin.card_id) if origin.card_id is not None else {}
    offsets = {other: item for other in logs if (item := learn_offset(logs[other], origin.device_kind)) is not None}
    windows = windows_of(
        facts.readings, line, job.commit_id, environment_id, origin.device_kind, facts.common, origin.card_id, offsets
    )
    windows = _with_references(windows, facts, line)
    common = facts.common.get((job.commit_id, origin.card_id), 0.0)
    sources, shifts = read_shifts(mirror, origin.operator, new_point.sha, windows, common)
    drifts = _find_drifts(facts, job, environment_id, sources)
    candidates = find_candidates(windows, known)
    # What was measured elsewhere cannot be measured again, so history has the last word unless a file brought a trial.
    final = find_candidates([replace(item, is_final=True) for item in windows], known) if imported_job_id else []
    pairs = {item.pair for item in (*candidates, *final)}
    code = compare_code(database, mirror, origin, job.operator_id, pairs)
    suspicions, unpaired = find_suspicions(candidates, known, code), find_suspicions(final, known, code)
    ids = {row.sha: row.commit_id for row in facts.readings}
    for change in changes:
        ids |= {change.base_sha: change.base_commit_id, change.head_sha: change.head_commit_id}

    def write(session: Session) -> None:
        if (suspicions or unpaired) and _list_known(session, job, facts.oldest) != facts.known:
            raise ContextChangedError
        code = {"operator_id": job.operator_id, "commit_id": job.commit_id, "environment_id": environment_id}
        save_job_sources(
            session,
            job_id=job.id,
            sources=sources,
            shifts=shifts,
            card_id=origin.card_id,
            drifts=[item.log_ratio for item in drifts],
            drifts_since=max((item.since for item in drifts), default=None),
            **code,
        )
        _save_offsets(session, job, origin.card_id, logs, offsets)
        place = (job.operator_id, job.device_id)
        answered = [item for item in suspicions if write_suspicion(session, *place, item, ids, imported_job_id)]
        for item in unpaired:
            if not any(item.shares_series(other) for other in answered):
                write_suspicion(session, *place, item, ids, imported_job_id, is_final=True)

    return write


def _with_references(windows: Iterable[SeriesWindow], facts: JobFacts, line: set[str]) -> list[SeriesWindow]:
    """The windows with what a creep is held against: releases, and the drift of the card."""
    by_series: dict[int, list[ReleaseReading]] = {}
    for row in facts.releases:
        by_series.setdefault(row.series_id, []).append(row)
    drift = median(facts.drifts) if len(facts.drifts) >= LEAST_DRIFTS else 0.0
    return [
        replace(
            window,
            releases=release_levels(by_series.get(window.first.series_id, []), line, facts.origin.card_id),
            drift=drift,
        )
        for window in windows
    ]


def _find_drifts(facts: JobFacts, job: EndedJob, environment_id: int, sources: str | None) -> list[SeriesDrift]:
    """How the series moved on the card of the job while the sources of its operator stayed the same."""
    card_id = facts.origin.card_id
    if card_id is None or sources is None:
        return []
    of_card = [row for row in facts.readings if (row.card_id, row.environment_id) == (card_id, environment_id)]
    return find_drifts(
        [row for row in of_card if row.commit_id == job.commit_id or facts.sources.get(row.commit_id) == sources]
    )


def _save_offsets(
    session: Session,
    job: EndedJob,
    card_id: int | None,
    logs: Mapping[int, Mapping[int, Sequence[float]]],
    offsets: Mapping[int, CardOffset],
) -> None:
    for other_id, by_series in logs.items() if card_id is not None else ():
        every = [value for values in by_series.values() for value in values][-MOST_PAIRS:]
        is_agreed = other_id in offsets and offsets[other_id].is_agreed
        save_card_offset(session, job.operator_id, card_id or 0, other_id, every, is_agreed=is_agreed)


def _plan_checks(mirrors: Mirrors, job: EndedJob, facts: JobFacts) -> Write:
    """Suspicions from a check job: where an operator's sources are the same at both ends no commit broke it."""
    rows, mirror = facts.checks, mirrors.of(facts.origin)
    checked = next(row for row in rows if row.commit_id == job.commit_id)
    measured = {(row.ordinal, row.sha) for row in rows} | _ends_of(facts.known)
    line = mirror.line(checked.sha, measured, checked.ordinal, facts.origin.trunk_sha)
    breakages = [
        item
        for item in find_breakages(rows, line, job.commit_id)
        if not mirror.same_sources(facts.origin.operator, item.base.sha, item.head.sha)
    ]
    return lambda session: _write_breakages(session, job, facts, breakages, line)


def _write_breakages(
    session: Session, job: EndedJob, facts: JobFacts, breakages: list[Breakage], line: set[str]
) -> None:
    if not breakages:
        return
    if _list_known(session, job, min(row.ordinal for row in facts.checks)) != facts.known:
        raise ContextChangedError
    cells = [(item.base.variant_id, item.base.case_id) for item in breakages]
    series = ensure_series(session, job.operator_id, job.device_id, cells, METRICS[facts.origin.device_kind][0])
    known = KnownRegressions(_on_line(facts.known, line))
    ids = {row.sha: row.commit_id for item in breakages for row in (item.base, item.head)}
    imported_job_id = job.id if facts.origin.origin in IMPORTED else None
    for suspicion in suspect_breakages(breakages, series, known):
        write_suspicion(session, job.operator_id, job.device_id, suspicion, ids, imported_job_id)


def _ends_of(changes: Iterable[KnownChange]) -> set[tuple[int, str]]:
    """Ordinals and ids of the commits that changes lie between."""
    heads = {(change.head_ordinal, change.head_sha) for change in changes}
    return heads | {(change.base_ordinal, change.base_sha) for change in changes}


def _on_line(changes: Iterable[KnownChange], line: set[str]) -> list[KnownChange]:
    """The changes of one line of history: what happened on another branch explains nothing here."""
    return [change for change in changes if {change.base_sha, change.head_sha} <= line]


def _list_known(session: Session, job: EndedJob, oldest: int) -> list[KnownChange]:
    return judging.list_known(session, job.operator_id, job.device_id, oldest)
