"""A/B comparisons that were made elsewhere and imported confirm changes, and nothing is measured again for them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, text

from tests.builders import CASES, Lab, write_commits
from tests.worker.conftest import Diary, identify
from warpwatch import git
from warpwatch.contract.spec import JobRequest
from warpwatch.contract.words import JobKind, Status
from warpwatch.db.bundles import NewBundle, import_bundle
from warpwatch.db.database import Database
from warpwatch.db.models import JobRecord
from warpwatch.project import FILE_NAME
from warpwatch.server.judge import Judge
from warpwatch.settings import Settings
from warpwatch.worker.execution import execute
from warpwatch.worker.host import Host
from warpwatch.worker.tools import Tools

V1, V2, V3 = (("v1", CASES[0]), ("v2", CASES[0]), ("v3", CASES[0]))
TIME = {"name": "sum", "unit": "ns"}
Rounds = tuple[list[float], list[float]]


def rounds_of(chance: random.Random) -> Callable[[float], Rounds]:
    def rounds(ratio: float) -> Rounds:
        base = [20_000.0 * chance.gauss(1, 0.003) for _ in range(12)]
        return base, [value * ratio * chance.gauss(1, 0.003) for value in base]

    return rounds


def test_an_imported_comparison_confirms_what_it_shows(
    client: TestClient, lab: Lab, settings: Settings, database: Database
) -> None:
    rounds = rounds_of(random.Random(3))
    job = lab.submit("compare", 3, base=2, origin="bundle")
    lab.compare(job, {V1: rounds(1.0), V2: rounds(1.3), V3: rounds(0.6)})
    Judge(settings, database).sweep()
    rows = client.get("/api/v1/regressions", params={"repository": "kernels", "state": "open"}).json()["items"]
    assert {(row["direction"], row["phase"], row["series"]) for row in rows} == {
        ("slower", "culprit", 1),
        ("faster", "culprit", 1),
    }
    assert {row["culprit_sha"] for row in rows} == {lab.shas[3]}
    (slower,) = [row for row in rows if row["direction"] == "slower"]
    assert slower["low"] < 1.3 < slower["high"]
    detail = client.get(f"/api/v1/regressions/{slower['id']}").json()
    assert [(trial["job_id"], trial["answer"]) for trial in detail["trials"]] == [(job, "changed")]
    assert len(detail["series"][0]["base_ns"]) == 12
    assert detail["base_trace_id"] is not None
    assert detail["head_trace_id"] not in (None, detail["base_trace_id"])
    assert client.get("/api/v1/jobs", params={"state": "queued"}).json()["items"] == []
    assert client.get(f"/regressions/{slower['id']}").status_code == 200


@pytest.mark.parametrize(("stop", "directions"), [({"earliest": 3, "ratio": 1.02}, ["slower"]), (None, [])])
def test_three_rounds_decide_where_a_suspicion_was_tested(
    client: TestClient,
    lab: Lab,
    settings: Settings,
    database: Database,
    stop: dict[str, Any] | None,
    directions: list[str],
) -> None:
    spec: dict[str, Any] = {"stop": stop} if stop else {}
    job = lab.submit("compare", 3, base=2, origin="bundle", **spec)
    lab.compare(job, {V1: ([20_000.0, 20_010.0, 19_990.0], [22_000.0, 22_020.0, 21_990.0])})
    Judge(settings, database).sweep()
    rows = client.get("/api/v1/regressions", params={"repository": "kernels", "state": "open"}).json()["items"]
    assert [row["direction"] for row in rows] == directions


def test_an_imported_comparison_without_a_change_confirms_nothing(
    client: TestClient, lab: Lab, settings: Settings, database: Database
) -> None:
    rounds = rounds_of(random.Random(4))
    lab.compare(lab.submit("compare", 3, base=2, origin="example"), {V1: rounds(1.0), V2: rounds(1.001)})
    Judge(settings, database).sweep()
    for verdict in ("confirmed", "suspected", "dismissed", "unsure"):
        asked = {"repository": "kernels", "state": "any", "verdict": verdict}
        assert client.get("/api/v1/regressions", params=asked).json()["items"] == []


@pytest.fixture
def judge(settings: Settings, database: Database, lab: Lab) -> Judge:
    git.update_mirror(str(lab.source), settings.home)
    return Judge(settings, database)


def test_imported_comparisons_replay_an_investigation(client: TestClient, lab: Lab, judge: Judge) -> None:
    """A range is suspected from imported history, confirmed, bisected and narrowed to its culprit."""
    rounds = rounds_of(random.Random(5))
    for index, median in ((0, 20_000.0), (1, 20_000.0), (5, 26_000.0)):
        lab.bench(index, {V1: median}, origin="example")
    ratios = {(1, 5): 1.3, (1, 3): 1.3, (1, 2): 1.0, (2, 3): 1.3}
    jobs = {}
    for (base, head), ratio in ratios.items():
        jobs[base, head] = lab.submit("compare", head, base=base, origin="example", pairs=[list(V1)])
        lab.compare(jobs[base, head], {V1: rounds(ratio)})
    judge.sweep()
    (row,) = client.get("/api/v1/regressions", params={"repository": "kernels"}).json()["items"]
    assert (row["direction"], row["phase"], row["culprit_sha"]) == ("slower", "culprit", lab.shas[3])
    detail = client.get(f"/api/v1/regressions/{row['id']}").json()
    steps = [(trial["purpose"], trial["job_id"], trial["answer"]) for trial in detail["trials"]]
    assert steps == [
        ("confirm", jobs[1, 5], "changed"),
        ("bisect", jobs[1, 3], "changed"),
        ("bisect", jobs[1, 2], "same"),
        ("prove", jobs[2, 3], "changed"),
    ]
    assert detail["base_trace_id"]
    assert detail["head_trace_id"]
    assert client.get("/api/v1/jobs", params={"state": "queued"}).json()["items"] == []


def test_an_imported_range_stays_as_it_is_where_no_file_bisects_it(client: TestClient, lab: Lab, judge: Judge) -> None:
    rounds = rounds_of(random.Random(6))
    for index, median in ((0, 20_000.0), (1, 20_000.0), (5, 26_000.0)):
        lab.bench(index, {V1: median}, origin="bundle")
    lab.compare(lab.submit("compare", 5, base=1, origin="bundle", pairs=[list(V1)]), {V1: rounds(1.3)})
    judge.sweep()
    (row,) = client.get("/api/v1/regressions", params={"repository": "kernels"}).json()["items"]
    assert (row["base_sha"], row["head_sha"], row["phase"]) == (lab.shas[1], lab.shas[5], "confirmed")
    assert client.get("/api/v1/jobs", params={"state": "queued"}).json()["items"] == []


def test_a_change_of_imported_results_is_compared_where_somebody_asks(
    client: TestClient, lab: Lab, judge: Judge
) -> None:
    for index, median in enumerate([20_000.0, 20_020.0, 19_990.0, 20_010.0, 26_000.0, 26_010.0]):
        lab.bench(index, {V1: median}, origin="bundle")
        data = {"warpwatch_results": 1, "device": "test-cpu", "benchmarks": [TIME | {"value": median}]}
        place = {"repository": "kernels", "format": "plain", "program": "sums", "commit": lab.shas[index]}
        assert client.post("/api/v1/imports", params=place, json=data).status_code == 201
    judge.sweep()
    asked = {"repository": "kernels", "state": "any", "verdict": "suspected"}
    rows = {row["operator"]: row["id"] for row in client.get("/api/v1/regressions", params=asked).json()["items"]}
    refused = client.post(f"/api/v1/regressions/{rows['sums']}/compare")
    assert refused.status_code == 422
    assert "has no program 'sums' that writes plain" in refused.json()["errors"][0]["message"]
    page = client.get(f"/regressions/{rows['square']}").text
    assert "Compare both commits" in page
    assert client.post(f"/regressions/{rows['square']}/compare", follow_redirects=False).status_code == 303
    (job,) = client.get("/api/v1/jobs", params={"state": "queued"}).json()["items"]
    assert (job["kind"], job["operator"], job["commit_sha"]) == ("compare", "square", lab.shas[4])
    assert client.post(f"/api/v1/regressions/{rows['square']}/compare").status_code == 422, "it is asked already"
    lab.compare(job["id"], {V1: rounds_of(random.Random(7))(1.3)})
    judge.sweep()
    detail = client.get(f"/api/v1/regressions/{rows['square']}").json()
    assert (detail["regression"]["verdict"], detail["regression"]["phase"]) == ("confirmed", "culprit")


PROGRAM = """
import json
rows = [{"name": "BM_sum/8", "run_type": "iteration", "real_time": FACTOR * (1000 + n % 3), "time_unit": "us"}
        for n in range(9)]
