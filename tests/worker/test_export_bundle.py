"""A repository's results leave the database as they came: exported, imported elsewhere and exported again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select
from typer.testing import CliRunner

from warpwatch.bundle import BundledRun, BundleReader
from warpwatch.cli.app import app
from warpwatch.contract.measurement import Measurement
from warpwatch.contract.outcome import Finding, Outcome
from warpwatch.db.database import Database
from warpwatch.db.models import JobRecord
from warpwatch.db.reads.code import RepositoryRow, find_repository
from warpwatch.db.strike_out import strike_out
from warpwatch.server.intake.bundles import export_bundle, import_bundle

EXAMPLE = Path(__file__).parents[2] / "docs" / "example" / "rows.wwb"


def exported(database: Database, name: str, path: Path) -> Path:
    with database.session() as s:
        repository = find_repository(s, name)
    assert isinstance(repository, RepositoryRow)
    assert export_bundle(database, repository, path) > 0
    return path


def read(path: Path) -> list[BundledRun]:
    """The jobs of a results file in a fixed order, with what no database stores left out."""
    with BundleReader(path) as reader:
        runs = [replace(run, outcome=_comparable(run.outcome)) for run in reader.runs()]
    return sorted(runs, key=lambda run: (run.started_at, run.order.kind, run.order.operator, run.order.sha))


def _comparable(outcome: Outcome) -> Outcome:
    findings, base = ([_of_finding(f) for f in side] for side in (outcome.findings, outcome.base_findings))
    build = outcome.build and replace(outcome.build, message="", log="", seconds=0.0, cached=False)
    comparisons = sorted(outcome.comparisons, key=lambda row: (row.variant, row.case))
    return replace(
        outcome, findings=findings, base_findings=base, build=build, comparisons=comparisons, derived_cases=[]
    )


def _of_finding(finding: Finding) -> Finding:
    bench = finding.bench and replace(
        finding.bench,
        message=finding.message,
        measurements=[_of_measurement(m) for m in finding.bench.measurements],
        fault=None,
        subjects=[],
    )
    check = finding.check and replace(finding.check, message=finding.message, fault=None, subjects=[])
    profile = finding.profile and replace(finding.profile, path="", message="")
    return replace(finding, bench=bench, check=check, profile=profile, fault=None, subjects=[])


def _of_measurement(measurement: Measurement) -> Measurement:
    """With samples to six digits: the database stores them as float32."""
    return replace(measurement, samples_ns=[float(f"{sample:.6g}") for sample in measurement.samples_ns])


def test_an_export_holds_what_was_imported(database: Database, tmp_path: Path) -> None:
    import_bundle(database, EXAMPLE, "first")
    path = exported(database, "first", tmp_path / "first.wwb")
    before, after = read(EXAMPLE), read(path)
    assert [run.order.kind for run in after] == [run.order.kind for run in before]
    for expected, run in zip(before, after, strict=True):
        assert replace(run.order, url="") == replace(expected.order, url="")
        assert (run.started_at, run.finished_at) == (expected.started_at, expected.finished_at)
        assert run.outcome.environment == expected.outcome.environment
        assert run.outcome.findings == expected.outcome.findings
        assert run.outcome.base_findings == expected.outcome.base_findings
        assert run.outcome.comparisons == expected.outcome.comparisons
    with BundleReader(path) as reader, BundleReader(EXAMPLE) as original:
        traces = [m.sha256 for m in reader.manifest.members if m.name.startswith("traces/")]
        assert sorted(traces) == sorted(m.sha256 for m in original.manifest.members if m.name.startswith("traces/"))
        assert len(traces) > 0


def test_an_export_that_is_imported_and_exported_again_is_the_same(database: Database, tmp_path: Path) -> None:
    import_bundle(database, EXAMPLE, "first")
    once = exported(database, "first", tmp_path / "once.wwb")
    assert import_bundle(database, once, "second").jobs == len(read(once))
    twice = exported(database, "second", tmp_path / "twice.wwb")
    assert read(twice) == read(once)


def test_results_that_were_struck_out_stay_behind(database: Database, tmp_path: Path) -> None:
    import_bundle(database, EXAMPLE, "first")
    with database.session() as s:
        job = s.scalars(select(JobRecord).order_by(JobRecord.id)).all()[0]
        started_at = job.started_at
        assert started_at is not None
        strike_out(s, job.id, "measured beside another program")
    rest = read(exported(database, "first", tmp_path / "rest.wwb"))
    assert len(rest) == len(read(EXAMPLE)) - 1
    assert started_at.isoformat() not in [run.started_at for run in rest]


@pytest.mark.parametrize("options", [["--samples"], ["--operator", "softmax"]])
def test_a_results_file_holds_everything_or_is_refused(options: list[str], tmp_path: Path) -> None:
    output = tmp_path / "all.wwb"
    done = CliRunner().invoke(app, ["export", str(output), "--repository", "first", *options])
    assert (done.exit_code, output.exists()) == (2, False)
    assert "everything" in done.stderr
