"""Tables of measurements: results, series, points, samples, traces, builds, bundles."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, Connection, ForeignKey, Index, UniqueConstraint, event, text
from sqlalchemy.orm import Mapped, mapped_column

from warpwatch.contract.measurement import LONGEST_NS, SHORTEST_NS
from warpwatch.contract.words import AwaitedState, Status, TradeKind
from warpwatch.db.models.base import Base, created, one_of

COUNTING = ("results", "points", "comparisons")
"""Views of the tables `all_results` and so on, without what was struck out. Only a job's own page reads the tables."""


@event.listens_for(Base.metadata, "after_create")
def create_views(_metadata: object, connection: Connection, **_: object) -> None:
    """Makes the views with the tables, as the migration does."""
    for view in COUNTING:
        connection.execute(text(f"CREATE VIEW {view} AS SELECT * FROM all_{view} WHERE NOT is_struck_out"))


class ResultRecord(Base):
    """How one variant fared on one case in one run.

    `details` holds the tensor errors of a check, the health of a bench. Queries read the view `results`, which leaves
    out what a person struck out, and so do `points` and `comparisons`.
    """

    __tablename__ = "all_results"
    __table_args__ = (
        one_of("status", Status),
        # A compare job has results of two commits.
        UniqueConstraint("run_id", "commit_id", "variant_id", "case_id"),
        Index(None, "commit_id", "operator_id", "kind", "device_id"),
        Index(None, "operator_id", "device_id", "kind", "ordinal"),
        Index(None, "variant_id", "case_id", "device_id", "kind", "ordinal", "id"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    kind: Mapped[str]
    commit_id: Mapped[int] = mapped_column(ForeignKey("commits.id", ondelete="CASCADE"))
    ordinal: Mapped[int]
    operator_id: Mapped[int] = mapped_column(ForeignKey("operators.id", ondelete="CASCADE"))
    variant_id: Mapped[int] = mapped_column(ForeignKey("variants.id", ondelete="CASCADE"))
    case_id: Mapped[int] = mapped_column(ForeignKey("cases.id", ondelete="CASCADE"), index=True)
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id", ondelete="CASCADE"))
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id", ondelete="CASCADE"))
    status: Mapped[str]
    message: Mapped[str] = mapped_column(server_default="")
    details: Mapped[dict[str, Any]] = mapped_column(server_default="{}")
    is_struck_out: Mapped[bool] = mapped_column(server_default="false")
    created_at: Mapped[datetime] = created()


class SeriesRecord(Base):
    """operator × case × variant × device × protocol × metric over commits."""

    __tablename__ = "series"
    __table_args__ = (
        UniqueConstraint("operator_id", "device_id", "case_id", "variant_id", "metric", "protocol"),
        Index(None, "device_id", "metric"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    operator_id: Mapped[int] = mapped_column(ForeignKey("operators.id", ondelete="CASCADE"))
    case_id: Mapped[int] = mapped_column(ForeignKey("cases.id", ondelete="CASCADE"))
    variant_id: Mapped[int] = mapped_column(ForeignKey("variants.id", ondelete="CASCADE"))
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id", ondelete="CASCADE"))
    protocol: Mapped[str]
    metric: Mapped[str]


class PointRecord(Base):
    """One series at one commit, as one run measured it."""

    __tablename__ = "all_points"
    __table_args__ = (
        UniqueConstraint("series_id", "result_id"),
        Index(None, "series_id", "ordinal", "id"),
        Index(None, "commit_id"),
        Index(None, "result_id"),
        CheckConstraint(
            f"low_ns >= {SHORTEST_NS} AND low_ns <= median_ns AND median_ns <= high_ns AND high_ns <= {LONGEST_NS}",
            name="times_possible",
        ),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    series_id: Mapped[int] = mapped_column(ForeignKey("series.id", ondelete="CASCADE"))
    commit_id: Mapped[int] = mapped_column(ForeignKey("commits.id", ondelete="CASCADE"))
    ordinal: Mapped[int]
    """The commit's ordinal, repeated here so that a history is one index range."""
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id", ondelete="CASCADE"))
    result_id: Mapped[int] = mapped_column(ForeignKey("all_results.id", ondelete="CASCADE"))
    median_ns: Mapped[float]
    low_ns: Mapped[float]
    high_ns: Mapped[float]
    noise: Mapped[float]
    count: Mapped[int]
    dropped: Mapped[int] = mapped_column(server_default="0")
    roofline_share: Mapped[float | None]
    """Lower bound from the measured ceilings over the median; `bound` says which ceiling binds."""
    bound: Mapped[str | None]
    is_struck_out: Mapped[bool] = mapped_column(server_default="false")
    measured_at: Mapped[datetime] = created()
    card_id: Mapped[int | None] = mapped_column(ForeignKey("cards.id", ondelete="SET NULL"))
    """The physical card of the device; None where that is not known."""


class TrendRecord(Base):
    """How an operator moved over the newest commits on a device, so that the overview need not read all its points."""

    __tablename__ = "trends"
    operator_id: Mapped[int] = mapped_column(ForeignKey("operators.id", ondelete="CASCADE"), primary_key=True)
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id", ondelete="CASCADE"), primary_key=True)
    metric: Mapped[str] = mapped_column(primary_key=True)
    commit_ids: Mapped[list[Any]]
    """The commits that are compared, oldest first; what is kept is no answer for others."""
    cells: Mapped[list[Any]]
    """The fields of each db.reads.trends.TrendCell but the name of the operator."""


class SamplesRecord(Base):
    """Every kept sample of a point: float32 nanoseconds, little endian, zlib."""

    __tablename__ = "samples"
    point_id: Mapped[int] = mapped_column(ForeignKey("all_points.id", ondelete="CASCADE"), primary_key=True)
    data: Mapped[bytes]


class TraceRecord(Base):
    """A Chrome trace, gzip'ed, in chunks. Not listed before it is `complete`."""

    __tablename__ = "traces"
    id: Mapped[int] = mapped_column(primary_key=True)
    result_id: Mapped[int] = mapped_column(ForeignKey("all_results.id", ondelete="CASCADE"), index=True)
    size: Mapped[int]
    compressed_size: Mapped[int]
    sha256: Mapped[str]
    runtime_calls: Mapped[dict[str, Any]] = mapped_column(server_default="{}")
    summary: Mapped[dict[str, Any]] = mapped_column(server_default="{}")
    """Other contents of the trace: launches, gaps, memory, operators with their kernels, the order of kernels."""
    report: Mapped[bytes | None] = mapped_column(deferred=True)
    """Nsight Compute's file, where counters were asked for and permitted."""
    created_at: Mapped[datetime] = created()


class TraceChunkRecord(Base):
    __tablename__ = "trace_chunks"
    trace_id: Mapped[int] = mapped_column(ForeignKey("traces.id", ondelete="CASCADE"), primary_key=True)
    index: Mapped[int] = mapped_column(primary_key=True)
    data: Mapped[bytes]


class TraceKernelRecord(Base):
    __tablename__ = "trace_kernels"
    __table_args__ = (Index(None, "trace_id", "total_ns"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    trace_id: Mapped[int] = mapped_column(ForeignKey("traces.id", ondelete="CASCADE"))
    name: Mapped[str]
    calls: Mapped[int]
    total_ns: Mapped[float]
    mean_ns: Mapped[float]
    share: Mapped[float]
    details: Mapped[dict[str, Any]] = mapped_column(server_default="{}")


class BuildRecord(Base):
    """One build of one operator's library for a commit: how long it took and what the compiler made of it."""

    __tablename__ = "builds"
    __table_args__ = (UniqueConstraint("commit_id", "operator_id", "environment_id"), Index(None, "operator_id"))
    id: Mapped[int] = mapped_column(primary_key=True)
    commit_id: Mapped[int] = mapped_column(ForeignKey("commits.id", ondelete="CASCADE"))
    operator_id: Mapped[int] = mapped_column(ForeignKey("operators.id", ondelete="CASCADE"))
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id", ondelete="CASCADE"))
    status: Mapped[str]
    key: Mapped[str]
    cached: Mapped[bool]
    seconds: Mapped[float]
    log: Mapped[str]
    resources: Mapped[list[Any]]
    compile_seconds: Mapped[float | None]
    """Seconds that compilers and linker took when the library was built, for this commit or for an earlier commit with
    the same sources."""
    code_hash: Mapped[str] = mapped_column(server_default="")
    """Fingerprint of all machine code in the library; empty where it is unknown."""
    built_at: Mapped[datetime] = created()


class TradeRecord(Base):
    """What a commit changed for a variant beside its time, so that lists of commits need not compare all their results.

    Written by the judge from the results that count; see db.reads.trades.Trade. variant_id and case_id are null where
    it concerns the operator's library.
    """

    __tablename__ = "trades"
    __table_args__ = (
        one_of("kind", TradeKind),
        UniqueConstraint(
            "commit_id",
            "operator_id",
            "device_id",
            "variant_id",
            "kind",
            "is_worse",
            name="uq_trades_place",
            postgresql_nulls_not_distinct=True,
        ),
        Index("ix_trades_costs", "operator_id", postgresql_where="is_worse AND is_exact AND accepted_by IS NULL"),
        Index("ix_trades_gains", "operator_id", "device_id", "kind", "variant_id", postgresql_where="NOT is_worse"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    commit_id: Mapped[int] = mapped_column(ForeignKey("commits.id", ondelete="CASCADE"))
    operator_id: Mapped[int] = mapped_column(ForeignKey("operators.id", ondelete="CASCADE"), index=True)
    device_id: Mapped[int] = mapped_column(ForeignKey("devices.id", ondelete="CASCADE"), index=True)
    variant_id: Mapped[int | None] = mapped_column(ForeignKey("variants.id", ondelete="CASCADE"), index=True)
    case_id: Mapped[int | None] = mapped_column(ForeignKey("cases.id", ondelete="CASCADE"), index=True)
    kind: Mapped[str]
    is_worse: Mapped[bool]
    is_exact: Mapped[bool]
    is_faster: Mapped[bool]
    tensor: Mapped[str]
    metric: Mapped[str]
    before: Mapped[float | None]
    after: Mapped[float | None]
    change: Mapped[float | None]
    """Of the time, head over base."""
    passes: Mapped[dict[str, Any]] = mapped_column(server_default="{}")
    since: Mapped[str | None]
    """Id of the commit that it is held against, where others lie between them."""
    cases: Mapped[int]
    accepted_by: Mapped[str | None]
    """Who said that the cost may stay."""
    accepted_at: Mapped[datetime | None]
    found_at: Mapped[datetime] = created()


class BundleRecord(Base):
    """A results file that was imported; its digest makes a second import a no-op."""

    __tablename__ = "bundles"
    id: Mapped[int] = mapped_column(primary_key=True)
    sha256: Mapped[str] = mapped_column(unique=True)
    name: Mapped[str]
    submission_id: Mapped[int] = mapped_column(ForeignKey("submissions.id", ondelete="CASCADE"), index=True)
    imported_at: Mapped[datetime] = created()


class AwaitedFileRecord(Base):
    """A file of results that waits for its commit, as it was sent and what was asked with it."""

    __tablename__ = "awaited_files"
    __table_args__ = (one_of("state", AwaitedState), Index(None, "repository_id", "id"))
    id: Mapped[int] = mapped_column(primary_key=True)
    repository_id: Mapped[int] = mapped_column(ForeignKey("repositories.id", ondelete="CASCADE"))
    state: Mapped[str] = mapped_column(server_default="waiting")
    message: Mapped[str] = mapped_column(server_default="")
    """Why it was refused."""
    sha256: Mapped[str] = mapped_column(unique=True)
    """Of the content, the commit and the rest of the request: a second one changes nothing."""
    commit_sha: Mapped[str]
    name: Mapped[str]
    format: Mapped[str]
    program: Mapped[str | None]
    device: Mapped[str | None]
    confirm: Mapped[bool]
    content: Mapped[bytes | None] = mapped_column(deferred=True)
    """zlib; NULL once it waits no more."""
    submission_id: Mapped[int | None] = mapped_column(ForeignKey("submissions.id", ondelete="SET NULL"), index=True)
    created_at: Mapped[datetime] = created()
    ended_at: Mapped[datetime | None]
