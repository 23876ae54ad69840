"""A commit says in one line what it changed beside the time, and what it cost stays in the inbox until it is given
back."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests import builders
from tests.builders import CASES, Lab
from tests.server.test_builds import build, kernel
from warpwatch.contract.environment import Card
from warpwatch.contract.measurement import BatchRows, Counter, TensorError
from warpwatch.contract.messages import CheckReply
from warpwatch.contract.outcome import Finding
from warpwatch.contract.report_facts import Trade
from warpwatch.contract.words import BatchState, Status
from warpwatch.db import registry
from warpwatch.db.database import Database
from warpwatch.db.outcomes import list_exported_runs, read_outcome
from warpwatch.server.judge import Judge, interpreter
from warpwatch.server.judge.interpreter import record_trades
from warpwatch.server.reports.trade_words import trade_words
from warpwatch.server.verdicts.trades import LEAST_SHARE
from warpwatch.settings import Settings

TOLERANCE = 1e-5
HTML = {"Accept": "text/html"}


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
    record(lab, 1)
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
    record(lab, 1)
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
    record(lab, 1)
    page = client.get(f"/commits/{lab.shas[1]}", headers={"Accept": "text/html"}).text
    assert ("Trades memory for speed" in page) == told


@pytest.mark.parametrize(
    ("after_ns", "joules", "told", "words"),
    [
        (8_000.0, 0.0125, True, "Trades energy for speed"),
        (10_000.0, 0.0125, False, "Energy +25.0\u2009%"),
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
    record(lab, 2)
    page = client.get(f"/commits/{lab.shas[2]}", headers={"Accept": "text/html"}).text
    assert (f"{words}</span>" in page) == (told is not None)
    assert ("10.0\u2009mJ → 12.5\u2009mJ" in page) == (told is not None)


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


def measure(lab: Lab, index: int, ns: float = 10_000.0, size: float = 4e6, **traits: Any) -> None:
    """A check and a bench of one variant on two cases; traits: as of `check`."""
    check(lab, index, {"v1": traits.pop("error", 1e-7)}, traits.pop("moving", ()), **traits)
    bench_with_memory(lab, index, ns, size)


def record(lab: Lab, *indices: int) -> None:
    for index in indices:
        with lab.database.session() as session:
            operator = registry.ensure_operators(session, lab.repository, ["square"])["square"]
        record_trades(lab.database, lab.commits[lab.shas[index]], operator, lab.device)


def costs(client: TestClient) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = client.get("/api/v1/costs", params={"repository": "kernels"}).json()["items"]
    return rows


def plain(page: str) -> str:
    return page.replace("\u2009", " ")


def words(rows: list[dict[str, Any]]) -> list[str]:
    return [trade_words(Trade(**row)) for row in rows]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({}, {"size": 5.2e6}, ["memory +30.0\u2009%"]),
        ({}, {"size": 5.0e6}, []),
        ({}, {"error": 4e-7}, ["error ×4.0 within tolerance"]),
        ({"error": 4e-7}, {}, ["error smaller ×4.0"]),
        ({}, {"moving": ("y",)}, ["results now differ from run to run"]),
        ({"moving": ("y",)}, {}, ["results are deterministic now"]),
        ({"changed_rows": 0}, {"changed_rows": 3}, ["rows now depend on their neighbours"]),
        ({"changed_rows": 3}, {"changed_rows": 0}, ["rows are independent of their neighbours now"]),
        ({"changed_rows": 3}, {"changed_rows": 8}, []),
        ({}, {"changed_rows": 3}, []),
        ({}, {}, []),
    ],
)
def test_what_is_counted_is_said_of_the_commit_that_changed_it(
    client: TestClient, lab: Lab, before: dict[str, Any], after: dict[str, Any], told: list[str]
) -> None:
    measure(lab, 0, **before)
    measure(lab, 1, **after)
    assert words(trades(client, lab, 1)) == told


def test_any_counter_in_bytes_is_memory(client: TestClient, lab: Lab) -> None:
    for index, size in enumerate((4e6, 8e6)):
        check(lab, index, {"v1": 1e-7})
        bench_with_memory(lab, index, 10_000.0, size, "kept")
    assert words(trades(client, lab, 1)) == ["kept memory +100.0\u2009%"]


def test_counts_of_two_environments_are_not_compared(client: TestClient, lab: Lab) -> None:
    measure(lab, 0)
    lab.environment = replace(lab.environment, key="another driver")
    measure(lab, 1, size=9e6, error=8e-6, moving=("y",))
    assert trades(client, lab, 1) == []


def test_results_that_differ_now_and_then_are_said_once(client: TestClient, lab: Lab) -> None:
    for index, moving in enumerate((("y",), (), ("y",))):
        check(lab, index, {"v1": 1e-7}, moving)
    assert trades(client, lab, 2) == [], "two checks before had shown it"


def test_the_machine_code_of_a_library(client: TestClient, lab: Lab) -> None:
    build(lab, 0, [kernel("one", "a", size=100_000)])
    build(lab, 1, [kernel("one", "b", size=100_000), kernel("two", "c", size=50_000)])
    build(lab, 2, [kernel("one", "b", size=100_000), kernel("two", "c", size=51_000)])
    assert words(trades(client, lab, 1)) == ["machine code +50.0\u2009%"]
    assert trades(client, lab, 2) == []


@pytest.mark.parametrize(
    ("seconds_after", "told"),
    [(4.0, ["first call +100.0\u2009%, suspected"]), (2.3, []), (0.9, ["first call −55.0\u2009%, suspected"])],
)
def test_a_waiting_time_is_suspected_far_outside_of_its_noise(
    client: TestClient, lab: Lab, seconds_after: float, told: list[str]
) -> None:
    for index, first_call in enumerate((2.0, 2.1, 1.95, seconds_after)):
        check(lab, index, {"v1": 1e-7}, counters=seconds(first_call=first_call, load=0.01 * (1 + index)))
    assert words(trades(client, lab, 2)) == [], "two readings teach no noise"
    rows = trades(client, lab, 3)
    assert words(rows) == told
    assert not any(row["is_exact"] for row in rows)


def test_a_noisy_waiting_time_is_not(client: TestClient, lab: Lab) -> None:
    for index, first_call in enumerate((2.0, 5.0, 1.5, 4.0, 1.0, 5.0)):
        check(lab, index, {"v1": 1e-7}, counters=seconds(first_call=first_call))
    assert trades(client, lab, 5) == []


def test_a_compile_time_is_suspected_as_well(client: TestClient, lab: Lab) -> None:
    for index, took in enumerate((10.0, 10.2, 9.9, 20.0)):
        build(lab, index, [kernel("one", str(index))], seconds=took)
    assert words(trades(client, lab, 3)) == ["compile time +100.0\u2009%, suspected"]


def test_one_line_says_what_was_traded_for_what(
    client: TestClient, lab: Lab, settings: Settings, database: Database
) -> None:
    measure(lab, 0)
    measure(lab, 1, 8_800.0, 5.2e6, error=4e-7)
    Judge(settings, database).sweep()
    line = "hot −12.0\u2009% between runs, error ×4.0 within tolerance, memory +30.0\u2009%"
    for address in (f"/commits/{lab.shas[1]}", "/commits?repository=kernels", "/runs/4?repository=kernels"):
        assert line in client.get(address, headers=HTML).text, address
    report = client.get("/api/v1/submissions/4/report").json()
    assert report["traded"] == f"square v1: {line}"
    assert "Beside the time: square v1: hot −12.0" in client.get("/api/v1/submissions/4/report.md").text
    assert client.get("/api/v1/submissions/2/report").json()["traded"] is None


def test_the_report_of_a_submission_that_was_judged_says_what_was_traded(
    client: TestClient, lab: Lab, settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[dict[str, Any]] = []

    def close(*_: Any) -> None:
        reports.append(client.get("/api/v1/submissions/2/report").json())

    bench_with_memory(lab, 0, 10_000.0, 4e6)
    bench_with_memory(lab, 1, 10_000.0, 9e6)
    monkeypatch.setattr(interpreter, "close_changes", close)
    Judge(settings, database).sweep()
    assert reports[-1]["pending"] == 0
    assert reports[-1]["traded"] == "square v1: memory +125.0\u2009%"


def test_a_cost_stays_in_the_inbox_until_it_is_given_back(client: TestClient, lab: Lab) -> None:
    measure(lab, 0)
    measure(lab, 1, size=9e6, moving=("y",))
    record(lab, 1)
    assert sorted(words(costs(client))) == ["memory +125.0\u2009%", "results now differ from run to run"]
    inbox = client.get("/regressions?repository=kernels", headers=HTML).text
    assert inbox.count("data-cost=") == 2
    assert "data-cost=" not in client.get("/regressions?repository=kernels&tab=suspected", headers=HTML).text
    measure(lab, 2, size=4.1e6, moving=("y",))
    record(lab, 2)
    assert words(costs(client)) == ["results now differ from run to run"]


def test_half_of_a_cost_given_back_leaves_it_open(client: TestClient, lab: Lab) -> None:
    for index, size in enumerate((4e6, 16e6, 10e6, 4e6)):
        measure(lab, index, size=size)
    record(lab, 1, 2)
    assert words(costs(client)) == ["memory ×4.00"]


def test_an_accepted_cost_leaves_the_inbox_and_stays_at_its_commit(client: TestClient, lab: Lab) -> None:
    measure(lab, 0)
    measure(lab, 1, size=9e6)
    record(lab, 1)
    (row,) = costs(client)
    refused = client.post(f"/api/v1/costs/{row['id']}/accept", json={"author": ""})
    assert refused.status_code == 422
    assert client.post(f"/api/v1/costs/{row['id']}/accept", json={"author": "ann"}).status_code == 204
    record(lab, 1)
    assert costs(client) == []
    assert len(trades(client, lab, 1)) == 1
    assert client.post("/api/v1/costs/999/accept", json={"author": "ann"}).status_code == 404


def test_the_form_of_the_inbox_accepts_a_cost(client: TestClient, lab: Lab) -> None:
    measure(lab, 0)
    measure(lab, 1, size=9e6)
    record(lab, 1)
    (row,) = costs(client)
    form = {"trade": row["id"], "filters": "repository=kernels"}
    client.post("/costs/accept", data={**form, "author": " "}, follow_redirects=False)
    assert len(costs(client)) == 1, "nobody signed"
    answer = client.post("/costs/accept", data={**form, "author": "ann"}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/regressions?repository=kernels#costs")
    assert costs(client) == []


def test_a_commit_that_is_measured_between_two_others_takes_the_cost(
    client: TestClient, lab: Lab, settings: Settings, database: Database
) -> None:
    judge = Judge(settings, database)
    measure(lab, 0)
    measure(lab, 2, size=9e6)
    judge.sweep()
    assert [(row["commit_sha"], row["since"]) for row in costs(client)] == [(lab.shas[2], lab.shas[0])]
    for address in (f"/commits/{lab.shas[2]}", "/commits?repository=kernels", "/regressions?repository=kernels"):
        assert f"since {lab.shas[0][:8]}" in re.sub("</?code>", "", client.get(address, headers=HTML).text), address
    measure(lab, 1, size=9e6)
    judge.sweep()
    assert [(row["commit_sha"], row["since"]) for row in costs(client)] == [(lab.shas[1], None)]


def test_a_struck_out_result_costs_nothing(client: TestClient, lab: Lab) -> None:
    measure(lab, 0)
    measure(lab, 1, size=9e6)
    record(lab, 1)
    assert client.post("/api/v1/jobs/4/strike-out", json={"reason": "another process"}).status_code == 200
    assert costs(client) == []
    assert trades(client, lab, 1) == []


def test_the_job_of_a_check_shows_its_bits_and_its_batch(client: TestClient, lab: Lab) -> None:
    check(lab, 0, {"v1": 1e-7}, ("y",), changed_rows=3, counters=seconds(first_call=2.0))
    measure(lab, 1, changed_rows=0)
    page = client.get("/jobs/1", headers=HTML).text
    assert "3 elements differ from run to run · 3 of 8 rows have other bits in a smaller batch" in plain(page)
    assert "first call 2.0 s" in plain(page)
    assert "Same bits from run to run · batch-invariant: 8 rows" in plain(client.get("/jobs/2", headers=HTML).text)
    assert "3.81 MiB" in plain(client.get("/jobs/3", headers=HTML).text)


def test_what_a_check_found_leaves_with_the_results(lab: Lab, tmp_path: Path) -> None:
    check(lab, 0, {"v1": 1e-7}, ("y",), changed_rows=3, counters=seconds(first_call=2.0))
    with lab.database.session() as session:
        (run,) = list_exported_runs(session, lab.repository)
        reply = read_outcome(session, run, tmp_path).findings[0].check
    assert reply is not None
    assert (reply.differing, reply.batch) == (3, BatchRows(BatchState.DEPENDENT, 8, 3))
    assert reply.counters == seconds(first_call=2.0)
