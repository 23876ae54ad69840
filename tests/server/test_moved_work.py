"""A commit that moves work between the forward and the backward pass says so in one sentence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests import builders
from tests.builders import Lab
from tests.server.test_judge import compare_jobs, judge, rounds
from warpwatch.contract.measurement import Counter
from warpwatch.contract.messages import CheckReply
from warpwatch.contract.outcome import Finding
from warpwatch.contract.words import Status
from warpwatch.db.reads.paired import PairedRounds
from warpwatch.db.reads.trades import TradedCell, TradeFacts
from warpwatch.server.judge import Judge
from warpwatch.server.reports.trade_words import trade_values, trade_words
from warpwatch.server.verdicts.held import PairedOutcome, PairOutcome
from warpwatch.server.verdicts.trades import find_moved_work, find_trades

__all__ = ["judge"]

HTML = {"Accept": "text/html"}
SIZES = "n=1024,f32"
BASE_NS = {"fwd": 4000.0, "fwd_train": 4000.0, "bwd": 4000.0, "step": 8000.0}
"""Of a chain of four products, as worker/adversaries/honest/kernels/steps.py times it."""


def outcome(direction: str, ratio: float, *, width: float = 0.005, unsure: bool = False) -> PairedOutcome:
    """A comparison of one direction, with an interval of that width to either side."""
    low, high, base_ns = ratio * (1 - width), ratio * (1 + width), BASE_NS[direction]
    word: PairOutcome = "slower" if low > 1.01 else "faster" if high < 0.99 else "same"
    measured = ("unsure" if unsure else word, ratio, low, high, 12, base_ns, base_ns * ratio)
    return PairedOutcome("chain", f"{SIZES},{direction}", "v1", "cpu", 1, "hot", 1, *measured)


def cell(direction: str, base_kept: float, head_kept: float) -> TradedCell:
    before, after = ({"kept": {"median": kept}} for kept in (base_kept, head_kept))
    place = ("chain", "v1", f"{SIZES},{direction}", "cpu", "cpu")
    return TradedCell(*place, {}, {}, [], None, before, after, None, None)


def moved(client: TestClient, lab: Lab, index: int) -> list[dict[str, Any]]:
    """Passes by variant of the work that a commit moved."""
    address = f"/api/v1/commits/{lab.shas[index]}/trades"
    rows: list[dict[str, Any]] = client.get(address, params={"repository": "kernels"}).json()["items"]
    return [row for row in rows if row["kind"] == "moved"]


def costs(client: TestClient) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = client.get("/api/v1/costs", params={"repository": "kernels"}).json()["items"]
    return rows


def sentences(*outcomes: PairedOutcome, cells: tuple[TradedCell, ...] = ()) -> list[str]:
    return [trade_words(work) for work in find_moved_work(outcomes, cells)]


def test_one_sentence_tells_every_pass_the_step_and_the_memory() -> None:
    measured = [outcome("bwd", 0.25), outcome("fwd_train", 1.9), outcome("step", 1.2), outcome("fwd", 1.0)]
    (work,) = find_moved_work(measured, [cell("step", 2**20, 2**21)])
    assert trade_words(work) == (
        "backward 4.0× faster, forward the same, forward with gradients 1.90× slower, step 1.20× slower"
    )
    assert trade_values(work) == "1.00\u2009MiB → 2.00\u2009MiB kept"
    assert (work.case, work.change, work.is_worse) == (f"{SIZES},step", 1.2, True)
    (same,) = find_moved_work([outcome("bwd", 0.25), outcome("step", 1.0)], [])
    assert (same.is_worse, trade_values(same)) == (False, ""), "a step that is as fast as before costs nothing"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"bwd": 0.25, "step": 1.0}, "backward 4.0× faster, step the same"),
        ({"bwd": 1.5, "fwd_train": 0.5}, "backward 1.50× slower, forward with gradients 2.0× faster"),
        # Three of eight parts of a step are gone, and the step shows one.
        ({"bwd": 0.25, "step": 0.875}, "backward 4.0× faster, step 1.14× faster"),
        # A gain that the step has is no trade.
        ({"bwd": 0.25, "step": 0.625}, None),
        ({"bwd": 0.25, "fwd_train": 1.0, "step": 0.625}, None),
        # A gain of half a percent of a step is below what the comparison of the step can show.
        ({"bwd": 0.98, "step": 1.0}, "backward 1.02× faster, step the same"),
        ({"bwd": 0.9925, "step": 1.0}, None),
        ({"bwd": 0.25}, None),
        ({"bwd": 1.5, "fwd_train": 1.9, "step": 1.7}, None),
        ({"step": 1.2, "fwd": 1.0}, None),
    ],
)
def test_work_has_moved_where_a_step_lacks_what_a_pass_gained(changes: dict[str, float], told: str | None) -> None:
    assert sentences(*(outcome(direction, ratio) for direction, ratio in changes.items())) == ([told] if told else [])


def test_nothing_is_told_that_no_comparison_decided() -> None:
    unsure = outcome("step", 1.2, unsure=True)
    assert sentences(outcome("bwd", 0.25), unsure) == []
    assert sentences(outcome("bwd", 0.25), outcome("step", 1.0, width=0.5)) == [], "its interval holds the gain"
    assert sentences(outcome("bwd", 0.25), replace(outcome("step", 1.2), variant="v2")) == [], "of two variants"
    other_shape = replace(outcome("step", 1.2), case="n=2048,f32,step")
    assert sentences(outcome("bwd", 0.25), other_shape) == [], "of two shapes"
    assert sentences(replace(outcome("bwd", 0.25), case="BM_square/8"), outcome("step", 1.2)) == [], "of another tool"


def test_the_host_s_time_of_a_call_is_no_work_that_moves() -> None:
    measured = [outcome("bwd", 0.25), outcome("step", 1.2)]
    launches = [replace(outcome("bwd", 1.5), metric="launch"), replace(outcome("step", 1.0), metric="launch")]
    assert sentences(*measured, *launches) == ["backward 4.0× faster, step 1.20× slower"]
    assert sentences(*launches, replace(outcome("fwd", 0.5), metric="launch")) == []


def test_the_worst_of_several_shapes_is_told() -> None:
    pairs = [
        PairedRounds(
            1, True, "chain", f"n={n},f32,{name}", "v1", "cpu", "cpu", 1, 1, 1, "hot", "1", None, *rounds(ratio, 4e5)
        )
        for n, changes in ((1024, {"bwd": 0.25, "step": 1.2}), (2048, {"bwd": 0.5, "step": 1.4}))
        for name, ratio in changes.items()
    ]
    (work,) = find_trades(TradeFacts([], [], [], pairs))
    assert (work.case, work.cases) == ("n=2048,f32,step", 2)


def test_a_commit_that_moves_work_is_told_so_on_its_page(
    client: TestClient, lab: Lab, judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its times of separate runs alone tell nothing."""
    cases = tuple(f"{SIZES},{direction}" for direction in ("fwd", "bwd", "step"))
    monkeypatch.setattr(builders, "CASES", cases)
    after = {"fwd": 1.0, "bwd": 0.25, "step": 1.2}
    for index, kept in ((0, 4 * 2**20), (1, 8 * 2**20)):
        checked = [Finding("v1", case, Status.OK, check=CheckReply(Status.OK)) for case in cases]
        lab.finish(lab.submit("check", index), lab.outcome(checked))
        timed = [
            Finding(
                "v1",
                f"{SIZES},{direction}",
                Status.OK,
                bench=builders.bench(
                    builders.measurement(BASE_NS[direction] * 100 * ratio**index, "hot"),
                    counters={} if direction == "fwd" else {"kept": Counter("bytes", kept, kept, kept, 1)},
                ),
            )
            for direction, ratio in after.items()
        ]
        lab.finish(lab.submit("bench", index), lab.outcome(timed))
    assert moved(client, lab, 1) == []
    paired = {
        ("v1", f"{SIZES},{direction}"): (
            [100 * BASE_NS[direction] * (1 + 0.001 * turn) for turn in range(12)],
            [100 * BASE_NS[direction] * (1 + 0.001 * turn) * ratio for turn in range(12)],
        )
        for direction, ratio in after.items()
    }
    lab.compare(lab.submit("compare", 1, base=0), paired)
    (row,) = moved(client, lab, 1)
    assert row["passes"] == {"bwd": pytest.approx(0.25), "fwd": None, "step": pytest.approx(1.2)}
    judge.sweep()
    told = "backward 4.0× faster, forward the same, step 1.20× slower"
    page = client.get(f"/commits/{lab.shas[1]}", headers=HTML).text
    assert page.count('data-trade="moved"') == 1
    assert "Trades kept memory for speed" in page
    assert f"{told}: 4.00\u2009MiB → 8.00\u2009MiB kept" in page
    tab = client.get(f"/commits/{lab.shas[1]}?show=traded", headers=HTML).text
    assert "Traded (2)" in tab
    assert [tab.count(f'data-traded="{kind}"') for kind in ("moved", "kept")] == [1, 1]
    assert moved(client, lab, 0) == []
    assert told in client.get("/commits", headers=HTML).text, "the list has the line of the commit"
    inbox = client.get("/regressions", headers=HTML).text
    assert 'data-cost="moved"' in inbox
    for address in ("/", "/overview"):
        assert "2 costs" in client.get(address, headers=HTML).text
    (repository,) = client.get("/api/v1/home").json()["items"]
    assert repository["costs"] == 2
    assert "2 costs" in client.get("/api/v1/badges/kernels.svg").text
    (cost,) = (row for row in costs(client) if row["kind"] == "moved")
    client.post(f"/api/v1/costs/{cost['id']}/accept", json={"author": "ann"})
    assert "1 cost" in client.get("/api/v1/badges/kernels.svg").text


