"""Draws verdicts in the background: suspects changes from new points, has them confirmed, and decides from paired rounds."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from db.database import Database
from db.errors import EngineError
from db.models import Verdict
from db.reads import judging
from db.reads.judging import Neighbours, SuspectedSeries, Suspicion
from db.reads.query import Session
from db.reaper import Reaper
from db.regressions import (
    EndedJob,
    SeriesDecision,
    attach_compare_job,
    decide,
    mark_judged,
    open_suspicion,
    set_triage,
    unjudged_jobs,
)
from db.submissions import NewJob, NewSubmission, create_submission
from server.verdicts import paired as verdicts
from server.verdicts.paired import Direction, Timing
from warpwatch import git
from warpwatch.settings import Settings

POLL_SECONDS = 1.0
CONFIRM_PRIORITY = 0
"""That of ordinary work: confirming neither waits for ever nor keeps new commits waiting."""
MAX_PAIRS = 6
"""Series that one comparison measures; the most changed ones come first."""
AUTHOR = "warpwatch"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Change:
    """A series that seems to have changed between two commits."""

    series_id: int
    variant: str
    case: str
    ratio: float


@dataclass(frozen=True, slots=True)
class Range:
    """Two commits, and which way the time went between them."""

    base_commit_id: int
    head_commit_id: int
    direction: Direction


class Judge:
    """A thread that judges ended jobs and gives back the jobs of workers that died."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings = settings
        self._database = database
        self._reaper = Reaper(settings.lease_seconds)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="judge", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after what it is at."""
        self._stop.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        # The reaper trusts what it sees only when it looks several times per lease.
        pause = min(POLL_SECONDS, self._settings.lease_seconds / 5)
        while not self._stop.wait(pause):
            try:
                self.sweep()
            except EngineError as error:
                _log.warning("verdicts wait: %s", error)
            except Exception:  # noqa: BLE001 - the thread must outlive what nobody thought of.
                _log.exception("verdicts wait for an error that is not known")

    def sweep(self) -> None:
        """One round: lost jobs are given back, and every ended job is judged."""
        with self._database.session() as session:
            for job_id in self._reaper.sweep(session):
                _log.warning("the worker of job %d was silent; the job was taken from it", job_id)
        while not self._stop.is_set() and self._judge_next():
            pass

    def _judge_next(self) -> bool:
        """Judge one ended job in a transaction of its own; False when there is none."""
        with self._database.session() as session:
            jobs = unjudged_jobs(session, limit=1)
            for job in jobs:
                try:
                    with session.begin_nested():
                        judge_job(session, self._settings, job)
                except EngineError:
                    raise
                except Exception:  # noqa: BLE001
                    # One result that cannot be judged must not keep all others waiting.
                    _log.exception("job %d cannot be judged", job.id)
                mark_judged(session, job.id)
        return bool(jobs)


def judge_job(session: Session, settings: Settings, job: EndedJob) -> None:
    """Draws every verdict that an ended job allows."""
    if job.kind == "compare":
        suspicion = judging.find_suspicion(session, job.id)
        if suspicion is not None:
            decide_suspicion(session, job, suspicion)
    elif job.kind == "bench" and job.state == "done":
        suspect_changes(session, settings, job)


def suspect_changes(session: Session, settings: Settings, job: EndedJob) -> None:
    """Opens a suspicion, and has it confirmed, for every range of commits in which a new point shows a change."""
    origin = judging.read_origin(session, job.submission_id)
    # What was measured elsewhere and imported cannot be measured again here.
    if origin is None or origin.origin in ("bundle", "example"):
        return
    mirror = git.mirror_path(origin.repository_url, settings.home)
    ranges: dict[Range, list[Change]] = defaultdict(list)
    for pair in _nearest(judging.list_neighbours(session, job.id), _Lineage(mirror)):
        found = _change(pair)
        if found is not None:
            ranges[found[0]].append(found[1])
    for where, changes in ranges.items():
        worst = sorted(changes, key=lambda change: _severity(change.ratio), reverse=True)[:MAX_PAIRS]
        _open(session, job, origin.repository_id, where, worst)


class _Lineage:
    """Tells whether one commit descends from another, asking git once per pair."""

    def __init__(self, mirror: Path) -> None:
        self._mirror = mirror
        self._known: dict[tuple[str, str], bool] = {}

    def joins(self, older: str, newer: str) -> bool:
        if (older, newer) not in self._known:
            try:
                self._known[older, newer] = git.is_ancestor(self._mirror, older, newer)
            except git.GitError as error:
                _log.warning("%s and %s are not compared: %s", older[:9], newer[:9], error)
                self._known[older, newer] = False
        return self._known[older, newer]


def _nearest(candidates: list[Neighbours], lineage: _Lineage) -> list[Neighbours]:
    """Of the candidates, nearest first, one older and one newer per series that lies on the same line of history."""
    found: dict[tuple[int, bool], Neighbours] = {}
    for pair in candidates:
        is_older = pair.other_ordinal < pair.ordinal
        base, head = (pair.other_sha, pair.sha) if is_older else (pair.sha, pair.other_sha)
        if (pair.series_id, is_older) not in found and lineage.joins(base, head):
            found[pair.series_id, is_older] = pair
    return list(found.values())


def _change(pair: Neighbours) -> tuple[Range, Change] | None:
    """The change between a point and its neighbour, if it is worth a comparison."""
    new = Timing(pair.median_ns, pair.low_ns, pair.high_ns)
    other = Timing(pair.other_median_ns, pair.other_low_ns, pair.other_high_ns)
    commits = (pair.other_commit_id, pair.commit_id)
    base, head = other, new
    if pair.other_ordinal > pair.ordinal:
        base, head, commits = new, other, commits[::-1]
    direction = verdicts.suspect(base, head, pair.device_kind)
    if direction is None:
        return None
    return Range(*commits, direction), Change(pair.series_id, pair.variant, pair.case, head.median_ns / base.median_ns)


def _open(session: Session, job: EndedJob, repository_id: int, where: Range, changes: list[Change]) -> None:
    regression_id = open_suspicion(
        session,
        operator_id=job.operator_id,
        device_id=job.device_id,
        base_commit_id=where.base_commit_id,
        head_commit_id=where.head_commit_id,
        direction=where.direction,
        ratio=changes[0].ratio,
        series=[(change.series_id, change.ratio) for change in changes],
    )
    if regression_id is None:
        return
    compare = NewJob(
        kind="compare",
        commit_id=where.head_commit_id,
        base_commit_id=where.base_commit_id,
        operator_id=job.operator_id,
        device_id=job.device_id,
        spec={"pairs": [[change.variant, change.case] for change in changes], "seed": 0},
    )
    submission_id = create_submission(
        session,
        NewSubmission(
            repository_id=repository_id,
            request={"regression": regression_id, "kinds": ["compare"]},
            jobs=[compare],
            origin="confirm",
            priority=CONFIRM_PRIORITY,
            idempotency_key=f"confirm:{regression_id}",
        ),
    )
    attach_compare_job(session, regression_id, judging.list_job_ids(session, submission_id)[0])


def decide_suspicion(session: Session, job: EndedJob, suspicion: Suspicion) -> None:
    """Confirms or dismisses a suspected change from the paired rounds of its compare job."""
    direction: Direction = "slower" if suspicion.direction == "slower" else "faster"
    members = judging.list_suspected_series(session, suspicion.id, job.id)
    decisions = [_decide_series(member, direction, suspicion.device_kind) for member in members]
    confirmed = [decision for decision in decisions if decision.verdict == Verdict.CONFIRMED]
    worst = max(confirmed or decisions, key=lambda decision: _severity(decision.ratio), default=None)
    decide(
        session,
        suspicion.id,
        _joint_verdict(decisions),
        ratio=worst.ratio if worst else None,
        low=worst.low if worst else None,
        high=worst.high if worst else None,
        series=decisions,
        base_trace_id=judging.find_trace(session, job.id, suspicion.base_commit_id, worst.series_id) if worst else None,
        head_trace_id=judging.find_trace(session, job.id, suspicion.head_commit_id, worst.series_id) if worst else None,
    )
    if confirmed:
        _supersede(session, suspicion.id)


def _decide_series(member: SuspectedSeries, direction: Direction, device_kind: str) -> SeriesDecision:
    if member.status != "ok":
        return SeriesDecision(member.series_id, Verdict.UNSURE)
    said = verdicts.decide(member.base_ns, member.head_ns, direction, member.suspected_ratio, device_kind)
    return SeriesDecision(member.series_id, Verdict(said.decision), said.ratio, said.low, said.high)


def _joint_verdict(decisions: list[SeriesDecision]) -> Verdict:
    """One confirmed series confirms the change; it is dismissed only when every series is."""
    said = {decision.verdict for decision in decisions}
    if Verdict.CONFIRMED in said:
        return Verdict.CONFIRMED
    return Verdict.DISMISSED if said == {Verdict.DISMISSED} else Verdict.UNSURE


def _supersede(session: Session, regression_id: int) -> None:
    """When a commit between two others is measured later, the change is found again in a narrower range; the wider one is done with."""
    for wider in judging.list_wider(session, regression_id):
        set_triage(session, wider, "invalid", author=AUTHOR, note=f"narrowed down to regression {regression_id}")


def _severity(ratio: float | None) -> float:
    """How far a ratio is from 1, either way."""
    return max(ratio, 1 / ratio) if ratio else 0.0
