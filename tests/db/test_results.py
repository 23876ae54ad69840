"""What a run found is recorded whole: names once, points in their series, traces of any size with little memory."""

from __future__ import annotations

import gzip
import json
import math
import random
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text

from tests.db.conftest import CATALOGUE, ENVIRONMENT, World, outcome, timed
from tests.rewording import stored
from warpwatch.contract.catalogue import Catalogue, OperatorEntry
from warpwatch.contract.codec import to_json
from warpwatch.contract.measurement import TraceKernel
from warpwatch.contract.messages import BenchReply, BuildReply, KernelResources, ProfileReply
from warpwatch.contract.outcome import Comparison, Finding, Outcome
from warpwatch.contract.words import Status
from warpwatch.db import registry, runs, traces
from warpwatch.db.columns import unpack_samples
from warpwatch.db.errors import NotFoundError, OutcomeError
from warpwatch.db.models import (
    BuildRecord,
    CaseRecord,
    CommitRecord,
    ComparisonRecord,
    EnvironmentRecord,
    PointRecord,
    ResultRecord,
    SamplesRecord,
    SeriesRecord,
    TraceKernelRecord,
    TraceRecord,
    VariantRecord,
)

KRON = KernelResources("kron", "sm_90", 32, 0, 0)
CASE = "n=16 f32 fwd"


def record(world: World, found: Outcome, **job: int | str) -> int:
    """Records the outcome as a run of a new job; the job's id."""
    job_id = world.job(**job)  # type: ignore[arg-type]
    with world.database.session() as s:
        order = runs.begin_run(s, job_id, world.worker)
    assert order is not None
    with world.database.session() as s:
        runs.finish_run(s, order.run_id, found)
    return job_id


def trace_row(path: Path, content: bytes, level: int = 6) -> ProfileReply:
    path.write_bytes(gzip.compress(content, level))
    return ProfileReply(
        Status.OK,
        "",
        str(path),
        len(content),
        [TraceKernel("kron_kernel", 3, 300.0, 100.0, 1.0, {"grid": [1, 2, 3]})],
        {"cudaLaunchKernel": 1.5},
    )


def test_every_part_of_an_outcome_is_kept(world: World) -> None:
    record(world, outcome(build=BuildReply(Status.OK, "", "k1", False, 7.5, "ninja", [KRON])))
    with world.database.session() as s:
        point = (
            s.query(PointRecord)
            .join(SeriesRecord)
            .join(CaseRecord, SeriesRecord.case_id == CaseRecord.id)
            .where(CaseRecord.key == CASE)
            .one()
        )
        series = s.get_one(SeriesRecord, point.series_id)
        assert (series.metric, series.protocol, series.device_id) == ("hot", "1", world.device)
        assert (point.median_ns, point.low_ns, point.high_ns, point.count, point.roofline_share, point.bound) == (
            1000,
            999,
            1001,
            3,
            0.5,
            "copy",
        )
        assert (point.commit_id, point.ordinal) == (world.commits[0], 1)
        assert unpack_samples(s.get_one(SamplesRecord, point.id).data) == [999.0, 1000.0, 1001.0]
        assert s.query(EnvironmentRecord).one().peaks == {"copy": 1e10}
        assert s.query(VariantRecord.idea).scalar() == "plain"
        assert s.get_one(CommitRecord, world.commits[0]).catalogue == to_json(CATALOGUE)
        build = s.query(BuildRecord).one()
        assert (build.seconds, build.resources) == (7.5, [to_json(KRON)])


def test_no_ceiling_bounds_the_host_time_of_a_call(world: World) -> None:
    finding = timed("v1", CASE)
    assert finding.bench is not None
    (hot,) = finding.bench.measurements
    timings = [replace(hot, metric=metric) for metric in ("graph", "launch", "setup")]
    record(world, outcome(findings=[replace(finding, bench=replace(finding.bench, measurements=timings))]))
    with world.database.session() as s:
        rows = s.query(SeriesRecord.metric, PointRecord.roofline_share, PointRecord.bound).join(PointRecord).all()
    assert {tuple(row) for row in rows} == {("graph", 0.5, "copy"), ("launch", None, None), ("setup", None, None)}


def test_names_are_made_once(world: World, counted: Callable[[str], int]) -> None:
    for commit in (0, 1, 2):
        record(world, outcome(), commit=commit)
    assert [counted(t) for t in ("environments", "operators", "variants", "cases", "series", "points")] == [
        1,
        1,
        1,
        2,
        2,
        6,
    ]


def test_every_status_is_kept_apart(world: World) -> None:
    rows = [Finding(f"v{i}", CASE, status, message=f"because {status}") for i, status in enumerate(Status)]
    record(world, outcome(findings=rows), kind="check")
    with world.database.session() as s:
        found = s.query(ResultRecord.status, ResultRecord.message, ResultRecord.kind).order_by(ResultRecord.id).all()
    assert [tuple(row) for row in found] == [(status, stored(f"because {status}"), "check") for status in Status]


