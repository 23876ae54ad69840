"""Records an outcome: environment, catalogue, build, results, series, points, samples, traces, paired rounds.

Everything happens in the caller's transaction, which holds the fence (db.runs) or the whole bundle (db.bundles).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb
from sqlalchemy import func, insert, or_, select, text
from sqlalchemy.dialects.postgresql import insert as upsert_into
from sqlalchemy.orm import Session

from warpwatch.contract.case import peak_of_case
from warpwatch.contract.codec import to_json
from warpwatch.contract.measurement import NO_CEILING, Measurement, roofline
from warpwatch.contract.messages import BenchReply, BuildReply
from warpwatch.contract.outcome import Comparison, Finding, Outcome
from warpwatch.contract.words import Fault, JobKind, Status
from warpwatch.db.columns import pack_samples
from warpwatch.db.database import dumps, storable
from warpwatch.db.errors import OutcomeError
from warpwatch.db.models import (
    Base,
    BuildRecord,
    CaseRecord,
    CommitRecord,
    ComparisonRecord,
    DeviceRecord,
    JobRecord,
    PointRecord,
    ResultRecord,
    RunRecord,
    SamplesRecord,
    SeriesRecord,
    VariantRecord,
    WorkerRecord,
)
from warpwatch.db.registry import ensure_card, ensure_environment, ensure_rows, record_catalogue, record_derived_cases
from warpwatch.db.tallies import forget_counts
from warpwatch.db.traces import store_trace
from warpwatch.db.trends import forget_trends


def reserve_ids(s: Session, counts: dict[type[Base], int]) -> list[list[int]]:
    """Ids for rows that `copy_rows` will insert, of each table in turn: COPY returns none."""
    # The arrays are parallel: a row per table. The inner query depends on it, so it is asked once for each.
    statement = text("""
        SELECT ARRAY(SELECT nextval(pg_get_serial_sequence(name, 'id')) FROM generate_series(1, count))
        FROM unnest(CAST(:names AS text[]), CAST(:counts AS bigint[])) AS wanted (name, count)
    """)
    names = [table.__tablename__ for table in counts]
    return list(s.scalars(statement, {"names": names, "counts": list(counts.values())}))


def copy_rows(s: Session, table: type[Base], rows: Sequence[dict[str, Any]]) -> None:
    """Inserts rows that all have the same columns, within the transaction of `s`; OutcomeError for a value that
    PostgreSQL cannot hold."""
    if not rows:
        return
    names = list(rows[0])
    statement = sql.SQL("COPY {} ({}) FROM STDIN").format(
        sql.Identifier(table.__tablename__), sql.SQL(", ").join(map(sql.Identifier, names))
    )
    connection: Any = s.connection().connection.driver_connection
    try:
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                values = (row[name] for name in names)
                copy.write_row([Jsonb(value, dumps) if isinstance(value, dict) else value for value in values])
    except (psycopg.DataError, psycopg.IntegrityError, UnicodeError) as error:
        raise OutcomeError(f"a result cannot be stored: {str(error).strip().splitlines()[0]}") from error


_SERIES_KEY = ("case_id", "variant_id", "metric", "protocol")


class _Case(NamedTuple):
    id: int
    precision: str


@dataclass(frozen=True, slots=True)
class OutcomeNames:
    """The ids of what an outcome names. series: by (case, variant, metric, protocol). card_id: None where the card is
    not known."""

    environment_id: int
    variants: dict[str, int]
    cases: dict[str, _Case]
    series: dict[tuple[int, int, str, str], int]
    card_id: int | None = None


@dataclass(frozen=True, slots=True)
class _Scope:
    """Columns that all rows of one commit's findings share, and the ids of the names in those rows."""

    run_id: int
    kind: str
    commit_id: int
    ordinal: int
    operator_id: int
    device_id: int
    measured_at: datetime
    names: OutcomeNames
    peaks: dict[str, float]


