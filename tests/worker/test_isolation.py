"""Hosts that give less than the full isolation: what is missing is known, shown, and decides who may run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.worker.conftest import SCRIPTED, Diary, Repository
from warpwatch.cli.app import app
from warpwatch.db import registry
from warpwatch.db.database import Database
from warpwatch.db.reads.devices import list_workers
from warpwatch.settings import SettingError, Settings, load_settings
from warpwatch.worker import levels, sandbox
from warpwatch.worker.host import Host
from warpwatch.worker.levels import Protection
from warpwatch.worker.mirrors import UntrustedCommitError
from warpwatch.worker.seccomp import REFUSED, build_filter
from warpwatch.worker.tools import Tools

MASKED_PROC = """
mount --bind /dev/null /proc/version
exec "$@"
"""
"""As in a container: where a part of /proc is covered, the kernel lets nobody mount another /proc."""
LOOK = """
import json, sys
from pathlib import Path
from warpwatch.worker import levels, sandbox
confinement = levels.confinement(Path(sys.argv[1]), None)
code = "import os; print(os.getpid()); open(os.environ['TARGET'], 'w')"
done = sandbox.run_confined(confinement, [sys.executable, "-c", code])
missing = levels.missing_protections(confinement)
print(json.dumps([confinement.isolation, missing, done.stdout.strip(), done.stderr.strip().splitlines()[-1]]))
"""


def test_a_container_that_masks_proc_gives_all_but_a_view_of_processes(tmp_path: Path) -> None:
    if os.getuid() != 0 or shutil.which("unshare") is None or levels.strongest_isolation(tmp_path) != "full":
        pytest.skip("only root can mask /proc, and only where the full isolation is to be had")
    words = ["unshare", "--mount", "sh", "-ec", MASKED_PROC, "sh", sys.executable, "-c", LOOK, str(tmp_path / "home")]
    environment = os.environ | {"TARGET": str(tmp_path / "outside")}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    isolation, missing, pid, error = json.loads(done.stdout)
    assert (isolation, missing) == ("user", ["processes", "memory"])
    assert pid == "2", "it has a process namespace, so nothing of it survives and it can kill nobody"
    assert "Read-only file system" in error


@pytest.mark.parametrize(
    ("isolation", "missing"),
    [
        ("full", []),
        ("user", [Protection.PROCESSES]),
        ("network", [Protection.FILES, Protection.PROCESSES]),
        ("none", [Protection.NETWORK, Protection.FILES, Protection.PROCESSES]),
    ],
)
def test_each_isolation_has_its_gaps(tmp_path: Path, isolation: str, missing: list[Protection]) -> None:
    confinement = sandbox.Confinement(isolation, None, (), tmp_path, 1, 1, group=tmp_path)
    assert levels.missing_protections(confinement) == missing
    bare = replace(confinement, filtered=False, group=None)
    assert levels.missing_protections(bare) == [*missing, Protection.SYSTEM_CALLS, Protection.MEMORY]


def test_levels_have_an_order() -> None:
    assert levels.is_weaker("none", "user")
    assert not levels.is_weaker("full", "user")
    assert not levels.is_weaker("user", "user")


@pytest.fixture
def weak(tmp_path: Path) -> Iterator[Tools]:
    """A worker on a host that gives nothing."""
    tools = Tools(Host(Settings(home=tmp_path / "home", isolation="none"), "cpu", bootstrap=SCRIPTED))
    yield tools
    tools.close()


def test_commits_of_forks_do_not_run_where_they_cannot_be_shut_in(weak: Tools, repository: Repository) -> None:
    trusted = repository.commit("on main", {"kernels/probe.py": ""})
    fork = repository.detached_commit("of a fork", trusted)
    assert weak.checkouts(repository.url, [trusted], Diary())
    with pytest.raises(UntrustedCommitError) as refusal:
        weak.checkouts(repository.url, [fork], Diary())
    assert not refusal.value.retry, "another attempt would end in the same way"


def test_they_run_where_the_isolation_suffices(repository: Repository, tmp_path: Path) -> None:
    fork = repository.detached_commit("of a fork", repository.commit("on main", {"kernels/probe.py": ""}))
    home = tmp_path / "home"
    allowed = [Settings(home=home, isolation="none", fork_isolation="none")]
    if levels.strongest_isolation(home) == "full":
        allowed.append(Settings(home=home, fork_isolation="full"))
    for settings in allowed:
        tools = Tools(Host(settings, "cpu", bootstrap=SCRIPTED))
        assert tools.checkouts(repository.url, [fork], Diary())
        tools.close()


def test_the_setting_has_closed_values() -> None:
    assert load_settings({}).fork_isolation == "user"
    assert load_settings({"WARPWATCH_FORK_ISOLATION": "full"}).fork_isolation == "full"
    with pytest.raises(SettingError, match="WARPWATCH_FORK_ISOLATION"):
        load_settings({"WARPWATCH_FORK_ISOLATION": "auto"})


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_is_a_program_of_bounded_length(machine: str) -> None:
    program = build_filter(machine=machine)
    assert len(program) % 8 == 0
    assert 2 * len(REFUSED) < len(program) // 8 < 4096
    assert len(build_filter(traceable=True, machine=machine)) < len(program)
    assert build_filter(machine="vax") == b""


def test_doctor_says_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPWATCH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WARPWATCH_ISOLATION", "none")
    monkeypatch.setenv("WARPWATCH_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    weak = CliRunner().invoke(app, ["doctor"])
    assert weak.exit_code == 0, "a weak isolation is no reason not to measure"
    names = [line.split()[1] for line in weak.output.splitlines() if line.startswith(("ok", "note", "missing"))]
    assert {"python", "git", "torch", "device", "home", "database", "isolation", "protection"} <= set(names)
    monkeypatch.setenv("PATH", str(tmp_path))
    broken = CliRunner().invoke(app, ["doctor"])
    assert broken.exit_code == 1
    assert any(line.startswith("missing") and " git " in line for line in broken.output.splitlines())
    monkeypatch.setenv("WARPWATCH_ISOLATION", "thick")
    assert CliRunner().invoke(app, ["doctor"]).exit_code == 2


def test_workers_are_listed_with_their_isolation(database: Database) -> None:
    facts = {"device": "cpu", "isolation": "network", "missing_protections": [Protection.FILES, Protection.PROCESSES]}
    with database.session() as s:
        device = registry.ensure_device(s, "cpu-of-a-test", "cpu", "CPU of a test")
        registry.register_worker(s, "weak", device, "1", facts)
        registry.register_worker(s, "of an earlier version", device, "0", {})
    with database.session() as s:
        workers = {row.name: (row.isolation, row.missing_protections) for row in list_workers(s)}
    assert workers == {"weak": ("network", ["files", "processes"]), "of an earlier version": ("", [])}


def test_the_key_of_an_app_is_hidden(settings: Settings, tmp_path: Path) -> None:
    """A server and its worker on one machine have the same settings, and the key may lie in a folder that is shown."""
    settings = replace(settings, visible=(tmp_path,))
    key = tmp_path / "app.pem"
    key.write_text("-----BEGIN RSA PRIVATE KEY-----")
    confined = Host(replace(settings, github_app_key=key), "cpu").confinement()
    if not confined.has_namespaces:
        pytest.skip("this host cannot hide files")
    words = [os.path.realpath(sys.executable), "-I", "-S", "-c", f"print(open({str(key)!r}).read())"]
    assert "Permission denied" in sandbox.run_confined(confined, words).stderr
    assert "BEGIN" in sandbox.run_confined(Host(settings, "cpu").confinement(), words).stdout
