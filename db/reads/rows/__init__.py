"""What reading returns.

Durations are nanoseconds, sizes bytes, times UTC; a `change` is new over old, 1.0 meaning no change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from warpwatch.db.reads.rows.builds import BuildView, CodeChange, CodeCommit, CodeHistory, CodeSeries, KernelCode
from warpwatch.db.reads.rows.code import CaseRow, CommitRow, OperatorRow, RepositoryRow, UnchangedRow
from warpwatch.db.reads.rows.devices import DeviceRow, EnvironmentView, HealthRow, JobStatusRow, WorkerRow
from warpwatch.db.reads.rows.proofs import FalseAlarmView, PlantedFaultView, ProofView
from warpwatch.db.reads.rows.schedules import ScheduleRow
from warpwatch.db.reads.rows.timings import (
    CommitCell,
    CommitDetail,
    ComparedRow,
    MeasuredSeries,
    OverviewCell,
    PointRow,
    PointSamples,
    ReadingRow,
    SeriesHistory,
    SeriesRow,
    StatusMark,
)
from warpwatch.db.reads.rows.verdicts import (
    EventRow,
    NoteRow,
    QualityRow,
    RegressionDetail,
    RegressionRow,
    RegressionSeriesRow,
    TrialRow,
    Verdicts,
)
from warpwatch.db.reads.rows.work import (
    JobDetail,
    JobRow,
    KernelView,
    LogLine,
    ResultView,
    RunRow,
    SubmissionRow,
    TraceDetail,
    TraceRow,
)

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """One page of a list, newest first; `next_before` is the cursor of the following page, None on the last."""

    items: list[Item]
    next_before: int | None


__all__ = [
    "BuildView",
    "CaseRow",
    "CodeChange",
    "CodeCommit",
    "CodeHistory",
    "CodeSeries",
    "CommitCell",
    "CommitDetail",
    "CommitRow",
    "ComparedRow",
    "DeviceRow",
    "EnvironmentView",
    "EventRow",
    "FalseAlarmView",
    "HealthRow",
    "JobDetail",
    "JobRow",
    "JobStatusRow",
    "KernelCode",
    "KernelView",
    "LogLine",
    "MeasuredSeries",
    "NoteRow",
    "OperatorRow",
    "OverviewCell",
    "Page",
    "PlantedFaultView",
    "PointRow",
    "PointSamples",
    "ProofView",
    "QualityRow",
    "ReadingRow",
    "RegressionDetail",
    "RegressionRow",
    "RegressionSeriesRow",
    "RepositoryRow",
    "ResultView",
    "RunRow",
    "ScheduleRow",
    "SeriesHistory",
    "SeriesRow",
    "StatusMark",
    "SubmissionRow",
    "TraceDetail",
    "TraceRow",
    "TrialRow",
    "UnchangedRow",
    "Verdicts",
    "WorkerRow",
]
