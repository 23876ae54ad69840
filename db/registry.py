"""Writes what exists before anything is measured: repositories, commits, operators, devices, environments, workers.

Every function may be called twice: it finds rows by their natural key and inserts those that are missing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from typing import Any, NamedTuple

from sqlalchemy import func, or_, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from warpwatch.contract.catalogue import CaseEntry, Catalogue, CommitInfo
from warpwatch.contract.codec import to_json
from warpwatch.contract.environment import Card, Environment
from warpwatch.contract.words import Reason
from warpwatch.db.errors import NotFoundError, StateError
from warpwatch.db.models import (
    Base,
    CardRecord,
    CaseRecord,
    CommitRecord,
    DeviceRecord,
    EnvironmentRecord,
    OperatorRecord,
    RepositoryRecord,
    VariantRecord,
    WorkerRecord,
)

_CASE_FACTS = ("sizes", "precision", "direction", "layout", "suites", "flops", "bytes")
_OPERATOR_KEY = ("repository_id", "name")
_CATALOGUES = 0x77617270
"""The first half of the key of a lock of PostgreSQL; the second is the id of a repository."""
_CATALOGUE_SECONDS = 0.1
HEAD_START_SECONDS = 5.0
"""How long after a pause the jobs of the commit that failed before it let others be the first."""
_LET_OTHERS_FIRST = text("""
UPDATE jobs SET not_before = greatest(not_before, clock_timestamp() + make_interval(secs => :seconds))
FROM (
    SELECT device_id, commit_id FROM runs JOIN jobs ON jobs.id = runs.job_id
    WHERE runs.worker_id = :worker_id ORDER BY runs.id DESC LIMIT 1
) AS failed
WHERE jobs.device_id = failed.device_id AND jobs.commit_id = failed.commit_id AND jobs.state = 'queued'
""")


def ensure_repository(s: Session, name: str, url: str, *, is_example: bool = False) -> int:
    """The id of the repository called `name`; a new url replaces the old one.

    is_example: whether a repository that this call makes holds data shipped with Warpwatch.
    """
    upsert(s, RepositoryRecord, [{"name": name, "url": url, "is_example": is_example}], key=["name"], refresh=["url"])
    return s.scalars(select(RepositoryRecord.id).where(RepositoryRecord.name == name)).one()


def set_repository(s: Session, repository_id: int, values: dict[str, Any]) -> None:
    """Changes some of branch, webhook_secret, status_url, status_token, definitions_url, definitions_ref,
    definitions_sha and is_public; None clears a text."""
    if values:
        s.execute(update(RepositoryRecord).where(RepositoryRecord.id == repository_id).values(values))


def record_commits(s: Session, repository_id: int, commits: Iterable[CommitInfo]) -> dict[str, int]:
    """The id of each commit, by its sha."""
    rows = [{"repository_id": repository_id, **asdict(commit)} for commit in commits]
    ids = ensure_rows(s, CommitRecord, rows, key=["repository_id", "sha"])
    return {sha: commit_id for (_, sha), commit_id in ids.items()}


def ensure_operators(s: Session, repository_id: int, names: Iterable[str]) -> dict[str, int]:
    """The id of each operator, by its name."""
    rows = [{"repository_id": repository_id, "name": name} for name in names]
    ids = ensure_rows(s, OperatorRecord, rows, key=_OPERATOR_KEY)
    return {name: operator_id for (_, name), operator_id in ids.items()}


def ensure_device(s: Session, key: str, kind: str, name: str) -> int:
    """The id of the device (a model of hardware). key: slug and queue name; kind: cpu | cuda; name: for people."""
    upsert(s, DeviceRecord, [{"key": key, "kind": kind, "name": name}], key=["key"], refresh=["kind", "name"])
    return s.scalars(select(DeviceRecord.id).where(DeviceRecord.key == key)).one()


def add_device(s: Session, key: str, kind: str, name: str | None, *, is_elastic: bool) -> None:
    """Makes a device known before a worker was there, or changes whether it is elastic.

    StateError for a device of another kind.
    """
    stored = s.execute(select(DeviceRecord.kind, DeviceRecord.name).where(DeviceRecord.key == key)).one_or_none()
    if stored is not None and stored.kind != kind:
        raise StateError(f"the device {key} is of the kind {stored.kind}")
    shown = name or (stored.name if stored is not None else key)
    ensure_device(s, key, kind, shown)
    s.execute(update(DeviceRecord).where(DeviceRecord.key == key).values(is_elastic=is_elastic))


def ensure_environment(s: Session, environment: Environment, peaks: dict[str, float] | None) -> tuple[int, int]:
    """The ids of the environment and of its device.

    peaks: measured ceilings, see CeilingsReply; they replace older ones unless None.
    """
    statement = (
        select(EnvironmentRecord.id, EnvironmentRecord.device_id, EnvironmentRecord.peaks)
        .join(DeviceRecord, EnvironmentRecord.device_id == DeviceRecord.id)
        .where(
            EnvironmentRecord.key == environment.key,
            DeviceRecord.key == environment.device_key,
            DeviceRecord.kind == environment.device_kind,
            DeviceRecord.name == environment.device_name,
        )
    )
    stored = s.execute(statement).one_or_none()
    if stored is not None and (not peaks or stored.peaks == peaks):
        return stored.id, stored.device_id
    device_id = ensure_device(s, environment.device_key, environment.device_kind, environment.device_name)
    row = {"device_id": device_id, "key": environment.key, "facts": environment.facts, "peaks": peaks}
    upsert(s, EnvironmentRecord, [row], key=["key"], refresh=["peaks"] if peaks else ["device_id"])
    return s.scalars(select(EnvironmentRecord.id).where(EnvironmentRecord.key == environment.key)).one(), device_id


def ensure_card(s: Session, device_id: int, card: Card | None) -> int | None:
    """The id of a physical card, whose facts replace older ones; None for none."""
    if card is None:
        return None
    statement = select(CardRecord.id, CardRecord.facts).where(
        CardRecord.device_id == device_id, CardRecord.key == card.key
    )
    stored = s.execute(statement).one_or_none()
    if stored is None or stored.facts != card.facts:
        row = {"device_id": device_id, "key": card.key, "facts": card.facts}
        upsert(s, CardRecord, [row], key=["device_id", "key"], refresh=["facts"])
        stored = s.execute(statement).one()
    return int(stored.id)


def register_worker(s: Session, name: str, device_id: int, version: str, facts: dict[str, Any]) -> int:
    """The id of the worker called `name`, which starts now."""
    row = {"device_id": device_id, "version": version, "facts": facts, "stopped_at": None}
    row |= {"paused_until": None, "pause_reason": None}
    row |= {"started_at": func.now(), "heartbeat_at": func.now()}
    statement = insert(WorkerRecord).values(row | {"name": name})
    statement = statement.on_conflict_do_update(index_elements=["name"], set_=row)
    return s.scalars(statement.returning(WorkerRecord.id)).one()


def worker_heartbeat(s: Session, worker_id: int) -> None:
    """Marks the worker as alive, whether or not it has a job."""
    s.execute(update(WorkerRecord).where(WorkerRecord.id == worker_id).values(heartbeat_at=func.now(), stopped_at=None))


def workers_heartbeat(s: Session, worker_ids: Sequence[int]) -> None:
    """Marks several workers as alive."""
    # A row that is locked is being changed by its worker, which lives.
    free = select(WorkerRecord.id).where(WorkerRecord.id.in_(worker_ids))
    free = free.with_for_update(key_share=True, skip_locked=True)
    s.execute(update(WorkerRecord).where(WorkerRecord.id.in_(free)).values(heartbeat_at=func.now()))


def set_trouble(s: Session, worker_id: int, trouble: str) -> None:
    """Marks the worker's device as unfit to be measured on; an empty text removes the mark."""
    s.execute(
        update(WorkerRecord)
        .where(WorkerRecord.id == worker_id, func.coalesce(WorkerRecord.facts["trouble"].astext, "") != trouble)
        .values(facts=WorkerRecord.facts.op("||")(func.jsonb_build_object("trouble", trouble)))
    )


