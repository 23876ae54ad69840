"""Records an outcome: environment, catalogue, build, results, series, points, samples, traces, paired rounds.

Everything happens in the caller's transaction, which holds the fence (db.runs) or the whole bundle (db.bundles).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import insert, or_, select, tuple_
from sqlalchemy.dialects.postgresql import insert as upsert_into
from sqlalchemy.orm import Session

from warpwatch.contract.codec import to_json
from warpwatch.contract.measurement import PROTOCOL, Measurement
from warpwatch.contract.messages import BenchReply, BuildReply
from warpwatch.contract.outcome import Comparison, Finding, Outcome
from warpwatch.contract.roofline import roofline
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
from warpwatch.db.registry import ensure_environment, record_catalogue, upsert
from warpwatch.db.samples import pack_samples
from warpwatch.db.tallies import forget_counts
from warpwatch.db.traces import store_trace


class _Case(NamedTuple):
    id: int
    precision: str


@dataclass(frozen=True, slots=True)
class _Scope:
    """What all rows of one commit's findings share, and the ids of the names in them."""

    run_id: int
    kind: str
    commit_id: int
    ordinal: int
    operator_id: int
    device_id: int
    environment_id: int
    measured_at: datetime
    variants: dict[str, int]
    cases: dict[str, _Case]
    peaks: dict[str, float]


def record_outcome(s: Session, job: JobRecord, run: RunRecord, outcome: Outcome) -> int:
    """Writes the outcome; returns the environment's id. OutcomeError when it contradicts itself or the job."""
    device_key = s.scalars(select(DeviceRecord.key).where(DeviceRecord.id == job.device_id)).one()
    if outcome.environment.device_key != device_key:
        raise OutcomeError(
            f"the job is for the device {device_key}, but it was measured on {outcome.environment.device_key}"
        )
    environment_id = ensure_environment(s, outcome.environment, outcome.peaks)
    for commit_id, catalogue in ((job.commit_id, outcome.catalogue), (job.base_commit_id, outcome.base_catalogue)):
        if catalogue is not None and commit_id is not None:
            record_catalogue(s, commit_id, catalogue)
    if job.base_commit_id is None and (outcome.base_findings or outcome.comparisons):
        raise OutcomeError("only a compare job has results of a second commit")
    rows: list[Finding | Comparison] = [*outcome.findings, *outcome.base_findings, *outcome.comparisons]
    variants = _ensure_variants(s, job.operator_id, {row.variant for row in rows})
    cases = _find_cases(s, job.operator_id, {row.case for row in rows})
    shared = (variants, cases, outcome.peaks or {})
    for target, findings in ((job.commit_id, outcome.findings), (job.base_commit_id, outcome.base_findings)):
        if findings and target is not None:
            ordinal = s.scalars(select(CommitRecord.ordinal).where(CommitRecord.id == target)).one()
            ids = (job.operator_id, job.device_id, environment_id, run.finished_at or datetime.now(UTC))
            _record_findings(s, _Scope(run.id, job.kind, target, ordinal, *ids, *shared), findings)
    if outcome.build is not None:
        _record_build(s, job, environment_id, outcome.build)
    _record_comparisons(s, job, run, outcome.comparisons, variants, cases)
    # Last, because it locks rows that the jobs of one commit share.
    forget_counts(s, [commit_id for commit_id in (job.commit_id, job.base_commit_id) if commit_id is not None])
    return environment_id


# --- names ----------------------------------------------------------------------------------------------------


def _ensure_variants(s: Session, operator_id: int, names: set[str]) -> dict[str, int]:
    upsert(
        s, VariantRecord, [{"operator_id": operator_id, "name": name} for name in names], key=["operator_id", "name"]
    )
    ids = s.execute(
        select(VariantRecord.name, VariantRecord.id).where(
            VariantRecord.operator_id == operator_id, VariantRecord.name.in_(names)
        )
    )
    return {row.name: row.id for row in ids}


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


def _ensure_series(s: Session, rows: Iterable[dict[str, Any]]) -> dict[tuple[int, int, str, str], int]:
    """The id of each series by (case, variant, metric, protocol); all rows are of one operator and device."""
    unique = list(rows)
    if not unique:
        return {}
    key = ["operator_id", "device_id", "case_id", "variant_id", "metric", "protocol"]
    upsert(s, SeriesRecord, unique, key=key)
    columns = (
        SeriesRecord.operator_id,
        SeriesRecord.device_id,
        SeriesRecord.case_id,
        SeriesRecord.variant_id,
        SeriesRecord.metric,
        SeriesRecord.protocol,
    )
    statement = select(SeriesRecord).where(
        tuple_(*columns).in_([tuple(row[column] for column in key) for row in unique])
    )
    return {(row.case_id, row.variant_id, row.metric, row.protocol): row.id for row in s.scalars(statement)}


