"""A/B comparisons that were made elsewhere and imported confirm changes, and nothing is measured again for them."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.builders import CASES, Lab
from warpwatch import git
from warpwatch.contract.words import Status
from warpwatch.db.database import Database
from warpwatch.server.judge import Judge
from warpwatch.settings import Settings

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
