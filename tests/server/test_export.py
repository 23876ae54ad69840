"""Exports: every point once, in each format, streamed; and what the readers make of them again."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime
from typing import Any

import pyarrow.parquet
import pytest
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.builders import CASES, Lab
from warpwatch.cli.app import app as command
from warpwatch.contract.measurement import SHORTEST_NS
from warpwatch.db.database import Database
from warpwatch.db.reads import export
from warpwatch.db.reads.export import ExportedPoint, ExportFilter
from warpwatch.formats import FormatError, read_results
from warpwatch.server.figures.exports import read_pages, write_json, write_nvbench
from warpwatch.settings import Settings

V1, V2 = ("v1", CASES[0]), ("v2", CASES[2])


@pytest.fixture(autouse=True)
def measured(lab: Lab) -> None:
    for index in range(4):
        lab.bench(index, {V1: 1000.0 + index, V2: 2000.0 + index})
    lab.bench(3, {V1: 1500.0})


def exported(client: TestClient, **parameters: Any) -> bytes:
    end = parameters.pop("end", "")
    answer = client.get(f"/api/v1/export{end}", params={"repository": "kernels"} | parameters)
    assert answer.status_code == 200, answer.text
    return answer.content


def rows_of(client: TestClient, **parameters: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(exported(client, **parameters))["points"]
    return rows


def test_every_point_is_exported_once(client: TestClient, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "PAGE", 2)
    monkeypatch.setattr(export, "MAX_PAGE", 1)
    rows = rows_of(client)
    assert len(rows) == 18, "four commits, two variants and two metrics, and one repeated run of two metrics"
    assert len({json.dumps(row) for row in rows}) == 18
    hot = [row for row in rows if (row["metric"], row["variant"]) == ("hot", "v1")]
    assert [row["median_ns"] for row in hot] == [1000, 1001, 1002, 1003, 1500]
    assert hot[0] | {"repository": "kernels", "operator": "square", "case": CASES[0], "device": "test-cpu"} == hot[0]
    assert (hot[0]["protocol"], hot[0]["commit"], hot[0]["samples_ns"]) == ("1", lab.shas[0], [])


def test_filters_narrow_an_export(client: TestClient, lab: Lab) -> None:
    assert {row["commit"] for row in rows_of(client, commit=lab.shas[2][:8])} == {lab.shas[2]}
    assert {row["metric"] for row in rows_of(client, metric="cold")} == {"cold"}
    assert rows_of(client, operator="cube") == []
    assert rows_of(client, device="none") == []
    assert len(rows_of(client, samples=True, metric="hot")[0]["samples_ns"]) == 3


def test_csv_and_parquet_hold_the_same_as_json(client: TestClient) -> None:
    rows = rows_of(client, samples=True)
    table = list(csv.DictReader(io.StringIO(exported(client, end=".csv", samples=True).decode())))
    assert [float(row["median_ns"]) for row in table] == [row["median_ns"] for row in rows]
    assert [json.loads(row["samples_ns"]) for row in table] == [row["samples_ns"] for row in rows]
    file = pyarrow.parquet.ParquetFile(io.BytesIO(exported(client, end=".parquet", samples=True)))
    assert file.num_row_groups == 4, "one per page of a series"
    parquet = file.read().to_pylist()
    assert [row["commit"] for row in parquet] == [row["commit"] for row in rows]
    assert [row["median_ns"] for row in parquet] == [row["median_ns"] for row in rows]
    assert parquet[0]["samples_ns"] == pytest.approx(rows[0]["samples_ns"])


def test_what_is_exported_as_nvbench_is_read_again(client: TestClient, lab: Lab) -> None:
    data = exported(client, end=".nvbench", metric="hot", commit=lab.shas[1])
    results = read_results("nvbench", data)
    medians = {item.name: item.median_ns for item in results.benchmarks}
    assert medians == pytest.approx({f"square.v1,case={CASES[0]}": 1001.0, f"square.v2,case={CASES[2]}": 2001.0})
    assert (results.commit, results.device_name) == (lab.shas[1], "test-cpu")
    with pytest.raises(FormatError, match="export a single one by --commit"):
        read_results("nvbench", exported(client, end=".nvbench", metric="hot"))


# A name is unique and has no axis twice.
cases = st.from_regex(r"[a-z_<>:]{1,8}(,[a-z]{1,3}=[0-9a-z=]{0,4}){0,3}", fullmatch=True)
times = st.floats(1.0, 1e12)


@given(st.dictionaries(cases, st.tuples(times, st.floats(0, 0.5), st.floats(0, 0.5), st.floats(0, 2)), min_size=1))
@settings(max_examples=20, deadline=None)
def test_the_benchmarks_of_a_program_go_through_an_export_and_back(
    rows: dict[str, tuple[float, float, float, float]],
) -> None:
    when = datetime(2026, 1, 2, tzinfo=UTC)
    names = {"repository": "kernels", "operator": "sums", "variant": "program", "device": "dev", "metric": "hot"}
    about = {"protocol": "plain", "commit": 40 * "a", "ordinal": 1, "environment": 64 * "e", "card": None, "count": 9}
    fixed: dict[str, Any] = names | about | {"authored_at": when, "measured_at": when, "samples_ns": []}
    points = [
        ExportedPoint(
            case=case, median_ns=median, low_ns=median * (1 - low), high_ns=median * (1 + high), noise=noise, **fixed
        )
        for case, (median, low, high, noise) in rows.items()
    ]
    read = {item.name: item for item in read_results("nvbench", b"".join(write_nvbench(iter([points])))).benchmarks}
    assert set(read) == set(rows)
    for point in points:
        item = read[point.case]
        assert (item.median_ns, item.low_ns, item.high_ns, item.noise) == pytest.approx(
            (point.median_ns, max(point.low_ns, SHORTEST_NS), point.high_ns, point.noise), rel=1e-9
        )


def test_an_export_begins_before_it_has_read_everything(database: Database, lab: Lab) -> None:
    pages = read_pages(database, ExportFilter(lab.repository))
    pieces = write_json(pages)
    assert b"points" in next(pieces)
    assert b"median_ns" in next(pieces)
    assert next(pages, None), "pages are left"


def test_an_unknown_name_is_a_problem(client: TestClient) -> None:
    for parameters, status in (
        ({"repository": "nothing"}, 404),
        ({"repository": "kernels", "commit": "abcdef01"}, 404),
        ({"repository": "kernels", "commit": "HEAD"}, 422),
        ({"repository": "kernels", "colour": "red"}, 422),
    ):
        answer = client.get("/api/v1/export", params=parameters)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"


def test_the_command_writes_a_file(settings: Settings, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPWATCH_DATABASE_URL", str(settings.database_url))
    monkeypatch.setenv("WARPWATCH_HOME", str(settings.home))
    target = tmp_path / "points.csv"
    done = CliRunner().invoke(command, ["export", str(target), "--repository", "kernels", "--metric", "hot"])
    assert done.exit_code == 0, done.output
    assert len(target.read_text().splitlines()) == 10
    assert CliRunner().invoke(command, ["export", str(tmp_path / "x.xls"), "--repository", "kernels"]).exit_code == 2
    missing = tmp_path / "y.json"
    assert CliRunner().invoke(command, ["export", str(missing), "--repository", "none"]).exit_code == 2
    assert not missing.exists()
    assert not list(tmp_path.glob("*.partial"))


def test_the_overview_links_to_the_export(client: TestClient) -> None:
    page = client.get("/overview", params={"repository": "kernels"}).text
    assert "/api/v1/export?" in page
    assert "/api/v1/export.parquet?" in page
