"""Ten commits, each with one known fate: the service must tell exactly these, and invent nothing."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Running
from tests.e2e.repositories import TEN_COMMITS, build_ten_commits
from warpwatch.contract.rounds import FEWEST_ROUNDS

pytestmark = pytest.mark.timeout(2700)


@pytest.fixture(scope="module")
def shas(running: Running, source: Path) -> list[str]:
    """All ten commits submitted through REST, measured, and every suspicion decided."""
    commits = build_ten_commits(source)
    running.client.post("/repositories", {"name": "cubes", "url": str(source)})
    for commit in (commits[0], f"{commits[0]}..{commits[-1]}"):
        request = {
            "repository": "cubes",
            "commits": commit,
            "kinds": ["check", "bench"],
            "suite": "quick",
            "device": "cpu",
        }
        answer = running.client.post("/submissions", request)
        running.wait(partial(running.has_ended, answer["id"]), 600)

    def all_decided() -> bool:
        is_idle = all(
            row["state"] in ("done", "failed", "cancelled") for row in running.client.get("/submissions")["items"]
        )
        return is_idle and not running.client.get("/regressions", repository="cubes", verdict="suspected")["items"]

    judged_before = -1
    while judged_before != (judged_before := len(running.client.get("/submissions")["items"])):
        running.wait(all_decided, 1800)
    return commits


def cells(running: Running, sha: str) -> dict[tuple[str, str], dict[str, Any]]:
    found = running.client.get(f"/commits/{sha}/cells", repository="cubes", limit=200)
    assert found["next_before"] is None
    return {(cell["variant"], cell["case"].split(",")[-1]): cell for cell in found["items"]}


@pytest.mark.parametrize("number", range(len(TEN_COMMITS)), ids=lambda n: TEN_COMMITS[n].subject)
def test_statuses(running: Running, shas: list[str], number: int) -> None:
    change, found = TEN_COMMITS[number], cells(running, shas[number])
    assert {direction: found["v3", direction]["check_status"] for direction in ("fwd", "bwd")} == {
        "fwd": change.forward,
        "bwd": change.backward,
    }
    assert {found["v1", direction]["check_status"] for direction in ("fwd", "bwd")} == {"ok"}


@pytest.mark.parametrize("number", range(len(TEN_COMMITS)), ids=lambda n: TEN_COMMITS[n].subject)
def test_only_right_results_are_timed(running: Running, shas: list[str], number: int) -> None:
    change, found = TEN_COMMITS[number], cells(running, shas[number])
    for direction, status in (("fwd", change.forward), ("bwd", change.backward)):
        assert (found["v3", direction]["median_ns"] is not None) == (status == "ok"), direction
        assert found["v1", direction]["median_ns"] is not None


def test_every_failure_says_why(running: Running, shas: list[str]) -> None:
    for number, change in enumerate(TEN_COMMITS):
        if change.forward != "ok":
            assert cells(running, shas[number])["v3", "fwd"]["check_message"].strip()


def test_exactly_one_slow_down_one_improvement_and_what_broke(running: Running, shas: list[str]) -> None:
    confirmed = running.client.get("/regressions", repository="cubes", verdict="confirmed")["items"]
    assert {(row["direction"], row["base_sha"], row["head_sha"]) for row in confirmed} == {
        ("slower", shas[0], shas[1]),
        ("faster", shas[1], shas[2]),
        ("broken", shas[2], shas[3]),
        ("broken", shas[3], shas[4]),
        ("broken", shas[4], shas[5]),
    }
    slower = next(row for row in confirmed if row["direction"] == "slower")
    # Three rounds may decide it; beside other programs their ratios are not much better than this.
    assert slower["low"] / 1.1 < 1.3 < slower["high"] * 1.1
    assert slower["low"] > 1.0


def test_a_regression_is_proved(running: Running, shas: list[str]) -> None:
    confirmed = running.client.get("/regressions", repository="cubes", verdict="confirmed")["items"]
    for row in (row for row in confirmed if row["direction"] != "broken"):
        detail = running.client.get(f"/regressions/{row['id']}")
        assert [
            (series["variant"], series["case"].split(",")[-1])
            for series in detail["series"]
            if series["verdict"] == "confirmed"
        ] == [("v3", "fwd")]
        proof = next(series for series in detail["series"] if series["verdict"] == "confirmed")
        assert len(proof["base_ns"]) == len(proof["head_ns"]) >= FEWEST_ROUNDS
        assert detail["base_trace_id"]
        assert detail["head_trace_id"]
        assert "warpwatch" in detail["replay"]
