"""Comparisons that show nothing again and again raise the bar for the next suspicion, and a plain change is compared
still."""

from __future__ import annotations

import random
from dataclasses import replace
from math import exp
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from bench.detectors.operators import Operator
from bench.detectors.series import Series
from tests.builders import Lab
from tests.server.simulated import V1, V2, Machine, Truth, write_history
from tests.server.test_results import series_id
from warpwatch import git
from warpwatch.contract.words import Cause
from warpwatch.db.database import Database
from warpwatch.db.reads.judging import KnownChange
from warpwatch.db.reads.observed import ObservedReading
from warpwatch.server.judge import Judge
from warpwatch.server.verdicts.bar import find_bar, required_score
from warpwatch.server.verdicts.known import KnownRegressions
from warpwatch.server.verdicts.noise import Reading
from warpwatch.server.verdicts.suspicion import bar_of, find_candidates, windows_of
from warpwatch.settings import Settings

RUNS, SERIES = 60, 12
DISMISSED = KnownChange(1, "slower", "dismissed", True, 1, 2, "1", "2", 1, 2, [1, 2], [1, 2], [[1, 2]])


def test_the_bar_rises_with_dismissed_comparisons_and_falls_with_readings() -> None:
    scores = [required_score(dismissed, 100) for dismissed in range(8)]
    assert scores == sorted(scores)
    assert scores[0] == 0
    assert scores[1] == 1, "the limit for alarms"
    assert required_score(10**9, 100) == required_score(10**6, 100) < 1000, "it is a number still"
    assert required_score(4, 10_000) == 0


@pytest.mark.parametrize(
    ("change", "tried", "dismissed"),
    [
        (DISMISSED, 2, 2),
        (replace(DISMISSED, verdict="confirmed", dismissed=[2]), 2, 1),
        (replace(DISMISSED, cause=Cause.CODE), 0, 0),
        (replace(DISMISSED, cause=Cause.STATUS, direction="broken"), 0, 0),
        (replace(DISMISSED, asked=[]), 0, 0),
    ],
)
def test_only_comparisons_that_history_asked_for_count(change: KnownChange, tried: int, dismissed: int) -> None:
    bar = find_bar([change], 50)
    assert (bar.tried, bar.dismissed, bar.is_raised) == (tried, dismissed, dismissed > 0)


def moved_together(seed: int) -> Operator:
    """Series of unchanged code that a machine moves together, by 3 to 10 % at every sixth run, until the next time."""
    draw = random.Random(seed)
    moves = [draw.uniform(0.03, 0.1) * draw.choice((-1, 1)) for _ in range(RUNS // 6 + 1)]
    series = []
    for _ in range(SERIES):
        readings = []
        for run in range(RUNS):
            middle = 1e6 * exp(moves[run // 6] + draw.gauss(0, 0.004))
            readings.append(Reading(run, run, 1, middle, middle * 0.999, middle * 1.001))
        series.append(Series("kernel", ("kernel",), readings))
    return Operator(series)


def compared(operator: Operator) -> float:
    """Series compared per 1,000 readings."""
    known: list[KnownChange] = []
    operator.judge(operator.runs, known)
    return 1000 * sum(len(change.series) for change in known) / operator.points


def test_a_machine_that_moves_all_series_costs_few_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    operators = [moved_together(seed) for seed in range(2)]
    assert max(map(compared, operators)) <= 30
    monkeypatch.setattr("warpwatch.server.verdicts.bar.FROM", 1e9)
    assert min(map(compared, operators)) > 40, "what the same rule asks for without a bar"


def test_a_plain_step_is_found_behind_dismissed_comparisons() -> None:
    operator = moved_together(1)
    known: list[KnownChange] = []
    operator.judge(operator.runs[:44], known)
    assert any(change.dismissed for change in known)
    assert operator.judge(operator.runs[44:48], known, operator.step(3, 44, 1.5))


def test_a_jump_in_a_short_history_is_compared_though_another_comparison_showed_nothing() -> None:
    """The bar rises at the first dismissed series, and a jump between the first commits has no score to hold it to."""
    times = (313_154.0, 317_836.0, 251_159.0)
    rows = [
        ObservedReading(1, "v1", "n=300", 1, number, f"{number:040x}", number, ns, 0.99 * ns, 1.01 * ns)
        for number, ns in enumerate(times)
    ]
    windows = windows_of(rows, {row.sha for row in rows}, 2, 1, "cpu", {})
    known = KnownRegressions([replace(DISMISSED, series=[1], dismissed=[1], asked=[[0, 1]])])
    assert bar_of(windows, known).is_raised
    (found,) = find_candidates(windows, known)
    assert (found.cause, found.base_ordinal, found.head_ordinal) == (Cause.HISTORY, 1, 2)


def test_pages_say_that_the_bar_is_raised(
    client: TestClient, settings: Settings, database: Database, tmp_path: Path
) -> None:
    source = tmp_path / "history" / "kernels"
    shas = write_history(source, dict.fromkeys(range(16), "kernels/square.py"), 16)
    git.update_mirror(str(source), settings.home)
    lab, judge = Lab(database, source, shas, tmp_path), Judge(settings, database)
    machine = Machine(client, lab, judge, Truth(), cells=(V1, V2), between=0.0005, within=0.001)
    assert "nowhere now" in client.get("/verdicts").text
    for number in range(10):
        machine.bench(number)
    machine.work()
    # Nothing changed, and one run lies far off all the same.
    lab.bench(10, {V1: 150_000.0, V2: 100_000.0})
    machine.work()
    (bar,) = client.get("/api/v1/verdicts/bars", params={"repository": "kernels"}).json()["items"]
    assert (bar["operator"], bar["tried"]) == ("square", bar["dismissed"])
    assert bar["score"] >= 1
    counts = f"{bar['dismissed']} of {bar['tried']}"
    assert f"{counts} dismissed" in client.get("/verdicts").text
    page = client.get(f"/history/{series_id(client, variant='v1')}", headers={"Accept": "text/html"}).text
    assert f": {counts} comparisons dismissed" in page
