"""From a suspicion to the commit, over real git histories, by trials whose answers are simulated with noise."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from db.database import Database
from db.models import Status
from server.judge import Judge
from tests.builders import Lab
from tests.server.simulated import V1, V2, V3, Machine, Truth, write_history
from warpwatch import git
from warpwatch.settings import Settings

OPERATOR = "kernels/square.py"


def machine(
    client: TestClient, settings: Settings, database: Database, tmp_path: Path, truth: Truth, changes: dict[int, str] | None = None
) -> Machine:
    """A machine for a history of forty commits, of which all, or those named, touch the operator."""
    source = tmp_path / "history" / "kernels"
    shas = write_history(source, dict.fromkeys(range(40), OPERATOR) if changes is None else changes)
    git.update_mirror(str(source), settings.home)
    return Machine(client, Lab(database, source, shas, tmp_path), Judge(settings, database), truth)


@pytest.fixture
def lab(tmp_path: Path) -> None:
    """These tests have histories of their own."""


def test_forty_commits(client: TestClient, settings: Settings, database: Database, tmp_path: Path) -> None:
    """Every fifth commit is measured; three changes for the worse, one for the better and one breakage are found at their commits."""
    truth = Truth(
        times={V1: {7: 1.30, 26: 0.80}, V2: {13: 1.08}, V3: {22: 1.03}},
        broken={V2: (33, Status.WRONG)},
        unbuildable=frozenset({12}),
    )
    worker = machine(client, settings, database, tmp_path, truth)
    for number in [*range(0, 40, 5), 39]:
        worker.check(number)
        worker.bench(number)
        worker.work()
    assert worker.found() == {
        ("slower", 6, 7), ("slower", 11, 13), ("slower", 21, 22), ("faster", 25, 26), ("broken", 32, 33),
    }  # fmt: skip
    assert worker.rows("suspected") == worker.rows("unsure") == []
    assert all(row["settled_at"] for row in worker.rows() + worker.rows("dismissed"))
