"""Reporters, hosts and repositories for tests of the worker."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.waiting import wait_until
from tests.worker import probes
from warpwatch.cli.app import app
from warpwatch.contract.environment import Environment
from warpwatch.settings import Settings
from warpwatch.worker import headers, templates
from warpwatch.worker.host import Host
from warpwatch.worker.tools import MeasuredPeaks, Tools, store_peaks

SCRIPTED = Path(__file__).with_name("scripted_child.py")


BARE = """
import runpy, sys
sys.argv.append("bare")
runpy.run_path({template!r}, run_name="__main__")
"""
"""Starts a template that imports nothing."""


class Diary:
    """A reporter that remembers, and that says stop after `stop_after` seconds.

    urgent: a job that waits once so many cells were begun, as (cells, id of the job).
    """

    def __init__(self, stop_after: float | None = None, urgent: tuple[int, int] | None = None) -> None:
        self._urgent = urgent
        self.lines: list[str] = []
        self.steps: list[tuple[int, int, str]] = []
        self._stop_at = None if stop_after is None else time.monotonic() + stop_after

    def log(self, text: str) -> None:
        self.lines.append(text)

    def progress(self, done: int, total: int, text: str, cell: tuple[str, str] | None = None) -> None:
        self.steps.append((done, total, text))

    def should_stop(self) -> str | None:
        return "cancelled" if self._stop_at is not None and time.monotonic() >= self._stop_at else None

    def should_yield(self) -> int | None:
        return self._urgent[1] if self._urgent is not None and len(self.steps) >= self._urgent[0] else None


@pytest.fixture
def diary() -> Diary:
    return Diary()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", case_timeout_seconds=60, build_timeout_seconds=60)


@pytest.fixture
def host(settings: Settings) -> Host:
    settings.home.mkdir(parents=True)
    return Host(settings, "cpu")


class Repository:
    """A git repository whose commits are written as {path: text}."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = str(path)
        path.mkdir()
        self._git("init", "--quiet", "--initial-branch=main")

    def commit(self, subject: str, files: dict[str, str]) -> str:
        for name, text in files.items():
            target = self.path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        self._git("add", "--all")
        self._git("commit", "--quiet", "--allow-empty", "--message", subject)
        return self._git("rev-parse", "HEAD").strip()

    def head(self) -> str:
        return self._git("rev-parse", "HEAD").strip()

    def checkout(self, sha: str) -> None:
        self._git("checkout", "--quiet", sha)

    def detached_commit(self, subject: str, parent: str) -> str:
        """A commit that no branch holds."""
        return self._git("commit-tree", "-p", parent, "-m", subject, f"{parent}^{{tree}}").strip()

    def submodule_commit(self, subject: str, name: str, sha: str) -> str:
        """A commit with a submodule at the path, without a checkout of it."""
        self._git("update-index", "--add", "--cacheinfo", f"160000,{sha},{name}")
        self._git("commit", "--quiet", "--message", subject)
        return self.head()

    def reset(self, sha: str) -> None:
        self._git("reset", "--quiet", "--hard", sha)

    def _git(self, *words: str, text: str | None = None) -> str:
        identity = {
            "GIT_AUTHOR_NAME": "A",
            "GIT_AUTHOR_EMAIL": "a@example.org",
            "GIT_COMMITTER_NAME": "A",
            "GIT_COMMITTER_EMAIL": "a@example.org",
        }
        return subprocess.run(
            ["git", *words],
            cwd=self.path,
            env=os.environ | identity,
            check=True,
            capture_output=True,
            text=True,
            input=text,
        ).stdout


@pytest.fixture
def good(repository: Repository) -> str:
    return repository.commit("good", probes.files())


@pytest.fixture
def tools(settings: Settings) -> Iterator[Tools]:
    identify(settings.home)
    tools = Tools(Host(settings, "cpu"))
    yield tools
    tools.close()


@pytest.fixture
def user_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the user, whatever was measured on this machine before, by tests that compiled nothing yet."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    templates.forget_compilers()
    monkeypatch.setattr(headers, "_made", headers._Made())
    return folder


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


@pytest.fixture(scope="module")
def bare_templates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Templates without torch, for children that run a script of a test instead of the harness. Each fork copies the
    memory of its template, which with torch takes 0.2 CPU seconds."""
    script = tmp_path_factory.mktemp("bare") / "template.py"
    script.write_text(BARE.format(template=str(templates.SCRIPT)))
    with pytest.MonkeyPatch.context() as patch:
        templates.close()
        patch.setattr(templates, "SCRIPT", script)
        yield
        templates.close()


def warpwatch(home: Path, *words: str, url: str = "") -> Result:
    """Runs a command in this process, whose template the command's children come from."""
    values = {"WARPWATCH_HOME": str(home), "WARPWATCH_DATABASE_URL": url, "COLUMNS": "200"}
    return CliRunner().invoke(app, words, env=values)


def identify(home: Path) -> Environment:
    """The fingerprint of this machine's CPU, with ceilings laid into `home`: they take seconds to measure and are
    tested elsewhere."""
    home.mkdir(exist_ok=True)
    if not _environments:
        host = Host(Settings(home), "cpu")
        child = host.start_child(host.empty_child(home), Diary())
        try:
            _environments.append(child.ask(Environment, "environment", 60, Diary()))
        finally:
            child.close()
    (environment,) = _environments
    store_peaks(home, environment.key, MeasuredPeaks({"copy": 1e10, "f32": 1e11}, at_rest=True))
    return environment


_environments: list[Environment] = []
"""That of this machine, once a child has been asked."""


def processes_with(text: str) -> list[int]:
    """Living processes that carry `text` in their command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (
                text.encode() in (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                and int(entry.name) != os.getpid()
            ):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.fixture
def no_leftovers(tmp_path: Path) -> Iterator[None]:
    """Fails the test when a process that was started with its temp folder outlives it."""
    yield
    # On a busy machine the kernel takes a while to end them.
    wait_until(lambda: not processes_with(str(tmp_path)), 10, explain=lambda: processes_with(str(tmp_path)))
