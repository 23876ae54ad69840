"""Projects that build themselves by changing files that git tracks are measured as they built themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker import honest_builds
from tests.worker.conftest import Diary, Repository, identify
from warpwatch.contract.outcome import Outcome
from warpwatch.contract.spec import DefinitionsVersion, JobRequest, JobSpec
from warpwatch.contract.words import JobKind, Status
from warpwatch.settings import Settings
from warpwatch.worker.execution import execute
from warpwatch.worker.host import Host
from warpwatch.worker.tools import Tools


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    settings = Settings(tmp_path_factory.mktemp("home") / "home", case_timeout_seconds=60, build_timeout_seconds=120)
    identify(settings.home)
    (settings.home / "traces").mkdir()
    tools = Tools(Host(settings, "cpu"))
    yield tools
    tools.close()


def bench(tools: Tools, url: str, sha: str, version: DefinitionsVersion | None, diary: Diary) -> Outcome:
    spec = JobSpec(budget_ns=20_000_000)
    request = JobRequest(JobKind.BENCH, url, sha, "twice", spec, definitions=version)
    return execute(request, tools, diary, tools.host.home / "traces")


IN_CI = {"own": ("cmake", "generator"), "beside": ("editable",)}
"""Projects that every run measures by definitions in the commit itself, and by those of another repository. The others
are built the same way, and nightly measures all of them in both ways."""


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        pytest.param(name, mode, marks=[] if name in IN_CI[mode] else [pytest.mark.nightly])
        for mode in IN_CI
        for name in honest_builds.NAMES
    ],
)
def test_a_project_that_builds_itself_is_benched(tools: Tools, tmp_path: Path, name: str, mode: str) -> None:
    measured, version = Repository(tmp_path / "measured"), None
    if mode == "beside":
        beside = Repository(tmp_path / "beside")
        version = DefinitionsVersion(beside.url, beside.commit("define", honest_builds.definitions(name)))
        sha = measured.commit("build", honest_builds.FILES[name])
    else:
        sha = measured.commit("build", honest_builds.FILES[name] | honest_builds.definitions(name))
    diary = Diary()
    outcomes = [bench(tools, measured.url, sha, version, diary)]
    # On the checkout that is warm by then, and on a new one with the build that was kept.
    outcomes.append(bench(tools, measured.url, sha, version, diary))
    tools.close()
    outcomes.append(bench(tools, measured.url, sha, version, diary))
    statuses = [{finding.variant: finding.status for finding in outcome.findings} for outcome in outcomes]
    assert statuses == [{"torch": Status.OK, "lib": Status.OK}] * 3, diary.lines
    assert sum("build: done" in line for line in diary.lines) == 1
