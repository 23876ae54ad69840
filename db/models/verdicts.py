"""Tables of verdicts: comparisons of two commits, regressions and people's notes on regressions."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from warpwatch.contract.words import (
    Answer,
    Cause,
    ChangeDirection,
    MergeCause,
    Purpose,
    Reason,
    StepCause,
    Triage,
    Verdict,
)
from warpwatch.db.models.base import Base, created, one_of


class ComparisonRecord(Base):
    """Paired rounds of two commits measured in turn on one device. ratio is head over base, with its 95 % interval."""

    __tablename__ = "all_comparisons"
    __table_args__ = (
        one_of("reason", Reason),
        UniqueConstraint("run_id", "series_id"),
        Index(None, "series_id"),
        Index(None, "base_commit_id"),
        Index(None, "head_commit_id"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    series_id: Mapped[int] = mapped_column(ForeignKey("series.id", ondelete="CASCADE"))
    base_commit_id: Mapped[int] = mapped_column(ForeignKey("commits.id", ondelete="CASCADE"))
    head_commit_id: Mapped[int] = mapped_column(ForeignKey("commits.id", ondelete="CASCADE"))
    status: Mapped[str]
    message: Mapped[str] = mapped_column(server_default="")
    reason: Mapped[str | None]
    """Why there are no rounds, where something other than the head is the cause; or what the controls say against the
    rounds."""
    base_ns: Mapped[list[Any]]
    """Median of each round; base_ns[i] and head_ns[i] were taken beside each other."""
    head_ns: Mapped[list[Any]]
    controls: Mapped[dict[str, Any] | None]
    """`again` and `waited`: each round's ratio of the base to itself, and of the base with a wait to itself; null where
    there were none."""
    cells: Mapped[dict[str, Any] | None]
    """Of rounds that measured both commits under both toolchains, those of each cell, as in contract.rounds.CellRounds;
    base_ns and head_ns are means over both toolchains then."""
    is_struck_out: Mapped[bool] = mapped_column(server_default="false")


class RegressionRecord(Base):
    """A change of one operator on one device between two commits, with every series that shows it.

    While a range of several commits is bisected, base and head move towards each other; `trials` keeps every step.
    """

    __tablename__ = "regressions"
    __table_args__ = (
        one_of("verdict", Verdict),
        one_of("state", Triage),
        one_of("direction", ChangeDirection),
        one_of("cause", Cause),
        one_of("merge_cause", MergeCause),
        UniqueConstraint("operator_id", "device_id", "base_commit_id", "head_commit_id", "direction"),
        Index(None, "verdict", "state", "id"),
        Index(None, "head_commit_id"),
        Index(None, "base_commit_id"),
        Index(None, "base_trace_id", postgresql_where="base_trace_id IS NOT NULL"),
        Index(None, "head_trace_id", postgresql_where="head_trace_id IS NOT NULL"),
        Index(None, "operator_id", "id"),
        Index(None, "merged_base_commit_id", postgresql_where="merged_base_commit_id IS NOT NULL"),
        Index(None, "merged_head_commit_id", postgresql_where="merged_head_commit_id IS NOT NULL"),
        Index(None, "partly_fixed_by_commit_id", postgresql_where="partly_fixed_by_commit_id IS NOT NULL"),
        Index("ix_regressions_unsettled", "id", postgresql_where="settled_at IS NULL"),
        Index("ix_regressions_decided", "decided_at", postgresql_where="verdict = 'confirmed'"),
        Index("ix_regressions_settled", "settled_at", postgresql_where="verdict = 'confirmed'"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    operator_id: Mapped[int] = mapped_column(ForeignKey("operators.id", ondelete="CASCADE"))
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id", ondelete="CASCADE"))
    base_commit_id: Mapped[int] = mapped_column(ForeignKey("commits.id", ondelete="CASCADE"))
    head_commit_id: Mapped[int] = mapped_column(ForeignKey("commits.id", ondelete="CASCADE"))
    direction: Mapped[str]
    cause: Mapped[str] = mapped_column(server_default=Cause.HISTORY)
    verdict: Mapped[str] = mapped_column(server_default=Verdict.SUSPECTED)
    state: Mapped[str] = mapped_column(server_default=Triage.NEW)
    ratio: Mapped[float | None]
    """Head over base of its worst series; measured in turn once confirmed, from history before.

    None where something broke.
    """
    low: Mapped[float | None]
    high: Mapped[float | None]
    compare_job_id: Mapped[int | None] = mapped_column(ForeignKey("jobs.id", ondelete="SET NULL"), index=True)
    base_trace_id: Mapped[int | None] = mapped_column(ForeignKey("traces.id", ondelete="SET NULL"))
    head_trace_id: Mapped[int | None] = mapped_column(ForeignKey("traces.id", ondelete="SET NULL"))
    assignee: Mapped[str | None]
    link: Mapped[str | None]
    """Where people talk about it: an issue, a pull request."""
    due_on: Mapped[date | None]
    created_at: Mapped[datetime] = created()
    decided_at: Mapped[datetime | None]
    settled_at: Mapped[datetime | None]
    """When nothing was left to be measured for it: decided, and its range as narrow as it gets."""
    triaged_at: Mapped[datetime | None]
    """When a person first said something of it."""
    fixed_by_commit_id: Mapped[int | None] = mapped_column(ForeignKey("commits.id", ondelete="SET NULL"), index=True)
    """The commit that ended it by the evidence: at which it passes again, or which a trial found faster again."""
    merged_as_id: Mapped[int | None] = mapped_column(ForeignKey("regressions.id", ondelete="SET NULL"), index=True)
    """The suspicion on the watched branch that it became when its branch was merged."""
    merge_cause: Mapped[str | None]
    """Part of the merge commit at the head that caused the change; None where the head is no merge."""
    merged_base_commit_id: Mapped[int | None] = mapped_column(ForeignKey("commits.id", ondelete="SET NULL"))
    merged_head_commit_id: Mapped[int | None] = mapped_column(ForeignKey("commits.id", ondelete="SET NULL"))
    """The narrowest range of the merged branch that shows the change: the last good commit and the first bad one."""
    merged_commits: Mapped[int | None]
    """How many commits that range holds."""
    left_ratio: Mapped[float | None]
    """What is left of it at its worst series still open, head over base; None while no later change undid any of it."""
    partly_fixed_by_commit_id: Mapped[int | None] = mapped_column(ForeignKey("commits.id", ondelete="SET NULL"))
    """The newest commit that ended it for some of its series, while others still show it."""


class TrialRecord(Base):
    """A job that was asked for to learn something about a regression, and what it said.

    A compare job measures both commits in turn; for something broken a check job tries the head alone.
    """

    __tablename__ = "trials"
    __table_args__ = (
        one_of("purpose", Purpose),
        one_of("answer", Answer),
        Index(None, "regression_id", "id"),
        Index(None, "base_commit_id"),
        Index(None, "head_commit_id"),
        Index(None, "merge_commit_id", postgresql_where="merge_commit_id IS NOT NULL"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    regression_id: Mapped[int] = mapped_column(ForeignKey("regressions.id", ondelete="CASCADE"))
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), unique=True)
    purpose: Mapped[str]
    base_commit_id: Mapped[int] = mapped_column(ForeignKey("commits.id", ondelete="CASCADE"))
    head_commit_id: Mapped[int] = mapped_column(ForeignKey("commits.id", ondelete="CASCADE"))
    merge_commit_id: Mapped[int | None] = mapped_column(ForeignKey("commits.id", ondelete="SET NULL"))
    """The merge commit whose merged branch holds both commits; None where they are of the range itself."""
    answer: Mapped[str] = mapped_column(server_default=Answer.PENDING)
    ratio: Mapped[float | None]
    low: Mapped[float | None]
    high: Mapped[float | None]
    message: Mapped[str] = mapped_column(server_default="")
    created_at: Mapped[datetime] = created()
    answered_at: Mapped[datetime | None]


class RegressionSeriesRecord(Base):
    __tablename__ = "regression_series"
    __table_args__ = (Index(None, "fixed_by_commit_id", postgresql_where="fixed_by_commit_id IS NOT NULL"),)
    regression_id: Mapped[int] = mapped_column(ForeignKey("regressions.id", ondelete="CASCADE"), primary_key=True)
    series_id: Mapped[int] = mapped_column(ForeignKey("series.id", ondelete="CASCADE"), primary_key=True, index=True)
    suspected_ratio: Mapped[float | None]
    """None where nothing but a status speaks."""
    base_status: Mapped[str | None]
    head_status: Mapped[str | None]
    """Statuses of the checks, where something broke."""
    verdict: Mapped[str] = mapped_column(server_default=Verdict.SUSPECTED)
    ratio: Mapped[float | None]
    low: Mapped[float | None]
    high: Mapped[float | None]
    left_ratio: Mapped[float | None]
    """What later confirmed changes left of it, head over base; None where there were none."""
    fixed_by_commit_id: Mapped[int | None] = mapped_column(ForeignKey("commits.id", ondelete="SET NULL"))
    """The commit that ended it for this series."""


class RegressionNoteRecord(Base):
    __tablename__ = "regression_notes"
    __table_args__ = (
        Index(None, "regression_id", "id"),
        Index("ix_regression_notes_fixed", "created_at", postgresql_where="state = 'fixed'"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    regression_id: Mapped[int] = mapped_column(ForeignKey("regressions.id", ondelete="CASCADE"))
    author: Mapped[str]
    state: Mapped[str]
    note: Mapped[str]
    changes: Mapped[dict[str, Any]] = mapped_column(server_default="{}")
    """Fields that were changed with the note, the state included, as {"assignee": [before, after], …}."""
    created_at: Mapped[datetime] = created()


class MutedSeriesRecord(Base):
    """A noisy series that raises neither suspicion nor alarm until a day has passed."""

    __tablename__ = "muted_series"
    __table_args__ = (Index(None, "until"),)
    series_id: Mapped[int] = mapped_column(ForeignKey("series.id", ondelete="CASCADE"), primary_key=True)
    until: Mapped[date]
    """The last day on which it is muted, in UTC."""
    author: Mapped[str]
    reason: Mapped[str] = mapped_column(server_default="")
    created_at: Mapped[datetime] = created()


class JobSourcesRecord(Base):
    """Sources of a bench's operator when the bench was judged; shifts and drifts of the run with unchanged sources."""

    __tablename__ = "job_sources"
    __table_args__ = (
        Index(None, "operator_id", "commit_id"),
        Index(None, "commit_id", "environment_id"),
        Index(None, "environment_id"),
    )
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    operator_id: Mapped[int] = mapped_column(ForeignKey("operators.id", ondelete="CASCADE"))
    commit_id: Mapped[int] = mapped_column(ForeignKey("commits.id", ondelete="CASCADE"))
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id", ondelete="CASCADE"))
    sources: Mapped[str | None]
    """Fingerprint of the operator's sources; None where git could not read them."""
    variants: Mapped[dict[str, Any] | None]
    """By variant, a hash of the Python code that its call can reach; without those of which it cannot be told."""
    shifts: Mapped[list[Any]] = mapped_column(server_default="[]")
    """By how much log time lay off the level of each series, where the sources are those of the commit before."""
    card_id: Mapped[int | None] = mapped_column(ForeignKey("cards.id", ondelete="SET NULL"), index=True)
    drifts: Mapped[list[Any]] = mapped_column(server_default="[]")
    """By how much log time of each series moved since `drifts_since`, on this card and with these sources."""
    drifts_since: Mapped[datetime | None]


