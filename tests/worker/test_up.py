"""`warpwatch up --once` as a newcomer runs it in a checkout: database, server and worker start, measure its commits,
and say what is wrong."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from tests.waiting import wait_until
from tests.worker.conftest import Repository, identify, processes_with
from warpwatch.cli import results_files
from warpwatch.cli.app import app
from warpwatch.cli.services import StartError
from warpwatch.cli.up import InterruptedByUser, _interruptible, _register_checkout, import_examples, quickest_first
from warpwatch.db import embedded
from warpwatch.settings import Settings

OPERATOR = """
from warpwatch import Cost, Operator, case

operator = Operator(
    "twice",
    "2 a",
    inputs=lambda case, make: {"a": make.normal(case["n"])},
    reference=lambda a: 2 * a,
    cost=lambda case: Cost(flops=case["n"], bytes=8 * case["n"]),
    cases={"quick": tuple(case(n=n) for n in (64, 63, 62)), "edge": (case(n=1),)},
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


def test_what_compiles_at_its_first_call_comes_last(repository: Repository) -> None:
    files = {
        "short": "compiled = torch.compile(v1)\n",
        "shorter": "import triton\n",
        "long": "# adds\n" * 100,
        "longer": "# adds\n" * 101,
    }
    sha = repository.commit("four", {"warpwatch.toml": "", **{f"kernels/{name}.py": files[name] for name in files}})
    assert quickest_first(repository.path, sha) == ["long", "longer", "shorter", "short"]


@pytest.mark.parametrize("is_repeated", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_up_measures_the_newest_commits_and_names_what_is_wrong(
    repository: Repository, home: Path, is_repeated: bool
) -> None:
    """Nightly starts everything once more, where all that is asked for is measured already."""
    repository.commit("before", {"README": "nothing to measure"})
    good = repository.commit("good", {"warpwatch.toml": "", "kernels/twice.py": OPERATOR})
    bad = repository.commit("bad [bold]", {"kernels/twice.py": OPERATOR.replace("a + a", "a + a + 1")})
    said, code = up(repository, home, 3)
    assert code == 1, said
    assert "Warpwatch serves http://127.0.0.1:" in said
    (named,) = [line for line in said.splitlines() if "/runs/" in line]
    # Two cases of three: check and bench find the fault in both, and a profile does not look for it.
    assert named.startswith(f"3 commits to {bad[:8]} bad [bold]: 4 wrong http")
    # The plan comes first, and names the commit that has nothing to measure.
    assert "plan: 6 jobs (2 check, 2 bench, 2 profile) at 2 commits, 1 operator" in said
    assert "left out: 1 commit without operators." in said
    assert len(re.findall(f"^  wrong: twice v1 .+ at {bad[:8]}: .*off by", said, re.MULTILINE)) == 2
    assert said.splitlines()[-1] == "results: 8 ok, 4 wrong"
    if is_repeated:
        # What was measured stays measured, and the commit that is right is all that is asked for now.
        repository.checkout(good)
        said, code = up(repository, home, 1)
        assert (code, "/runs/" in said) == (0, False), said
        assert "left out: 1 commit measured before." in said
    assert processes_with(str(home)) == []


@pytest.mark.nightly
def test_up_goes_on_when_its_parts_are_killed(repository: Repository, home: Path) -> None:
    """Worker, server and database die with kill -9 while it waits for results, and the verdict is as true as ever."""
    repository.commit(
        "good",
        {
            "warpwatch.toml": "",
            "kernels/twice.py": OPERATOR.replace("return", "time.sleep(0.2)\n    return").replace(
                "from", "import time\nfrom", 1
            ),
        },
    )
    with started(repository, home, 1) as process:
        for words in ("warpwatch worker", "warpwatch serve", "postmaster"):
            pids = partial(parts, home, process.pid, words)
            (victim,) = wait_until(pids, 90, 0.1)
            os.kill(victim, signal.SIGKILL)
            wait_until(lambda pids=pids, victim=victim: set(pids()) - {victim}, 90, 0.1)  # type: ignore[misc]
        said, _ = process.communicate(timeout=240)
    assert process.returncode == 0, said
    assert said.count("ended unexpectedly") >= 3, said
    assert processes_with(str(home)) == []


def parts(home: Path, parent: int, words: str) -> list[int]:
    """Numbers of the processes of one part; PostgreSQL's first process for `postmaster`."""
    if words == "postmaster":
        try:
            number = int((embedded.data_folder(home) / "postmaster.pid").read_text().split("\n", 1)[0])
        except (OSError, ValueError):
            return []
        return [number] if embedded.is_running(home) else []
    pids = []
    for child in psutil.Process(parent).children():
        # One that was just killed has no command line any more.
        with suppress(psutil.NoSuchProcess):
            if f"-m {words}" in " ".join(child.cmdline()):
                pids.append(child.pid)
    return pids


@contextmanager
def started(repository: Repository, home: Path, commits: int) -> Iterator[subprocess.Popen[str]]:
    """`warpwatch up --once` in the repository."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "warpwatch", "up", "--once", "--no-example", "--commits", str(commits)],
        env=os.environ | {"WARPWATCH_HOME": str(home), "WARPWATCH_PORT": str(port), "COLUMNS": "200"},
        cwd=repository.path,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(60)


def up(repository: Repository, home: Path, commits: int) -> tuple[str, int]:
    """(what it said, its exit status)."""
    with started(repository, home, commits) as process:
        said, _ = process.communicate(timeout=240)
    return said, process.returncode


def test_an_import_is_finished_before_up_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception inside a query made `up` say that the database cannot be reached."""
    finished: list[str] = []

    def interrupted(_url: str, file: Path, *_rest: object) -> bool:
        signal.raise_signal(signal.SIGINT)
        finished.append(file.stem)
        return True

    monkeypatch.setattr(results_files, "import_file", interrupted)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with pytest.raises(InterruptedByUser), _interruptible():
            import_examples(Settings(home=tmp_path, database_url=""), "")
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert len(finished) == 1


def test_an_error_is_printed_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words in brackets, as in what pip is told to install, are no colours."""

    def refuse(_settings: Settings) -> None:
        raise StartError("pip install 'warpwatch[server]'")

    monkeypatch.setattr("warpwatch.cli.up.check_port", refuse)
    outcome = CliRunner().invoke(app, ["up"])
    assert (outcome.output.strip(), outcome.exit_code) == ("pip install 'warpwatch[server]'", 2)


@pytest.mark.parametrize(("words", "share"), [([], "0.2"), (["--once"], "0.0")])
def test_whoever_waits_for_the_jobs_waits_for_no_trials(
    words: list[str], share: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares: list[str] = []

    def refuse(_name: str, _words: list[str], _log: Path, environment: dict[str, str]) -> None:
        shares.append(environment["WARPWATCH_TRIAL_SHARE"])
        raise StartError("enough is known")

    monkeypatch.setattr("warpwatch.cli.up.load_settings", lambda: settings)
    monkeypatch.setattr("warpwatch.cli.up.check_port", lambda _settings: None)
    monkeypatch.setattr("warpwatch.cli.up.running_database", lambda _settings: nullcontext("nowhere"))
    monkeypatch.setattr("warpwatch.cli.services.Service", refuse)
    outcome = CliRunner().invoke(app, ["up", *words])
    assert (outcome.output.strip(), shares) == ("enough is known", [share])


def test_outside_a_checkout_it_serves_and_registers_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    posted: list[tuple[str, dict[str, str]]] = []

    class Recorder:
        def post(self, path: str, body: dict[str, str]) -> None:
            posted.append((path, body))

    monkeypatch.chdir(tmp_path)
    assert _register_checkout(Recorder()) is None  # type: ignore[arg-type]
    subprocess.run(["git", "init", "--quiet", "kernels"], check=True)
    (tmp_path / "kernels" / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "kernels" / "deep")
    assert _register_checkout(Recorder()) == tmp_path / "kernels"  # type: ignore[arg-type]
    assert posted == [("/repositories", {"name": "kernels", "url": str(tmp_path / "kernels")})]
