"""A commit that trades accuracy, determinism, memory or energy for speed says so in one line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests import builders
from tests.builders import CASES, Lab
from warpwatch.contract.environment import Card
from warpwatch.contract.measurement import BatchRows, Counter, TensorError
from warpwatch.contract.messages import CheckReply
from warpwatch.contract.outcome import Finding
from warpwatch.contract.words import BatchState, Status
from warpwatch.server.explanation.trades import LEAST_SHARE

TOLERANCE = 1e-5


def seconds(**values: float) -> dict[str, Counter]:
    """Counters that hold one reading each."""
    return {name: Counter("seconds", value, value, value, 1) for name, value in values.items()}


def check(
    lab: Lab,
    index: int,
    errors: dict[str, float],
    moving: tuple[str, ...] = (),
    *,
    changed_rows: int | None = None,
    counters: dict[str, Counter] | None = None,
) -> None:
    """A check of each variant with this relative error, on two cases, at the commit number `index`. changed_rows: of
    eight, those that depend on the rows beside them; None where it does not apply."""
    batch = BatchRows(BatchState.NOT_APPLICABLE, note="no rows")
    if changed_rows is not None:
        batch = BatchRows(BatchState.DEPENDENT if changed_rows else BatchState.INVARIANT, 8, changed_rows)
    rows = [
        Finding(
            variant,
            case,
            Status.OK,
            check=CheckReply(
                Status.OK,
                tensors=[TensorError("y", True, 1.0, 1.0, error, error, 1.0, None, TOLERANCE, [0])],
                moving=[*moving],
                differing=3 * len(moving),
                batch=batch,
                counters=counters or {},
            ),
        )
        for variant, error in errors.items()
        for case in CASES[:2]
    ]
    lab.finish(lab.submit("check", index), lab.outcome(rows))


def bench(lab: Lab, index: int, ns: float) -> None:
    lab.bench(index, {(variant, case): ns for variant in ("v1", "v2", "v3") for case in CASES[:2]})


def trades(client: TestClient, lab: Lab, index: int) -> list[dict[str, Any]]:
    address = f"/api/v1/commits/{lab.shas[index]}/trades"
    rows: list[dict[str, Any]] = client.get(address, params={"repository": "kernels"}).json()["items"]
    return rows


def test_accuracy_for_speed_is_one_line(client: TestClient, lab: Lab) -> None:
    check(lab, 0, {"v1": 1e-7, "v2": 1e-7, "v3": 1e-12})
    bench(lab, 0, 10_000.0)
    check(lab, 1, {"v1": 8e-6, "v2": 1.5e-7, "v3": 9e-12})
    bench(lab, 1, 8_000.0)
    (row,) = trades(client, lab, 1)
    assert (row["kind"], row["variant"], row["cases"], row["is_faster"]) == ("accuracy", "v1", 2, True)
    assert (row["before"], row["after"]) == (1e-7, 8e-6)
    assert LEAST_SHARE * TOLERANCE > 9e-12, "an error far below the tolerance is as good as none"
    page = client.get(f"/commits/{lab.shas[1]}", headers={"Accept": "text/html"}).text
    assert page.count('data-trade="accuracy"') == 1
    assert "1e-07 → 8e-06" in page
    assert trades(client, lab, 0) == [], "nothing was checked before"


def test_what_became_no_faster_says_so(client: TestClient, lab: Lab) -> None:
    check(lab, 0, {"v1": 1e-7})
    bench(lab, 0, 10_000.0)
    check(lab, 1, {"v1": 8e-6})
    bench(lab, 1, 10_000.0)
    assert [(row["kind"], row["is_faster"]) for row in trades(client, lab, 1)] == [("accuracy", False)]


def test_results_that_differ_from_call_to_call(client: TestClient, lab: Lab) -> None:
    check(lab, 0, {"v1": 1e-7})
    check(lab, 1, {"v1": 1e-7}, moving=("y",))
    check(lab, 2, {"v1": 1e-7}, moving=("y",))
    assert [(row["kind"], row["tensor"], row["change"]) for row in trades(client, lab, 1)] == [
        ("determinism", "y", None)
    ]
    assert trades(client, lab, 2) == [], "it was so before"
    page = client.get(f"/commits/{lab.shas[1]}", headers={"Accept": "text/html"}).text
    assert 'data-trade="determinism"' in page


def bench_with_memory(lab: Lab, index: int, ns: float, size: float, name: str = "memory") -> None:
    """A bench of one variant on two cases whose calls allocate so many bytes. name: of the counter."""
    counted = {name: Counter("bytes", size, size, size, 1)}
    metric = "graph" if lab.environment.device_kind == "cuda" else "hot"
    reply = builders.bench(builders.measurement(ns, metric), counters=counted)
    rows = [Finding("v1", case, Status.OK, bench=reply) for case in CASES[:2]]
    lab.finish(lab.submit("bench", index), lab.outcome(rows))


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [(4e6, 9e6, True), (4e6, 4.9e6, False), (1e9, 1.04e9, False), (9e6, 4e6, False)],
)
def test_memory_for_speed(client: TestClient, lab: Lab, before: float, after: float, told: bool) -> None:
    check(lab, 0, {"v1": 1e-7})
    bench_with_memory(lab, 0, 10_000.0, before)
    check(lab, 1, {"v1": 1e-7})
    bench_with_memory(lab, 1, 8_000.0, after)
    rows = trades(client, lab, 1)
    assert [(row["kind"], row["before"], row["after"], row["cases"], row["is_faster"]) for row in rows] == (
        [("memory", before, after, 2, True)] if told or after < before else []
    )
    assert all(row["is_worse"] == told for row in rows)
    page = client.get(f"/commits/{lab.shas[1]}", headers={"Accept": "text/html"}).text
    assert ("Trades memory for speed" in page) == told


@pytest.mark.parametrize(
    ("after_ns", "joules", "told", "words"),
    [
        (8_000.0, 0.0125, True, "Trades energy for speed"),
        (10_000.0, 0.0125, False, "Needs more energy"),
        (8_000.0, 0.0108, None, "energy"),
        # A quarter slower takes a quarter more.
        (12_500.0, 0.0125, None, "energy"),
    ],
)
def test_energy_for_speed(
    client: TestClient, lab: Lab, after_ns: float, joules: float, told: bool | None, words: str
) -> None:
    """The commit between them was not profiled."""
    for index, ns in enumerate((10_000.0, 10_000.0, after_ns)):
        check(lab, index, {"v1": 1e-7})
        bench(lab, index, ns)
    lab.profile(0, joules=0.010)
    lab.profile(2, joules=joules)
    rows = trades(client, lab, 2)
    assert [(row["kind"], row["before"], row["after"], row["cases"], row["is_faster"]) for row in rows] == (
        [("energy", 0.010, joules, 1, told)] if told is not None else []
    )
    page = client.get(f"/commits/{lab.shas[2]}", headers={"Accept": "text/html"}).text
    assert (f"{words}</span>" in page) == (told is not None)
    assert ("a call takes 10.0\u2009mJ → 12.5\u2009mJ" in page) == (told is not None)


@pytest.mark.parametrize(
    ("other", "told"), [({"key": "another driver"}, []), ({"card": Card("GPU-2")}, []), ({}, ["energy"])]
)
def test_energies_of_two_environments_or_cards_are_not_compared(
    client: TestClient, lab: Lab, other: dict[str, Any], told: list[str]
) -> None:
    lab.environment = replace(lab.environment, card=Card("GPU-1"))
    check(lab, 0, {"v1": 1e-7})
    lab.profile(0, joules=0.010)
    lab.environment = replace(lab.environment, **other)
    check(lab, 1, {"v1": 1e-7})
    lab.profile(1, joules=0.020)
    assert [row["kind"] for row in trades(client, lab, 1)] == told
