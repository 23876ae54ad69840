"""Results files: what goes in comes out, what was tampered with is refused, and a refused file leaves no row behind."""

from __future__ import annotations

import gzip
import hashlib
import json
import tracemalloc
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from tests import builders
from warpwatch.bundle import BundledRun, BundleError, BundleReader, BundleWriter
from warpwatch.contract.catalogue import CaseEntry, Catalogue, OperatorEntry, VariantEntry
from warpwatch.contract.codec import from_json
from warpwatch.contract.environment import Environment
from warpwatch.contract.measurement import Measurement, TraceKernel
from warpwatch.contract.messages import BenchReply, ProfileReply
from warpwatch.contract.outcome import Finding, Outcome
from warpwatch.contract.spec import JobRequest, ProfilePlan
from warpwatch.contract.words import JobKind, Status
from warpwatch.db import registry
from warpwatch.db.database import Database
from warpwatch.db.models import (
    BundleRecord,
    CommitRecord,
    JobRecord,
    PointRecord,
    RepositoryRecord,
    ResultRecord,
    SubmissionRecord,
    TraceRecord,
)
from warpwatch.db.reads.work import read_job
from warpwatch.db.traces import iter_trace_json
from warpwatch.git import CommitInfo
from warpwatch.server.intake.bundles import import_bundle

SHA = "a" * 40
CASE = "n=8,f32,fwd"
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TRACE = json.dumps({"traceEvents": [{"name": "kernel", "dur": n} for n in range(20000)]}).encode()
ENVIRONMENT = Environment("e" * 64, "cuda", "test-gpu", "Test GPU", {"torch": "2.13.0"})
CATALOGUE = Catalogue(
    1,
    [
        OperatorEntry(
            "probe",
            "Doubles.",
            [VariantEntry("v1", "plain", "", ["cpu", "cuda"], False)],
            [CaseEntry(CASE, {"n": 8}, "f32", "fwd", "contiguous", ["quick"], 8, 64)],
        )
    ],
)