def record_names(s: Session, job: JobRecord, outcome: Outcome) -> OutcomeNames:
    """Writes what the outcome names, where it is new: environment, catalogue, variants and series.

    Results of other jobs name the same, and wait for a transaction that inserts it. So a worker does this in a
    transaction of its own, which is short. OutcomeError when the outcome contradicts itself or the job.
    """
    environment_id, device_id = ensure_environment(s, outcome.environment, outcome.peaks)
    if device_id != job.device_id:
        device_key = s.scalars(select(DeviceRecord.key).where(DeviceRecord.id == job.device_id)).one()
        raise OutcomeError(
            f"the job is for the device {device_key}, but it was measured on {outcome.environment.device_key}"
        )
    # In one order for everyone: two comparisons of the same commits, each the base of the other, must not deadlock.
    catalogues = {job.commit_id: outcome.catalogue, job.base_commit_id: outcome.base_catalogue}
    for commit_id in sorted(commit_id for commit_id in catalogues if commit_id is not None):
        catalogue = catalogues[commit_id]
        if catalogue is not None:
            record_catalogue(s, commit_id, catalogue)
    record_derived_cases(s, job.operator_id, outcome.derived_cases)
    if job.base_commit_id is None and (outcome.base_findings or outcome.comparisons):
        raise OutcomeError("only a compare job has results of a second commit")
    rows: list[Finding | Comparison] = [*outcome.findings, *outcome.base_findings, *outcome.comparisons]
    variants = _ensure_variants(s, job.operator_id, {row.variant for row in rows})
    cases = _find_cases(s, job.operator_id, {row.case for row in rows})
    timed = {(row.case, row.variant, row.metric, row.protocol) for row in outcome.comparisons} | {
        (row.case, row.variant, measurement.metric, measurement.protocol)
        for row in (*outcome.findings, *outcome.base_findings)
        for measurement in (row.bench.measurements if row.bench else [])
    }
    common = {"operator_id": job.operator_id, "device_id": job.device_id}
    keys = [(cases[case].id, variants[variant], metric, protocol) for case, variant, metric, protocol in timed]
    series = ensure_rows(
        s,
        SeriesRecord,
        [common | dict(zip(_SERIES_KEY, key, strict=True)) for key in keys],
        key=[*common, *_SERIES_KEY],
    )
    return OutcomeNames(
        environment_id,
        variants,
        cases,
        {key[len(common) :]: series_id for key, series_id in series.items()},
        ensure_card(s, device_id, outcome.environment.card),
    )


def record_outcome(
    s: Session, job: JobRecord, run: RunRecord, outcome: Outcome, names: OutcomeNames | None = None
) -> None:
    """Writes the outcome, whose names may have been recorded before, and what the run measured with. OutcomeError when
    it contradicts itself or the job."""
    names = names or record_names(s, job, outcome)
    card = outcome.environment.card
    run.environment_id, run.card_id = names.environment_id, names.card_id
    run.card_facts = None if card is None else dict(card.facts)
    # Of a commit that is compared with itself, under two toolchains, those of the new one count.
    sides = {job.base_commit_id: outcome.base_findings} | {job.commit_id: outcome.findings}
    for target, findings in sides.items():
        if findings and target is not None:
            ordinal = s.scalars(select(CommitRecord.ordinal).where(CommitRecord.id == target)).one()
            ids = (job.operator_id, job.device_id, run.finished_at or datetime.now(UTC), names, outcome.peaks or {})
            _record_findings(s, _Scope(run.id, job.kind, target, ordinal, *ids), findings)
    if outcome.build is not None:
        _record_build(s, job, names.environment_id, outcome.build)
    _record_comparisons(s, job, run, outcome.comparisons, names)
    # Last, because these lock rows that jobs share.
    forget_trends(s, job.operator_id, job.device_id)
    forget_counts(s, [commit_id for commit_id in (job.commit_id, job.base_commit_id) if commit_id is not None])


