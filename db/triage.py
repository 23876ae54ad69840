"""Writes what people make of changes, and keeps who changed what and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from warpwatch.contract.words import Triage
from warpwatch.db.database import storable
from warpwatch.db.errors import NotFoundError, StateError
from warpwatch.db.live import announce
from warpwatch.db.models import RegressionNoteRecord, RegressionRecord

SERVICE = "warpwatch"
"""Author of what the service itself notes down; nobody has looked at a change that only the service wrote about."""
FIELDS = ("state", "assignee", "link", "due_on")
"""Fields that triage may change."""


def set_triage(s: Session, regression_id: int, state: str, author: str, note: str) -> None:
    """Gives one change a state, with a note; see `triage`."""
    triage(s, [regression_id], author=author, note=note, fields={"state": state})


def triage(
    s: Session, regression_ids: Sequence[int], *, author: str, note: str, fields: Mapping[str, str | date | None]
) -> None:
    """Changes every field that is named, of every regression that is named, or of none; earlier words are all kept.

    fields: some of FIELDS; None takes an assignee, a link or a due date away. StateError when there is no such state,
    NotFoundError when one of the regressions does not exist.
    """
    if "state" in fields and fields["state"] not in list(Triage):
        raise StateError(f"{fields['state']!r} is no state of a regression; use one of {', '.join(Triage)}")
    ids = sorted(set(regression_ids))
    # Locked in one order, so that two people who triage the same event at once do not wait for each other for ever.
    regressions = s.scalars(
        select(RegressionRecord).where(RegressionRecord.id.in_(ids)).order_by(RegressionRecord.id).with_for_update()
    ).all()
    missing = set(ids) - {regression.id for regression in regressions}
    if missing:
        raise NotFoundError(f"there is no regression {min(missing)}")
    for regression in regressions:
        changes: dict[str, list[str | None]] = {}
        for name, value in fields.items():
            after = storable(value) if isinstance(value, str) else value
            before = getattr(regression, name)
            if before != after:
                setattr(regression, name, after)
                changes[name] = [_text(before), _text(after)]
        if author != SERVICE and regression.triaged_at is None:
            regression.triaged_at = func.now()
        s.add(
            RegressionNoteRecord(
                regression_id=regression.id,
                author=storable(author),
                state=regression.state,
                note=storable(note),
                changes=changes,
            )
        )
    announce(s, "regression")


def has_note(s: Session, regression_id: int, note: str) -> bool:
    """Whether the same was noted of it before."""
    same = (RegressionNoteRecord.regression_id == regression_id, RegressionNoteRecord.note == storable(note))
    return s.scalar(select(RegressionNoteRecord.id).where(*same).limit(1)) is not None


def _text(value: str | date | None) -> str | None:
    return value.isoformat() if isinstance(value, date) else value
