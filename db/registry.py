"""Writes what exists before anything is measured: repositories, commits, operators, devices, environments, workers.

Every function may be called twice: it finds rows by their natural key and inserts those that are missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from warpwatch.contract.catalogue import Catalogue, OperatorEntry
from warpwatch.contract.codec import to_json
from warpwatch.contract.environment import Environment
from warpwatch.db.errors import NotFoundError
from warpwatch.db.models import (
    Base,
    CaseRecord,
    CommitRecord,
    DeviceRecord,
    EnvironmentRecord,
    OperatorRecord,
    RepositoryRecord,
    VariantRecord,
    WorkerRecord,
)


@dataclass(frozen=True, slots=True)
class NewCommit:
    """What git says of one commit; see warpwatch.git.CommitInfo."""

    sha: str
    parent_sha: str | None
    ordinal: int
    author: str
    authored_at: datetime
    subject: str


def ensure_repository(s: Session, name: str, url: str, *, is_example: bool = False) -> int:
    """The id of the repository called `name`; a new url replaces the old one.

    is_example: whether a repository that this call makes holds data shipped with Warpwatch.
    """
    upsert(s, RepositoryRecord, [{"name": name, "url": url, "is_example": is_example}], key=["name"], refresh=["url"])
    return s.scalars(select(RepositoryRecord.id).where(RepositoryRecord.name == name)).one()


def set_repository(s: Session, repository_id: int, values: dict[str, str | None]) -> None:
    """Changes some of branch, webhook_secret, status_url and status_token; None clears a value."""
    if values:
        s.execute(update(RepositoryRecord).where(RepositoryRecord.id == repository_id).values(values))


def record_commits(s: Session, repository_id: int, commits: Iterable[NewCommit]) -> dict[str, int]:
    """The id of each commit, by its sha."""
    rows = [{"repository_id": repository_id, **asdict(commit)} for commit in commits]
    upsert(s, CommitRecord, rows, key=["repository_id", "sha"])
    shas = [row["sha"] for row in rows]
    ids = s.execute(
        select(CommitRecord.sha, CommitRecord.id).where(
            CommitRecord.repository_id == repository_id, CommitRecord.sha.in_(shas)
        )
    )
    return {row.sha: row.id for row in ids}


def ensure_operators(s: Session, repository_id: int, names: Iterable[str]) -> dict[str, int]:
    """The id of each operator, by its name."""
    rows = [{"repository_id": repository_id, "name": name} for name in names]
    upsert(s, OperatorRecord, rows, key=["repository_id", "name"])
    ids = s.execute(
        select(OperatorRecord.name, OperatorRecord.id).where(
            OperatorRecord.repository_id == repository_id, OperatorRecord.name.in_([row["name"] for row in rows])
        )
    )
    return {row.name: row.id for row in ids}


def ensure_device(s: Session, key: str, kind: str, name: str) -> int:
    """The id of the device (a model of hardware). key: slug and queue name; kind: cpu | cuda; name: for people."""
    # Every result of a device model comes through here, and an upsert would hold the row's lock until its commit.
    same = select(DeviceRecord.id).where(DeviceRecord.key == key, DeviceRecord.kind == kind, DeviceRecord.name == name)
    if (device_id := s.scalars(same).one_or_none()) is not None:
        return device_id
    upsert(s, DeviceRecord, [{"key": key, "kind": kind, "name": name}], key=["key"], refresh=["kind", "name"])
    return s.scalars(select(DeviceRecord.id).where(DeviceRecord.key == key)).one()


def ensure_environment(s: Session, environment: Environment, peaks: dict[str, float] | None) -> int:
    """The id of the environment. peaks: measured ceilings, see CeilingsReply; they replace older ones unless None."""
    device_id = ensure_device(s, environment.device_key, environment.device_kind, environment.device_name)
    known = s.execute(
        select(EnvironmentRecord.id, EnvironmentRecord.peaks).where(EnvironmentRecord.key == environment.key)
    ).one_or_none()
    if known is not None and (not peaks or known.peaks == peaks):
        return int(known.id)
    row = {"device_id": device_id, "key": environment.key, "facts": environment.facts, "peaks": peaks}
    upsert(s, EnvironmentRecord, [row], key=["key"], refresh=["peaks"] if peaks else [])
    return s.scalars(select(EnvironmentRecord.id).where(EnvironmentRecord.key == environment.key)).one()


def register_worker(s: Session, name: str, device_id: int, version: str, facts: dict[str, Any]) -> int:
    """The id of the worker called `name`, which starts now."""
    row = {"name": name, "device_id": device_id, "version": version, "facts": facts, "stopped_at": None}
    row |= {"started_at": func.now(), "heartbeat_at": func.now()}
    upsert(s, WorkerRecord, [row], key=["name"], refresh=[column for column in row if column != "name"])
    return s.scalars(select(WorkerRecord.id).where(WorkerRecord.name == name)).one()


def worker_heartbeat(s: Session, worker_id: int) -> None:
    """Marks the worker as alive, whether or not it has a job."""
    s.execute(update(WorkerRecord).where(WorkerRecord.id == worker_id).values(heartbeat_at=func.now(), stopped_at=None))


def set_trouble(s: Session, worker_id: int, trouble: str) -> None:
    """Marks the worker's device as unfit to be measured on; an empty text removes the mark."""
    s.execute(
        update(WorkerRecord)
        .where(WorkerRecord.id == worker_id, func.coalesce(WorkerRecord.facts["trouble"].astext, "") != trouble)
        .values(facts=WorkerRecord.facts.op("||")(func.jsonb_build_object("trouble", trouble)))
    )