def record_crash(s: Session, job: JobRecord, run: RunRecord, cell: tuple[str, str], message: str) -> None:
    """Writes that a variant crashed on a case: it took every worker along that ran it.

    Nothing is written for a comparison, which runs two commits, nor where no catalogue has named the case or no worker
    has described its environment.
    """
    variant, case = cell
    environment_id = s.scalar(
        select(func.coalesce(RunRecord.environment_id, WorkerRecord.facts["environment_id"].as_integer()))
        .outerjoin(WorkerRecord, RunRecord.worker_id == WorkerRecord.id)
        .where(RunRecord.id == run.id)
    )
    cases = select(CaseRecord.id).where(CaseRecord.operator_id == job.operator_id, CaseRecord.key == case)
    if job.kind == JobKind.COMPARE or environment_id is None or s.scalar(cases) is None:
        return
    names = OutcomeNames(
        environment_id,
        _ensure_variants(s, job.operator_id, {variant}),
        _find_cases(s, job.operator_id, {case}),
        {},
    )
    ordinal = s.scalars(select(CommitRecord.ordinal).where(CommitRecord.id == job.commit_id)).one()
    scope = _Scope(
        run.id, job.kind, job.commit_id, ordinal, job.operator_id, job.device_id, datetime.now(UTC), names, {}
    )
    _record_findings(s, scope, [Finding(variant, case, Status.CRASHED, message)])
    run.environment_id = environment_id


# --- names ----------------------------------------------------------------------------------------------------


def _ensure_variants(s: Session, operator_id: int, names: set[str]) -> dict[str, int]:
    rows = [{"operator_id": operator_id, "name": name} for name in names]
    ids = ensure_rows(s, VariantRecord, rows, key=["operator_id", "name"])
    return {name: variant_id for (_, name), variant_id in ids.items()}


def _find_cases(s: Session, operator_id: int, keys: set[str]) -> dict[str, _Case]:
    """The cases by key. OutcomeError for a case that no catalogue has named, since its sizes are unknown."""
    columns = (CaseRecord.key, CaseRecord.id, CaseRecord.precision)
    rows = s.execute(select(*columns).where(CaseRecord.operator_id == operator_id, CaseRecord.key.in_(keys)))
    cases = {key: _Case(case_id, precision) for key, case_id, precision in rows}
    unknown = sorted(keys - set(cases))
    if unknown:
        raise OutcomeError(
            f"no catalogue names the case {unknown[0]!r}; the outcome must bring the catalogue of its commit"
        )
    return cases


# --- results --------------------------------------------------------------------------------------------------


def _record_findings(s: Session, scope: _Scope, findings: list[Finding]) -> None:
    cells = [(finding.variant, finding.case) for finding in findings]
    if len(set(cells)) != len(cells):
        raise OutcomeError("a variant has two results for one case")
    timings = sum(len(finding.bench.measurements) for finding in findings if finding.bench)
    result_ids, point_ids = reserve_ids(s, {ResultRecord: len(findings), PointRecord: timings})
    numbered = list(zip(result_ids, findings, strict=True))
    values = [
        {
            "id": result_id,
            "run_id": scope.run_id,
            "kind": scope.kind,
            "commit_id": scope.commit_id,
            "ordinal": scope.ordinal,
            "operator_id": scope.operator_id,
            "variant_id": scope.names.variants[finding.variant],
            "case_id": scope.names.cases[finding.case].id,
            "device_id": scope.device_id,
            "environment_id": scope.names.environment_id,
            "status": finding.status.value,
            "message": storable(finding.message),
            "details": _details(finding),
            "created_at": scope.measured_at,
        }
        for result_id, finding in numbered
    ]
    copy_rows(s, ResultRecord, values)
    points = [_Point(i, f, f.bench, m) for i, f in numbered if f.bench for m in f.bench.measurements]
    _record_points(s, scope, point_ids, points)
    for result_id, finding in numbered:
        if finding.profile is not None and finding.profile.path is not None:
            store_trace(s, result_id, Path(finding.profile.path), finding.profile)


def _details(finding: Finding) -> dict[str, Any]:
    """The data that is stored beside status and message: the errors, bits and counters of a check; the cost, health and
    counters of a bench; the counters of a profile."""
    if finding.bench is not None:
        bench = finding.bench
        return {
            "flops": bench.flops,
            "bytes": bench.bytes,
            "health": bench.health,
            "dropped": {m.metric: m.dropped_reason for m in bench.measurements if m.dropped_reason},
            "distributions": {m.metric: asdict(m.distribution) for m in bench.measurements if m.distribution},
            "counters": {name: asdict(counter) for name, counter in bench.counters.items()},
            Fault.NOT_CAPTURABLE: bench.subjects if bench.fault is Fault.NOT_CAPTURABLE else [],
        }
    if finding.profile is not None and finding.profile.counters:
        return {"counters": {name: asdict(counter) for name, counter in finding.profile.counters.items()}}
    if finding.check is not None:
        check = to_json(finding.check)
        further = ("curves", "differing", "batch", "counters", "launched")
        return {name: check[name] for name in ("seed", "tensors", "probes", "moving")} | {
            name: check[name] for name in further if check[name] not in (None, {})
        }
    return {}


