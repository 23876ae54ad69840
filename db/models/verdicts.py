"""What is made of it: comparisons of two commits, regressions and what people said of them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from db.models.base import Base, created, one_of
from db.models.words import Triage, Verdict


class Comparison(Base):
    """Paired rounds of two commits measured in turn on one device. ratio is head over base, with its 95 % interval."""

    __tablename__ = "comparisons"
    __table_args__ = (UniqueConstraint("run_id", "series_id"), Index(None, "series_id"))
    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    series_id: Mapped[int] = mapped_column(ForeignKey("series.id", ondelete="CASCADE"))
    base_commit_id: Mapped[int] = mapped_column(ForeignKey("commits.id", ondelete="CASCADE"))
    head_commit_id: Mapped[int] = mapped_column(ForeignKey("commits.id", ondelete="CASCADE"))
    status: Mapped[str]
    message: Mapped[str] = mapped_column(server_default="")
    base_ns: Mapped[list[Any]]
    """Median of each round; base_ns[i] and head_ns[i] were taken beside each other."""
    head_ns: Mapped[list[Any]]


class Regression(Base):
    """A change of one operator on one device between two commits, slower or faster, with every series that shows it."""

    __tablename__ = "regressions"
    __table_args__ = (
        one_of("verdict", Verdict),
        one_of("state", Triage),
        UniqueConstraint("operator_id", "device_id", "base_commit_id", "head_commit_id", "direction"),
        Index(None, "verdict", "state", "id"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    operator_id: Mapped[int] = mapped_column(ForeignKey("operators.id", ondelete="CASCADE"))
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id", ondelete="CASCADE"))
    base_commit_id: Mapped[int] = mapped_column(ForeignKey("commits.id", ondelete="CASCADE"))
    head_commit_id: Mapped[int] = mapped_column(ForeignKey("commits.id", ondelete="CASCADE"))
    direction: Mapped[str]
    """slower | faster."""
    verdict: Mapped[str] = mapped_column(server_default=Verdict.SUSPECTED)
    state: Mapped[str] = mapped_column(server_default=Triage.NEW)
    ratio: Mapped[float]
    """Head over base of its worst series; measured in turn once confirmed, from history before."""
    low: Mapped[float | None]
    high: Mapped[float | None]
    compare_job_id: Mapped[int | None] = mapped_column(ForeignKey("jobs.id", ondelete="SET NULL"), index=True)
    base_trace_id: Mapped[int | None] = mapped_column(ForeignKey("traces.id", ondelete="SET NULL"))
    head_trace_id: Mapped[int | None] = mapped_column(ForeignKey("traces.id", ondelete="SET NULL"))
    created_at: Mapped[datetime] = created()
    decided_at: Mapped[datetime | None]


class RegressionSeries(Base):
    __tablename__ = "regression_series"
    regression_id: Mapped[int] = mapped_column(ForeignKey("regressions.id", ondelete="CASCADE"), primary_key=True)
    series_id: Mapped[int] = mapped_column(ForeignKey("series.id", ondelete="CASCADE"), primary_key=True, index=True)
    suspected_ratio: Mapped[float]
    verdict: Mapped[str] = mapped_column(server_default=Verdict.SUSPECTED)
    ratio: Mapped[float | None]
    low: Mapped[float | None]
    high: Mapped[float | None]


class RegressionNote(Base):
    __tablename__ = "regression_notes"
    __table_args__ = (Index(None, "regression_id", "id"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    regression_id: Mapped[int] = mapped_column(ForeignKey("regressions.id", ondelete="CASCADE"))
    author: Mapped[str]
    state: Mapped[str]
    note: Mapped[str]
    created_at: Mapped[datetime] = created()
