"""`warpwatch up --once` as a newcomer runs it in a checkout: database, server and worker start, measure its commits,
and say what is wrong."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker.conftest import Repository, identify, processes_with
from warpwatch.db import embedded

OPERATOR = """
from warpwatch import Cost, Operator, case

operator = Operator(
    "twice",
    "2 a",
    inputs=lambda case, make: {"a": make.normal(case["n"])},
    reference=lambda a: 2 * a,
    cost=lambda case: Cost(flops=case["n"], bytes=8 * case["n"]),
    cases={"quick": (case(n=64),)},
)


@operator.variant("v1", idea="adds it to itself")
def v1(a):
    return a + a
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "home"
    identify(folder)
    yield folder
    shutil.rmtree(embedded.data_folder(folder), ignore_errors=True)


def test_up_measures_the_newest_commits_and_names_what_is_wrong(repository: Repository, home: Path) -> None:
    repository.commit("before", {"README": "nothing to measure"})
    good = repository.commit("good", {"warpwatch.toml": "", "kernels/twice.py": OPERATOR})
    bad = repository.commit("bad", {"kernels/twice.py": OPERATOR.replace("a + a", "a + a + 1")})
    said, code = up(repository, home, 3)
    assert code == 1, said
    assert "Warpwatch serves http://127.0.0.1:" in said
    (named,) = [line for line in said.splitlines() if "/submissions/" in line]
    assert named.startswith(f"{bad[:9]} bad: done {{'wrong': 2}}")
    assert said.splitlines()[-1] == "results: 4 ok, 2 wrong"
    # What was measured stays measured, and the commit that is right is all that is asked for now.
    repository.checkout(good)
    said, code = up(repository, home, 1)
    assert (code, "/submissions/" in said) == (0, False), said
    assert processes_with(str(home)) == []


def up(repository: Repository, home: Path, commits: int) -> tuple[str, int]:
    """(what it said, its exit status)."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run = subprocess.run(
        [sys.executable, "-m", "warpwatch", "up", "--once", "--no-example", "--commits", str(commits)],
        env=os.environ | {"WARPWATCH_HOME": str(home), "WARPWATCH_PORT": str(port), "COLUMNS": "200"},
        cwd=repository.path,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=240,
        check=False,
    )
    return run.stdout, run.returncode