def stop_worker(s: Session, worker_id: int) -> None:
    """Marks the worker as stopped in an orderly way."""
    s.execute(update(WorkerRecord).where(WorkerRecord.id == worker_id).values(stopped_at=func.now()))


def record_catalogue(s: Session, commit_id: int, catalogue: Catalogue) -> None:
    """Stores a commit's catalogue, and inserts the operators, variants and cases that it names."""
    stored = to_json(catalogue)
    replacing = (
        update(CommitRecord)
        .where(CommitRecord.id == commit_id, CommitRecord.catalogue.is_distinct_from(stored))
        .values(catalogue=stored)
    )
    repository_id = s.scalar(replacing.returning(CommitRecord.repository_id))
    if repository_id is None:
        if s.get(CommitRecord, commit_id) is None:
            raise NotFoundError(f"there is no commit with the id {commit_id}")
        # Every job of a commit brings the same catalogue; the first one inserted what it names.
        return
    # An operator whose file does not load has an empty summary; the one from another commit stays.
    rows = [
        {"repository_id": repository_id, "name": entry.name, "summary": entry.summary}
        for entry in catalogue.operators
        if entry.error is None
    ]
    upsert(s, OperatorRecord, rows, key=["repository_id", "name"], refresh=["summary"])
    ids = ensure_operators(s, repository_id, [entry.name for entry in catalogue.operators])
    _record_variants_and_cases(s, [(ids[entry.name], entry) for entry in catalogue.operators])


def _record_variants_and_cases(s: Session, entries: Sequence[tuple[int, OperatorEntry]]) -> None:
    variants = [
        {"operator_id": operator_id, "name": variant.name, "idea": variant.idea}
        for operator_id, entry in entries
        for variant in entry.variants
    ]
    upsert(s, VariantRecord, variants, key=["operator_id", "name"], refresh=["idea"])
    columns = ["sizes", "precision", "direction", "layout", "suites", "flops", "bytes"]
    cases = [
        {"operator_id": operator_id, "key": case.key, **{column: getattr(case, column) for column in columns}}
        for operator_id, entry in entries
        for case in entry.cases
    ]
    upsert(s, CaseRecord, cases, key=["operator_id", "key"], refresh=columns)


def upsert(
    s: Session, table: type[Base], rows: list[dict[str, Any]], *, key: list[str], refresh: Sequence[str] = ()
) -> None:
    """Inserts the rows whose key is new, and updates the columns in `refresh` of the others where they differ."""
    if not rows:
        return
    # One order for everyone: two transactions that insert the same keys must not wait for each other.
    unique = {tuple(row[column] for column in key): row for row in rows}
    statement = insert(table).values([unique[k] for k in sorted(unique)])
    if not refresh:
        s.execute(statement.on_conflict_do_nothing(index_elements=key))
        return
    columns = table.__table__.c
    new = {column: statement.excluded[column] for column in refresh}
    differs = or_(*(columns[column].is_distinct_from(value) for column, value in new.items()))
    s.execute(statement.on_conflict_do_update(index_elements=key, set_=new, where=differs))
