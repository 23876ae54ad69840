"""The closed lists: states, kinds, verdicts."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """How one variant fared on one case."""

    OK = "ok"
    WRONG = "wrong"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    BUILD_FAILED = "build_failed"
    UNSUPPORTED = "unsupported"
    SKIPPED = "skipped"


class Reason(StrEnum):
    """Why a job, a run or a comparison has no number. A message beside it is for people; nothing is decided by it.

    unchanged (job): the sources are those of a commit that was measured. base_failed (comparison): the base could not
    be measured, which says nothing about the head. interpreter_mismatch (job, run): the two commits ask for different
    interpreters, so they cannot be compared. unfit_device (job, run): the device was busy, throttled or too hot to be
    measured on. git_unreachable, disk_full, host_fault (job, run): an outage of the repository's host, of the worker's
    disk, or of the worker's machine otherwise. internal_error (job, run): an error of Warpwatch itself. unstorable
    (job, run): the results hold what the database cannot. worker_lost (job, run): the worker fell silent while it ran
    the job.
    """

    UNCHANGED = "unchanged"
    BASE_FAILED = "base_failed"
    INTERPRETER_MISMATCH = "interpreter_mismatch"
    UNFIT_DEVICE = "unfit_device"
    GIT_UNREACHABLE = "git_unreachable"
    DISK_FULL = "disk_full"
    HOST_FAULT = "host_fault"
    INTERNAL_ERROR = "internal_error"
    UNSTORABLE = "unstorable"
    WORKER_LOST = "worker_lost"


OUTAGES = frozenset({Reason.GIT_UNREACHABLE, Reason.DISK_FULL, Reason.HOST_FAULT})
"""Reasons that say nothing about the job: a run that ends with one does not count as an attempt."""
HOST_REASONS = frozenset({Reason.DISK_FULL, Reason.HOST_FAULT, Reason.UNFIT_DEVICE, Reason.INTERNAL_ERROR})
"""Reasons that speak against the worker: after several runs in a row that end with one, it pauses."""


class JobState(StrEnum):
    """queued → running → done | failed | cancelled; running → queued when its worker was lost; failed | cancelled |
    done → queued on retry."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class RunState(StrEnum):
    """running → done (results recorded) | failed (could not run) | lost (lease ran out) | cancelled."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    LOST = "lost"
    CANCELLED = "cancelled"


class JobKind(StrEnum):
    CHECK = "check"
    BENCH = "bench"
    PROFILE = "profile"
    COMPARE = "compare"


class ScheduleKind(StrEnum):
    """suite: the newest commit, whole.

    rerun: a commit measured before, once more. backfill: commits that series have no point at.
    """

    SUITE = "suite"
    RERUN = "rerun"
    BACKFILL = "backfill"


class ChangeDirection(StrEnum):
    """Which way a change went.

    `broken` is a case that was right before, and is wrong, crashes or cannot be built since.
    """

    SLOWER = "slower"
    FASTER = "faster"
    BROKEN = "broken"


class Cause(StrEnum):
    """What gave rise to a suspicion: times in history, machine code that changed where history sees too little, or a
    status."""

    HISTORY = "history"
    CODE = "code"
    STATUS = "status"


class Purpose(StrEnum):
    """Why a trial was asked for: to decide a suspicion, once more with a larger budget, to halve a range, to prove the
    commit found."""

    CONFIRM = "confirm"
    RETRY = "retry"
    BISECT = "bisect"
    PROVE = "prove"


class Answer(StrEnum):
    """What a trial said of its two commits. `skipped`: its commit cannot be measured, so that another one is tried."""

    PENDING = "pending"
    CHANGED = "changed"
    SAME = "same"
    UNSURE = "unsure"
    SKIPPED = "skipped"


class Verdict(StrEnum):
    """suspected → confirmed | dismissed | unsure, decided by an interleaved comparison."""

    SUSPECTED = "suspected"
    CONFIRMED = "confirmed"
    DISMISSED = "dismissed"
    UNSURE = "unsure"


class Triage(StrEnum):
    """What people made of a confirmed change; any state may follow any other, with a note."""

    NEW = "new"
    ACKNOWLEDGED = "acknowledged"
    ACCEPTED = "accepted"
    FIXED = "fixed"
    INVALID = "invalid"