class _Point(NamedTuple):
    """One measurement to record, with the result it belongs to."""

    result_id: int
    finding: Finding
    bench: BenchReply
    measurement: Measurement


def _record_points(s: Session, scope: _Scope, ids: list[int], points: list[_Point]) -> None:
    names = scope.names
    values = [
        {
            "id": point_id,
            "series_id": names.series[names.cases[row.case].id, names.variants[row.variant], m.metric, m.protocol],
            "commit_id": scope.commit_id,
            "ordinal": scope.ordinal,
            "environment_id": scope.names.environment_id,
            "result_id": result_id,
            "median_ns": m.median_ns,
            "low_ns": m.low_ns,
            "high_ns": m.high_ns,
            "noise": m.noise,
            "count": len(m.samples_ns),
            "dropped": m.dropped,
            **_roofline_columns(scope, row.case, bench, m),
            "measured_at": scope.measured_at,
            "card_id": names.card_id,
        }
        for point_id, (result_id, row, bench, m) in zip(ids, points, strict=True)
    ]
    copy_rows(s, PointRecord, values)
    samples = [
        {"point_id": point_id, "data": pack_samples(point.measurement.samples_ns)}
        for point_id, point in zip(ids, points, strict=True)
    ]
    copy_rows(s, SamplesRecord, samples)


def _roofline_columns(scope: _Scope, case: str, bench: BenchReply, timing: Measurement) -> dict[str, Any]:
    peaks = {} if timing.metric in NO_CEILING else scope.peaks
    share, bound = roofline(
        bench.flops, bench.bytes, timing.median_ns, peak_of_case(case, scope.names.cases[case].precision), peaks
    )
    return {"roofline_share": share, "bound": bound}


def _record_build(s: Session, job: JobRecord, environment_id: int, build: BuildReply) -> None:
    """Stores one build per commit, operator and environment: a fresh one replaces the last, while one from the cache
    adds nothing."""
    row = {
        "commit_id": job.commit_id,
        "operator_id": job.operator_id,
        "environment_id": environment_id,
        "status": build.status,
        "key": build.key,
        "cached": build.cached,
        "seconds": build.seconds,
        "log": storable(build.log or build.message),
        "resources": [asdict(kernel) for kernel in build.resources],
        "compile_seconds": build.compile_seconds or None,
        "code_hash": build.code_hash,
    }
    statement = upsert_into(BuildRecord).values(row)
    new = statement.excluded
    is_news = or_(
        new.cached.is_(False),
        BuildRecord.status != new.status,
        BuildRecord.key != new.key,
        BuildRecord.code_hash != new.code_hash,
    )
    s.execute(
        statement.on_conflict_do_update(
            index_elements=["commit_id", "operator_id", "environment_id"],
            set_={
                column: new[column] for column in row if column not in ("commit_id", "operator_id", "environment_id")
            },
            where=is_news,
        )
    )


def _record_comparisons(
    s: Session, job: JobRecord, run: RunRecord, comparisons: list[Comparison], names: OutcomeNames
) -> None:
    if not comparisons:
        return
    values = [
        {
            "run_id": run.id,
            "series_id": names.series[names.cases[row.case].id, names.variants[row.variant], row.metric, row.protocol],
            "base_commit_id": job.base_commit_id,
            "head_commit_id": job.commit_id,
            "status": row.status,
            "message": storable(row.message),
            "reason": row.reason,
            "base_ns": row.base_ns,
            "head_ns": row.head_ns,
            "controls": {"again": row.again, "waited": row.waited} if row.again else None,
            "cells": None if row.cells is None else asdict(row.cells),
        }
        for row in comparisons
    ]
    s.execute(insert(ComparisonRecord), values)