print(json.dumps({"context": {"host_name": "runner"}, "benchmarks": rows}))
"""
PROGRAM_FILE = '[[program]]\nname = "sums"\ncommand = "python bench.py"\nformat = "google-benchmark"\n'


@pytest.mark.nightly
def test_an_import_with_confirm_has_the_repositorys_own_program_decide(
    client: TestClient, database: Database, settings: Settings, tmp_path: Path
) -> None:
    """The program runs in the worker's jail; what it prints says which commit is slower."""
    source, factors = tmp_path / "program", (1.0, 1.0, 1.0, 1.0, 1.3, 1.3, 1.3)
    shas = write_commits(
        source,
        [
            ("Change", {FILE_NAME: PROGRAM_FILE, "bench.py": f"# {index}\n" + PROGRAM.replace("FACTOR", str(factor))})
            for index, factor in enumerate(factors)
        ],
    )
    lab, judge = Lab(database, source, shas, tmp_path, operators=("sums",)), Judge(settings, database)
    place = {"repository": "kernels", "format": "google-benchmark", "device": "test-cpu"}
    for index, factor in enumerate(factors):
        row = {"name": "BM_sum/8", "run_type": "iteration", "time_unit": "us"}
        rows = [row | {"real_time": factor * (1000 + n % 3)} for n in range(9)]
        for program in ("sums", "others"):
            data = {"context": {"host_name": "runner"}, "benchmarks": rows}
            asked = place | {"commit": lab.shas[index], "program": program, "confirm": "true"}
            answer = client.post("/api/v1/imports", params=asked, json=data)
            assert answer.status_code == 201
            if (program, index) == ("sums", 4):
                slow = answer.json()["submission_id"]
    judge.sweep()
    suspected = {"repository": "kernels", "state": "any", "verdict": "suspected"}
    rows = client.get("/api/v1/regressions", params=suspected).json()["items"]
    phases = {row["operator"]: (row["id"], row["phase"]) for row in rows}
    number, phase = phases["others"]
    assert phase == "unpaired"
    notes = client.get(f"/api/v1/regressions/{number}").json()["notes"]
    (note,) = [item["note"] for item in notes if item["note"].startswith("not compared")]
    assert "has no program 'others' that writes google-benchmark" in note
    (job,) = client.get("/api/v1/jobs", params={"state": "queued"}).json()["items"]
    assert (job["kind"], job["base_sha"], job["commit_sha"]) == ("compare", shas[3], shas[4])
    identify(tmp_path / "worker")
    tools = Tools(Host(Settings(tmp_path / "worker", memory_bytes=4 * 2**30), "cpu"))
    with database.session() as session:
        (spec,) = session.scalars(select(JobRecord.spec).where(JobRecord.id == job["id"]))
    request = JobRequest(JobKind.COMPARE, str(source), shas[4], "sums", spec, shas[3])
    outcome = execute(request, tools, Diary(), tmp_path)
    tools.close()
    lab.finish(job["id"], replace(outcome, environment=lab.environment))
    judge.sweep()
    detail = client.get(f"/api/v1/regressions/{phases['sums'][0]}").json()["regression"]
    assert (detail["verdict"], detail["phase"], detail["culprit_sha"]) == ("confirmed", "culprit", shas[4])
    assert detail["ratio"] == pytest.approx(1.3)
    rows = client.get(f"/api/v1/submissions/{slow}/report").json()["rows"]
    assert [row["kind"] for row in rows] == ["slower"], "the report of the imported file says so, too"


