"""Judges ended jobs in a thread: reads once, asks git outside any transaction, decides purely, and writes once.

The transaction that writes first proves that the job is not judged yet and that nothing changed since it was read;
otherwise everything starts over. Of several servers one judges a job, and the work of the others is void.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median

from warpwatch import git, git_branches, telemetry
from warpwatch.contract.words import JobKind, JobState, Signal
from warpwatch.contract.written_numbers import change as written_change
from warpwatch.db.bundles import date_back
from warpwatch.db.cards import list_other_drifts, save_card_offset
from warpwatch.db.database import Database
from warpwatch.db.errors import EngineError
from warpwatch.db.job_sources import list_common_shifts, list_sources, save_job_sources
from warpwatch.db.reads import judging
from warpwatch.db.reads.judging import JobOrigin, KnownChange, RegressionFacts
from warpwatch.db.reads.launched import LaunchedKey, read_digests
from warpwatch.db.reads.lines import read_followed
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
from warpwatch.db.reads.query import DEVICE_METRICS, Session
from warpwatch.db.reads.trades import list_next_commits, read_trade_facts
from warpwatch.db.registry import record_commits
from warpwatch.db.submissions import repeat_bench
from warpwatch.db.trades import save_trades
from warpwatch.db.trials import IMPORTED, ensure_series, keep_share
from warpwatch.db.unjudged import EndedJob, claim_unjudged, mark_judged, reopen_early, unjudged_jobs
from warpwatch.logs import JOB_ID
from warpwatch.server.history.branches import follow_branches
from warpwatch.server.history.mirror import Mirror, Mirrors
from warpwatch.server.history.sources import SourceCache
from warpwatch.server.judge.closing import adopt_merged, close_changes
from warpwatch.server.judge.confirming import confirm_imported_changes
from warpwatch.server.judge.environments import follow_environment
from warpwatch.server.judge.writing import ContextChangedError, VerdictWriter, confirm_imported, repeat_unsure
from warpwatch.server.threads.background import Background
from warpwatch.server.verdicts.cards import LEAST_DRIFTS, MOST_PAIRS, SeriesDrift, find_drifts, learn_offset, pair_cards
from warpwatch.server.verdicts.context import CommitPath, PathCommit, RegressionContext
from warpwatch.server.verdicts.creep import release_levels
from warpwatch.server.verdicts.known import KnownRegressions
from warpwatch.server.verdicts.steps import AskTrial, Narrow, NewSuspicion, OpenOpposite, OpenResidual, Step
from warpwatch.server.verdicts.suspicion import (
    CodeDifference,
    CommitPair,
    SeriesWindow,
    bar_of,
    find_breakages,
    find_candidates,
    find_common_shift,
    find_suspicions,
    find_unpaired,
    suspect_breakages,
    windows_of,
)
from warpwatch.server.verdicts.table import plan_steps
from warpwatch.server.verdicts.trades import find_trades
from warpwatch.settings import Settings

POLL_SECONDS = 1.0
_log = logging.getLogger(__name__)


class Judge(Background):
    """A thread that judges ended jobs."""

    def __init__(self, settings: Settings, database: Database, cache: SourceCache | None = None) -> None:
        super().__init__("judge", "verdicts", POLL_SECONDS)
        self._settings = settings
        self._database = database
        self._cache = cache or SourceCache()

    def sweep(self) -> None:
        """One round: merged changes are looked for, and every ended job is judged, those of repositories in turn."""
        mirrors = Mirrors(self._settings, self._cache)
        adopt_merged(self._database, mirrors)
        while not self._stop.is_set() and self._judge_next(mirrors):
            pass

    def _judge_next(self, mirrors: Mirrors) -> bool:
        """Judges one ended job of each repository; False when there is none."""
        with self._database.session() as session:
            jobs = unjudged_jobs(session)
        for job in jobs:
            if self._stop.is_set():
                break
            JOB_ID.set(job.id)
            try:
                with self._database.session() as session:
                    origin = judging.read_origin(session, job.id)
                repository_id = origin.repository_id
                # Verdicts are about branches, and a trial may store commits that no branch had before.
                follow_branches(self._database, self._settings, repository_id)
                stored = self._stored_commits(repository_id)
                # A report is complete as soon as its jobs are judged, and it says what was traded.
                record_trades(self._database, job.commit_id, job.operator_id, job.device_id)
                with telemetry.span("judge", job.trace_parent, job_id=job.id):
                    judge_job(self._database, mirrors, job, self._settings.trial_share)
                if self._stored_commits(repository_id) != stored:
                    follow_branches(self._database, self._settings, repository_id)
                imported_at = job.finished_at if origin.origin in IMPORTED else None
                close_changes(self._database, mirrors, job.operator_id, job.device_id, imported_at)
                if imported_at is None and job.state == JobState.DONE:
                    follow_environment(self._database, mirrors.of(origin), job)
                if origin.confirm:
                    confirm_imported_changes(self._database, self._settings, job.submission_id)
            except EngineError:
                raise
            except Exception:  # noqa: BLE001
                # One result that cannot be judged must not keep all others waiting.
                _log.exception("job %d cannot be judged", job.id)
                with self._database.session() as session:
                    mark_judged(session, job.id)
            finally:
                JOB_ID.set(None)
        return bool(jobs)

    def _stored_commits(self, repository_id: int) -> list[int]:
        """The number of stored commits of a repository, and the id of the newest."""
        with self._database.session() as session:
            followed = read_followed(session, repository_id)
        return followed.commits if followed is not None else []


Write = Callable[[Session], None]
"""The part of judging a job that writes; ContextChangedError when it was decided from what is not true any more."""


@dataclass(frozen=True, slots=True)
class JobFacts:
    """All that judging an ended job starts from: either the regression that its trial is about, or what it measured.

    trial_id: of the trial that the job answers. point: the reading of the job itself. oldest: ordinal of the oldest
    commit that the verdict looks at. known: the regressions of the operator and device from there on. imported: rounds
    of a comparison that was made elsewhere. common: see list_common_shifts. sources: by commit.
    releases: what the series read at releases. drifts: of unchanged series of others on the card. awaited: ordinals of
    commits that the submission has yet to measure: no change is suspected across them.
    """

    job: EndedJob
    origin: JobOrigin
    trial_id: int | None = None
    regression: RegressionFacts | None = None
    readings: list[ObservedReading] = field(default_factory=list)
    point: ObservedReading | None = None
    checks: list[CheckRow] = field(default_factory=list)
    oldest: int = 0
    known: list[KnownChange] = field(default_factory=list)
    imported: list[RoundsRow] = field(default_factory=list)
    common: dict[tuple[int, int | None], float] = field(default_factory=dict)
    sources: dict[int, str] = field(default_factory=dict)
    releases: list[ReleaseReading] = field(default_factory=list)
    drifts: list[float] = field(default_factory=list)
    awaited: list[int] = field(default_factory=list)

    def is_awaited(self, base: int, head: int) -> bool:
        """Whether a commit between these ordinals has yet to be measured, which tells on which side a change lies."""
        return any(base < ordinal < head for ordinal in self.awaited)

    @property
    def imported_job_id(self) -> int | None:
        """The job, where it was imported: nothing can be measured for it here."""
        return self.job.id if self.origin.origin in IMPORTED else None


def judge_job(database: Database, mirrors: Mirrors, job: EndedJob, trial_share: float) -> None:
    """Draws every verdict that one ended job allows; nothing where another server was faster.

    trial_share: of a device's time, see db.trials.keep_share.
    """
    while True:
        with database.session() as session:
            facts = read_job(session, job)
        write = plan_job(database, mirrors, facts)
        try:
            with database.session() as session:
                if claim_unjudged(session, job):
                    write(session)
                    if facts.imported_job_id is not None and job.finished_at is not None:
                        date_back(session, job.operator_id, job.finished_at)
                    keep_share(session, job.device_id, trial_share)
                    mark_judged(session, job.id)
                    if facts.imported_job_id is None:
                        reopen_early(session, job.id)
                return
        except ContextChangedError:
            # Whoever changed it got on with its own work, so this does not go on for ever.
            continue


def read_job(session: Session, job: EndedJob) -> JobFacts:
    """The facts that judging a job starts from."""
    origin = judging.read_origin(session, job.id)
    trial = judging.find_trial(session, job.id)
    if trial is not None:
        return JobFacts(job, origin, trial.id, judging.read_facts(session, trial.regression_id))
    if job.state != JobState.DONE:
        return JobFacts(job, origin)
    if origin.origin in IMPORTED and job.kind == JobKind.COMPARE:
        return JobFacts(job, origin, imported=list_job_rounds(session, job.id))
    if job.kind == JobKind.BENCH:
        readings = list_readings(session, job.id)
        releases = list_release_readings(session, job.id)
        point = next((row for row in readings if row.commit_id == job.commit_id), None)
        commits = {row.commit_id for row in readings}
        sources = list_sources(session, readings[0].series_id, commits) if readings else {}
        oldest = min([row.ordinal for row in readings] + [row.ordinal for row in releases], default=0)
        return JobFacts(
            job,
            origin,
            readings=readings,
            point=point,
            oldest=oldest,
            known=judging.list_known(session, job.operator_id, job.device_id, oldest),
            common=list_common_shifts(session, job.operator_id, point.environment_id if point else 0, commits),
            sources={commit: row.sources for commit, row in sources.items()},
            releases=releases,
            drifts=[] if origin.card_id is None else list_other_drifts(session, origin.card_id, job.operator_id),
            awaited=judging.list_awaited(session, job.id),
        )
    if job.kind == JobKind.CHECK and job.spec.sanitize is None:
        # A sanitizer finds what a plain check cannot see, so the two are not compared.
        checks = list_checks_around(session, job.id)
        oldest = min((row.ordinal for row in checks), default=0)
        known = judging.list_known(session, job.operator_id, job.device_id, oldest)
        awaited = judging.list_awaited(session, job.id)
        return JobFacts(job, origin, checks=checks, oldest=oldest, known=known, awaited=awaited)
    return JobFacts(job, origin)


def plan_job(database: Database, mirrors: Mirrors, facts: JobFacts) -> Write:
    """Decides what to write. No transaction is open meanwhile, so git may take its time."""
    if facts.regression is not None:
        return _plan_trial(mirrors, facts.regression, facts.trial_id, facts.imported_job_id)
    if facts.imported:
        return lambda session: confirm_imported(session, facts.job, facts.origin.device_kind, facts.imported)
    if facts.imported_job_id is not None and not mirrors.of(facts.origin).path.is_dir():
        # Without the history nobody knows which commits are neighbours.
        return lambda session: None
    if facts.point is not None:
        return _plan_readings(database, mirrors.of(facts.origin), facts, facts.point)
    if any(row.status in BAD for row in facts.checks):
        return _plan_checks(mirrors.of(facts.origin), facts)
    if facts.job.kind == JobKind.COMPARE and facts.imported_job_id is None:
        return lambda session: repeat_unsure(session, facts.job.submission_id)
    return lambda session: None


# --- a trial --------------------------------------------------------------------------------------------------


def _plan_trial(mirrors: Mirrors, facts: RegressionFacts, trial_id: int | None, imported_job_id: int | None) -> Write:
    """The answer of a trial, and the steps that follow from it."""
    regression = facts.regression
    mirror = mirrors.of(regression)
    steps = plan_steps(
        RegressionContext(facts, ended_trial=trial_id),
        lambda step: _read_path(mirror, regression.operator, step.base_sha, step.head_sha),
        # The commits of a merged branch cannot be measured for results that were imported.
        lambda step: (
            _read_merge(mirror, regression.operator, step.base_sha, step.head_sha) if imported_job_id is None else ()
        ),
    )
    ids = {regression.base_sha: regression.base_commit_id, regression.head_sha: regression.head_commit_id}
    for trial in facts.trials:
        ids |= {trial.base_sha: trial.base_commit_id, trial.head_sha: trial.head_commit_id}
    unrecorded = [sha for sha in dict.fromkeys(_commits_of(steps)) if sha not in ids]
    infos = git.describe_many(mirror.path, unrecorded)

    def write(session: Session) -> None:
        all_ids = ids | record_commits(session, regression.repository_id, infos)
        place = (regression.operator_id, regression.device_id)
        VerdictWriter(session, *place, all_ids, imported_job_id).write_steps(facts, steps)

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


def _read_path(mirror: Mirror, operator: str, base_sha: str, head_sha: str) -> CommitPath:
    """The commits from base to head, and at which of them the operator has other sources."""
    try:
        shas = git.path(mirror.path, base_sha, head_sha)
    except git.GitError as error:
        return CommitPath((), str(error))
    fingerprints = [mirror.sources.of(sha, operator) for sha in shas]
    differs = [False] + [before != after for before, after in pairwise(fingerprints)]
    commits = zip(shas, differs, fingerprints, strict=True)
    return CommitPath(tuple(PathCommit(sha, differ, item is not None) for sha, differ, item in commits))


def _read_merge(mirror: Mirror, operator: str, base_sha: str, head_sha: str) -> tuple[CommitPath, ...]:
    """The branches that a merge commit brought to one of its parents, each from their newest common commit on; none
    where the commit is no merge."""
    try:
        parents = git_branches.parents_of(mirror.path, head_sha)
    except git.GitError as error:
        return (CommitPath((), str(error)),)
    if base_sha not in parents:
        return ()
    return tuple(_read_branch(mirror, operator, base_sha, parent) for parent in parents if parent != base_sha)


def _read_branch(mirror: Mirror, operator: str, base_sha: str, tip_sha: str) -> CommitPath:
    try:
        merge_base = git.merge_base(mirror.path, base_sha, tip_sha)
    except git.UnknownRefError as error:
        return CommitPath((), str(error))
    return _read_path(mirror, operator, merge_base, tip_sha)


# --- the new points of a bench job ------------------------------------------------------------------------------


def _plan_readings(database: Database, mirror: Mirror, facts: JobFacts, point: ObservedReading) -> Write:
    """Suspicions from the new points of a bench job."""
    job, origin, imported_job_id = facts.job, facts.origin, facts.imported_job_id
    measured = {(row.ordinal, row.sha) for row in facts.readings} | _ends_of(facts.known)
    measured |= {(row.ordinal, row.sha) for row in facts.releases}
    measured |= {(row.release_ordinal, row.release_sha) for row in facts.releases}
    line = mirror.line(point.sha, measured, point.ordinal, origin.trunk_sha)
    changes = _on_line(facts.known, line)
    known = KnownRegressions(changes)
    of_device = [row for row in facts.readings if row.metric != Signal.LAUNCH]
    logs = pair_cards(of_device, origin.card_id) if origin.card_id is not None else {}
    offsets = {other: item for other in logs if (item := learn_offset(logs[other], origin.device_kind)) is not None}
    at = (job.commit_id, point.environment_id, origin.device_kind)
    windows = windows_of(facts.readings, line, *at, facts.common, origin.card_id, offsets)
    windows = _with_references(windows, facts, line)
    common = facts.common.get((job.commit_id, origin.card_id), 0.0)
    timed = [window for window in windows if window.time_kind != Signal.LAUNCH]
    sources, variants, shifts = _read_shifts(mirror, origin.operator, point.sha, timed, common)
    drifts = _find_drifts(facts, point, sources)
    candidates = find_candidates(windows, known, is_complete=not facts.awaited)
    candidates = [item for item in candidates if not facts.is_awaited(item.base_ordinal, item.head_ordinal)]
    # What was measured elsewhere cannot be measured again, so history has the last word unless a file brought a trial.
    final, withdrawn = find_unpaired(windows, known) if imported_job_id else ([], [])
    pairs = {item.pair for item in (*candidates, *final)}
    code = _compare_code(database, mirror, origin.operator, job.operator_id, pairs)
    suspicions = find_suspicions(candidates, known, code, is_raised=bar_of(windows, known).is_raised)
    unpaired = find_suspicions(final, known, code)
    ids = {row.sha: row.commit_id for row in facts.readings}
    for change in changes:
        ids |= {change.base_sha: change.base_commit_id, change.head_sha: change.head_commit_id}

    def write(session: Session) -> None:
        if suspicions or unpaired:
            _prove_unchanged(session, facts)
        save_job_sources(
            session,
            job_id=job.id,
            operator_id=job.operator_id,
            commit_id=job.commit_id,
            environment_id=point.environment_id,
            card_id=origin.card_id,
            sources=sources,
            variants=variants,
            shifts=shifts,
            drifts=[item.log_ratio for item in drifts],
            drifts_since=max((item.since for item in drifts), default=None),
        )
        for other_id, by_series in logs.items():
            every = [value for values in by_series.values() for value in values][-MOST_PAIRS:]
            is_agreed = other_id in offsets and offsets[other_id].is_agreed
            save_card_offset(session, job.operator_id, origin.card_id or 0, other_id, every, is_agreed=is_agreed)
        writer = VerdictWriter(session, job.operator_id, job.device_id, ids, imported_job_id)
        writer.withdraw(withdrawn)
        answered = [item for item in suspicions if writer.suspect(item)]
        if imported_job_id is None and any(window.wants_repeat() for window in windows):
            repeat_bench(session, job.id)
        for item in unpaired:
            if not any(item.shares_series(other) for other in answered):
                common = find_common_shift(windows, item)
                writer.suspect(item, is_final=True, note=_common_note(common) if common is not None else "")

    return write


def _common_note(ratio: float) -> str:
    return (
        f"nearly all series moved alike here, by {written_change(ratio)}: rather the machine or a library than the code"
    )


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
            drift=0.0 if window.time_kind == Signal.LAUNCH else drift,
        )
        for window in windows
    ]


def _find_drifts(facts: JobFacts, point: ObservedReading, sources: str | None) -> list[SeriesDrift]:
    """How the series moved on the card of the job while the sources of its operator stayed the same."""
    card_id = facts.origin.card_id
    if card_id is None or sources is None:
        return []
    return find_drifts(
        [
            row
            for row in facts.readings
            if (row.card_id, row.environment_id) == (card_id, point.environment_id)
            and row.metric != Signal.LAUNCH
            and (row.commit_id == point.commit_id or facts.sources.get(row.commit_id) == sources)
        ]
    )


def _compare_code(
    database: Database, mirror: Mirror, operator: str, operator_id: int, pairs: Collection[CommitPair]
) -> dict[CommitPair, CodeDifference]:
    """Which variants of an operator have other code at one commit than at the other, for every pair.

    Where only native sources differ, other variants are the same; so are native ones whose machine code is. Whatever
    the sources are, calls that launch the same at both have the same work.
    """
    compared = {pair: _compare_sources(mirror, operator, pair) for pair in pairs}
    differences = {pair: difference for pair, (difference, _) in compared.items()}
    native_pairs = [pair for pair, (difference, is_native) in compared.items() if is_native and not difference.all]
    if native_pairs:
        with database.session() as session:
            for pair in native_pairs:
                hashes = [
                    judging.read_code_hash(session, operator_id, commit_id, pair.environment_id)
                    for commit_id in (pair.base_commit_id, pair.head_commit_id)
                ]
                is_same = bool(hashes[0]) and hashes[0] == hashes[1]
                names = set() if is_same else judging.list_native(session, pair.head_commit_id, operator)
                differences[pair] = CodeDifference(all=False, names=differences[pair].names | frozenset(names))
    ends = {commit for pair in pairs for commit in (pair.base_commit_id, pair.head_commit_id)}
    with database.session() as session:
        launched = read_digests(session, [operator_id], ends)
    runtime = mirror.sources.runtime
    return {
        pair: replace(
            difference,
            is_comparable=runtime(pair.base_sha) == runtime(pair.head_sha),
            same=_same_work(launched, pair),
        )
        for pair, difference in differences.items()
    }


def _same_work(launched: Mapping[LaunchedKey, str], pair: CommitPair) -> frozenset[tuple[str, str]]:
    """Variants and cases whose calls launch the same at both ends."""
    return frozenset(
        (at.variant, at.case)
        for at, digest in launched.items()
        if (at.commit_id, at.environment_id) == (pair.base_commit_id, pair.environment_id)
        and launched.get(at._replace(commit_id=pair.head_commit_id)) == digest
    )


def _read_shifts(
    mirror: Mirror, operator: str, sha: str, windows: Sequence[SeriesWindow], common: float
) -> tuple[str | None, dict[str, str], list[float]]:
    """The fingerprint of an operator's sources at a new point, hashes of the code of its variants, and by how much log
    time each series lay off its level there, where the sources are those of the commit before. common: what was taken
    off the times already."""
    try:
        sources = mirror.sources.of(sha, operator)
        variants = mirror.sources.variants(sha, operator)
        before = [window.before() for window in windows]
        is_same = [level is not None and mirror.same_sources(operator, level.sha, sha) for level in before]
    except git.GitError:
        return None, {}, []
    shifts = [window.shift() for window, same in zip(windows, is_same, strict=True) if same]
    known = {name: digest for name, digest in variants.items() if digest is not None}
    return sources, known, [shift + common for shift in shifts if shift is not None]


def _compare_sources(mirror: Mirror, operator: str, pair: CommitPair) -> tuple[CodeDifference, bool]:
    """The difference by the Python sources, and whether native ones differ, so that the machine code decides."""
    before, after = (mirror.sources.parts(sha, operator) for sha in (pair.base_sha, pair.head_sha))
    if before is None or after is None:
        return CodeDifference(all=True), False
    is_native = before[1] != after[1]
    if before[0] == after[0]:
        return CodeDifference(all=False), is_native
    names = mirror.sources.changed_variants(pair.base_sha, pair.head_sha, operator)
    return CodeDifference(all=names is None, names=names or frozenset()), is_native


# --- a check job ------------------------------------------------------------------------------------------------


def _plan_checks(mirror: Mirror, facts: JobFacts) -> Write:
    """Suspicions from a check job: where an operator's sources are the same at both ends no commit broke it."""
    job, origin = facts.job, facts.origin
    checked = next(row for row in facts.checks if row.commit_id == job.commit_id)
    measured = {(row.ordinal, row.sha) for row in facts.checks} | _ends_of(facts.known)
    line = mirror.line(checked.sha, measured, checked.ordinal, origin.trunk_sha)
    breakages = [
        item
        for item in find_breakages(facts.checks, line, job.commit_id)
        if not facts.is_awaited(item.base.ordinal, item.head.ordinal)
        and not mirror.same_sources(origin.operator, item.base.sha, item.head.sha)
    ]
    cells = [(item.base.variant_id, item.base.case_id) for item in breakages]
    ids = {row.sha: row.commit_id for item in breakages for row in (item.base, item.head)}
    known = KnownRegressions(_on_line(facts.known, line))

    def write(session: Session) -> None:
        if not breakages:
            return
        _prove_unchanged(session, facts)
        series = ensure_series(session, job.operator_id, job.device_id, cells, DEVICE_METRICS[origin.device_kind])
        writer = VerdictWriter(session, job.operator_id, job.device_id, ids, facts.imported_job_id)
        for suspicion in suspect_breakages(breakages, series, known):
            writer.suspect(suspicion)

    return write


# --- regressions near the readings and checks ---------------------------------------------------------------------


def _ends_of(changes: Iterable[KnownChange]) -> set[tuple[int, str]]:
    """Ordinals and ids of the commits that changes lie between."""
    heads = {(change.head_ordinal, change.head_sha) for change in changes}
    return heads | {(change.base_ordinal, change.base_sha) for change in changes}


def _on_line(changes: Iterable[KnownChange], line: set[str]) -> list[KnownChange]:
    """The changes of one line of history: what happened on another branch explains nothing here."""
    return [change for change in changes if {change.base_sha, change.head_sha} <= line]


def _prove_unchanged(session: Session, facts: JobFacts) -> None:
    """ContextChangedError when the regressions are not those that the suspicions were decided from."""
    if judging.list_known(session, facts.job.operator_id, facts.job.device_id, facts.oldest) != facts.known:
        raise ContextChangedError


def record_trades(database: Database, commit_id: int, operator_id: int, device_id: int) -> None:
    """Stores what a commit traded, and what the commits did whose results are held against its results."""
    place = operator_id, device_id
    with database.session() as session:
        for held in (commit_id, *list_next_commits(session, commit_id, *place)):
            save_trades(session, held, *place, find_trades(read_trade_facts(session, held, *place)))
