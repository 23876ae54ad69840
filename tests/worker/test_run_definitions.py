"""`warpwatch run` with definitions beside the history, and the command that replays a job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.worker import defined
from tests.worker.conftest import Repository, identify
from warpwatch.bundle import BundleReader
from warpwatch.cli.run import find_commits
from warpwatch.contract.spec import DefinitionsVersion, JobSpec
from warpwatch.settings import Settings


def test_run_measures_with_definitions_as_typed(repository: Repository, tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "definitions"
    identify(home)
    for name, text in defined.definitions().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    sha = repository.commit("right", defined.package())
    command = JobSpec().of_cell("lib", defined.CASE).to_command("check", sha, "twice", "cpu", output="a.wwb")
    run = subprocess.run(
        [sys.executable, "-m", "warpwatch", *command[1:], "--definitions", str(folder)],
        cwd=repository.path,
        env=os.environ | {"WARPWATCH_HOME": str(home), "COLUMNS": "200"},
        text=True,
        capture_output=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    with BundleReader(repository.path / "a.wwb") as bundle:
        (done,) = list(bundle.runs())
    assert done.order.definitions is not None
    assert done.order.definitions.url == str(folder)


def test_run_reads_a_repository_without_a_checkout(repository: Repository, tmp_path: Path) -> None:
    repository.commit("right", defined.package())
    bare = tmp_path / "bare"
    subprocess.run(["git", "clone", "--quiet", "--bare", repository.url, str(bare)], check=True)
    _, shas = find_commits(Settings(home=tmp_path / "home"), str(bare), "HEAD")
    assert shas == [repository.head()]


def test_a_replay_command_names_the_version() -> None:
    version = DefinitionsVersion("https://example.org/definitions.git", "f" * 40)
    words = JobSpec().to_command("check", "a" * 40, "twice", "cpu", definitions=version)
    assert words[words.index("--definitions") + 1] == f"https://example.org/definitions.git@{'f' * 40}"
