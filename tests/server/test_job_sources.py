"""What a judged bench leaves behind: which code its operator was made of, and what all of a run had in common."""

from __future__ import annotations

import re
from math import log
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.builders import Lab, write_commits
from tests.server.simulated import V1, V2, Machine, Truth, write_history
from tests.server.test_results import series_id
from warpwatch import git
from warpwatch.db import registry
from warpwatch.db.database import Database
from warpwatch.db.job_sources import LEAST_SHIFTS, VariantSources, save_job_sources
from warpwatch.server.judge import Judge
from warpwatch.settings import Settings

CHANGED = 9
"""The one commit that touches the operator; all others touch the manual."""


@pytest.fixture
def machine(client: TestClient, settings: Settings, database: Database, tmp_path: Path) -> Machine:
    source = tmp_path / "history" / "kernels"
    shas = write_history(source, {CHANGED: "kernels/square.py"}, 12)
    git.update_mirror(str(source), settings.home)
    return Machine(
        client, Lab(database, source, shas, tmp_path), Judge(settings, database), Truth(), cells=(V1, V2), between=0.001
    )


def rows(machine: Machine) -> list[Any]:
    with machine.lab.database.session() as s:
        return list(s.execute(text("SELECT * FROM job_sources ORDER BY job_id")))


def shift_others(machine: Machine, number: int, share: float, least: int = LEAST_SHIFTS) -> None:
    """As if another operator, of unchanged code, had run beside a commit and lain off its level."""
    lab = machine.lab
    job_id = lab.submit("bench", number, operator="cube")
    with lab.database.session() as s:
        operator_id = registry.ensure_operators(s, lab.repository, ["cube"])["cube"]
        environment_id = s.execute(text("SELECT max(id) FROM environments")).scalar_one()
        commit_id = lab.commits[lab.shas[number]]
        owner = {"operator_id": operator_id, "commit_id": commit_id, "environment_id": environment_id}
        save_job_sources(s, job_id=job_id, sources="cube", shifts=[log(share)] * least, **owner)


def test_shifts_at_the_same_code_are_told_from_others(machine: Machine) -> None:
    """The page says of a shift behind which no code changed that the code is the same."""
    machine.truth = Truth(times={V1: {5: 1.3}, V2: {CHANGED: 1.3}})
    for number in range(12):
        machine.bench(number)
    noise = [
        machine.client.get(f"/api/v1/history/{series_id(machine.client, variant=name)}/noise").json()["items"][0]
        for name in ("v1", "v2")
    ]
    assert [[step["is_code_changed"] for step in item["steps"]] for item in noise] == [[False], [True]]
    page = machine.client.get(f"/history/{series_id(machine.client, variant='v1')}", headers={"Accept": "text/html"})
    assert '"name":"shift, same code"' in page.text
    assert "level shift, slower" not in page.text


def test_a_variant_that_a_commit_left_alone_is_neither_suspected_nor_compared(
    client: TestClient, settings: Settings, database: Database, tmp_path: Path
) -> None:
    code = (
        "operator = Operator('square')\n\n@operator.variant('v1')\ndef v1(a):\n    return a * a\n\n"
        "@operator.variant('v2')\ndef v2(a):\n    return {} * a * a\n"
    )
    source = tmp_path / "history" / "kernels"
    shas = write_commits(source, [(f"Scale by {n}", {"kernels/square.py": code.format(n)}) for n in range(4)])
    git.update_mirror(str(source), settings.home)
    truth = Truth(times={V1: {3: 1.5}, V2: {3: 1.5}})
    lab = Lab(database, source, shas, tmp_path)
    machine = Machine(client, lab, Judge(settings, database), truth, cells=(V1, V2), between=0.001)
    for number in range(4):
        machine.bench(number)
    specs = [client.get(f"/api/v1/jobs/{job['id']}").json()["spec"] for job in machine.waiting()]
    assert {variant for spec in specs for variant, _ in spec["pairs"]} == {"v2"}
    page = client.get(f"/commits/{shas[3]}", headers={"Accept": "text/html"}).text
    same, suspected = (series_id(client, variant=name) for name in ("v1", "v2"))
    assert re.findall(r'data-statement="same_code" data-series="(\d+)"', page) == [str(same)]
    assert f'data-series="{suspected}"' in page


@pytest.mark.parametrize(
    ("sources", "digest", "same"),
    [("a-b", None, True), ("a-b", "c", True), ("x-b", "c", True), ("x-y", "c", False), ("x-b", None, False)],
)
def test_a_digest_of_its_own_code_makes_a_variant_the_same(sources: str, digest: str | None, same: bool) -> None:
    assert VariantSources("a-b", "c").is_same(VariantSources(sources, digest)) is same
    assert not VariantSources("a-b", None).is_same(VariantSources("x-b", None))


def test_a_series_without_judged_benches_says_so(machine: Machine) -> None:
    machine.truth = Truth(times={V1: {5: 1.3}})
    for number in range(12):
        machine.bench(number)
    with machine.lab.database.session() as s:
        s.execute(text("DELETE FROM job_sources"))
    items = machine.client.get(f"/api/v1/history/{series_id(machine.client, variant='v1')}/noise").json()["items"]
    assert [step["is_code_changed"] for step in items[0]["steps"]] == [None]


def test_unchanged_series_tell_what_a_run_did_to_all(machine: Machine) -> None:
    for number in range(6):
        machine.bench(number)
    machine.truth = Truth(times={V1: {6: 1.1}, V2: {6: 1.1}})
    machine.bench(6)
    *before, newest = rows(machine)
    assert [len(row.shifts) for row in before[:3]] == [0, 0, 0], "there is no level yet"
    assert newest.shifts == pytest.approx([log(1.1)] * 2, abs=0.01)
    assert newest.sources == before[0].sources is not None
    for number in range(7, CHANGED + 1):
        machine.bench(number)
    assert rows(machine)[-1].shifts == [], "its code changed, so the run is not to blame for its times"
    assert rows(machine)[-1].sources != newest.sources


@pytest.mark.parametrize("least", [LEAST_SHIFTS, LEAST_SHIFTS - 1])
def test_what_a_run_did_to_all_is_no_suspicion(machine: Machine, least: int) -> None:
    """The whole run was 10 % slower, so the operator whose code changed there is not suspected of it."""
    for number in range(CHANGED):
        machine.bench(number)
    machine.work()
    machine.truth = Truth(times={V1: {CHANGED: 1.1}, V2: {CHANGED: 1.1}})
    shift_others(machine, CHANGED, 1.1, least)
    machine.bench(CHANGED)
    causes = {row["cause"] for row in machine.rows("suspected")}
    assert ("history" in causes) == (least < LEAST_SHIFTS)
