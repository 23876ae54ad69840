"""Where the environment of a device changes, a commit is measured in both, and the step of each series has a cause."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.builders import CASES, CPU, Lab, write_commits
from tests.server.test_judge import compare_jobs, judge
from warpwatch.contract.environment import Card, Environment
from warpwatch.contract.rounds import CellRounds
from warpwatch.contract.spec import JobSpec, name_environment, named_environment
from warpwatch.contract.words import StepCause
from warpwatch.db import registry
from warpwatch.db.environment_changes import EnvironmentReading
from warpwatch.db.outcomes import list_exported_runs, read_outcome
from warpwatch.db.reads.observed import RoundsRow
from warpwatch.server.judge import Judge
from warpwatch.server.verdicts.environments import (
    MOST_PAIRS,
    ROUNDS,
    MeasuredStep,
    choose_pairs,
    decide_steps,
    name_steps,
)

__all__ = ["judge"]

HTML = {"Accept": "text/html"}
V1, V2 = ("v1", CASES[0]), ("v2", CASES[0])
OLD, NEW = 1, 2


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Six commits of an operator, of which the last one asks for another interpreter."""
    path = tmp_path_factory.mktemp("source") / "kernels"
    history = [(f"Change {n}", {"kernels/square.py": f"NUMBER = {n}\n"}) for n in range(1, 7)]
    history[5][1]["warpwatch.toml"] = 'interpreter = "/opt/triton-3.7/bin/python"\n'
    return path, write_commits(path, history)


