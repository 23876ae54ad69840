"""Retention rules, and deletions under way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import CheckConstraint, ForeignKey, Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped, Session, mapped_column

from warpwatch.contract.words import RetentionKind
from warpwatch.db.models.base import Base, created, one_of
from warpwatch.db.reads.query import fetch, fetch_one


class RetentionRuleRecord(Base):
    """How long a repository keeps one kind of data; without a row it keeps it for good."""

    __tablename__ = "retention_rules"
    __table_args__ = (one_of("kind", RetentionKind), CheckConstraint("days BETWEEN 1 AND 36500", name="days_possible"))
    repository_id: Mapped[int] = mapped_column(ForeignKey("repositories.id", ondelete="CASCADE"), primary_key=True)
    kind: Mapped[str] = mapped_column(primary_key=True)
    days: Mapped[int]
    seen_id: Mapped[int] = mapped_column(server_default="0")
    """Rows up to this one were looked at with these days, so that no round reads them again."""
    run_at: Mapped[datetime | None]
    deleted: Mapped[int] = mapped_column(server_default="0")
    """Number of items that the rule has deleted in total."""
    freed_bytes: Mapped[int] = mapped_column(server_default="0")


class DeletionRecord(Base):
    """A submission, or the commits of a branch, that somebody deleted; gone once all their rows are."""

    __tablename__ = "deletions"
    __table_args__ = (UniqueConstraint("submission_id"), Index(None, "repository_id"))
    id: Mapped[int] = mapped_column(primary_key=True)
    repository_id: Mapped[int] = mapped_column(ForeignKey("repositories.id", ondelete="CASCADE"))
    submission_id: Mapped[int | None] = mapped_column(ForeignKey("submissions.id", ondelete="CASCADE"))
    """None where it is about commits."""
    commit_ids: Mapped[list[Any]] = mapped_column(server_default="[]")
    requested_at: Mapped[datetime] = created()


ROUND_SECONDS = 3600.0
"""How often a rule is applied."""


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """How many days a repository keeps one kind of data. run_at: when it was last applied. deleted, freed_bytes: what
    it has deleted altogether."""

    repository_id: int
    kind: RetentionKind
    days: int
    seen_id: int
    run_at: datetime | None
    deleted: int
    freed_bytes: int


@dataclass(frozen=True, slots=True)
class RetentionPreview:
    """Number and size of the rows that a rule would delete now."""

    rows: int
    bytes: int


class _Age(NamedTuple):
    """How to find what is too old: the table with its key, what leads from a row to its operator, when the row was
    made, how large it is, and which rows stay although they are old."""

    table: str
    key: str
    joins: str
    made_at: str
    size: str
    stays: str


_AGES = {
    RetentionKind.SAMPLES: _Age(
        "samples",
        "point_id",
        "JOIN all_points ON all_points.id = point_id JOIN series ON series.id = series_id "
        "JOIN operators ON operators.id = series.operator_id",
        "all_points.measured_at",
        "octet_length(samples.data)",
        "false",
    ),
    RetentionKind.TRACES: _Age(
        "traces",
        "id",
        "JOIN all_results ON all_results.id = result_id JOIN operators ON operators.id = all_results.operator_id",
        "traces.created_at",
        "traces.compressed_size + coalesce(octet_length(traces.report), 0)",
        # A regression shows its pair of traces for as long as it is there.
        "traces.id IN (SELECT base_trace_id FROM regressions WHERE base_trace_id IS NOT NULL UNION ALL "
        "SELECT head_trace_id FROM regressions WHERE head_trace_id IS NOT NULL)",
    ),
    RetentionKind.LOGS: _Age(
        "run_logs",
        "id",
        "JOIN runs ON runs.id = run_id JOIN jobs ON jobs.id = runs.job_id "
        "JOIN operators ON operators.id = jobs.operator_id",
        "run_logs.created_at",
        "octet_length(run_logs.text)",
        "runs.finished_at IS NULL",
    ),
    RetentionKind.BUILDS: _Age(
        "builds",
        "id",
        "JOIN operators ON operators.id = operator_id",
        "builds.built_at",
        "octet_length(builds.log)",
        "builds.log = ''",
    ),
}


def list_rules(session: Session, repository_id: int) -> list[RetentionRule]:
    """The rules of a repository, in the order of their kinds."""
    sql = """
    SELECT repository_id, kind, days, seen_id, run_at, deleted, freed_bytes FROM retention_rules
    WHERE repository_id = :id
    """
    order = list(RetentionKind)
    return sorted(fetch(session, RetentionRule, sql, id=repository_id), key=lambda rule: order.index(rule.kind))


def preview_rule(session: Session, rule: RetentionRule) -> RetentionPreview:
    """Number and size of the database rows that the rule would delete now; a mirror lies outside the database."""
    age = _AGES.get(RetentionKind(rule.kind))
    if age is None:
        return RetentionPreview(0, 0)
    sql = f"""
    SELECT count(*) AS rows, coalesce(sum({age.size}), 0) AS bytes FROM {age.table} {age.joins}
    WHERE {age.table}.{age.key} > :seen AND operators.repository_id = :id AND NOT ({age.stays})
      AND {age.made_at} < now() - make_interval(days => CAST(:days AS int))
    """
    preview = fetch_one(session, RetentionPreview, sql, seen=rule.seen_id, id=rule.repository_id, days=rule.days)
    assert preview is not None
    return RetentionPreview(preview.rows, int(preview.bytes))


@dataclass(frozen=True, slots=True)
class AgedRow:
    """A row that a rule comes to. is_old: older than the rule's days. is_due: to be deleted."""

    id: int
    is_old: bool
    is_due: bool
    bytes: int


