"""The tables, one class each, in the order things come to be: code and devices, work, results, verdicts.

Durations are nanoseconds, sizes are bytes, times are UTC with time zone.
"""

from db.models.base import Base
from db.models.code import Case, Commit, Device, Environment, Operator, Repository, Variant, Worker
from db.models.proofs import Proof
from db.models.results import Build, Bundle, Point, Result, Samples, Series, Trace, TraceChunk, TraceKernel
from db.models.verdicts import Comparison, Regression, RegressionNote, RegressionSeries
from db.models.words import JobKind, JobState, RunState, Status, Triage, Verdict
from db.models.work import Job, Run, RunLog, Submission

__all__ = [
    "Base",
    "Build",
    "Bundle",
    "Case",
    "Commit",
    "Comparison",
    "Device",
    "Environment",
    "Job",
    "JobKind",
    "JobState",
    "Operator",
    "Point",
    "Proof",
    "Regression",
    "RegressionNote",
    "RegressionSeries",
    "Repository",
    "Result",
    "Run",
    "RunLog",
    "RunState",
    "Samples",
    "Series",
    "Status",
    "Submission",
    "Trace",
    "TraceChunk",
    "TraceKernel",
    "Triage",
    "Variant",
    "Verdict",
    "Worker",
]