def pause_worker(s: Session, worker_id: int, seconds: float, reason: Reason) -> None:
    """Says that the worker takes no job for a while, and why.

    The jobs of the commit that it ran last wait a little longer, so that another commit shows whether it works again.
    """
    until = func.clock_timestamp() + func.make_interval(0, 0, 0, 0, 0, 0, seconds)
    s.execute(update(WorkerRecord).where(WorkerRecord.id == worker_id).values(paused_until=until, pause_reason=reason))
    s.execute(_LET_OTHERS_FIRST, {"worker_id": worker_id, "seconds": seconds + HEAD_START_SECONDS})


def resume_worker(s: Session, worker_id: int) -> None:
    """Says that the worker takes jobs again."""
    paused = (WorkerRecord.id == worker_id, WorkerRecord.paused_until.is_not(None))
    s.execute(update(WorkerRecord).where(*paused).values(paused_until=None, pause_reason=None))


def stop_worker(s: Session, worker_id: int) -> None:
    """Marks the worker as stopped in an orderly way."""
    s.execute(update(WorkerRecord).where(WorkerRecord.id == worker_id).values(stopped_at=func.now()))


def record_catalogue(s: Session, commit_id: int, catalogue: Catalogue) -> None:
    """Stores a commit's catalogue, and inserts the operators, variants and cases that it names."""
    # Every job of a commit brings the same catalogue; the first one inserts what it names. To compare digests takes a
    # tenth of the time that comparing the catalogues would.
    digest = sha256(repr(catalogue).encode("utf-8", "backslashreplace")).hexdigest()
    find = select(CommitRecord.repository_id, CommitRecord.catalogue_digest).where(CommitRecord.id == commit_id)
    stored = s.execute(find).one_or_none()
    if stored is None:
        raise NotFoundError(f"there is no commit with the id {commit_id}")
    if stored.catalogue_digest == digest:
        return
    repository_id = stored.repository_id
    if _is_recorded(s, repository_id, catalogue):
        _store_catalogue(s, commit_id, catalogue, digest)
        return
    # One at a time: of a hundred workers with a repository's first results, each would wait for the rows of all before
    # it, and then lock them although it changes nothing. Those that do not get the lock see when another one of their
    # commit has stored what they bring, and hold nothing; a lock that they waited for they would hold to their end.
    lock = select(func.pg_try_advisory_xact_lock(_CATALOGUES, repository_id))
    while not s.scalar(lock):
        time.sleep(_CATALOGUE_SECONDS)
        if s.execute(find).one().catalogue_digest == digest:
            return
    _store_catalogue(s, commit_id, catalogue, digest)
    _upsert_names(s, _operator_names(repository_id, catalogue))
    ids = ensure_operators(s, repository_id, [entry.name for entry in catalogue.operators])
    for names in _variant_and_case_names(ids, catalogue):
        _upsert_names(s, names)


