"""Records what a run found: environment, catalogue, build, results, series, points, samples, traces, paired rounds.

Everything happens in the caller's transaction, which holds the fence (db.runs) or the whole bundle (db.bundles).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import insert, or_, select, tuple_
from sqlalchemy.dialects.postgresql import insert as upsert_into
from sqlalchemy.orm import Session

from warpwatch.contract.words import Status
from warpwatch.db.database import storable
from warpwatch.db.errors import OutcomeError
from warpwatch.db.models import (
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
)
from warpwatch.db.outcome import BuildRow, ComparisonRow, MeasurementRow, ResultRow, RunOutcome
from warpwatch.db.registry import ensure_environment, record_catalogue, upsert
from warpwatch.db.samples import pack_samples
from warpwatch.db.traces import store_trace


@dataclass(frozen=True, slots=True)
class _Scope:
    """What every row of one commit's outcome has in common, and the ids of the names in it."""

    run_id: int
    kind: str
    commit_id: int
    ordinal: int
    operator_id: int
    device_id: int
    environment_id: int
    measured_at: datetime
    variants: dict[str, int]
    cases: dict[str, int]


def record_outcome(s: Session, job: JobRecord, run: RunRecord, outcome: RunOutcome) -> int:
    """Writes everything; returns the environment's id. OutcomeError when the outcome contradicts itself or the job."""
    device_key = s.scalars(select(DeviceRecord.key).where(DeviceRecord.id == job.device_id)).one()
    if outcome.environment.device_key != device_key:
        raise OutcomeError(
            f"the job is for the device {device_key}, but it was measured on {outcome.environment.device_key}"
        )
    environment_id = ensure_environment(s, outcome.environment)
    for commit_id, catalogue in ((job.commit_id, outcome.catalogue), (job.base_commit_id, outcome.base_catalogue)):
        if catalogue is not None and commit_id is not None:
            record_catalogue(s, commit_id, catalogue)
    if job.base_commit_id is None and (outcome.base_results or outcome.comparisons):
        raise OutcomeError("only a compare job has results of a second commit")
    rows: list[ResultRow | ComparisonRow] = [*outcome.results, *outcome.base_results, *outcome.comparisons]
    variants = _ensure_variants(s, job.operator_id, {row.variant for row in rows})
    cases = _find_cases(s, job.operator_id, {row.case for row in rows})
    for target, results in ((job.commit_id, outcome.results), (job.base_commit_id, outcome.base_results)):
        if results and target is not None:
            ordinal = s.scalars(select(CommitRecord.ordinal).where(CommitRecord.id == target)).one()
            ids = (job.operator_id, job.device_id, environment_id, run.finished_at or datetime.now(UTC))
            _record_results(s, _Scope(run.id, job.kind, target, ordinal, *ids, variants, cases), results)
    if outcome.build is not None:
        _record_build(s, job, environment_id, outcome.build)
    _record_comparisons(s, job, run, outcome.comparisons, variants, cases)
    return environment_id


# --- names ----------------------------------------------------------------------------------------------------


def _ensure_variants(s: Session, operator_id: int, names: set[str]) -> dict[str, int]:
    upsert(
        s, VariantRecord, [{"operator_id": operator_id, "name": name} for name in names], key=["operator_id", "name"]
    )
    found = s.execute(
        select(VariantRecord.name, VariantRecord.id).where(
            VariantRecord.operator_id == operator_id, VariantRecord.name.in_(names)
        )
    )
    return {row.name: row.id for row in found}


def _find_cases(s: Session, operator_id: int, keys: set[str]) -> dict[str, int]:
    """The ids of the cases; a case is more than its key, so one that no catalogue ever named is an error."""
    found = s.execute(
        select(CaseRecord.key, CaseRecord.id).where(CaseRecord.operator_id == operator_id, CaseRecord.key.in_(keys))
    )
    cases = {row.key: row.id for row in found}
    unknown = sorted(keys - set(cases))
    if unknown:
        raise OutcomeError(
            f"no catalogue names the case {unknown[0]!r}; the outcome must bring the catalogue of its commit"
        )
    return cases


def _ensure_series(s: Session, rows: Iterable[dict[str, Any]]) -> dict[tuple[int, int, str, str], int]:
    """The id of each series by (case, variant, metric, protocol); all rows are of one operator and device."""
    wanted = list(rows)
    if not wanted:
        return {}
    key = ["operator_id", "device_id", "case_id", "variant_id", "metric", "protocol"]
    upsert(s, SeriesRecord, wanted, key=key)
    columns = (
        SeriesRecord.operator_id,
        SeriesRecord.device_id,
        SeriesRecord.case_id,
        SeriesRecord.variant_id,
        SeriesRecord.metric,
        SeriesRecord.protocol,
    )
    statement = select(SeriesRecord).where(
        tuple_(*columns).in_([tuple(row[column] for column in key) for row in wanted])
    )
    return {(row.case_id, row.variant_id, row.metric, row.protocol): row.id for row in s.scalars(statement)}