@pytest.mark.words
def test_numbers_that_are_none_and_broken_text_are_kept(world: World) -> None:
    bench = BenchReply(
        Status.OK, health={"relative": math.nan, "ulp": [math.inf, -math.inf, 1.5], "text": "a\0b\udcff"}
    )
    record(world, outcome(findings=[Finding("v1", CASE, Status.WRONG, "NUL \0 here", bench=bench)]), kind="check")
    with world.database.session() as s:
        result = s.query(ResultRecord).one()
    assert result.details["health"] == {"relative": "NaN", "ulp": ["Infinity", "-Infinity", 1.5], "text": "a\ufffdb?"}
    assert result.message == stored("NUL \ufffd here")


def test_a_build_from_the_cache_says_nothing_new(world: World) -> None:
    built = BuildReply(Status.OK, "", "k1", False, 7.5, "ninja", [])
    for build in (built, replace(built, cached=True, seconds=0.01, log="")):
        record(world, outcome(build=build))
    with world.database.session() as s:
        assert (s.query(BuildRecord.seconds).scalar(), s.query(BuildRecord.log).scalar()) == (7.5, "ninja")
    record(world, outcome(build=replace(built, seconds=9.0)))
    with world.database.session() as s:
        assert s.query(BuildRecord.seconds).scalar() == 9.0


def test_freshly_measured_peaks_replace_older_ones(world: World) -> None:
    for peaks in ({"copy": 1.0}, {"copy": 2.0}, None):
        with world.database.session() as s:
            registry.ensure_environment(s, ENVIRONMENT, peaks)
    with world.database.session() as s:
        assert s.query(EnvironmentRecord.peaks).scalar() == {"copy": 2.0}