def _store_catalogue(s: Session, commit_id: int, catalogue: Catalogue, digest: str) -> None:
    """Adds the operators to those of the commit's stored catalogue: the job of a program knows no others."""
    # The lock keeps another job of the commit from storing its operators in between, which this would undo.
    known = s.scalar(select(CommitRecord.catalogue).where(CommitRecord.id == commit_id).with_for_update(key_share=True))
    new = to_json(catalogue)
    entries = {entry["name"]: entry for entry in [*(known or {"operators": []})["operators"], *new["operators"]]}
    merged = new | {"operators": list(entries.values())}
    if merged != known:
        values = {"catalogue": merged, "catalogue_digest": digest}
        s.execute(update(CommitRecord).where(CommitRecord.id == commit_id).values(values))


def _is_recorded(s: Session, repository_id: int, catalogue: Catalogue) -> bool:
    """Whether everything that the catalogue names is stored as it says."""
    keys = [(repository_id, entry.name) for entry in catalogue.operators]
    stored = _select_by_key(s, OperatorRecord, keys, _OPERATOR_KEY, ["id"])
    ids = {name: operator_id for (_, name), (operator_id,) in stored.items()}
    if len(ids) < len(set(keys)):
        return False
    names = (_operator_names(repository_id, catalogue), *_variant_and_case_names(ids, catalogue))
    return not any(_changed_rows(s, *rows) for rows in names)


class _Names(NamedTuple):
    """Rows that a catalogue names, and which columns of them may change."""

    table: type[Base]
    rows: list[dict[str, Any]]
    key: Sequence[str]
    refresh: Sequence[str]


def _upsert_names(s: Session, names: _Names) -> None:
    upsert(s, names.table, names.rows, key=names.key, refresh=names.refresh)