# --- results --------------------------------------------------------------------------------------------------


def _record_results(s: Session, scope: _Scope, results: list[ResultRow]) -> None:
    pairs = [(row.variant, row.case) for row in results]
    if len(set(pairs)) != len(pairs):
        raise OutcomeError("a variant has two results for one case")
    values = [
        {
            "run_id": scope.run_id,
            "kind": scope.kind,
            "commit_id": scope.commit_id,
            "ordinal": scope.ordinal,
            "operator_id": scope.operator_id,
            "variant_id": scope.variants[row.variant],
            "case_id": scope.cases[row.case],
            "device_id": scope.device_id,
            "environment_id": scope.environment_id,
            "status": Status(row.status),
            "message": storable(row.message),
            "details": row.details,
            "created_at": scope.measured_at,
        }
        for row in results
    ]
    ids = s.scalars(insert(ResultRecord).returning(ResultRecord.id, sort_by_parameter_order=True), values).all()
    _record_points(
        s, scope, [(number, row, m) for number, row in zip(ids, results, strict=True) for m in row.measurements]
    )
    for result_id, row in zip(ids, results, strict=True):
        if row.trace is not None:
            store_trace(s, result_id, row.trace)


def _record_points(s: Session, scope: _Scope, measured: list[tuple[int, ResultRow, MeasurementRow]]) -> None:
    if not measured:
        return
    series = _ensure_series(s, (_series_row(scope, row, m) for _, row, m in measured))
    values = [
        {
            "series_id": series[scope.cases[row.case], scope.variants[row.variant], m.metric, m.protocol],
            "commit_id": scope.commit_id,
            "ordinal": scope.ordinal,
            "environment_id": scope.environment_id,
            "result_id": result_id,
            "median_ns": m.median_ns,
            "low_ns": m.low_ns,
            "high_ns": m.high_ns,
            "noise": m.noise,
            "count": len(m.samples_ns),
            "dropped": m.dropped,
            "roofline_share": m.roofline_share,
            "bound": m.bound,
            "measured_at": scope.measured_at,
        }
        for result_id, row, m in measured
    ]
    ids = s.scalars(insert(PointRecord).returning(PointRecord.id, sort_by_parameter_order=True), values).all()
    samples = [
        {"point_id": number, "data": pack_samples(m.samples_ns)}
        for number, (_, _, m) in zip(ids, measured, strict=True)
    ]
    s.execute(insert(SamplesRecord), samples)


def _series_row(scope: _Scope, row: ResultRow, measurement: MeasurementRow) -> dict[str, Any]:
    return {
        "operator_id": scope.operator_id,
        "device_id": scope.device_id,
        "case_id": scope.cases[row.case],
        "variant_id": scope.variants[row.variant],
        "metric": measurement.metric,
        "protocol": measurement.protocol,
    }


def _record_build(s: Session, job: JobRecord, environment_id: int, build: BuildRow) -> None:
    """Keeps one build per commit, operator and environment: a fresh one replaces the last, one from the cache says
    nothing new."""
    row = {
        "commit_id": job.commit_id,
        "operator_id": job.operator_id,
        "environment_id": environment_id,
        "status": build.status,
        "key": build.key,
        "cached": build.cached,
        "seconds": build.seconds,
        "log": storable(build.log),
        "resources": build.resources,
        "compile_seconds": build.compile_seconds,
        "code_hash": build.code_hash,
    }
    statement = upsert_into(BuildRecord).values(row)
    new = statement.excluded
    tells_more = or_(
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
            where=tells_more,
        )
    )


def _record_comparisons(
    s: Session,
    job: JobRecord,
    run: RunRecord,
    rows: list[ComparisonRow],
    variants: dict[str, int],
    cases: dict[str, int],
) -> None:
    if not rows:
        return
    common = {"operator_id": job.operator_id, "device_id": job.device_id}
    wanted = [
        {
            **common,
            "case_id": cases[row.case],
            "variant_id": variants[row.variant],
            "metric": row.metric,
            "protocol": row.protocol,
        }
        for row in rows
    ]
    series = _ensure_series(s, wanted)
    values = []
    for row in rows:
        if len(row.base_ns) != len(row.head_ns):
            raise OutcomeError(
                f"{row.variant} on {row.case}: {len(row.base_ns)} rounds of the base, {len(row.head_ns)} of the head"
            )
        values.append(
            {
                "run_id": run.id,
                "series_id": series[cases[row.case], variants[row.variant], row.metric, row.protocol],
                "base_commit_id": job.base_commit_id,
                "head_commit_id": job.commit_id,
                "status": Status(row.status),
                "message": storable(row.message),
                "reason": row.reason,
                "base_ns": row.base_ns,
                "head_ns": row.head_ns,
            }
        )
    s.execute(insert(ComparisonRecord), values)
