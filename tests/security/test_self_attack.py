"""The attacks of `warpwatch doctor`, as root and as an ordinary user: each level stops what it promises to stop."""

from __future__ import annotations

import json
import os
import resource
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.security.conftest import NOBODY, as_user, reason_against
from warpwatch.cli.app import app
from warpwatch.worker import levels, sandbox, self_attack
from warpwatch.worker.attacks import ATTACKS
from warpwatch.worker.self_attack import LevelReport, attack_host

AS_USER = """
import json, sys
from dataclasses import asdict
sys.path.insert(0, {repository!r})
from warpwatch.worker.self_attack import attack_host
print(json.dumps([asdict(report) for report in attack_host()]))
"""


@pytest.fixture(scope="module", params=["own", "ordinary"])
def reports(request: pytest.FixtureRequest) -> dict[str, LevelReport]:
    if request.param == "own":
        return {report.level: report for report in attack_host()}
    if reason := reason_against(NOBODY):
        pytest.skip(reason)
    code = AS_USER.format(repository=str(Path(__file__).parents[2]))
    done = subprocess.run([*as_user(NOBODY), "-c", code], capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    items: list[dict[str, Any]] = json.loads(done.stdout)
    return {item["level"]: LevelReport(**item) for item in items}


@pytest.mark.parametrize("level", levels.LEVELS)
def test_a_level_keeps_its_promises(reports: dict[str, LevelReport], level: str) -> None:
    report = reports[level]
    if report.refusal:
        pytest.skip(f"this host does not give {level}: {report.refusal}")
    assert set(report.reached) == {attack.name for attack in ATTACKS}
    assert report.broken_promises == []


def test_the_attacks_work_where_nothing_stops_them(reports: dict[str, LevelReport]) -> None:
    """An attack that fails everywhere would show nothing."""
    reached = {name for name, is_reached in reports["none"].reached.items() if is_reached}
    # For a root alone, or for a machine whose first process is this user's.
    special = {"configure the kernel", "look into the first process"}
    assert {attack.name for attack in ATTACKS if "none" not in attack.stopped_at} - special <= reached


@pytest.mark.skipif(os.getuid() == 0, reason="would stop other tests of this user; test_ordinary_user.py runs it")
def test_with_the_limit_of_the_worker_a_child_would_stop_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if not 0 < most < 50_000:
        pytest.skip("this user may have more files open than a child holds in flight")
    limits = sandbox.Confinement.limits
    monkeypatch.setattr(sandbox.Confinement, "limits", lambda self: limits(self) | {"NOFILE": most})
    monkeypatch.setattr(levels, "PAUSE_SECONDS", 0.0)
    report = next(attack_host())
    if report.refusal:
        pytest.skip(f"this host does not give full: {report.refusal}")
    assert report.broken_promises == [ATTACKS[-1].name]


def test_doctor_prints_what_is_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WARPWATCH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WARPWATCH_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    monkeypatch.setenv("WARPWATCH_ISOLATION", "none")
    stopped = dict.fromkeys((attack.name for attack in ATTACKS), False)
    first = ATTACKS[0].name

    def run(*reports: LevelReport) -> tuple[int, list[str], str]:
        """The exit status, the words of the first attack's line, and everything that was printed."""
        monkeypatch.setattr(self_attack, "attack_host", lambda: iter(reports))
        result = CliRunner().invoke(app, ["doctor"])
        words = next(line for line in result.output.splitlines() if line.startswith(first)).removeprefix(first)
        return result.exit_code, words.split(), result.output

    code, words, _ = run(LevelReport("full", "", stopped), LevelReport("none", "", stopped | {first: True}))
    assert (code, words) == (0, ["stopped", "reached"])
    code, words, printed = run(LevelReport("full", "", stopped | {first: True}), LevelReport("user", "no mount", {}))
    assert (code, words) == (1, ["BROKEN", "–"])
    assert "no mount" in printed
