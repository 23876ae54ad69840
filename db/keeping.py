"""Writes how long data is kept, and deletes what is older, in small transactions."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import text
from sqlalchemy.orm import Session

from warpwatch.contract.words import RetentionKind
from warpwatch.db.reads.keeping import ROUND_SECONDS, RetentionRule, list_aged

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
