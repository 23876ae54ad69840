"""`warpwatch run` and `warpwatch import` as people use them: no database package in sight, then everything in the
database."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select
from typer.testing import CliRunner

from tests.worker import probes
from tests.worker.conftest import Repository, identify, processes_with, warpwatch
from warpwatch.bundle import BundleReader
from warpwatch.cli.app import app
from warpwatch.contract.spec import JobSpec
from warpwatch.contract.words import Status
from warpwatch.db.database import Database
from warpwatch.db.models import CommitRecord, ResultRecord, TraceRecord
from warpwatch.worker.devices import choose_device, find_devices, foreign_nodes
from warpwatch.worker.host import Host
from warpwatch.worker.reporter import CannotRunError
from warpwatch.worker.tools import Tools

BLOCKED = ("sqlalchemy", "psycopg", "alembic", "fastapi", "markupsafe", "numpy", "torch", "warpwatch.db")
COMMAND = f"""
import sys
sys.modules.update(dict.fromkeys({BLOCKED!r}))  # None there makes an import fail, as on a node without these packages.
from warpwatch.cli import main
main()
"""
CASE = "n=100,f32,fwd"


def start(home: Path, *words: str, blocked: bool = False) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *(["-c", COMMAND] if blocked else ["-m", "warpwatch"]), *words],
        env=os.environ | {"WARPWATCH_HOME": str(home), "WARPWATCH_DATABASE_URL": "", "COLUMNS": "200"},
        cwd=home.parent,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def test_run_writes_what_import_brings_in(repository: Repository, tmp_path: Path, database: Database) -> None:
    home, output = tmp_path / "home", tmp_path / "results.wwb"
    identify(home)
    base = repository.commit("nothing yet", {"README": "nothing"})
    for subject in ("first", "second"):
        repository.commit(subject, probes.files() | {"note": subject})
    wanted = ("--variants", "ok,wrong", "--cases", CASE, "--traces", "1", "--device", "cpu")
    run = start(
        home,
        "run",
        "--repository",
        repository.url,
        "--commits",
        f"{base}..HEAD",
        "--output",
        str(output),
        *wanted,
        blocked=True,
    )
    said = run.communicate(timeout=280)[0]
    assert run.returncode == 1, said
    assert f"check ok {CASE} ok" in said
    assert f"check wrong {CASE} wrong" in said
    assert "6 ok, 4 wrong" in said, "a profile does not check, and no profile is taken once there are enough traces"
    assert output.stat().st_size < 500_000

    for expected in ("imported", "imported before"):
        importing = warpwatch(home, "import", str(output), url=database.url)
        assert (expected in importing.output, importing.exit_code) == (True, 0), importing.output
    with database.session() as s:
        counts = dict(
            s.execute(
                select(ResultRecord.kind + " " + ResultRecord.status, func.count()).group_by(
                    ResultRecord.kind, ResultRecord.status
                )
            ).all()
        )
        assert counts == {"check ok": 2, "check wrong": 2, "bench ok": 2, "bench wrong": 2, "profile ok": 2}
        assert s.scalar(select(func.count()).select_from(TraceRecord)) == 1
        assert s.scalars(select(CommitRecord.subject).order_by(CommitRecord.ordinal)).all() == ["first", "second"]


def test_a_replay_command_works_as_typed(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    identify(home)
    sha = repository.commit("good", probes.files())
    program, *words = JobSpec(seed=5).of_cell("ok", CASE).to_command("check", sha, "probe", "cpu")
    assert program == "warpwatch"
    monkeypatch.chdir(repository.path)
    run = warpwatch(home, *words)
    assert run.exit_code == 0, run.output
    assert f"check ok {CASE}" in run.stdout
    assert re.search(r"^time: .*\bstart \d+\.\d s", run.stdout, re.MULTILINE)
    with BundleReader(repository.path / "replay.wwb") as bundle:
        (finding,) = [finding for done in bundle.runs() for finding in done.outcome.findings]
        assert finding.check is not None
        assert finding.check.seed == 5


@pytest.mark.parametrize(
    ("settings", "words", "begins"),
    [
        ("", [], ["template", "checkout"]),
        ('interpreter = "/usr/bin/python3"', [], ["checkout"]),
        ("", ["--sanitize", "address"], ["checkout"]),
    ],
)
def test_torch_is_imported_while_the_first_commit_is_laid_out(
    repository: Repository,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: str,
    words: list[str],
    begins: list[str],
) -> None:
    done: list[str] = []

    def check_out(*_: Any, **__: Any) -> None:
        done.append("checkout")
        raise CannotRunError("it is not laid out")

    monkeypatch.setenv("WARPWATCH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(Host, "start_template", lambda *_: done.append("template"))
    monkeypatch.setattr(Tools, "checkouts", check_out)
    sha = repository.commit("good", probes.files() | {"warpwatch.toml": settings})
    command = ["run", "--repository", repository.url, "--commits", sha, "--kinds", "check", "--device", "cpu", *words]
    result = CliRunner().invoke(app, [*command, "--output", str(tmp_path / "results.wwb")])
    assert (result.exit_code, done) == (2, begins), result.output


def test_an_interrupted_run_keeps_what_it_has(repository: Repository, tmp_path: Path) -> None:
    home, output = tmp_path / "home", tmp_path / "results.wwb"
    identify(home)
    repository.commit("good", probes.files())
    wanted = ("--variants", "ok,loop", "--kinds", "check", "--device", "cpu")
    run = start(home, "run", "--repository", repository.url, "--commits", "HEAD", "--output", str(output), *wanted)
    assert run.stdout is not None
    said = ""
    while f"check ok {CASE}" not in said:
        line = run.stdout.readline()
        assert line, said
        said += line
    run.send_signal(signal.SIGINT)
    said += run.communicate(timeout=30)[0]
    assert run.returncode == 2, said
    assert "interrupted" in said
    # The job itself was not done, and what it had found is there all the same.
    with BundleReader(output) as bundle:
        assert [(found.variant, found.status) for done in bundle.runs() for found in done.outcome.findings] == [
            ("ok", Status.OK)
        ]
    assert processes_with(str(home)) == []
    assert list((home / "worktrees").iterdir()) == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--commits", "no-such-ref"), "no commit, branch or tag"),
        (("--commits", "--help-me"), "no commit, branch or tag"),
        (("--commits", "HEAD", "--device", "cuda:77"), "no device 'cuda:77'"),
        (("--commits", "HEAD", "--kinds", "check,guess"), "no kind 'guess'"),
        (("--commits", "HEAD", "--repository", "/no/such/place"), "/no/such/place"),
        (("--commits", "HEAD", "--sanitize", "valgrind"), "no sanitizer 'valgrind'"),
        (("--commits", "HEAD", "--sanitize", "address"), "add --kinds check"),
        (("--commits", "HEAD", "--require-detectable", "5"), "add kind compare to --kinds, and --base"),
    ],
)
def test_bad_input_is_named(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], expected: str
) -> None:
    repository.commit("good", probes.files())
    monkeypatch.setenv("WARPWATCH_HOME", str(tmp_path / "home"))
    command = ["run", "--repository", repository.url, "--output", str(tmp_path / "results.wwb"), *words]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit), "an error that nobody catches is printed with its traceback"
    assert expected in result.output
    assert not (tmp_path / "results.wwb").exists()


def test_devices_are_listed(tmp_path: Path) -> None:
    assert warpwatch(tmp_path / "home", "devices").output.startswith("cpu\t")


def test_the_nodes_of_other_gpus_are_known(tmp_path: Path) -> None:
    for minor in (0, 3):
        (tmp_path / f"0000:0{minor}:00.0").mkdir()
        text = f"Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-{minor}\nBus Type: \t PCIe\nDevice Minor: \t {minor}\n"
        (tmp_path / f"0000:0{minor}:00.0" / "information").write_text(text)
    assert foreign_nodes({"CUDA_VISIBLE_DEVICES": "GPU-3"}, tmp_path) == {"nvidia0"}
    for visible in ({}, {"CUDA_VISIBLE_DEVICES": "MIG-3"}, {"CUDA_VISIBLE_DEVICES": "0"}):
        assert foreign_nodes(visible, tmp_path) == set()
    assert foreign_nodes({"CUDA_VISIBLE_DEVICES": "GPU-3"}, tmp_path / "missing") == set()


def test_gpus_are_those_that_cuda_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H100 (UUID: GPU-1)'\necho 'GPU 1: NVIDIA A100 (UUID: GPU-2)'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [(d.name, d.model) for d in find_devices()][1:] == [("cuda:0", "NVIDIA H100"), ("cuda:1", "NVIDIA A100")]
    for words, uuid in (("auto", "GPU-1"), ("cuda", "GPU-1"), ("cuda:1", "GPU-2")):
        environ: dict[str, str] = {}
        assert choose_device(words, environ) == "cuda:0"
        assert environ == {"CUDA_VISIBLE_DEVICES": uuid}
        assert [d.name for d in find_devices(environ)] == ["cpu", "cuda:0"]
    assert [d.model for d in find_devices({"CUDA_VISIBLE_DEVICES": "1"})][1:] == ["NVIDIA A100"]
    assert find_devices({"CUDA_VISIBLE_DEVICES": ""})[1:] == []
    program.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'\nexit 9\n")
    assert choose_device("auto") == "cpu"
