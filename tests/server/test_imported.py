"""A/B comparisons that were made elsewhere and imported confirm changes, and nothing is measured again for them."""

from __future__ import annotations

import random
from collections.abc import Callable

from fastapi.testclient import TestClient

from tests.builders import CASES, Lab
from warpwatch.db.database import Database
from warpwatch.server.judge import Judge
from warpwatch.settings import Settings

V1, V2, V3 = (("v1", CASES[0]), ("v2", CASES[0]), ("v3", CASES[0]))
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
    assert client.get("/api/v1/jobs", params={"state": "queued"}).json()["items"] == []
    assert client.get(f"/regressions/{slower['id']}").status_code == 200


def test_an_imported_comparison_without_a_change_confirms_nothing(
    client: TestClient, lab: Lab, settings: Settings, database: Database
) -> None:
    rounds = rounds_of(random.Random(4))
    lab.compare(lab.submit("compare", 3, base=2, origin="example"), {V1: rounds(1.0), V2: rounds(1.001)})
    Judge(settings, database).sweep()
    for verdict in ("confirmed", "suspected", "dismissed", "unsure"):
        asked = {"repository": "kernels", "state": "any", "verdict": verdict}
        assert client.get("/api/v1/regressions", params=asked).json()["items"] == []