# --- results --------------------------------------------------------------------------------------------------


def _record_findings(s: Session, scope: _Scope, findings: list[Finding]) -> None:
    cells = [(finding.variant, finding.case) for finding in findings]
    if len(set(cells)) != len(cells):
        raise OutcomeError("a variant has two results for one case")
    values = [
        {
            "run_id": scope.run_id,
            "kind": scope.kind,
            "commit_id": scope.commit_id,
            "ordinal": scope.ordinal,
            "operator_id": scope.operator_id,
            "variant_id": scope.variants[finding.variant],
            "case_id": scope.cases[finding.case].id,
            "device_id": scope.device_id,
            "environment_id": scope.environment_id,
            "status": finding.status,
            "message": storable(finding.message),
            "details": _details(finding),
            "created_at": scope.measured_at,
        }
        for finding in findings
    ]
    ids = s.scalars(insert(ResultRecord).returning(ResultRecord.id, sort_by_parameter_order=True), values).all()
    numbered = list(zip(ids, findings, strict=True))
    _record_points(s, scope, [_Point(i, f, f.bench, m) for i, f in numbered if f.bench for m in f.bench.measurements])
    for result_id, finding in numbered:
        if finding.profile is not None and finding.profile.path is not None:
            store_trace(s, result_id, Path(finding.profile.path), finding.profile)


def _details(finding: Finding) -> dict[str, Any]:
    """What is stored beside status and message: the errors of a check; the cost, health and counters of a bench."""
    if finding.bench is not None:
        bench = finding.bench
        return {
            "flops": bench.flops,
            "bytes": bench.bytes,
            "health": bench.health,
            "dropped": {m.metric: m.dropped_reason for m in bench.measurements if m.dropped_reason},
            "distributions": {m.metric: asdict(m.distribution) for m in bench.measurements if m.distribution},
            "counters": {name: asdict(counter) for name, counter in bench.counters.items()},
        }
    if finding.check is not None:
        check = to_json(finding.check)
        return {name: check[name] for name in ("seed", "tensors", "probes")}
    return {}


class _Point(NamedTuple):
    """One measurement to record, with the result it belongs to."""

    result_id: int
    finding: Finding
    bench: BenchReply
    measurement: Measurement


def _record_points(s: Session, scope: _Scope, points: list[_Point]) -> None:
    if not points:
        return
    series = _ensure_series(s, (_series_row(scope, point.finding, point.measurement.metric) for point in points))
    values = [
        {
            "series_id": series[scope.cases[row.case].id, scope.variants[row.variant], m.metric, PROTOCOL],
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
            **_roofline_columns(scope, row.case, bench, m.median_ns),
            "measured_at": scope.measured_at,
        }
        for result_id, row, bench, m in points
    ]
    ids = s.scalars(insert(PointRecord).returning(PointRecord.id, sort_by_parameter_order=True), values).all()
    samples = [
        {"point_id": point_id, "data": pack_samples(point.measurement.samples_ns)}
        for point_id, point in zip(ids, points, strict=True)
    ]
    s.execute(insert(SamplesRecord), samples)


def _roofline_columns(scope: _Scope, case: str, bench: BenchReply, median_ns: float) -> dict[str, Any]:
    share, bound = roofline(bench.flops, bench.bytes, median_ns, scope.cases[case].precision, scope.peaks)
    return {"roofline_share": share, "bound": bound}


def _series_row(scope: _Scope, finding: Finding, metric: str) -> dict[str, Any]:
    return {
        "operator_id": scope.operator_id,
        "device_id": scope.device_id,
        "case_id": scope.cases[finding.case].id,
        "variant_id": scope.variants[finding.variant],
        "metric": metric,
        "protocol": PROTOCOL,
    }


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
    s: Session,
    job: JobRecord,
    run: RunRecord,
    comparisons: list[Comparison],
    variants: dict[str, int],
    cases: dict[str, _Case],
) -> None:
    if not comparisons:
        return
    common = {"operator_id": job.operator_id, "device_id": job.device_id}
    keys = [
        {
            **common,
            "case_id": cases[row.case].id,
            "variant_id": variants[row.variant],
            "metric": row.metric,
            "protocol": row.protocol,
        }
        for row in comparisons
    ]
    series = _ensure_series(s, keys)
    values = [
        {
            "run_id": run.id,
            "series_id": series[cases[row.case].id, variants[row.variant], row.metric, row.protocol],
            "base_commit_id": job.base_commit_id,
            "head_commit_id": job.commit_id,
            "status": row.status,
            "message": storable(row.message),
            "reason": row.reason,
            "base_ns": row.base_ns,
            "head_ns": row.head_ns,
        }
        for row in comparisons
    ]
    s.execute(insert(ComparisonRecord), values)