def cells(code: float, toolchain: float, scatter: float = 0.0005) -> CellRounds:
    """Rounds in which the head is slower than the base by `code`, and the new toolchain than the old one by
    `toolchain`."""

    def cell(factor: float, first: int) -> list[float]:
        return [1e4 * factor * (1 + scatter * ((number + first) % 5)) for number in range(ROUNDS)]

    return CellRounds(cell(1, 0), cell(code, 1), cell(toolchain, 2), cell(code * toolchain, 3))


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
    ("code", "toolchain", "scatter", "cause", "words"),
    [
        (1.0, 1.2, 0.0005, "toolchain", "% slower, toolchain"),
        (1.05, 1.2, 0.0005, "both", "% slower, code and toolchain"),
        (1.0, 1.2, 0.1, "unknown", "could not tell code and toolchain apart"),
    ],
)
def test_both_commits_are_compared_in_both_environments_unasked(
    client: TestClient,
    lab: Lab,
    judge: Judge,
    code: float,
    toolchain: float,
    scatter: float,
    cause: str,
    words: str,
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
    assert (job["base_sha"], job["commit_sha"]) == (lab.shas[3], lab.shas[4]), "the last before and the first after"
    spec = client.get(f"/api/v1/jobs/{job['id']}").json()["spec"]
    assert (spec["pairs"], spec["rounds"]) == ([[*V1]], ROUNDS), "v2 did not move"
    assert [named_environment(name) for name in spec["toolchains"]] == ["c" * 64, "d" * 64]
    lab.compare(job["id"], {V1: cells(code, toolchain, scatter)})
    judge.sweep()
    (step,) = steps(client, "v1")
    assert (step["cause"], step["is_decided"], step["job_id"]) == (cause, True, job["id"])
    assert (step["code"]["ratio"], step["toolchain"]["ratio"]) == (
        pytest.approx(code, rel=2 * scatter),
        pytest.approx(toolchain, rel=2 * scatter),
    )
    page = client.get("/kernels/square?tab=commits&variant=v1", headers=HTML).text
    assert words in page
    assert "data-parts>code " in page
    assert "torch 2.13.0 → 2.14.0" in page
    overview = client.get("/overview", headers=HTML).text
    assert overview.count("data-environment-step") == (cause in ("toolchain", "both", "unknown")), "where a lead looks"
    points = client.get(f"/api/v1/history/{step['series_id']}").json()["points"]
    assert [point["commit_sha"] for point in points].count(lab.shas[3]) == 2, "the line goes on at this commit"
    assert not client.get("/api/v1/regressions", params={"repository": "kernels"}).json()["items"], "no commit did it"
    page = client.get(f"/jobs/{job['id']}", headers=HTML).text
    assert "the change is the code's alone" in page
    assert f'data-step="{cause}"' in page
    assert client.get(f"/api/v1/jobs/{job['id']}").json()["decision"]["steps"][0]["cause"] == cause


def test_a_regression_says_what_the_toolchain_did_at_its_commit(
    client: TestClient, lab: Lab, judge: Judge, tmp_path: Path
) -> None:
    change_environment(client, lab, judge, torch="2.14.0")
    (job,) = compare_jobs(client)
    lab.compare(job["id"], {V1: cells(1.05, 1.2)})
    judge.sweep()
    (step,) = steps(client, "v1")
    number, _ = lab.confirm(3, 4, series=step["series_id"])
    detail = client.get(f"/api/v1/regressions/{number}").json()
    (step,) = detail["steps"]
    assert (step["cause"], step["head_sha"]) == ("both", lab.shas[4])
    assert step["code"]["ratio"] == pytest.approx(1.05, rel=2e-3)
    assert step["toolchain"]["ratio"] == pytest.approx(1.2, rel=2e-3)
    assert "data-parts>code +5." in client.get(f"/regressions/{number}", headers=HTML).text
    with lab.database.session() as session:
        run = list_exported_runs(session, lab.repository)[-1]
        assert read_outcome(session, run, tmp_path).comparisons[0].cells == cells(1.05, 1.2), "a results file has them"
    elsewhere, _ = lab.confirm(0, 3, series=step["series_id"])
    assert client.get(f"/api/v1/regressions/{elsewhere}").json()["steps"] == [], "the environment changed later"


def test_a_commit_that_asks_for_another_interpreter_has_none_measured_again(
    client: TestClient, lab: Lab, judge: Judge
) -> None:
    """The commit before it would be measured by its own interpreter again. Both are compared in both at once."""
    for index in range(5):
        lab.bench(index, {V1: 10_000.0 + 5 * index, V2: 10_000.0 - 5 * index})
    judge.sweep()
    lab.environment = environment(triton="3.7.0")
    lab.bench(5, {V1: 12_000.0, V2: 10_000.0})
    judge.sweep()
    assert benches(client) == []
    (step,) = steps(client, "v1")
    assert (step["cause"], step["is_decided"]) == ("unknown", False), "code and interpreter changed at once"
    (job,) = compare_jobs(client)
    assert (job["base_sha"], job["commit_sha"]) == (lab.shas[4], lab.shas[5])
    lab.compare(job["id"], {V1: cells(1.0, 1.2)})
    judge.sweep()
    (step,) = steps(client, "v1")
    assert (step["cause"], step["is_decided"]) == ("toolchain", True)


def test_another_card_is_the_cause_where_nothing_else_changed(client: TestClient, lab: Lab, judge: Judge) -> None:
    """The newest commit that the first card measured is measured on the second one, which is slower."""
    lab.environment = replace(CPU, card=Card("GPU-11111111"))
    for index in range(4):
        lab.bench(index, {V1: 10_000.0 + 5 * index, V2: 10_000.0 - 5 * index})
    lab.environment = replace(CPU, card=Card("GPU-22222222"))
    lab.bench(4, {V1: 12_000.0, V2: 10_000.0})
    judge.sweep()
    (job,) = benches(client)
    assert job["commit_sha"] == lab.shas[3]
    lab.finish(job["id"], lab.outcome([lab._timed(*V1, 12_010.0, 0.002), lab._timed(*V2, 9_990.0, 0.002)]))
    judge.sweep()
    (step,) = steps(client, "v1")
    assert (step["cause"], step["is_decided"], step["commit_sha"]) == ("card", False, lab.shas[3])
    assert step["facts"] == {"card": ["11111111", "22222222"]}
    assert step["ratio"] == pytest.approx(1.2, rel=0.01)
    (still,) = steps(client, "v2")
    assert still["cause"] == "noise"
    page = client.get("/kernels/square?tab=commits&variant=v1", headers=HTML).text
    assert "\u2009% shift, card" in page
    assert "on another card" in page
    lab.bench(5, {V1: 12_000.0, V2: 10_000.0})
    judge.sweep()
    assert benches(client) == compare_jobs(client) == [], "once for each card, and no toolchain brings back a card"


def test_a_fleet_is_asked_for_no_bench_on_each_card(client: TestClient, lab: Lab, judge: Judge) -> None:
    """The step is told once a commit was measured on both cards."""
    with lab.database.session() as session:
        registry.register_worker(session, "node-2", lab.device, "0.1.0", {})
    for index in range(5):
        lab.environment = replace(CPU, card=Card("GPU-11111111" if index < 4 else "GPU-22222222"))
        lab.bench(index, {V1: 10_000.0 + 5 * index if index < 4 else 12_000.0})
    judge.sweep()
    assert benches(client) == steps(client, "v1") == []
    lab.bench(3, {V1: 12_010.0})
    judge.sweep()
    (step,) = steps(client, "v1")
    assert step["cause"] == "card"


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
    is_head = environment_id == NEW
    return EnvironmentReading(series, "v1", "n=8", "hot", 7, 7, environment_id, card, *interval, is_head=is_head)


@pytest.mark.parametrize(
    ("changed", "cards", "ratio", "cause"),
    [
        ({"torch"}, (None, None), 1.2, StepCause.TOOLCHAIN),
        ({"driver", "kernel"}, (3, 3), 0.8, StepCause.TOOLCHAIN),
        ({"protocol"}, (3, 3), 1.2, StepCause.METHOD),
        ({"protocol", "torch"}, (3, 3), 1.2, StepCause.UNKNOWN),
        ({"torch"}, (3, 4), 1.2, StepCause.UNKNOWN),
        (set(), (3, 4), 1.2, StepCause.CARD),
        ({"torch"}, (3, 3), 1.0005, StepCause.NOISE),
    ],
)
def test_the_cause_is_what_alone_differs(
    changed: set[str], cards: tuple[int | None, int | None], ratio: float, cause: StepCause
) -> None:
    """A new protocol begins a series of its own, to which the step belongs."""
    both = [reading(OLD, 1e4, card=cards[0]), reading(NEW, 1e4 * ratio, series=2, card=cards[1])]
    earlier = {1: [reading(OLD, 1e4 + index) for index in range(8)]}
    (step,) = name_steps(both, earlier, changed, "cuda")
    assert (step.series_id, step.cause, step.is_decided) == (2, cause, False)
    assert step.ratio == pytest.approx(ratio)
    assert step.low < ratio < step.high
    assert name_steps(both[:1], earlier, changed, "cuda") == []


@pytest.mark.parametrize(
    ("code", "toolchain", "cause", "ratio"),
    [
        (1.0, 1.0, StepCause.NOISE, 1.0),
        (1.2, 1.0, StepCause.CODE, 1.2),
        (0.8, 1.25, StepCause.BOTH, 1.0),
        (1.0, 0.8, StepCause.TOOLCHAIN, 0.8),
    ],
)
def test_four_cells_name_the_cause_and_the_size_of_each_part(
    code: float, toolchain: float, cause: StepCause, ratio: float
) -> None:
    """Where code and toolchain cancel out, both are named."""
    four = cells(code, toolchain)
    row = RoundsRow(1, "ok", "", None, four.base_ns, four.head_ns, "hot", variant="v1", case="n=8", cells=four)
    assert decide_steps([replace(row, cells=None)], "cpu", is_crossed=True) == [], "code and toolchain are mixed"
    (step,) = decide_steps([row], "cpu", is_crossed=True)
    assert (step.cause, step.is_decided) == (cause, True)
    assert step.ratio == pytest.approx(ratio, rel=2e-3)
    assert step.code is not None
    assert step.toolchain is not None
    assert (step.code.ratio, step.toolchain.ratio) == pytest.approx((code, toolchain), rel=2e-3)


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