def test_a_file_that_is_imported_again_with_confirm_has_its_changes_compared(
    client: TestClient, lab: Lab, judge: Judge
) -> None:
    for index, median in enumerate([20_000.0, 20_020.0, 19_990.0, 20_010.0, 26_000.0, 26_010.0]):
        lab.bench(index, {V1: median}, origin="bundle")
    judge.sweep()
    queued = {"state": "queued"}
    assert client.get("/api/v1/jobs", params=queued).json()["items"] == []
    with lab.database.session() as session:
        known = "INSERT INTO bundles (sha256, name, submission_id) SELECT 'a', 'a', max(id) FROM submissions"
        session.execute(text(known))
        again = NewBundle("a", "a", "kernels", str(lab.source), [], [], {"confirm": True})
        assert not import_bundle(session, again).new
    judge.sweep()
    (job,) = client.get("/api/v1/jobs", params=queued).json()["items"]
    assert (job["kind"], job["commit_sha"]) == ("compare", lab.shas[4])


def test_imported_history_alone_suspects_nothing(client: TestClient, lab: Lab, judge: Judge) -> None:
    for index, median in ((0, 20_000.0), (1, 20_000.0), (5, 26_000.0)):
        lab.bench(index, {V1: median}, origin="bundle")
    judge.sweep()
    asked = {"repository": "kernels", "state": "any", "verdict": "suspected"}
    assert client.get("/api/v1/regressions", params=asked).json()["items"] == []


