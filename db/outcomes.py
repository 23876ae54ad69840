"""Reads the outcome of a run back, as db.results recorded it."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session, aliased

from warpwatch.contract.catalogue import CaseEntry, Catalogue
from warpwatch.contract.codec import from_json
from warpwatch.contract.environment import Card, Environment
from warpwatch.contract.measurement import Counter, Distribution, Measurement, TraceKernel
from warpwatch.contract.messages import BenchReply, BuildReply, CheckReply, KernelResources, ProfileReply
from warpwatch.contract.outcome import Comparison, Finding, Outcome
from warpwatch.contract.rounds import CellRounds
from warpwatch.contract.spec import JobRequest
from warpwatch.contract.words import Fault, JobKind, JobState, Reason, RunState, Status
from warpwatch.db.columns import unpack_samples
from warpwatch.db.models import (
    BuildRecord,
    CardRecord,
    CaseRecord,
    CommitRecord,
    ComparisonRecord,
    DeviceRecord,
    EnvironmentRecord,
    JobRecord,
    OperatorRecord,
    PointRecord,
    RepositoryRecord,
    ResultRecord,
    RunRecord,
    SamplesRecord,
    SeriesRecord,
    TraceKernelRecord,
    TraceRecord,
    VariantRecord,
)
from warpwatch.db.reads.code import definitions_version
from warpwatch.db.traces import iter_trace


@dataclass(frozen=True, slots=True)
class ExportedRun:
    """The run that ended a job. Times are UTC."""

    run_id: int
    commit_id: int
    base_commit_id: int | None
    environment_id: int
    operator_id: int
    request: JobRequest
    started_at: datetime
    finished_at: datetime


def list_exported_runs(s: Session, repository_id: int) -> list[ExportedRun]:
    """The last run of every job that is done and whose results count, oldest first."""
    base = aliased(CommitRecord)
    statement = (
        select(RunRecord, JobRecord, CommitRecord.sha, base.sha, OperatorRecord.name, RepositoryRecord)
        .join(JobRecord, RunRecord.job_id == JobRecord.id)
        .join(CommitRecord, JobRecord.commit_id == CommitRecord.id)
        .join(RepositoryRecord, CommitRecord.repository_id == RepositoryRecord.id)
        .join(OperatorRecord, JobRecord.operator_id == OperatorRecord.id)
        .outerjoin(base, JobRecord.base_commit_id == base.id)
        .where(
            CommitRecord.repository_id == repository_id,
            JobRecord.state == JobState.DONE,
            RunRecord.attempt == JobRecord.attempt,
            RunRecord.state == RunState.DONE,
            RunRecord.struck_out_at.is_(None),
        )
        .order_by(RunRecord.started_at, RunRecord.id)
    )
    return [
        ExportedRun(
            run.id,
            job.commit_id,
            job.base_commit_id,
            run.environment_id,
            job.operator_id,
            JobRequest(
                JobKind(job.kind),
                repository.url,
                sha,
                operator,
                job.spec,
                base_sha,
                definitions_version(repository.definitions_url, job.definitions_sha),
            ),
            run.started_at,
            run.finished_at or run.started_at,
        )
        for run, job, sha, base_sha, operator, repository in s.execute(statement)
        if run.environment_id is not None
    ]


def read_outcome(s: Session, run: ExportedRun, folder: Path) -> Outcome:
    """The outcome of the run; its traces are written to `folder`."""
    environment, peaks = _environment(s, run)
    is_compare = run.request.kind is JobKind.COMPARE
    catalogue = _catalogue(s, run.commit_id)
    base_catalogue = _catalogue(s, run.base_commit_id) if run.base_commit_id is not None else None
    findings = _findings(s, run.run_id, run.commit_id, folder)
    base_findings = [] if run.base_commit_id is None else _findings(s, run.run_id, run.base_commit_id, folder)
    comparisons = _comparisons(s, run.run_id)
    declared = {
        case.key
        for commit_catalogue in (catalogue, base_catalogue)
        for operator in (commit_catalogue.operators if commit_catalogue else [])
        if operator.name == run.request.operator
        for case in operator.cases
    }
    used = {finding.case for finding in (*findings, *base_findings)} | {row.case for row in comparisons}
    return Outcome(
        environment=environment,
        peaks=peaks,
        catalogue=catalogue,
        build=None if is_compare else _build(s, run),
        findings=findings,
        base_catalogue=base_catalogue,
        base_findings=base_findings,
        comparisons=comparisons,
        derived_cases=_cases(s, run.operator_id, used - declared),
    )


def _environment(s: Session, run: ExportedRun) -> tuple[Environment, dict[str, float] | None]:
    row, device = s.execute(
        select(EnvironmentRecord, DeviceRecord)
        .join(DeviceRecord, EnvironmentRecord.device_id == DeviceRecord.id)
        .where(EnvironmentRecord.id == run.environment_id)
    ).one()
    facts = select(CardRecord.key, RunRecord.card_facts).join(CardRecord, RunRecord.card_id == CardRecord.id)
    found = s.execute(facts.where(RunRecord.id == run.run_id)).one_or_none()
    card = None if found is None else Card(found.key, found.card_facts or {})
    return Environment(row.key, device.kind, device.key, device.name, row.facts, card), row.peaks


def _catalogue(s: Session, commit_id: int) -> Catalogue | None:
    stored = s.scalars(select(CommitRecord.catalogue).where(CommitRecord.id == commit_id)).one()
    return from_json(Catalogue, stored) if stored is not None else None


def _cases(s: Session, operator_id: int, keys: set[str]) -> list[CaseEntry]:
    rows = s.scalars(
        select(CaseRecord)
        .where(CaseRecord.operator_id == operator_id, CaseRecord.key.in_(keys))
        .order_by(CaseRecord.key)
    )
    return [CaseEntry(r.key, r.sizes, r.precision, r.direction, r.layout, r.suites, r.flops, r.bytes) for r in rows]


def _build(s: Session, run: ExportedRun) -> BuildReply | None:
    row = s.scalar(
        select(BuildRecord).where(
            BuildRecord.commit_id == run.commit_id,
            BuildRecord.operator_id == run.operator_id,
            BuildRecord.environment_id == run.environment_id,
        )
    )
    if row is None:
        return None
    return BuildReply(
        status=Status(row.status),
        key=row.key,
        cached=row.cached,
        seconds=row.seconds,
        log=row.log,
        resources=from_json(list[KernelResources], row.resources),
        compile_seconds=row.compile_seconds or 0.0,
        code_hash=row.code_hash,
    )


def _findings(s: Session, run_id: int, commit_id: int, folder: Path) -> list[Finding]:
    statement = (
        select(ResultRecord, VariantRecord.name, CaseRecord.key)
        .join(VariantRecord, ResultRecord.variant_id == VariantRecord.id)
        .join(CaseRecord, ResultRecord.case_id == CaseRecord.id)
        .where(ResultRecord.run_id == run_id, ResultRecord.commit_id == commit_id)
        .order_by(ResultRecord.id)
    )
    rows = s.execute(statement).all()
    measurements = _measurements(s, [result for result, _, _ in rows])
    return [
        Finding(
            variant,
            case,
            Status(result.status),
            result.message,
            check=_check(result),
            bench=_bench(result, measurements.get(result.id, [])),
            profile=_profile(s, result, folder),
        )
        for result, variant, case in rows
    ]


def _check(result: ResultRecord) -> CheckReply | None:
    if "probes" not in result.details:
        return None
    return from_json(CheckReply, {"status": result.status, "message": result.message, **result.details})


def _bench(result: ResultRecord, measurements: list[Measurement]) -> BenchReply | None:
    details = result.details
    if "health" not in details:
        return None
    missed = details.get(Fault.NOT_CAPTURABLE, [])
    return BenchReply(
        Status(result.status),
        result.message,
        details["flops"],
        details["bytes"],
        measurements,
        details["health"],
        from_json(dict[str, Counter], details["counters"]),
        Fault.NOT_CAPTURABLE if missed else None,
        missed,
    )


def _measurements(s: Session, results: list[ResultRecord]) -> dict[int, list[Measurement]]:
    """By the id of their result."""
    details = {result.id: result.details for result in results}
    statement = (
        select(PointRecord, SeriesRecord.metric, SeriesRecord.protocol, SamplesRecord.data)
        .join(SeriesRecord, PointRecord.series_id == SeriesRecord.id)
        .join(SamplesRecord, SamplesRecord.point_id == PointRecord.id)
        .where(PointRecord.result_id.in_(details))
        .order_by(PointRecord.id)
    )
    measurements: dict[int, list[Measurement]] = {}
    for point, metric, protocol, data in s.execute(statement):
        stored = details[point.result_id]
        distribution: Any = stored["distributions"].get(metric)
        measurements.setdefault(point.result_id, []).append(
            Measurement(
                metric,
                unpack_samples(data),
                point.median_ns,
                point.low_ns,
                point.high_ns,
                point.noise,
                point.dropped,
                stored["dropped"].get(metric, ""),
                from_json(Distribution, distribution) if distribution else None,
                protocol,
            )
        )
    return measurements


def _profile(s: Session, result: ResultRecord, folder: Path) -> ProfileReply | None:
    row = s.scalar(select(TraceRecord).where(TraceRecord.result_id == result.id))
    if row is None:
        return None
    path = folder / f"{row.id}.json.gz"
    with path.open("wb") as file:
        file.writelines(iter_trace(s, row.id))
    kernels = s.scalars(
        select(TraceKernelRecord).where(TraceKernelRecord.trace_id == row.id).order_by(TraceKernelRecord.id)
    )
    return ProfileReply(
        Status(result.status),
        result.message,
        str(path),
        row.size,
        [TraceKernel(k.name, k.calls, k.total_ns, k.mean_ns, k.share, k.details) for k in kernels],
        row.runtime_calls,
        row.summary,
        b64encode(row.report).decode() if row.report is not None else None,
        from_json(dict[str, Counter], result.details.get("counters", {})),
    )


def _comparisons(s: Session, run_id: int) -> list[Comparison]:
    statement = (
        select(ComparisonRecord, SeriesRecord.metric, SeriesRecord.protocol, VariantRecord.name, CaseRecord.key)
        .join(SeriesRecord, ComparisonRecord.series_id == SeriesRecord.id)
        .join(VariantRecord, SeriesRecord.variant_id == VariantRecord.id)
        .join(CaseRecord, SeriesRecord.case_id == CaseRecord.id)
        .where(ComparisonRecord.run_id == run_id)
        .order_by(ComparisonRecord.id)
    )
    return [
        Comparison(
            variant,
            case,
            metric,
            protocol,
            Status(row.status),
            row.message,
            row.base_ns,
            row.head_ns,
            Reason(row.reason) if row.reason is not None else None,
            **(row.controls or {}),
            cells=CellRounds(**row.cells) if row.cells is not None else None,
        )
        for row, metric, protocol, variant, case in s.execute(statement)
    ]


def list_run_commits(s: Session, runs: list[ExportedRun]) -> Iterator[CommitRecord]:
    """The commits that the runs measured, oldest first."""
    ids = {run.commit_id for run in runs} | {run.base_commit_id for run in runs if run.base_commit_id is not None}
    yield from s.scalars(select(CommitRecord).where(CommitRecord.id.in_(ids)).order_by(CommitRecord.ordinal))