def test_a_comparison_keeps_both_commits_apart(world: World, tmp_path: Path) -> None:
    trace = trace_row(tmp_path / "t.json.gz", b"{}")
    found = outcome(
        findings=[Finding("v1", CASE, Status.OK, profile=trace)],
        base_findings=[Finding("v1", CASE, Status.OK, profile=trace)],
        comparisons=[Comparison("v1", CASE, "hot", "1", Status.OK, "", [100.0, 101.0], [130.0, 131.0])],
    )
    record(world, found, kind="compare", commit=1, base=0)
    with world.database.session() as s:
        comparison = s.query(ComparisonRecord).one()
        assert (comparison.base_commit_id, comparison.head_commit_id) == (world.commits[0], world.commits[1])
        assert (comparison.base_ns, comparison.head_ns) == ([100.0, 101.0], [130.0, 131.0])
        assert {c for (c,) in s.query(ResultRecord.commit_id)} == {world.commits[0], world.commits[1]}
        assert s.query(TraceRecord).count() == 2


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"findings": [Finding("v1", "n=99", Status.OK)]}, "no catalogue names the case 'n=99'"),
        ({"findings": [Finding("v1", CASE, Status.OK)] * 2}, "two results for one case"),
        ({"base_findings": [Finding("v1", CASE, Status.OK)]}, "only a compare job"),
        (
            {
                "findings": [
                    Finding(
                        "v1", CASE, Status.OK, profile=ProfileReply(Status.OK, "", str(Path("/nowhere.gz")), 1, [], {})
                    )
                ]
            },
            "nowhere.gz cannot be read",
        ),
        (
            {
                "findings": [
                    Finding("v1", CASE, Status.OK, profile=ProfileReply(Status.OK, "", str(Path(__file__)), 1, [], {}))
                ]
            },
            "is not a gzip'ed file",
        ),
    ],
)
def test_what_contradicts_itself_leaves_nothing(
    world: World, counted: Callable[[str], int], changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(OutcomeError, match=complaint):
        record(world, outcome(**changes))
    assert counted("results") == counted("cases") == counted("environments") == counted("traces") == 0


def test_rounds_that_do_not_pair_up_are_refused() -> None:
    with pytest.raises(ValueError, match="as many rounds of the base as of the head"):
        Comparison("v1", CASE, "hot", "1", Status.OK, "", [1.0, 2.0], [1.0])


def test_a_trace_comes_back_as_it_went_in(world: World, tmp_path: Path) -> None:
    numbers = random.Random(0)
    content = json.dumps({"traceEvents": [numbers.random() for _ in range(200_000)]}).encode()
    row = trace_row(tmp_path / "t.json.gz", content)
    record(world, outcome(findings=[Finding("v1", CASE, Status.OK, profile=row)]), kind="profile")
    with world.database.session() as s:
        trace = s.query(TraceRecord).one()
        assert (trace.size, trace.compressed_size) == (len(content), Path(row.path or "").stat().st_size)
        chunks = list(traces.iter_trace(s, trace.id))
        assert len(chunks) > 1
        assert max(map(len, chunks)) <= traces.CHUNK_BYTES
        assert b"".join(chunks) == Path(row.path or "").read_bytes()
        pieces = list(traces.iter_trace_json(s, trace.id))
        assert max(map(len, pieces)) <= traces.CHUNK_BYTES
        assert b"".join(pieces) == content
        kernel = s.query(TraceKernelRecord).one()
        assert (kernel.name, kernel.calls, kernel.total_ns, kernel.details) == (
            "kron_kernel",
            3,
            300.0,
            {"grid": [1, 2, 3]},
        )
        with pytest.raises(NotFoundError):
            traces.iter_trace(s, trace.id + 1)


STREAM = """
import resource, sys
from pathlib import Path
from warpwatch.contract.messages import ProfileReply
from warpwatch.contract.outcome import Finding
from warpwatch.contract.words import Status
from warpwatch.db import runs, traces
from warpwatch.db.database import Database
from warpwatch.db.models import TraceRecord
from tests.db.conftest import outcome

url, run_id, path = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
database = Database(url)
with database.session() as s:
    s.connection()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
row = Finding("v1", "n=16 f32 fwd", Status.OK, profile=ProfileReply(Status.OK, "", str(path), 1, [], {}))
with database.session() as s:
    runs.finish_run(s, run_id, outcome(findings=[row]))
with database.session() as s:
    size = sum(len(chunk) for chunk in traces.iter_trace(s, s.query(TraceRecord.id).scalar()))
print(size, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10)
"""


def test_a_huge_trace_needs_the_memory_of_a_few_chunks(world: World, tmp_path: Path) -> None:
    size = 200 << 20
    path = tmp_path / "huge.json.gz"
    with path.open("wb") as file:
        file.write(b"\x1f\x8b")
        # Only its beginning says gzip; the rest is a hole in the file, which costs no disk here.
        file.truncate(size)
    with world.database.session() as s:
        order = runs.begin_run(s, world.job("profile"), world.worker)
    assert order is not None
    script = [sys.executable, "-c", STREAM, world.database.url, str(order.run_id), str(path)]
    streamed, memory = map(int, subprocess.run(script, check=True, capture_output=True, text=True).stdout.split())
    assert streamed == size
    assert memory < 40 << 20


def test_two_runs_that_make_the_same_names_at_once_do_not_block_each_other(
    world: World, counted: Callable[[str], int]
) -> None:
    names = [f"v{i}" for i in range(20)]
    barrier, errors = threading.Barrier(4), []

    def one(seed: int) -> None:
        shuffled = random.Random(seed).sample(names, len(names))
        barrier.wait()
        try:
            record(
                world,
                outcome(findings=[timed(name, CASE) for name in shuffled]),
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, the test shows it
            errors.append(error)

    threads = [threading.Thread(target=one, args=[seed]) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert (counted("variants"), counted("series"), counted("points")) == (20, 20, 80)


def test_names_are_made_in_one_order_whoever_makes_them(world: World) -> None:
    with world.database.session() as s:
        registry.ensure_operators(s, world.repository, ["zeta", "alpha", "mu"])
    with world.database.session() as s:
        assert s.scalars(text("SELECT name FROM operators WHERE name <> 'kron' ORDER BY id")).all() == [
            "alpha",
            "mu",
            "zeta",
        ]


def test_registering_again_refreshes(world: World, counted: Callable[[str], int]) -> None:
    with world.database.session() as s:
        assert registry.ensure_repository(s, "example", "/elsewhere") == world.repository
        assert registry.register_worker(s, "node-1-cpu", world.device, "0.2.0", {"pid": 7}) == world.worker
        registry.stop_worker(s, world.worker)
        registry.worker_heartbeat(s, world.worker)
    with world.database.session() as s:
        assert s.scalars(text("SELECT url FROM repositories")).all() == ["/elsewhere"]
        assert [tuple(row) for row in s.execute(text("SELECT version, stopped_at FROM workers"))] == [("0.2.0", None)]
    assert counted("workers") == 1


def test_a_catalogue_that_a_commit_has_already_is_not_written_again(world: World) -> None:
    written: list[str] = []
    event.listen(
        world.database.engine, "before_cursor_execute", lambda c, cursor, statement, *rest: written.append(statement)
    )
    for commit, expected in ((0, ["commits", "operators", "variants", "cases"]), (0, [])):
        del written[:]
        with world.database.session() as s:
            registry.record_catalogue(s, world.commits[commit], CATALOGUE)
        assert re.findall(r"^(?:INSERT INTO|UPDATE) (\w+)", "\n".join(written), re.MULTILINE) == expected
    with world.database.session() as s, pytest.raises(NotFoundError, match="no commit with the id 999"):
        registry.record_catalogue(s, 999, CATALOGUE)


def test_an_operator_that_does_not_load_keeps_what_is_known_of_it(world: World) -> None:
    broken = Catalogue(1, [OperatorEntry("kron", "", [], [], "SyntaxError")])
    record(world, outcome())
    with world.database.session() as s:
        registry.record_catalogue(s, world.commits[1], broken)
    with world.database.session() as s:
        assert s.scalars(text("SELECT summary FROM operators")).all() == ["Kronecker product"]
        assert s.get_one(CommitRecord, world.commits[1]).catalogue == to_json(broken)
