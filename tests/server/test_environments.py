"""Where the environment of a device changes, a commit is measured in both, and the step of each series has a cause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.builders import CASES, CPU, Lab
from tests.server.test_judge import compare_jobs, judge, rounds
from warpwatch.contract.environment import Environment
from warpwatch.contract.spec import JobSpec, name_environment, named_environment
from warpwatch.contract.words import StepCause
from warpwatch.db.environment_changes import EnvironmentReading
from warpwatch.server.judge import Judge
from warpwatch.server.verdicts.environments import MOST_PAIRS, MeasuredStep, choose_pairs, name_steps

__all__ = ["judge"]

HTML = {"Accept": "text/html"}
V1, V2 = ("v1", CASES[0]), ("v2", CASES[0])
OLD, NEW = 1, 2


def environment(**facts: Any) -> Environment:
    return replace(CPU, key="d" * 64, facts=CPU.facts | facts)


def benches(client: TestClient) -> list[dict[str, Any]]:
    """Waiting benches."""
    rows = client.get("/api/v1/jobs", params={"state": "queued"}).json()["items"]
    return [row for row in rows if row["kind"] == "bench"]


def steps(client: TestClient, variant: str) -> list[dict[str, Any]]:
    """The steps of the history of a variant where its environment changed."""
    asked = {"repository": "kernels", "operator": "square", "case": CASES[0], "variant": variant, "metric": "hot"}
    (series,) = client.get("/api/v1/series", params=asked).json()["items"]
    rows: list[dict[str, Any]] = client.get(f"/api/v1/history/{series['id']}").json()["steps"]
    return rows


def change_environment(client: TestClient, lab: Lab, judge: Judge, **facts: Any) -> None:
    """Four commits in one environment, and the fifth in another, in which v1 takes a fifth longer."""
    for index in range(4):
        lab.bench(index, {V1: 10_000.0 + 5 * index, V2: 10_000.0 - 5 * index})
    judge.sweep()
    assert benches(client) == []
    lab.environment = environment(**facts)
    lab.bench(4, {V1: 12_000.0, V2: 10_000.0})
    judge.sweep()
    (job,) = benches(client)
    assert job["commit_sha"] == lab.shas[3], "the newest commit that was measured before"
    lab.finish(job["id"], lab.outcome([lab._timed(*V1, 12_010.0, 0.002), lab._timed(*V2, 9_990.0, 0.002)]))
    judge.sweep()
    lab.bench(5, {V1: 12_000.0, V2: 10_000.0})
    judge.sweep()
    assert benches(client) == [], "once for each change of environment"


@pytest.mark.parametrize(
    ("ratio", "cause", "words"),
    [(1.2, "toolchain", "+20.1\u2009% slower, toolchain"), (1.0, "noise", "not told apart")],
)
def test_a_new_toolchain_is_compared_unasked(
    client: TestClient, lab: Lab, judge: Judge, ratio: float, cause: str, words: str
) -> None:
    change_environment(client, lab, judge, torch="2.14.0")
    (step,) = steps(client, "v1")
    assert (step["commit_sha"], step["cause"], step["is_decided"]) == (lab.shas[3], "toolchain", False)
    assert step["ratio"] == pytest.approx(1.2, rel=0.01)
    assert step["facts"] == {"torch": ["2.13.0", "2.14.0"]}
    (still,) = steps(client, "v2")
    assert still["cause"] == "noise"
    page = client.get("/kernels/square?tab=commits&variant=v1", headers=HTML).text
    assert 'class="shift" data-step="toolchain"' in page, "a shift until paired rounds decide it"
    (job,) = compare_jobs(client)
    assert (job["commit_sha"], job["base_sha"]) == (lab.shas[3], lab.shas[3])
    spec = client.get(f"/api/v1/jobs/{job['id']}").json()["spec"]
    assert spec["pairs"] == [[*V1]], "v2 did not move"
    assert [named_environment(name) for name in spec["toolchains"]] == ["c" * 64, "d" * 64]
    lab.compare(job["id"], {V1: rounds(ratio)})
    judge.sweep()
    (step,) = steps(client, "v1")
    assert (step["cause"], step["is_decided"], step["job_id"]) == (cause, True, job["id"])
    page = client.get("/kernels/square?tab=commits&variant=v1", headers=HTML).text
    assert words in page
    assert "torch 2.13.0 → 2.14.0" in page
    overview = client.get("/overview", headers=HTML).text
    assert overview.count("data-environment-step") == (cause == "toolchain"), "where a lead looks"
    assert ("+20.1\u2009% slower, toolchain" in overview) == (cause == "toolchain")
    points = client.get(f"/api/v1/history/{step['series_id']}").json()["points"]
    assert [point["commit_sha"] for point in points].count(lab.shas[3]) == 2, "the line goes on at this commit"
    assert not client.get("/api/v1/regressions", params={"repository": "kernels"}).json()["items"], "no commit did it"


def test_an_environment_that_no_toolchain_brings_back_is_not_compared(
    client: TestClient, lab: Lab, judge: Judge
) -> None:
    change_environment(client, lab, judge, kernel="7.1.0")
    assert compare_jobs(client) == []
    (step,) = steps(client, "v1")
    assert (step["cause"], step["is_decided"]) == ("toolchain", False)
    page = client.get("/kernels/square?tab=commits&variant=v1", headers=HTML).text
    assert "\u2009% shift, toolchain" in page
    assert "the old environment is gone" in page


def reading(environment_id: int, ns: float, *, series: int = 1, card: int | None = None) -> EnvironmentReading:
    interval = ns, ns * 0.999, ns * 1.001
    return EnvironmentReading(series, "v1", "n=8", "hot", 7, 7, environment_id, card, *interval)


@pytest.mark.parametrize(
    ("changed", "cards", "ratio", "cause"),
    [
        ({"torch"}, (None, None), 1.2, StepCause.TOOLCHAIN),
        ({"driver", "kernel"}, (3, 3), 0.8, StepCause.TOOLCHAIN),
        ({"protocol"}, (3, 3), 1.2, StepCause.METHOD),
        ({"protocol", "torch"}, (3, 3), 1.2, StepCause.UNKNOWN),
        ({"torch"}, (3, 4), 1.2, StepCause.UNKNOWN),
        ({"torch"}, (3, 3), 1.0005, StepCause.NOISE),
    ],
)
def test_the_cause_is_what_alone_differs(
    changed: set[str], cards: tuple[int | None, int | None], ratio: float, cause: StepCause
) -> None:
    """A new protocol begins a series of its own, to which the step belongs."""
    both = [reading(OLD, 1e4, card=cards[0]), reading(NEW, 1e4 * ratio, series=2, card=cards[1])]
    earlier = {1: [reading(OLD, 1e4 + index) for index in range(8)]}
    (step,) = name_steps(both, OLD, earlier, changed, "cuda")
    assert (step.series_id, step.cause, step.is_decided) == (2, cause, False)
    assert step.ratio == pytest.approx(ratio)
    assert step.low < ratio < step.high
    assert name_steps(both[:1], OLD, earlier, changed, "cuda") == []


def test_a_comparison_measures_what_moved_farthest() -> None:
    moved = [
        MeasuredStep(1, "v1", f"n={n}", StepCause.TOOLCHAIN, 1 + n / 100, 1.0, 2.0) for n in range(1, MOST_PAIRS + 3)
    ]
    still = MeasuredStep(2, "v2", "n=1", StepCause.NOISE, 3.0, 1.0, 4.0)
    pairs = choose_pairs([*moved, still], {"torch"})
    assert pairs == [("v1", f"n={n}") for n in range(MOST_PAIRS + 2, 2, -1)]
    assert choose_pairs(moved, {"torch", "driver"}) == []


def test_the_name_of_an_environment_is_one_of_a_toolchain() -> None:
    name = name_environment("c" * 64)
    assert named_environment(name) == "c" * 64
    assert named_environment("triton-3.7") is None
    assert JobSpec.from_stored(JobSpec(toolchains=(name, name)).to_stored()).toolchains == (name, name)