def list_aged(session: Session, rule: RetentionRule, limit: int) -> list[AgedRow]:
    """The next rows of all repositories that the rule has not looked at, in the order of their ids."""
    age = _AGES[RetentionKind(rule.kind)]
    # Ids grow with time, so rows are looked at in small steps from where the last round ended.
    sql = f"""
    SELECT {age.table}.{age.key} AS id, old.is_old, {age.size} AS bytes,
           old.is_old AND operators.repository_id = :id AND NOT ({age.stays}) AS is_due
    FROM {age.table} {age.joins}
    CROSS JOIN LATERAL (SELECT {age.made_at} < now() - make_interval(days => CAST(:days AS int)) AS is_old) AS old
    WHERE {age.table}.{age.key} = ANY(ARRAY(
        SELECT {age.key} FROM {age.table} WHERE {age.key} > :seen ORDER BY {age.key} LIMIT :limit))
    ORDER BY 1
    """
    return fetch(session, AgedRow, sql, seen=rule.seen_id, id=rule.repository_id, days=rule.days, limit=limit)


def list_due_rules(session: Session) -> list[RetentionRule]:
    """Rules of all repositories that were not applied for ROUND_SECONDS."""
    sql = """
    SELECT repository_id, kind, days, seen_id, run_at, deleted, freed_bytes FROM retention_rules
    WHERE run_at IS NULL OR run_at < now() - make_interval(secs => :round) ORDER BY repository_id, kind LIMIT 1000
    """
    return fetch(session, RetentionRule, sql, round=ROUND_SECONDS)


def read_url(session: Session, repository_id: int) -> str | None:
    """The address of a repository that is not being deleted."""
    sql = "SELECT url FROM repositories WHERE id = :id AND deleted_at IS NULL"
    url: str | None = session.execute(text(sql), {"id": repository_id}).scalar()
    return url


_DELETE = {
    RetentionKind.SAMPLES: "DELETE FROM samples WHERE point_id = ANY(:ids)",
    RetentionKind.TRACES: "DELETE FROM traces WHERE id = ANY(:ids)",
    RetentionKind.LOGS: "DELETE FROM run_logs WHERE id = ANY(:ids)",
    # The rest of a build says what the machine code was, which verdicts are drawn from.
    RetentionKind.BUILDS: "UPDATE builds SET log = '' WHERE id = ANY(:ids)",
}
BATCH = {
    RetentionKind.SAMPLES: 2000,
    RetentionKind.TRACES: 50,
    RetentionKind.LOGS: 2000,
    RetentionKind.BUILDS: 500,
}
"""Rows of one transaction."""


def set_rules(s: Session, repository_id: int, days: Mapping[RetentionKind, int | None]) -> None:
    """Sets how many days each kind is kept; None for good. A changed rule looks at everything again."""
    for kind, number in days.items():
        values = {"id": repository_id, "kind": kind, "days": number}
        if number is None:
            s.execute(text("DELETE FROM retention_rules WHERE repository_id = :id AND kind = :kind"), values)
            continue
        sql = """
        INSERT INTO retention_rules AS rule (repository_id, kind, days) VALUES (:id, :kind, :days)
        ON CONFLICT (repository_id, kind) DO UPDATE SET days = EXCLUDED.days, seen_id = 0, run_at = NULL
        WHERE rule.days <> EXCLUDED.days
        """
        s.execute(text(sql), values)


def claim_rule(s: Session, rule: RetentionRule) -> bool:
    """Whether this server applies the rule now; of several one does."""
    sql = """
    UPDATE retention_rules SET run_at = now()
    WHERE repository_id = :id AND kind = :kind
      AND (run_at IS NULL OR run_at < now() - make_interval(secs => :round))
    RETURNING kind
    """
    values = {"id": rule.repository_id, "kind": rule.kind, "round": ROUND_SECONDS}
    return s.execute(text(sql), values).one_or_none() is not None


def delete_aged(s: Session, rule: RetentionRule) -> int | None:
    """Deletes one batch of what is too old; returns the row to go on after, None at the end."""
    rows = list_aged(s, rule, BATCH[RetentionKind(rule.kind)])
    old = rows[: next((place for place, row in enumerate(rows) if not row.is_old), len(rows))]
    due = [row for row in rows if row.is_due]
    if due:
        s.execute(text(_DELETE[RetentionKind(rule.kind)]), {"ids": [row.id for row in due]})
    seen = old[-1].id if old else rule.seen_id
    note_deleted(s, rule, seen, len(due), sum(row.bytes for row in due))
    return seen if rows and len(old) == len(rows) else None


def note_deleted(s: Session, rule: RetentionRule, seen_id: int, deleted: int, freed_bytes: int) -> None:
    """Adds to what a rule has deleted, unless somebody changed the rule meanwhile."""
    sql = """
    UPDATE retention_rules SET seen_id = :seen, deleted = deleted + :deleted, freed_bytes = freed_bytes + :bytes
    WHERE repository_id = :id AND kind = :kind AND days = :days
    """
    values = {"id": rule.repository_id, "kind": rule.kind, "days": rule.days, "seen": seen_id}
    s.execute(text(sql), values | {"deleted": deleted, "bytes": freed_bytes})
