"""Writes alarms from facts: what keeps numbers from coming, since when, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from typing import Literal, get_args

from warpwatch.contract.commit_ids import short_sha
from warpwatch.contract.environment import card_name
from warpwatch.contract.words import Reason
from warpwatch.db.cards import DriftRow, list_drifts
from warpwatch.db.reads.alarms import (
    PausedWorker,
    SharedDevice,
    StaleDevice,
    StaleWorker,
    UnfitDevice,
    list_paused_workers,
    list_shared_devices,
    list_stale_devices,
    list_stale_workers,
    list_unfit_devices,
)
from warpwatch.db.reads.devices import list_device_names
from warpwatch.db.reads.missing import BEFORE, REMOVALS, VANISHED_DAYS, MissingCause, MissingResults, list_missing
from warpwatch.db.reads.query import Session
from warpwatch.server.reports.formats import change
from warpwatch.server.verdicts.cards import judge_drift

AlarmKind = Literal[
    "no_space",
    "stale_device",
    "stale_worker",
    "paused_worker",
    "unfit",
    "shared_device",
    "slower_card",
    "missing",
    "vanished",
]
"""The one that stops most first."""
_ORDER = get_args(AlarmKind)


@dataclass(frozen=True, slots=True)
class AlarmRow:
    """Something that keeps numbers from coming although nobody asked for that.

    Fields that the alarm is not about are empty: a device has no operator. since: when it began, as far as is known.
    """

    kind: AlarmKind
    repository: str = field(kw_only=True, default="")
    operator: str = field(kw_only=True, default="")
    variant: str = field(kw_only=True, default="")
    cases: list[str] = field(kw_only=True, default_factory=list)
    device_key: str = field(kw_only=True, default="")
    commit_sha: str = field(kw_only=True, default="")
    job_id: int | None = field(kw_only=True, default=None)
    since: datetime
    message: str
    remedy: str


def list_alarms(
    session: Session, now: datetime, lease_seconds: float, repository_id: int | None = None
) -> list[AlarmRow]:
    """Every alarm of the service and of one repository, or of all, in the order of AlarmKind."""
    names = list_device_names(session)
    alarms = [
        *(_stale_device(row, names[row.device_key]) for row in list_stale_devices(session, now, lease_seconds)),
        *map(_stale_worker, list_stale_workers(session, now, lease_seconds)),
        *map(_paused_worker, list_paused_workers(session, now, lease_seconds)),
        *(_unfit_device(row, names[row.device_key]) for row in list_unfit_devices(session, now, lease_seconds)),
        *(_shared_device(row, names[row.device_key]) for row in list_shared_devices(session, now, lease_seconds)),
        *_slower_cards(list_drifts(session, now), names),
        *(_missing_results(row, names[row.device_key]) for row in list_missing(session, now, repository_id)),
    ]
    return sorted(
        alarms, key=lambda row: (_ORDER.index(row.kind), row.repository, row.operator, row.device_key, row.variant)
    )


def _stale_device(device: StaleDevice, name: str) -> AlarmRow:
    jobs = "1 job waits" if device.queued == 1 else f"{device.queued} jobs wait"
    option = "cuda:0" if device.device_kind == "cuda" else "cpu"
    return AlarmRow(
        "stale_device",
        max(device.oldest_at, device.last_heard_at or device.oldest_at),
        f"{jobs} for {name}, and no worker for it is alive",
        f"start one there with `warpwatch worker --device {option}`, or cancel what waits",
        device_key=device.device_key,
        job_id=device.job_id,
    )


def _stale_worker(worker: StaleWorker) -> AlarmRow:
    pace = worker.pace_seconds
    span = f"{pace / 60:.0f} minutes" if pace >= 90 else f"{max(pace, 1):.0f} s"
    at = f"it is at job {worker.job_id}" if worker.job_id else "it takes none of the jobs that wait"
    return AlarmRow(
        "stale_worker",
        worker.since,
        f"worker {worker.worker} gave no result for {worker.silent_seconds / 60:.0f} minutes; most of its jobs take "
        f"up to {span}, and {at}",
        "look at the job's log; cancel the job, or start the worker again",
        device_key=worker.device_key,
        job_id=worker.job_id,
    )


_PAUSES = {
    Reason.DISK_FULL: ("its disk is full", "free space on that machine"),
    Reason.HOST_FAULT: ("its machine cannot start what a job needs", "look at the jobs' logs and at the machine"),
    Reason.UNFIT_DEVICE: ("its device is not fit to be measured on", "end what else uses it or let it cool"),
    Reason.INTERNAL_ERROR: ("Warpwatch failed on it", "look at the worker's log"),
}


def _paused_worker(worker: PausedWorker) -> AlarmRow:
    why, remedy = _PAUSES[Reason(worker.reason)]
    return AlarmRow(
        "paused_worker",
        worker.since,
        f"worker {worker.worker} pauses until {worker.until:%H:%M:%S} UTC, because {why}: several jobs in a row failed",
        f"{remedy}; it goes on by itself",
        device_key=worker.device_key,
        job_id=worker.job_id,
    )


def _unfit_device(device: UnfitDevice, name: str) -> AlarmRow:
    jobs = "1 job failed for it" if device.failed == 1 else f"{device.failed} jobs failed for it"
    return AlarmRow(
        "unfit",
        device.since,
        f"{name}: {device.trouble}" + (f"; {jobs}" if device.failed else ""),
        "end what else uses the device or let it cool; then retry what failed",
        device_key=device.device_key,
        job_id=device.job_id,
    )


def _shared_device(device: SharedDevice, name: str) -> AlarmRow:
    return AlarmRow(
        "shared_device",
        device.since,
        f"{len(device.workers)} workers measure on one {name}: {', '.join(device.workers)}",
        "stop all but one: they disturb each other's times",
        device_key=device.device_key,
    )


def _slower_cards(drifts: Sequence[DriftRow], names: Mapping[str, str]) -> Iterator[AlarmRow]:
    """Cards whose unchanged series all became slower."""
    for _, group in groupby(drifts, key=lambda row: row.card_id):
        rows = list(group)
        loss = judge_drift([log for row in rows for log in row.log_ratios], rows[0].device_kind)
        if loss is not None:
            since = min(row.since for row in rows)
            card = card_name(rows[0].card_key)
            yield AlarmRow(
                "slower_card",
                since,
                f"card {card} of {names[rows[0].device_key]} lost {1 - 1 / loss.ratio:.1%} since {since:%Y-%m-%d}: "
                f"{loss.pairs} series of {len(rows)} operators with unchanged code take {change(loss.ratio)} "
                f"({change(loss.low)} … {change(loss.high)})",
                "look at its clocks, cooling and power limit, and at what else runs on its host; trials go on, since "
                "they compare on one card",
                device_key=rows[0].device_key,
                job_id=max(row.job_id for row in rows),
            )


def _missing_results(fact: MissingResults, device: str) -> AlarmRow:
    return AlarmRow(
        "vanished" if fact.cause in REMOVALS else "missing",
        fact.since,
        _missing_message(fact, device),
        _missing_remedy(fact),
        repository=fact.repository,
        operator=fact.operator,
        variant=fact.variant,
        cases=fact.cases,
        device_key=fact.device_key,
        commit_sha=fact.commit_sha,
        job_id=fact.job_id,
    )


def _missing_message(fact: MissingResults, device: str) -> str:
    """device: its name."""
    operator, sha = fact.operator, short_sha(fact.commit_sha)
    variant = f"{fact.variant} of {operator}"
    match fact.cause:
        case MissingCause.JOB_FAILED:
            return f"{operator} on {device} has no times at {sha}: job {fact.job_id} failed: {fact.job_message}"
        case MissingCause.NO_JOB:
            return f"all operators were submitted at {sha}, but {operator} got no job on {device}"
        case MissingCause.NO_RESULT:
            return (
                f"{variant} has no result for {_count(fact.cases)} at {sha} on {device}, nor a status that says why; "
                f"the {BEFORE} commits measured before had times"
            )
        case MissingCause.OPERATOR_REMOVED:
            return (
                f"{operator} is not in the catalogue of {sha} any more; "
                f"it was last measured on {device} at {short_sha(fact.last_sha)}"
            )
        case MissingCause.VARIANT_REMOVED:
            start = f"{variant} is not in"
        case MissingCause.CASES_REMOVED:
            start = f"{_count(fact.cases)} of {variant} left"
    return (
        f"{start} the catalogue of {sha}, or its suite {fact.suite}; the {BEFORE} commits before had times on {device}"
    )


def _missing_remedy(fact: MissingResults) -> str:
    if fact.cause in REMOVALS:
        return (
            f"put it back; if it was removed on purpose there is nothing to do: "
            f"this alarm ends {VANISHED_DAYS} days after the last result"
        )
    if fact.cause is MissingCause.JOB_FAILED:
        return f"fix what the message names, then run `warpwatch retry --job {fact.job_id}`"
    variant = f" --variants {fact.variant}" if fact.variant else ""
    return (
        f"measure it: `warpwatch submit --repository {fact.repository} --commit {fact.commit_sha[:12]} --kinds bench "
        f"--operators {fact.operator}{variant} --suite {fact.suite} --device {fact.device_key}`"
    )


def _count(cases: Sequence[str]) -> str:
    return f"case {cases[0]}" if len(cases) == 1 else f"{len(cases)} cases"
