"""Two cards of one device are two lines until they have measured the same commits; a card that lost speed is an alarm;
and a real regression is found whichever card measures it."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import log
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.builders import CASES, GPU, VARIANTS, Lab
from tests.server.simulated import Machine, Truth, write_history
from tests.server.test_results import series_id
from warpwatch import git
from warpwatch.contract.environment import Card
from warpwatch.contract.words import Status
from warpwatch.db.database import Database
from warpwatch.db.outcomes import list_exported_runs, read_outcome
from warpwatch.server.judge import Judge
from warpwatch.server.verdicts.cards import LEVEL, join_cards, learn_offset
from warpwatch.settings import Settings

CELLS = (("v1", CASES[0]), ("v2", CASES[0]))
"""Every bench judges all of them, so that two take less than a third of the time of nine."""
FIRST, SECOND = "GPU-11111111-a", "GPU-22222222-b"
OFFSET = 1.048
COMMITS = 32


@dataclass
class TwoCards(Machine):
    """A device with several cards, each with a factor of its own."""

    factors: dict[str, float] = field(default_factory=lambda: {FIRST: 1.0, SECOND: OFFSET})
    card: str = FIRST

    def bench_on(self, card: str, number: int) -> None:
        self.card = card
        facts = {"uuid": card, "board": "900-21010", "vbios": "96.00", "slot": "00000000:41:00.0", "host": "node7"}
        self.lab.environment = replace(GPU, card=Card(card, facts))
        self.bench(number)

    def alternate(self, numbers: Iterable[int]) -> None:
        """One commit on one card, the next one on the other."""
        for number in numbers:
            self.bench_on((FIRST, SECOND)[number % 2], number)

    def _timed(self, cell: Any, number: int) -> Any:
        time = super()._timed(cell, number)
        return time if isinstance(time, Status) else time * self.factors[self.card]

    def causes(self) -> set[str]:
        """Why regressions of any verdict were opened."""
        rows = [row for verdict in ("suspected", "confirmed", "dismissed", "unsure") for row in self.rows(verdict)]
        return {row["cause"] for row in rows}


@pytest.fixture
def machine(client: TestClient, settings: Settings, database: Database, tmp_path: Path) -> TwoCards:
    """Every commit changes the operator, so that code excuses no shift."""
    source = tmp_path / "history" / "kernels"
    shas = write_history(source, dict.fromkeys(range(COMMITS), "kernels/square.py"), COMMITS)
    git.update_mirror(str(source), settings.home)
    lab = Lab(database, source, shas, tmp_path, environment=GPU)
    return TwoCards(client, lab, Judge(settings, database), Truth(), cells=CELLS, between=0.002, within=0.002)


def cards(machine: TwoCards) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = machine.client.get("/api/v1/cards", params={"device": GPU.device_key}).json()["items"]
    return items


def lines(machine: TwoCards) -> int:
    """How many lines the history of a series has."""
    series = series_id(machine.client, variant="v1", case=CASES[0], metric="graph")
    return len(machine.client.get(f"/api/v1/history/{series}/noise").json()["items"])


def chart_names(machine: TwoCards) -> set[str]:
    series = series_id(machine.client, variant="v1", case=CASES[0], metric="graph")
    page = machine.client.get(f"/history/{series}", headers={"Accept": "text/html"}).text
    return {name for name in ("card 11111111", "card 22222222") if f"v1, {name}" in page}


def test_two_cards_raise_no_suspicion_and_their_offset_is_learned(machine: TwoCards) -> None:
    machine.alternate(range(18))
    assert "history" not in machine.causes(), "each card has a line of its own"
    assert [card["offset"] for card in cards(machine)] == [None, None]
    assert lines(machine) == 2
    assert chart_names(machine) == {"card 11111111", "card 22222222"}
    for number in range(18, 24):
        for card in (FIRST, SECOND):
            machine.bench_on(card, number)
    first, second = cards(machine)
    assert (first["base"], second["base"]) == (None, "11111111")
    assert second["offset"]["ratio"] == pytest.approx(OFFSET, abs=0.003)
    assert second["offset"]["low"] < OFFSET < second["offset"]["high"]
    assert second["offset"]["is_agreed"] is True
    assert lines(machine) == 1
    assert chart_names(machine) == set()
    machine.alternate(range(24, 32))
    assert "history" not in machine.causes(), "the offset is taken off"


def test_a_regression_is_found_on_both_cards(machine: TwoCards) -> None:
    machine.truth = Truth(times={cell: {14: 1.04} for cell in CELLS})
    machine.alternate(range(22))
    machine.work()
    assert machine.found() == {("slower", 13, 14)}


@pytest.mark.nightly
def test_a_regression_is_found_on_the_joined_line(machine: TwoCards) -> None:
    """One reading of either card, since both are one line."""
    machine.truth = Truth(times={cell: {14: 1.04} for cell in CELLS})
    for number in range(12):
        for card in (FIRST, SECOND):
            machine.bench_on(card, number)
    machine.alternate(range(12, 18))
    machine.work()
    assert machine.found() == {("slower", 13, 14)}


def alarms(machine: TwoCards) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = machine.client.get("/api/v1/alarms", params={"kind": "slower_card"}).json()["items"]
    return rows


def test_a_card_that_lost_speed_is_an_alarm(machine: TwoCards) -> None:
    """Repeats of one commit are the control series: its code stays the same. An alarm needs several of them."""
    machine.cells = tuple((variant, case) for variant in VARIANTS for case in CASES)
    for loss in (1.0, 1.0, 1.02):
        machine.factors[SECOND] *= loss
        for _ in range(LEVEL):
            machine.bench_on(FIRST, 0)
            machine.bench_on(SECOND, 0)
        assert machine.rows("suspected") == [], "one commit has no changes"
        assert [row["device_key"] for row in alarms(machine)] == ([GPU.device_key] if loss > 1 else [])
    assert all("22222222" in row["message"] for row in alarms(machine))


def test_a_run_shows_and_exports_its_card(machine: TwoCards, tmp_path: Path) -> None:
    machine.bench_on(SECOND, 0)
    (job,) = machine.client.get("/api/v1/jobs").json()["items"]
    (run,) = machine.client.get(f"/api/v1/jobs/{job['id']}").json()["runs"]
    assert run["card"]["key"] == SECOND
    assert run["card"]["facts"]["slot"] == "00000000:41:00.0"
    assert "card 22222222 of node7" in machine.client.get(f"/jobs/{job['id']}", headers={"Accept": "text/html"}).text
    assert "node7" in machine.client.get("/devices", headers={"Accept": "text/html"}).text
    with machine.lab.database.session() as s:
        (exported,) = list_exported_runs(s, machine.lab.repository)
        outcome = read_outcome(s, exported, tmp_path)
    assert outcome.environment.card == Card(SECOND, run["card"]["facts"])
    assert outcome.environment.key == GPU.key, "cards of one device share their environment"
    csv = machine.client.get("/api/v1/export.csv", params={"repository": "kernels"}).text
    assert SECOND in csv


def test_few_pairs_or_series_that_disagree_make_no_line() -> None:
    chance = random.Random(3)
    noisy = [log(OFFSET) + chance.gauss(0, 0.001) for _ in range(20)]
    assert learn_offset({1: noisy[:5]}, "cuda") is None
    agreed = learn_offset({1: noisy}, "cuda")
    assert agreed is not None
    assert agreed.is_agreed
    apart = learn_offset({number: [value + number * 0.01 for value in noisy] for number in range(4)}, "cuda")
    assert apart is not None
    assert not apart.is_agreed, "a card may be slower in memory and not in arithmetic"


def test_cards_without_a_name_belong_to_every_line() -> None:
    agreed = {(2, 1): 0.05}
    assert join_cards([None, 1], {}) == {None: (None, 0.0), 1: (None, 0.0)}
    assert join_cards([2, 1, 3, None], agreed) == {2: (2, 0.0), 1: (2, -0.05), 3: (3, 0.0), None: (2, 0.0)}