class EnvironmentChangeRecord(Base):
    """The first bench of an operator on a device in a new environment, or on another card in the same one. commit_id:
    the newest commit that was measured in the old one, which is measured again in the new one."""

    __tablename__ = "environment_changes"
    __table_args__ = (
        UniqueConstraint(
            "operator_id",
            "device_id",
            "base_environment_id",
            "head_environment_id",
            "base_card_id",
            "head_card_id",
            name="uq_environment_changes_place",
            postgresql_nulls_not_distinct=True,
        ),
        Index(None, "device_id"),
        Index(None, "commit_id", "operator_id"),
        Index(None, "base_environment_id"),
        Index(None, "head_environment_id"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    operator_id: Mapped[int] = mapped_column(ForeignKey("operators.id", ondelete="CASCADE"))
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id", ondelete="CASCADE"))
    commit_id: Mapped[int] = mapped_column(ForeignKey("commits.id", ondelete="CASCADE"))
    base_environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id", ondelete="CASCADE"))
    head_environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id", ondelete="CASCADE"))
    base_card_id: Mapped[int | None] = mapped_column(ForeignKey("cards.id", ondelete="CASCADE"), index=True)
    head_card_id: Mapped[int | None] = mapped_column(ForeignKey("cards.id", ondelete="CASCADE"), index=True)
    """Both cards, where they alone differ; else None."""
    head_commit_id: Mapped[int | None] = mapped_column(ForeignKey("commits.id", ondelete="SET NULL"), index=True)
    """The first commit that was measured in the new environment."""
    is_by_commit: Mapped[bool] = mapped_column(server_default="false")
    """Whether that commit asks for the new environment by its warpwatch.toml, so that the one before is never measured
    in it."""
    compare_job_id: Mapped[int | None] = mapped_column(ForeignKey("jobs.id", ondelete="SET NULL"), index=True)
    """The comparison of both environments, where something moved and the old one may still exist."""
    created_at: Mapped[datetime] = created()


class EnvironmentStepRecord(Base):
    """By how much a series stepped when its environment changed: the time in the new environment over that in the old
    one, by what the cause names. code, toolchain: what either did, where both commits were measured in both."""

    __tablename__ = "environment_steps"
    __table_args__ = (one_of("cause", StepCause), Index(None, "series_id"))
    change_id: Mapped[int] = mapped_column(ForeignKey("environment_changes.id", ondelete="CASCADE"), primary_key=True)
    series_id: Mapped[int] = mapped_column(ForeignKey("series.id", ondelete="CASCADE"), primary_key=True)
    cause: Mapped[str]
    ratio: Mapped[float]
    low: Mapped[float]
    high: Mapped[float]
    is_decided: Mapped[bool]
    """Whether paired rounds in both environments decided it; else runs of their own suggest it."""
    code_ratio: Mapped[float | None]
    code_low: Mapped[float | None]
    code_high: Mapped[float | None]
    toolchain_ratio: Mapped[float | None]
    toolchain_low: Mapped[float | None]
    toolchain_high: Mapped[float | None]


class CardOffsetRecord(Base):
    """How far two cards of a device lie apart in the series of an operator that both measured at the same commits."""

    __tablename__ = "card_offsets"
    __table_args__ = (Index(None, "card_id"), Index(None, "other_card_id"))
    operator_id: Mapped[int] = mapped_column(ForeignKey("operators.id", ondelete="CASCADE"), primary_key=True)
    card_id: Mapped[int] = mapped_column(ForeignKey("cards.id", ondelete="CASCADE"), primary_key=True)
    other_card_id: Mapped[int] = mapped_column(ForeignKey("cards.id", ondelete="CASCADE"), primary_key=True)
    """The card with the smaller id."""
    logs: Mapped[list[Any]]
    """Log times of the card over those of the other one, one per series and commit."""
    is_agreed: Mapped[bool]
    """Whether the offset is known well enough to make one line of both."""
