"""Translates what a job found into the rows that the database keeps."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import asdict
from pathlib import Path

from warpwatch.contract.codec import to_json
from warpwatch.contract.outcome import Comparison, Finding, Outcome
from warpwatch.contract.protocol import (
    PROTOCOL,
    BenchReply,
    BuildReply,
    Catalogue,
    Environment,
    Measurement,
    ProfileReply,
)
from warpwatch.db.outcome import (
    BuildRow,
    ComparisonRow,
    EnvironmentRow,
    KernelRow,
    MeasurementRow,
    ResultRow,
    RunOutcome,
    TraceRow,
)

_PEAK_OF = {"f16": "bf16"}
"""Precisions whose ceiling is measured under another name."""


def run_outcome(outcome: Outcome) -> RunOutcome:
    """Everything of one job as rows; traces are named by the files they lie in."""
    peaks, precisions = outcome.peaks or {}, _precisions(outcome.catalogue)
    return RunOutcome(
        environment=environment_row(outcome.environment, outcome.peaks),
        catalogue=to_json(outcome.catalogue) if outcome.catalogue else None,
        build=_build(outcome.build) if outcome.build else None,
        results=[_result(finding, peaks, precisions) for finding in outcome.findings],
        base_catalogue=to_json(outcome.base_catalogue) if outcome.base_catalogue else None,
        base_results=[_result(finding, peaks, precisions) for finding in outcome.base_findings],
        comparisons=[_comparison(comparison) for comparison in outcome.comparisons],
    )


def environment_row(environment: Environment, peaks: dict[str, float] | None) -> EnvironmentRow:
    e = environment
    return EnvironmentRow(e.key, e.device_kind, e.device_key, e.device_name, e.facts, peaks)


def roofline(
    reply: BenchReply, median_ns: float, precision: str | None, peaks: dict[str, float]
) -> tuple[float | None, str | None]:
    """Share of the measured roofline and the name of the ceiling that binds; None where no ceiling is known.

    The least time a case can take is the longer of moving its bytes and doing its operations at the device's measured
    peaks.
    """
    peak = _PEAK_OF.get(precision or "", precision or "")
    work = {"copy": float(reply.bytes), peak: float(reply.flops)}
    least = {name: 1e9 * amount / peaks[name] for name, amount in work.items() if peaks.get(name, 0) > 0}
    if not least or median_ns <= 0:
        return None, None
    bound = max(least, key=lambda name: least[name])
    return least[bound] / median_ns, bound


def _precisions(catalogue: Catalogue | None) -> dict[str, str]:
    return {case.key: case.precision for entry in (catalogue.operators if catalogue else []) for case in entry.cases}


def _result(finding: Finding, peaks: dict[str, float], precisions: dict[str, str]) -> ResultRow:
    details: dict[str, object] = {}
    measurements: list[MeasurementRow] = []
    if finding.check is not None:
        found = to_json(finding.check)
        details = {name: found[name] for name in ("seed", "tensors", "probes")}
    if finding.bench is not None:
        bench, precision = finding.bench, precisions.get(finding.case)
        dropped = {m.metric: m.dropped_reason for m in bench.measurements if m.dropped_reason}
        distributions = {m.metric: asdict(m.distribution) for m in bench.measurements if m.distribution is not None}
        details = {"flops": bench.flops, "bytes": bench.bytes, "health": bench.health, "dropped": dropped}
        details |= {"distributions": distributions, "counters": {name: asdict(c) for name, c in bench.counters.items()}}
        measurements = [_measurement(bench, m, precision, peaks) for m in bench.measurements]
    trace = _trace(finding.profile) if finding.profile is not None else None
    return ResultRow(finding.variant, finding.case, finding.status, finding.message, details, measurements, trace)


def _measurement(bench: BenchReply, m: Measurement, precision: str | None, peaks: dict[str, float]) -> MeasurementRow:
    share, bound = roofline(bench, m.median_ns, precision, peaks)
    return MeasurementRow(
        m.metric, PROTOCOL, m.samples_ns, m.median_ns, m.low_ns, m.high_ns, m.noise, m.dropped, share, bound
    )


def _trace(profile: ProfileReply) -> TraceRow | None:
    if profile.path is None:
        return None
    kernels = [KernelRow(k.name, k.calls, k.total_ns, k.mean_ns, k.share, k.details) for k in profile.kernels]
    return TraceRow(
        Path(profile.path), profile.size, kernels, profile.runtime_calls, profile.summary, _report(profile.report)
    )


def _report(text: str | None) -> bytes | None:
    """Nsight Compute's file from its base64; what a child or a results file made of it need not be any."""
    try:
        return b64decode(text, validate=True) if text else None
    except ValueError:
        return None


def _build(build: BuildReply) -> BuildRow:
    resources = [asdict(kernel) for kernel in build.resources]
    log = build.log or build.message
    took = build.compile_seconds or None
    return BuildRow(build.status, build.key, build.cached, build.seconds, log, resources, took, build.code_hash)


def _comparison(c: Comparison) -> ComparisonRow:
    status = c.status
    return ComparisonRow(c.variant, c.case, c.metric, c.protocol, status, c.message, c.base_ns, c.head_ns, c.reason)