def outcome(folder: Path) -> dict[str, Outcome]:
    trace = folder / "one.json.gz"
    trace.write_bytes(gzip.compress(TRACE))
    measurement = Measurement("graph", [1000.123456789, 1001.5], 1000.8, 1000.1, 1001.5, 0.001, 2, "hot")
    bench = BenchReply(Status.OK, "", 8, 64, [measurement], {"clock": 1980})
    profile = ProfileReply(
        Status.OK,
        "",
        str(trace),
        len(TRACE),
        [TraceKernel("kernel", 2, 10.0, 5.0, 1.0)],
        {"cudaLaunchKernel": 2.0},
        {"calls": 2, "sequence": [["kernel", 5.0]]},
        "cmVwb3J0",
        builders.energy(0.0123),
    )
    peaks = {"copy": 1e12, "f32": 1e13}
    return {
        "bench": Outcome(ENVIRONMENT, peaks, CATALOGUE, None, [Finding("v1", CASE, Status.OK, bench=bench)]),
        "profile": Outcome(ENVIRONMENT, peaks, CATALOGUE, None, [Finding("v1", CASE, Status.OK, profile=profile)]),
    }


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A file with one bench and one profile of one commit."""
    path = tmp_path / "results.wwb"
    commit = CommitInfo(SHA, None, 1, "Ann", NOW, "First")
    with BundleWriter(path, "measured", "/far/away", [commit], "0.1.0") as writer:
        for kind, found in outcome(tmp_path).items():
            writer.add(JobRequest(JobKind(kind), "/far/away", SHA, "probe"), found, NOW, NOW)
    return path


def test_what_goes_in_comes_out(bundle: Path, tmp_path: Path) -> None:
    expected = outcome(tmp_path)
    with BundleReader(bundle) as reader:
        runs = list(reader.runs())
        assert [run.order.kind for run in runs] == ["bench", "profile"]
        assert runs[1].outcome.catalogue == CATALOGUE
        measured = runs[0].outcome.findings[0].bench
        assert measured is not None
        assert measured.measurements[0].samples_ns == [1000.123, 1001.5]
        assert measured.health == {"clock": 1980}
        out = tmp_path / "out"
        out.mkdir()
        profile = reader.extract(runs[1].outcome, out).findings[0].profile
        assert profile is not None
        assert profile.path is not None
        assert gzip.decompress(Path(profile.path).read_bytes()) == TRACE
        assert profile.kernels == expected["profile"].findings[0].profile.kernels  # type: ignore[union-attr]
        assert (profile.summary, profile.report) == ({"calls": 2, "sequence": [["kernel", 5.0]]}, "cmVwb3J0")


def test_runs_that_together_are_larger_than_one_may_be_are_not_kept(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[Any] = []

    def decode(kind: Any, data: Any) -> Any:
        decoded.append(kind)
        return from_json(kind, data)

    monkeypatch.setattr("warpwatch.bundle.from_json", decode)
    with BundleReader(bundle) as reader:
        runs = list(reader.runs())
        assert list(reader.runs()) == runs
    assert decoded.count(BundledRun) == len(runs) == 2
    with zipfile.ZipFile(bundle) as file:
        sizes = [file.read(f"runs/{number:05}.json").count(b"{") for number in (1, 2)]
    monkeypatch.setattr("warpwatch.bundle.OBJECT_LIMIT", sum(sizes))
    with BundleReader(bundle) as reader:
        assert list(reader.runs()) == list(reader.runs()) == runs
    assert decoded.count(BundledRun) == 2 + 6


def test_an_error_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(KeyError), BundleWriter(tmp_path / "results.wwb", "name", "url", [], "0.1.0"):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_import_records_everything_once(bundle: Path, database: Database) -> None:
    first, second = import_bundle(database, bundle), import_bundle(database, bundle)
    assert (first.new, first.jobs, second.new, second.submission_id) == (True, 2, False, first.submission_id)
    with database.session() as s:
        counts = [
            s.scalar(select(func.count()).select_from(table))
            for table in (BundleRecord, JobRecord, ResultRecord, PointRecord, TraceRecord)
        ]
        assert counts == [1, 2, 2, 1, 1]
        assert s.scalars(select(SubmissionRecord.origin)).one() == "bundle"
        assert s.scalars(select(CommitRecord.sha)).one() == SHA
        point = s.scalars(select(PointRecord)).one()
        assert (point.median_ns, point.count, point.bound) == (1000.8, 2, "copy")
        # 64 bytes at 1e12 bytes per second take 0.064 ns.
        assert point.roofline_share == pytest.approx(0.064 / 1000.8)
        assert s.scalars(select(TraceRecord.report)).one() == b"report"
        assert b"".join(iter_trace_json(s, s.scalars(select(TraceRecord.id)).one())) == TRACE


def test_import_fetches_the_history_of_a_known_repository_alone(bundle: Path, database: Database) -> None:
    """The address in a file from elsewhere is nowhere that anybody asked to connect to."""
    fetched: list[str] = []
    import_bundle(database, _copy(bundle), "new", fetch=fetched.append)
    assert fetched == []
    with database.session() as s:
        registry.ensure_repository(s, "measured", "/srv/mine")
    import_bundle(database, bundle, fetch=fetched.append)
    assert fetched == ["/srv/mine"]


def test_import_never_redirects_a_known_repository(bundle: Path, database: Database) -> None:
    with database.session() as s:
        registry.ensure_repository(s, "measured", "/srv/mine")
    import_bundle(database, bundle)
    take_in_as = import_bundle(database, _copy(bundle), "example", "example")
    assert take_in_as.new
    with database.session() as s:
        assert dict(s.execute(select(RepositoryRecord.name, RepositoryRecord.url)).all()) == {
            "measured": "/srv/mine",
            "example": "/far/away",
        }


def _copy(bundle: Path) -> Path:
    """The same results in a file with another digest."""
    return rewrite(bundle, lambda members: None)


def rewrite(bundle: Path, change: Callable[[dict[str, bytes]], Any], *, resign: bool = False) -> Path:
    """A copy of the file with its members changed; with `resign` the manifest is made to fit, as a forger would."""
    with zipfile.ZipFile(bundle) as source:
        members = {name: source.read(name) for name in source.namelist()}
    change(members)
    if resign:
        manifest = json.loads(members["manifest.json"])
        manifest["members"] = [
            {"name": name, "sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
            for name, data in members.items()
            if name != "manifest.json"
        ]
        members["manifest.json"] = json.dumps(manifest).encode()
    path = bundle.with_name("forged.wwb")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for name, data in members.items():
            target.writestr(name, data)
    return path


def edit(name: str, *keys: str | int, value: Any) -> Callable[[dict[str, bytes]], None]:
    """A change of one value in the JSON of member `name`."""

    def change(members: dict[str, bytes]) -> None:
        whole = json.loads(members[name])
        inner = whole
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value
        members[name] = json.dumps(whole).encode()

    return change


BENCH, PROFILE = "runs/00001.json", "runs/00002.json"
MEASUREMENT = ("outcome", "findings", 0, "bench", "measurements", 0)
FORGERIES: dict[str, tuple[Callable[[dict[str, bytes]], Any], str]] = {
    "format": (edit("manifest.json", "format", value=2), "format 2"),
    "no manifest": (lambda members: members.pop("manifest.json"), "no manifest"),
    "strange member": (lambda members: members.update({"../../etc/passwd": b"x"}), "called"),
    "member gone": (lambda members: members.pop("traces/00001.json.gz"), "missing"),
    "spare trace": (lambda members: members.update({"traces/00002.json.gz": gzip.compress(b"")}), "no run names"),
    "unknown status": (edit(BENCH, "outcome", "findings", 0, "status", value="splendid"), "splendid"),
    "unknown kind": (edit(BENCH, "order", "kind", value="guess"), "guess"),
    "unknown field": (edit(BENCH, "surprise", value=1), "surprise"),
    "operator": (edit(BENCH, "order", "operator", value="../probe"), "operator"),
    "commit": (edit(BENCH, "order", "sha", value="b" * 40), "does not describe"),
    "sha": (edit("manifest.json", "commits", 0, "sha", value="--help"), "--help"),
    "negative time": (
        edit(BENCH, *MEASUREMENT, "samples_ns", value=[-1.0]),
        "samples_ns: expected durations",
    ),
    "no number": (edit(BENCH, *MEASUREMENT, "median_ns", value=float("nan")), "median_ns: expected a finite number"),
    "no time zone": (edit(BENCH, "started_at", value="2026-01-01T00:00:00"), "time zone"),
    "no trace": (lambda members: members.update({"traces/00001.json.gz": b"not gzip"}), "damaged"),
    "longer trace": (
        lambda members: members.update({"traces/00001.json.gz": gzip.compress(b"0" * 10**8)}),
        "not a gzip'ed trace",
    ),
    "trace outside": (edit(PROFILE, "outcome", "findings", 0, "profile", "path", value="/etc/passwd"), "/etc/passwd"),
    "nested": (lambda members: members.update({BENCH: b"[" * 10**5}), "nested|damaged|cannot be used"),
    "spec field": (edit(BENCH, "order", "spec", "surprise", value=1), "order.spec: unknown field 'surprise'"),
    "spec type": (edit(BENCH, "order", "spec", "variants", value="v1"), "order.spec.variants: expected a list"),
    "plan": (edit(PROFILE, "order", "spec", "profile", value={"wait": "3"}), "order.spec.profile.wait: expected int"),
    "plan field": (edit(PROFILE, "order", "spec", "profile", value={"pause": 3}), "order.spec.profile: unknown field"),
    "budget": (edit(BENCH, "order", "spec", "budget_ns", value=10**400), "order.spec.budget_ns: expected an integer"),
    "sanitizer": (edit(BENCH, "order", "spec", "sanitize", value="magic"), "order.spec.sanitize is 'magic'"),
    "case": (edit(BENCH, "outcome", "findings", 0, "case", value="n=9,f32,fwd"), "no catalogue names the case"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_files_are_refused_and_leave_nothing(bundle: Path, database: Database, name: str) -> None:
    change, words = FORGERIES[name]
    forged = rewrite(bundle, change, resign=name not in ("no manifest", "format"))
    with pytest.raises(BundleError, match=words):
        import_bundle(database, forged)
    assert_empty(database)


def test_a_plan_that_is_not_whole_takes_defaults(bundle: Path, database: Database) -> None:
    forged = rewrite(bundle, edit(PROFILE, "order", "spec", "profile", value={"wait": 3}), resign=True)
    import_bundle(database, forged)
    with database.session() as s:
        job = s.scalars(select(JobRecord).where(JobRecord.kind == "profile")).one()
        assert job.spec.profile == ProfilePlan(wait=3)
        detail = read_job(s, job.id)
    assert detail is not None
    assert "--profile 3,1,2,1" in detail.replay
    assert "--profile 3,1,2,1" in detail.results[0].replay


def test_a_changed_member_is_noticed(bundle: Path, database: Database) -> None:
    forged = rewrite(bundle, edit(BENCH, *MEASUREMENT, "median_ns", value=1001.0))
    with pytest.raises(BundleError, match="not what the manifest says"):
        import_bundle(database, forged)
    assert_empty(database)


@pytest.mark.parametrize("part", [0.0, 0.3, 0.9, 0.999])
def test_truncated_files_are_refused_and_leave_nothing(bundle: Path, database: Database, part: float) -> None:
    data = bundle.read_bytes()
    bundle.write_bytes(data[: int(len(data) * part)])
    with pytest.raises(BundleError, match="end is missing"):
        import_bundle(database, bundle)
    assert_empty(database)


def test_flipped_bits_are_noticed(bundle: Path, database: Database) -> None:
    data = bytearray(bundle.read_bytes())
    refused = 0
    for position in range(40, len(data), len(data) // 25):
        broken = bundle.with_name("flipped.wwb")
        broken.write_bytes(data[:position] + bytes([data[position] ^ 0xFF]) + data[position + 1 :])
        try:
            BundleReader(broken).__exit__(None, None, None)
        except BundleError:
            refused += 1
    # What does not count may change: a time stamp of the zip, say.
    assert refused >= 20


def test_a_bomb_is_not_unpacked(bundle: Path) -> None:
    with zipfile.ZipFile(bundle) as source:
        manifest = json.loads(source.read("manifest.json"))
    for member in manifest["members"]:
        member["size"] = 2**40
    forged = rewrite(bundle, edit("manifest.json", "members", value=manifest["members"]))
    with pytest.raises(BundleError, match=r"larger than|at most"):
        BundleReader(forged)


HEALTH = ("outcome", "findings", 0, "bench", "health", "clock")
BOMBS: dict[str, Callable[[int], Any]] = {
    "lists": lambda count: [[]] * count,
    "objects": lambda count: [{}] * count,
    "values": lambda count: [0] * 10 * count,
    "keys": lambda count: {f"{number:x}": 0 for number in range(6 * count)},
}


@pytest.mark.parametrize("name", BOMBS)
def test_small_files_do_not_take_much_memory(bundle: Path, name: str) -> None:
    """Three bytes of JSON are a list of a hundred bytes in memory, and a million of them compress to a kilobyte."""
    count = 400_000
    forged = rewrite(bundle, edit(BENCH, *HEALTH, value=BOMBS[name](count)), resign=True)
    size = zipfile.ZipFile(forged).getinfo(BENCH).file_size
    tracemalloc.start()
    with pytest.raises(BundleError):
        BundleReader(forged)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * size + 10**7


def test_what_is_wrong_is_not_written_out() -> None:
    value = [["x" * 1000] * 1000] * 100
    tracemalloc.start()
    with pytest.raises(ValueError, match="status") as raised:
        from_json(Finding, {"variant": "v1", "case": "c", "status": value})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(str(raised.value)) < 1000
    assert peak < 10**6


def test_a_directory_of_millions_of_members_is_not_read(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warpwatch.bundle.MEMBER_LIMIT", 100)
    with zipfile.ZipFile(bundle, "a") as file:
        for number in range(200):
            file.writestr(f"runs/{number + 100:05}.json", b"{}" * 10)
    monkeypatch.setattr(zipfile, "ZipFile", None)
    with pytest.raises(BundleError):
        BundleReader(bundle)


def test_catalogues_that_stay_in_memory_are_bounded(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warpwatch.bundle.CATALOGUE_LIMIT", 100)
    with pytest.raises(BundleError):
        BundleReader(bundle)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"nothing-here\.wwb"):
        BundleReader(tmp_path / "nothing-here.wwb")


def assert_empty(database: Database) -> None:
    with database.session() as s:
        for table in (BundleRecord, RepositoryRecord, CommitRecord, SubmissionRecord, JobRecord, ResultRecord):
            assert s.scalar(select(func.count()).select_from(table)) == 0, table.__tablename__
