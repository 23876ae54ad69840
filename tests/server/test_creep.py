"""A series that lost 0.3 % ten times is a regression, held against its best level and its releases; the drift of a card
is not blamed on code."""

from __future__ import annotations

import random
from itertools import pairwise
from math import log, prod
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from bench.attribution import DATA, load_noise
from bench.detectors.scenarios import judge_along, line_up, observed, same
from tests.builders import GPU, Lab
from tests.server.simulated import V1, Truth, write_history
from tests.server.test_cards import FIRST, TwoCards
from warpwatch import git
from warpwatch.db import registry
from warpwatch.db.database import Database
from warpwatch.db.job_sources import save_job_sources
from warpwatch.server.judge import Judge
from warpwatch.server.verdicts.cards import LEAST_DRIFTS
from warpwatch.server.verdicts.creep import ReleaseLevel
from warpwatch.server.verdicts.suspicion import SeriesWindow
from warpwatch.settings import Settings

STEP = 1.003
HEADS = range(16, 36, 2)
"""The commits at which the ten steps of the planted creep lie."""
COMMITS = 42
QUIET = 0.01


def creeping(seed: int, every: int, length: int) -> list[float]:
    """Log times that rise by 0.3 % ten times, with the noise of a public series of unchanged code."""
    chance = random.Random(f"creep {seed}")
    pool = chance.choice(load_noise(DATA, QUIET))
    return [log(STEP) * min(10, max(0, place - 20) // every) + chance.choice(pool) for place in range(length)]


def window(shifts: list[float], **more: Any) -> SeriesWindow:
    rows = [observed(reading) for reading in line_up(shifts)][-128:]
    return SeriesWindow(rows, [], "cuda", rows[-1].commit_id, **more)


def test_ten_small_steps_are_suspected_by_the_best_level() -> None:
    for seed in range(8):
        found = judge_along(line_up(creeping(seed, 6, 110)), lambda base, head: (base, head), first=20)
        assert {change.direction for change in found} == {"slower"}


def test_a_creep_over_many_commits_is_held_against_a_release() -> None:
    """One step in forty commits: the last 128 readings hold three of them."""
    met = 0
    for seed in range(12):
        shifts = creeping(seed, 40, 450)
        release = ReleaseLevel(8, f"{8:040x}", 8, tuple(reading.median_ns for reading in line_up(shifts[1:9])))
        assert window(shifts).creep([]) is None
        creep = window(shifts, releases=[release]).creep([])
        if creep is not None:
            met += 1
            assert (creep[0].ordinal, creep[1].ordinal) == (8, 449)
            assert creep[2] == pytest.approx(1.03, abs=0.01)
            assert window(shifts, releases=[release]).creep([(8, 449)]) is None, "that was compared"
            assert window(shifts, releases=[release], drift=0.03).creep([]) is None, "the card did it"
    assert met >= 10


def test_releases_raise_few_suspicions_of_noise() -> None:
    """Series of unchanged code, all positions from the 40th reading on, held against a release among their first."""
    count = asked = 0
    for seed, pool in enumerate(load_noise(DATA, 0.05)):
        chance = random.Random(seed)
        readings = line_up([chance.choice(pool) for _ in range(60)])
        rows = [observed(reading) for reading in readings]
        release = ReleaseLevel(8, rows[8].sha, 8, tuple(row.median_ns for row in rows[1:9]))
        for end in range(40, 61, 4):
            count += 1
            asked += (
                SeriesWindow(rows[:end], [], "cuda", rows[end - 1].commit_id, releases=[release]).creep([]) is not None
            )
    assert asked / count <= 0.0011


def test_a_drift_costs_few_comparisons() -> None:
    assert len(judge_along(line_up(creeping(1, 6, 128)), same, first=20)) <= 3


@pytest.fixture
def machine(client: TestClient, settings: Settings, database: Database, tmp_path: Path) -> TwoCards:
    source = tmp_path / "history" / "kernels"
    shas = write_history(source, dict.fromkeys(HEADS, "kernels/square.py"), COMMITS)
    git.update_mirror(str(source), settings.home)
    lab = Lab(database, source, shas, tmp_path, environment=GPU)
    return TwoCards(client, lab, Judge(settings, database), Truth(), cells=(V1,), between=0.002, within=0.0015)


def drift_others(machine: TwoCards, log_ratio: float) -> None:
    """As if series of another operator, of unchanged code, had become slower on the card."""
    lab = machine.lab
    job_id = lab.submit("bench", 0, operator="cube")
    with lab.database.session() as s:
        operator_id = registry.ensure_operators(s, lab.repository, ["cube"])["cube"]
        environment_id, card_id = s.execute(
            text("SELECT max(environments.id), max(cards.id) FROM environments, cards")
        ).one()
        save_job_sources(
            s,
            job_id=job_id,
            operator_id=operator_id,
            commit_id=lab.commits[lab.shas[0]],
            environment_id=environment_id,
            sources="cube",
            shifts=[],
            card_id=card_id,
            drifts=[log_ratio] * LEAST_DRIFTS,
        )
        s.execute(text("UPDATE jobs SET state = 'cancelled' WHERE id = :id"), {"id": job_id})


def test_a_creep_is_confirmed_and_split_over_its_commits(machine: TwoCards) -> None:
    machine.truth = Truth(times={V1: dict.fromkeys(HEADS, STEP)})
    for number in range(COMMITS):
        machine.bench_on(FIRST, number)
        machine.work()
    ranges = sorted((base, head) for _, base, head in machine.found())
    assert {direction for direction, _, _ in machine.found()} == {"slower"}
    assert len(ranges) >= 3, "the steps are shared out"
    assert all(before[1] <= behind[0] for before, behind in pairwise(ranges))
    assert all(any(base < head <= end for head in HEADS) for base, end in ranges), "no range without a step"
    ratios = [row["ratio"] for row in machine.rows() if row["state"] == "new"]
    assert prod(ratios) == pytest.approx(STEP**10, abs=0.012)


@pytest.mark.parametrize("controls", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_the_drift_of_a_card_is_not_blamed_on_code(machine: TwoCards, controls: bool) -> None:
    """Comparisons on one card dismiss it; where other operators show the drift, none is asked for."""
    for number in range(COMMITS):
        machine.factors[FIRST] = STEP ** sum(number >= head for head in HEADS)
        machine.bench_on(FIRST, number)
        if controls and number == HEADS[0]:
            drift_others(machine, log(STEP) * 10)
        machine.work()
    assert machine.found() == set()
    assert machine.rows("confirmed") == []
    history = [row for row in machine.rows("dismissed") if row["cause"] == "history"]
    assert bool(history) is not controls


def test_a_release_is_read_with_its_series(machine: TwoCards) -> None:
    """The level at a tagged commit is read with the readings before it, by the card and line of the new point."""
    for number in range(6):
        machine.bench_on(FIRST, number)
    with machine.lab.database.session() as s:
        sha = machine.lab.shas[4]
        s.execute(text("UPDATE commits SET tags = '[\"v1.0\"]' WHERE sha = :sha"), {"sha": sha})
        job_id = s.execute(text("SELECT max(id) FROM jobs WHERE kind = 'bench'")).scalar_one()
        from warpwatch.db.reads.observed import list_release_readings

        rows = list_release_readings(s, job_id)
    assert [row.ordinal for row in rows] == sorted(row.ordinal for row in rows)
    assert {row.release_sha for row in rows} == {sha}
    assert rows[-1].sha == sha
    assert len(rows) == 5
