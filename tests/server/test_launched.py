"""What calls launch on a GPU: shown, and proof that the device had the same work whatever the sources are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tests.builders import CASES, GPU, Lab
from tests.server.simulated import V1, V2, V3, Machine, Truth, write_history
from warpwatch import git
from warpwatch.contract.measurement import LaunchedCode, LaunchedKernel, TunedCandidate, TunedChoice
from warpwatch.contract.messages import CheckReply
from warpwatch.contract.outcome import Finding
from warpwatch.contract.words import Status
from warpwatch.db.database import Database
from warpwatch.server.explanation.choices import describe_choice
from warpwatch.server.judge import Judge
from warpwatch.settings import Settings

HTML = {"Accept": "text/html"}


@pytest.fixture
def worker(client: TestClient, settings: Settings, database: Database, tmp_path: Path) -> Machine:
    """A GPU with steady times; every commit changes the code of all variants, and from number 5 on v1 is slower."""
    source = tmp_path / "history" / "kernels"
    shas = write_history(source, dict.fromkeys(range(8), "kernels/square.py"), 8)
    git.update_mirror(str(source), settings.home)
    lab = Lab(database, source, shas, tmp_path, environment=GPU)
    return Machine(client, lab, Judge(settings, database), Truth(times={V1: {5: 1.5}}), between=0.001, within=0.001)


def launched(code: str, block: int = 128, apart: float = 1.004) -> LaunchedCode:
    """One kernel with this machine code, whose block an autotuner chose; the second takes `apart` times as long."""
    names = [f"BLOCK: {size}, num_warps: 4, maxnreg: None" for size in (block, 192 - block // 2)]
    choice = TunedChoice(
        "rows_kernel", names[0], [TunedCandidate(names[0], 1000.0), TunedCandidate(names[1], 1000.0 * apart)], 16
    )
    kernel = LaunchedKernel("rows_kernel", code, 32, 1024, 0, [4096, 1, 1], [block, 1, 1], 2)
    return LaunchedCode([kernel], f"digest of {code}" if code else "", [choice])


def check(worker: Machine, number: int, code: LaunchedCode) -> None:
    rows = [Finding(*cell, Status.OK, check=CheckReply(Status.OK, launched=code)) for cell in (V1, V2, V3)]
    lab = worker.lab
    lab.finish(lab.submit("check", number), lab.outcome(rows))
    worker.judge.sweep()


def test_equal_work_is_the_same_code_and_suspects_nobody(worker: Machine) -> None:
    for number in range(5):
        check(worker, number, launched("aaaa"))
        worker.bench(number)
    assert worker.rows("suspected") == []
    # The sources differ, and the times, but not what the device does.
    check(worker, 5, launched("aaaa"))
    worker.bench(5)
    assert worker.rows("suspected") == []
    address = f"/api/v1/commits/{worker.lab.shas[5]}/cells?repository=kernels&limit=200"
    cells = worker.client.get(address).json()["items"]
    assert {row["statement"]["kind"] for row in cells if row["series_id"]} == {"same_code"}


@pytest.mark.parametrize("code", ["bbbb", ""])
def test_other_work_or_unknown_work_is_suspected(worker: Machine, code: str) -> None:
    for number in range(5):
        check(worker, number, launched("aaaa"))
        worker.bench(number)
    check(worker, 5, launched(code))
    worker.bench(5)
    assert worker.rows("suspected")


def test_what_is_launched_and_chosen_is_shown(worker: Machine) -> None:
    for number, code in enumerate([launched("aaaa"), launched("aaaa"), launched("bbbb", 64)]):
        check(worker, number, code)
        worker.bench(number)
    address = f"/operators/square?repository=kernels&device=test-gpu&tab=code&case={V1[1]}"
    page = worker.client.get(address, headers=HTML).text
    assert "rows_kernel: BLOCK 128 → 64" in page
    assert "2 launches of 1 kernel" in page
    assert "4096 × 1 × 1" in page
    address = "/api/v1/operators/square/launched?repository=kernels&device=test-gpu"
    row = worker.client.get(f"{address}&case={V1[1]}").json()["items"][0]
    assert (row["variant"], row["since"], row["before"]["digest"]) == ("v1", worker.lab.shas[2], "digest of aaaa")
    job = worker.client.get("/api/v1/jobs", params={"kind": "check", "limit": 1}).json()["items"][0]
    page = worker.client.get(f"/jobs/{job['id']}", headers=HTML).text
    assert "BLOCK 64, chosen of 16; the second takes +0.4" in page
    assert CASES[0] == V1[1]


def test_a_choice_whose_times_are_unknown_is_told_without() -> None:
    (choice,) = launched("aaaa").choices
    assert describe_choice(replace(choice, candidates=[])) == "rows_kernel: BLOCK 128, num_warps 4, chosen of 16"


def test_what_no_harness_records_is_refused() -> None:
    usual = launched("aaaa")
    (choice,) = usual.choices
    for ns in (0.0, -1.0, float("inf"), float("nan")):
        hostile = replace(choice, candidates=[TunedCandidate(choice.config, ns)])
        with pytest.raises(ValueError, match="no device can show"):
            replace(usual, choices=[hostile])
    for much in ({"kernels": usual.kernels * 65}, {"choices": [replace(choice, config="B" * 3000)]}):
        with pytest.raises(ValueError, match="more kernels or longer names"):
            replace(usual, **much)