def _operator_names(repository_id: int, catalogue: Catalogue) -> _Names:
    # An operator whose file does not load has an empty summary; the one from another commit stays.
    rows = [
        {"repository_id": repository_id, "name": entry.name, "summary": entry.summary}
        for entry in catalogue.operators
        if entry.error is None
    ]
    return _Names(OperatorRecord, rows, _OPERATOR_KEY, ["summary"])


def _variant_and_case_names(operator_ids: Mapping[str, int], catalogue: Catalogue) -> tuple[_Names, _Names]:
    variants = [
        {"operator_id": operator_ids[entry.name], "name": variant.name, "idea": variant.idea}
        for entry in catalogue.operators
        for variant in entry.variants
    ]
    cases = [
        {"operator_id": operator_ids[entry.name], "key": case.key, **_facts(case)}
        for entry in catalogue.operators
        for case in entry.cases
    ]
    return (
        _Names(VariantRecord, variants, ["operator_id", "name"], ["idea"]),
        _Names(CaseRecord, cases, ["operator_id", "key"], _CASE_FACTS),
    )


def record_derived_cases(s: Session, operator_id: int, cases: Sequence[CaseEntry]) -> None:
    """Inserts cases that an operator does not declare, where they are new: another commit may declare them."""
    rows = [{"operator_id": operator_id, "key": case.key, **_facts(case)} for case in cases]
    ensure_rows(s, CaseRecord, rows, key=["operator_id", "key"])


def _facts(case: CaseEntry) -> dict[str, Any]:
    return {column: getattr(case, column) for column in _CASE_FACTS}


def ensure_rows(
    s: Session, table: type[Base], rows: Iterable[dict[str, Any]], *, key: Sequence[str]
) -> dict[tuple[Any, ...], int]:
    """The id of each row by its key; inserts the rows whose key is new."""
    unique = {tuple(row[column] for column in key): row for row in rows}
    stored = _select_by_key(s, table, unique, key, ["id"])
    new = [unique[values] for values in sorted(unique) if values not in stored]
    if new:
        # Parameters of one statement, which is compiled once: VALUES of thousands of rows are compiled row by row.
        s.execute(insert(table).on_conflict_do_nothing(index_elements=key), new)
        stored = _select_by_key(s, table, unique, key, ["id"])
    return {values: row_id for values, (row_id,) in stored.items()}


def upsert(
    s: Session, table: type[Base], rows: Iterable[dict[str, Any]], *, key: Sequence[str], refresh: Sequence[str]
) -> None:
    """Inserts the rows whose key is new, and updates the columns in `refresh` of the others where they differ."""
    # PostgreSQL locks a row that conflicts even where it then updates nothing, and whoever records a result of the same
    # device, operator or commit would wait for it. So only rows that are new or differ are sent.
    changed = _changed_rows(s, table, rows, key, refresh)
    if not changed:
        return
    statement = insert(table)
    columns = table.__table__.c
    new = {column: statement.excluded[column] for column in refresh}
    differs = or_(*(columns[column].is_distinct_from(value) for column, value in new.items()))
    s.execute(statement.on_conflict_do_update(index_elements=key, set_=new, where=differs), changed)


def _changed_rows(
    s: Session, table: type[Base], rows: Iterable[dict[str, Any]], key: Sequence[str], refresh: Sequence[str]
) -> list[dict[str, Any]]:
    """The rows whose key is new or whose columns in `refresh` differ from what is stored."""
    unique = {tuple(row[column] for column in key): row for row in rows}
    stored = _select_by_key(s, table, unique, key, refresh)
    # One order for everyone: two transactions that insert the same keys must not wait for each other.
    return [
        unique[values]
        for values in sorted(unique)
        if stored.get(values) != tuple(unique[values][column] for column in refresh)
    ]


def _select_by_key(
    s: Session, table: type[Base], keys: Iterable[tuple[Any, ...]], key: Sequence[str], names: Sequence[str]
) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """The columns `names` of the stored rows that have one of the keys, by key."""
    wanted = set(keys)
    if not wanted:
        return {}
    columns = table.__table__.c
    # A condition per column, not per key, is one range of the index; it may match more rows than there are keys.
    conditions = [columns[column].in_({values[n] for values in wanted}) for n, column in enumerate(key)]
    rows = s.execute(select(*(columns[name] for name in (*key, *names))).where(*conditions)).all()
    return {tuple(row[: len(key)]): tuple(row[len(key) :]) for row in rows if tuple(row[: len(key)]) in wanted}