@pytest.mark.parametrize(("timed", "suspected"), [("step", "bwd"), ("fwd", "bwd"), ("step", "fwd")])
def test_a_trial_of_a_backward_pass_measures_the_step_beside_it(
    client: TestClient, lab: Lab, judge: Judge, monkeypatch: pytest.MonkeyPatch, timed: str, suspected: str
) -> None:
    """History suspects the gain of the backward pass alone, and the step shows that it is none."""
    monkeypatch.setattr(builders, "CASES", tuple(f"{SIZES},{direction}" for direction in ("fwd", "bwd", "step")))
    for index, ns in enumerate((20_000.0, 10_000.0)):
        lab.bench(index, {("v1", f"{SIZES},{suspected}"): ns, ("v1", f"{SIZES},{timed}"): 40_000.0})
    judge.sweep()
    (job,) = compare_jobs(client)
    pairs = [["v1", f"{SIZES},{suspected}"]]
    has_step = (timed, suspected) == ("step", "bwd")
    if has_step:
        pairs.append(["v1", f"{SIZES},step"])
    assert client.get(f"/api/v1/jobs/{job['id']}").json()["spec"]["pairs"] == pairs
    lab.compare(job["id"], {("v1", key): rounds(1.0 if key.endswith("step") else 0.5, 40_000.0) for _, key in pairs})
    judge.sweep()
    (confirmed,) = client.get("/api/v1/regressions", params={"repository": "kernels"}).json()["items"]
    assert (confirmed["direction"], confirmed["series"]) == ("faster", 1)
    told = "backward 2.0× faster, step the same"
    assert bool(moved(client, lab, 1)) == has_step
    inbox = client.get("/regressions?tab=improvements", headers=HTML).text
    assert (told in inbox) == has_step, "the culprit's line stands with its change"
    assert not costs(client), "a step that is as fast as before costs nothing"