def test_imported_checks_confirm_what_broke_and_what_fixed_it(client: TestClient, lab: Lab, judge: Judge) -> None:
    for index, status in ((0, Status.OK), (1, Status.WRONG), (2, Status.OK)):
        lab.check(index, {V2: status}, origin="example")
    lab.check(1, {V2: Status.WRONG}, origin="example", variants=["v2"], cases=[V2[1]])
    judge.sweep()
    asked = {"repository": "kernels", "state": "any"}
    (row,) = client.get("/api/v1/regressions", params=asked).json()["items"]
    assert (row["direction"], row["culprit_sha"], row["fixed_by_sha"]) == ("broken", lab.shas[1], lab.shas[2])
    assert client.get("/api/v1/jobs", params={"state": "queued"}).json()["items"] == []


def test_imported_history_happened_when_it_was_measured(
    client: TestClient, lab: Lab, judge: Judge, database: Database
) -> None:
    """The times of the jobs are a year old; their file is read now."""
    for index, status in ((0, Status.OK), (1, Status.WRONG), (2, Status.OK)):
        lab.check(index, {V2: status}, origin="bundle")
    lab.check(1, {V2: Status.WRONG}, origin="bundle", variants=["v2"], cases=[V2[1]])
    with database.session() as session:
        session.execute(text("UPDATE jobs SET finished_at = finished_at - interval '365 days'"))
    judge.sweep()
    (row,) = client.get("/api/v1/regressions", params={"repository": "kernels", "state": "any"}).json()["items"]
    detail = client.get(f"/api/v1/regressions/{row['id']}").json()
    moments = [row["created_at"], row["decided_at"], row["settled_at"]]
    moments += [trial["answered_at"] for trial in detail["trials"]] + [note["created_at"] for note in detail["notes"]]
    assert len(moments) > 4
    ages = [datetime.now(UTC) - datetime.fromisoformat(moment) for moment in moments]
    assert all(age > timedelta(days=364) for age in ages), ages
    assert client.get("/api/v1/quality", params={"repository": "kernels"}).json()["items"] == [], "of other machines"
