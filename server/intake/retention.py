"""How long a repository keeps its data: what may be set, and what that would delete."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from warpwatch.contract.words import RetentionKind
from warpwatch.db.keeping import set_rules
from warpwatch.db.reads.keeping import RetentionRule, list_rules, preview_rule
from warpwatch.db.reads.query import Session

Days = Annotated[int | None, Field(default=None, ge=1, le=36_500, description="Days; null keeps it for good.")]


class RetentionSettings(BaseModel):
    """Days that each kind of data is kept. A kind that is left out stays as it is."""

    model_config = ConfigDict(extra="forbid")
    samples: Days
    traces: Days
    logs: Days
    builds: Days
    mirror: Days


@dataclass(frozen=True, slots=True)
class RetentionRow:
    """One kind of data. days: null where it is kept for good. due_rows, due_bytes: what the next round would delete.

    deleted, freed_bytes: what was deleted altogether.
    """

    kind: RetentionKind
    days: int | None
    run_at: datetime | None
    due_rows: int
    due_bytes: int
    deleted: int
    freed_bytes: int


def change_retention(session: Session, repository_id: int, body: RetentionSettings) -> None:
    set_rules(session, repository_id, {RetentionKind(kind): getattr(body, kind) for kind in body.model_fields_set})


def list_retention(
    session: Session, repository_id: int, preview: dict[RetentionKind, int | None] | None = None
) -> list[RetentionRow]:
    """Every kind with its rule; with `preview`, as if these days were set."""
    rules = {RetentionKind(rule.kind): rule for rule in list_rules(session, repository_id)}
    for kind, days in (preview or {}).items():
        if days is None:
            rules.pop(kind, None)
        else:
            rules[kind] = RetentionRule(repository_id, kind, days, 0, None, 0, 0)
    rows = []
    for kind in RetentionKind:
        rule = rules.get(kind)
        if rule is None:
            rows.append(RetentionRow(kind, None, None, 0, 0, 0, 0))
            continue
        due = preview_rule(session, rule)
        rows.append(RetentionRow(kind, rule.days, rule.run_at, due.rows, due.bytes, rule.deleted, rule.freed_bytes))
    return rows
