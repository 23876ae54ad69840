"""Readings on a busy host: a single one opens no suspicion, quiet ones count alone, and real changes are found."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.builders import CASES, Lab, bench, measurement
from tests.server.simulated import V1, Machine, Truth, write_history
from warpwatch import git
from warpwatch.contract.outcome import Finding
from warpwatch.contract.priorities import CONFIRM_CODE
from warpwatch.contract.words import Cause, Status, Verdict
from warpwatch.db.database import Database
from warpwatch.db.reads.judging import KnownChange
from warpwatch.db.reads.observed import ObservedReading
from warpwatch.server.judge import Judge
from warpwatch.server.verdicts.known import KnownRegressions
from warpwatch.server.verdicts.suspicion import Candidate, find_candidates, windows_of
from warpwatch.server.verdicts.thresholds import BUSY_LOAD
from warpwatch.settings import Settings

CORES = 2
COMMITS, SERIES = 10, 10
NOTHING_KNOWN = KnownRegressions([])


def reading(commit: int, time_ns: float, load: Any, cores: Any = CORES) -> ObservedReading:
    """A reading with load and cores of its host before and after."""
    times = time_ns, time_ns * 0.99, time_ns * 1.01
    host = [load, cores, load, cores]
    return ObservedReading(1, "v1", CASES[0], 1, commit, f"{commit:040x}", commit, *times, host=host)


def candidates(
    rows: list[ObservedReading], known: KnownRegressions = NOTHING_KNOWN, *, is_complete: bool = True
) -> list[Candidate]:
    """What the newest of these readings makes suspicious, if the code changed at every commit."""
    line = {row.sha for row in rows}
    windows = windows_of(rows, line, rows[-1].commit_id, 1, "cpu", {})
    return find_candidates(windows, known, is_complete=is_complete)


def by_history(rows: list[ObservedReading]) -> list[Candidate]:
    """The same, by the times alone."""
    return [item for item in candidates(rows) if item.cause == Cause.HISTORY]


def by_code(rows: list[ObservedReading], *changes: KnownChange, is_complete: bool = True) -> list[tuple[int, int]]:
    """The ranges that are compared for their code alone. changes: those that are known."""
    found = candidates(rows, KnownRegressions(changes), is_complete=is_complete)
    return [(item.base_ordinal, item.head_ordinal) for item in found if item.cause == Cause.CODE]


def tried(first: int, last: int, verdict: str, *, is_settled: bool = True) -> KnownChange:
    """What a comparison of these commits said of the series, which code asked for."""
    dismissed = [1] if verdict == Verdict.DISMISSED else []
    ends = first, last, f"{first:040x}", f"{last:040x}", first, last
    return KnownChange(1, "slower", verdict, is_settled, *ends, [1], dismissed, [[first, last]], Cause.CODE)


def busy_time(draw: random.Random, load: float) -> float:
    """The time of unchanged code at a load: more tasks than cores take time from it, in bursts."""
    burst = draw.expovariate(1.0) * 0.1 * (load / CORES - 1)
    return 100_000.0 * draw.gauss(1, 0.01) * (1 + burst)


def test_unchanged_code_at_changing_load_is_hardly_ever_suspected() -> None:
    draw, busy, careless = random.Random(1), 0, 0
    for _ in range(SERIES):
        rows: list[ObservedReading] = []
        for commit in range(COMMITS):
            load = draw.uniform(4.2, 16)
            rows.append(reading(commit, busy_time(draw, load), load))
            busy += bool(by_history(rows))
            careless += bool(by_history([reading(row.commit_id, row.median_ns, None) for row in rows]))
    assert busy <= 1, "of a hundred commits of an operator"
    assert careless > 30, "the same readings without their load"


def test_a_change_that_several_busy_readings_show_is_compared() -> None:
    draw = random.Random(2)
    rows = [reading(commit, 100_000.0 * draw.gauss(1, 0.02), 8.0) for commit in range(8)]
    rows.append(reading(8, 150_000.0, 8.0))
    assert by_history(rows) == []
    repeated = [*rows, reading(8, 152_000.0, 8.0)]
    (found,) = by_history(repeated)
    assert (found.cause, found.base_ordinal, found.head_ordinal) == (Cause.HISTORY, 7, 8)
    assert by_history([*rows, reading(8, 101_000.0, 8.0)]) == [], "the repeat does not show it"


@pytest.mark.parametrize("commits", [1, 2])
def test_a_change_after_few_commits_is_compared_when_a_repeat_shows_it(commits: int) -> None:
    """An operator that hardly ever changes has few readings, and on a host that is never quiet all of them are busy."""
    rows = [*(reading(commit, 100_000.0, 8.0) for commit in range(commits)), reading(8, 140_000.0, 8.0)]
    assert by_history(rows) == []
    (found,) = by_history([*rows, reading(8, 138_000.0, 8.0)])
    assert (found.base_ordinal, found.head_ordinal) == (commits - 1, 8)
    assert by_history([*rows, reading(8, 108_000.0, 8.0)]) == [], "the repeat does not show it"


def test_unchanged_times_after_few_commits_are_compared_now_and_then() -> None:
    """The code did change there, and only the first few versions of an operator have so little history."""
    draw, suspected = random.Random(3), 0
    for _ in range(40):
        rows: list[ObservedReading] = []
        for commit in range(3):
            load = draw.uniform(4.2, 16)
            rows.append(reading(commit, busy_time(draw, load), load))
            (window,) = windows_of(rows, {row.sha for row in rows}, commit, 1, "cpu", {})
            if window.wants_repeat():
                rows.append(reading(commit, busy_time(draw, load), load))
                suspected += bool(by_history(rows))
    assert suspected <= 36, "of 120 versions at two to eight tasks a core"


def test_a_quiet_reading_is_held_against_quiet_ones() -> None:
    """What was measured on a busy host in between lies in the range."""
    rows = [reading(commit, 100_000.0 + commit, 1.0) for commit in range(6)]
    rows += [reading(commit, 140_000.0, 9.0) for commit in (6, 7)]
    found = candidates([*rows, reading(8, 100_010.0, 1.5)])
    assert {(item.cause, item.base_ordinal, item.head_ordinal) for item in found} <= {(Cause.CODE, 5, 8)}
    (slower,) = candidates([*rows, reading(8, 130_000.0, 1.5)])
    assert (slower.cause, slower.base_ordinal, slower.head_ordinal) == (Cause.HISTORY, 5, 8)


def test_changed_code_of_a_host_that_is_always_busy_is_compared_from_end_to_end() -> None:
    """Its few times differ several times over, so that they never suspect anything."""
    rows = [reading(commit, time_ns, 8.0) for commit, time_ns in ((0, 100_000.0), (3, 290_000.0), (8, 130_000.0))]
    assert by_history(rows) == []
    assert by_code(rows) == [(0, 8)]
    assert by_code(rows, is_complete=False) == [], "commits between them are still to be measured"
    assert by_code([reading(0, 100_000.0, 1.0), reading(3, 99_000.0, 1.5), *rows[2:]]) == [(3, 8)], (
        "a quiet host's times count"
    )


def test_a_range_is_compared_for_its_code_once_while_comparisons_show_something() -> None:
    rows = [reading(commit, time_ns, 8.0) for commit, time_ns in ((0, 100_000.0), (3, 290_000.0), (8, 130_000.0))]
    for verdict, is_settled in ((Verdict.SUSPECTED, False), (Verdict.CONFIRMED, True), (Verdict.DISMISSED, True)):
        assert by_code(rows, tried(0, 8, verdict, is_settled=is_settled)) == []
        assert by_code(rows, tried(0, 3, verdict, is_settled=is_settled)) == [(3, 8)]
    assert by_code(rows, *(tried(0, 3, Verdict.CONFIRMED) for _ in range(9))) == [(3, 8)]
    assert by_code(rows, *(tried(0, 3, Verdict.DISMISSED) for _ in range(2))) == [], "two are free"
    assert by_code(rows, *(tried(0, 3, Verdict.SUSPECTED, is_settled=False) for _ in range(2))) == []
    assert by_code([*rows, *[rows[-1]] * 50], *(tried(0, 3, Verdict.DISMISSED) for _ in range(2))) == [(3, 8)]


@pytest.mark.parametrize(
    ("load", "cores", "expected"),
    [(8.0, 2, 4.0), (3, 4, 0.75), (None, 2, None), ("8", 2, None), (8.0, 0, None), (8.0, None, None), (1e300, 1, None)],
)
def test_a_load_that_no_host_has_is_none(load: Any, cores: Any, expected: float | None) -> None:
    assert reading(0, 1.0, load, cores).load == expected
    assert ObservedReading(1, "v1", "n=1", 1, 1, "a", 1, 1.0, 1.0, 1.0).load is None


@pytest.fixture
def machine(client: TestClient, settings: Settings, database: Database, tmp_path: Path) -> Machine:
    source = tmp_path / "history" / "kernels"
    shas = write_history(source, dict.fromkeys(range(12), "kernels/square.py"), 12)
    git.update_mirror(str(source), settings.home)
    return Machine(client, Lab(database, source, shas, tmp_path), Judge(settings, database), Truth(), cells=(V1,))


def finish(machine: Machine, job: int, time_ns: float, load: float) -> None:
    """Ends a bench job with one time, on a host with this load, and judges it."""
    host = {"load": load, "cores": CORES}
    metrics = [measurement(time_ns, metric) for metric in ("hot", "cold")]
    row = Finding(*V1, Status.OK, bench=bench(*metrics, health={"before": host, "after": host}))
    machine.lab.finish(job, machine.lab.outcome([row]))
    machine.judge.sweep()


def test_a_busy_reading_asks_for_one_repeat_and_a_second_one_for_a_comparison(machine: Machine) -> None:
    busy = BUSY_LOAD * CORES + 1
    for number in range(8):
        finish(machine, machine.lab.submit("bench", number), 100_000.0 + 50 * number, busy)
    assert [job["priority"] for job in machine.waiting()] == [CONFIRM_CODE] * 2, (
        "the code changed at each commit, and no reading stands out"
    )
    machine.work()
    finish(machine, machine.lab.submit("bench", 8), 160_000.0, busy)
    (repeat,) = machine.waiting()
    assert (repeat["kind"], repeat["commit_sha"], repeat["base_sha"]) == ("bench", machine.lab.shas[8], None)
    assert repeat["priority"] < -5, "after all other work"
    assert machine.rows("suspected") == []
    finish(machine, repeat["id"], 161_000.0, busy)
    assert [job["kind"] for job in machine.waiting()] == ["compare"]
    assert [row["cause"] for row in machine.rows("suspected")] == [Cause.HISTORY]


def test_a_repeat_that_shows_nothing_ends_it(machine: Machine) -> None:
    for number in range(8):
        finish(machine, machine.lab.submit("bench", number), 100_000.0 + 50 * number, 9.0)
    machine.work()
    finish(machine, machine.lab.submit("bench", 8), 160_000.0, 9.0)
    (repeat,) = machine.waiting()
    finish(machine, repeat["id"], 100_500.0, 9.0)
    assert machine.waiting() == []
    assert machine.rows("suspected") == []
    assert machine.client.get(f"/runs/{repeat['submission_id']}").status_code == 200
