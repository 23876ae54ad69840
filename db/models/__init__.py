"""The tables, one class each, in the order things come to be: code and devices, work, results, verdicts.

Durations are nanoseconds, sizes are bytes, times are UTC with time zone.
"""

from warpwatch.db.models.base import Base
from warpwatch.db.models.code import Case, Commit, Device, Environment, Operator, Repository, Variant, Worker
from warpwatch.db.models.proofs import Proof
from warpwatch.db.models.results import Build, Bundle, Point, Result, Samples, Series, Trace, TraceChunk, TraceKernel
from warpwatch.db.models.verdicts import Comparison, Regression, RegressionNote, RegressionSeries, Trial
from warpwatch.db.models.words import (
    Answer,
    Cause,
    Direction,
    JobKind,
    JobState,
    Purpose,
    RunState,
    ScheduleKind,
    Status,
    Triage,
    Verdict,
)
from warpwatch.db.models.work import Callback, Job, Run, RunLog, Schedule, Submission

__all__ = [
    "Answer",
    "Base",
    "Build",
    "Bundle",
    "Callback",
    "Case",
    "Cause",
    "Commit",
    "Comparison",
    "Device",
    "Direction",
    "Environment",
    "Job",
    "JobKind",
    "JobState",
    "Operator",
    "Point",
    "Proof",
    "Purpose",
    "Regression",
    "RegressionNote",
    "RegressionSeries",
    "Repository",
    "Result",
    "Run",
    "RunLog",
    "RunState",
    "Samples",
    "Schedule",
    "ScheduleKind",
    "Series",
    "Status",
    "Submission",
    "Trace",
    "TraceChunk",
    "TraceKernel",
    "Triage",
    "Trial",
    "Variant",
    "Verdict",
    "Worker",
]
