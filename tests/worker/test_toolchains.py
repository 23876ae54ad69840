"""Toolchains have names in worker.toml, and one commit is measured under two of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from typer.testing import CliRunner

from tests.worker.conftest import Diary, Repository, identify
from warpwatch.cli import compare as compare_command
from warpwatch.cli.app import app
from warpwatch.contract.spec import JobRequest, JobSpec
from warpwatch.contract.words import ChangeOrigin, JobKind, Status, Verdict
from warpwatch.server.verdicts.attribution import OriginEffect, attribute, judge_toolchains
from warpwatch.settings import Settings
from warpwatch.worker import templates
from warpwatch.worker.child import ChildSpec
from warpwatch.worker.execution import execute
from warpwatch.worker.host import Host
from warpwatch.worker.reporter import CannotRunError
from warpwatch.worker.toolchains import FILE_NAME, Toolchain, ToolchainError, find_toolchain, read_toolchains
from warpwatch.worker.tools import Tools

SOFTSIGN = Path(__file__).parents[2] / "examples" / "softsign"
PAIR = ("v3", "n=65536,f32,fwd")
LOOP = "for (int64_t i = 0; i < x.numel(); ++i) out[i] = in[i] / (1 + std::fabs(in[i]));"
HEAVY = """for (int64_t i = 0; i < x.numel(); ++i) {
        float a = in[i];
        for (int k = 0; k < STEPS; ++k) a = a * 0.5f + 0.25f;
        out[i] = in[i] / (1 + std::fabs(in[i])) + (a - 0.5f) * 1e-30f;
    }"""
"""The same result with arithmetic that only an optimizing compiler keeps in registers."""


def write(home: Path, text: str) -> None:
    home.mkdir(parents=True, exist_ok=True)
    (home / FILE_NAME).write_text(text)


def test_toolchains_are_read_by_name(tmp_path: Path) -> None:
    assert read_toolchains(tmp_path) == {}
    write(tmp_path, '[toolchain.a]\ninterpreter = "/opt/a/python"\n[toolchain.o1]\nvariables = { CXXFLAGS = "-O1" }\n')
    assert list(read_toolchains(tmp_path)) == ["a", "o1"]
    assert find_toolchain(tmp_path, "a") == Toolchain("a", "/opt/a/python")
    assert find_toolchain(tmp_path, "o1") == Toolchain("o1", None, (("CXXFLAGS", "-O1"),))


@pytest.mark.parametrize(
    "text",
    [
        "[toolchain.a",
        "[interpreter]\n",
        '[toolchain."a b"]\n',
        "[toolchain.a]\ninterpreter = 3\n",
        "[toolchain.a]\ncompiler = 'g++'\n",
        "[toolchain.a]\nvariables = { CXXFLAGS = 1 }\n",
        "[toolchain.a]\nvariables = { WARPWATCH_REPLY_FD = '3' }\n",
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str) -> None:
    write(tmp_path, text)
    with pytest.raises(ToolchainError):
        find_toolchain(tmp_path, "a")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("toolchains")


@pytest.fixture(scope="module")
def tools(folder: Path) -> Iterator[Tools]:
    """Tools shared by the module, so that no library is built twice."""
    home = folder / "home"
    write(home, '[toolchain.o3]\n[toolchain.o0]\nvariables = { CXXFLAGS = "-O0" }\n')
    identify(home)
    settings = Settings(home, case_timeout_seconds=60, build_timeout_seconds=60, fork_isolation="none")
    tools = Tools(Host(settings, "cpu"))
    yield tools
    tools.close()


@pytest.fixture(scope="module")
def request_of(folder: Path) -> JobRequest:
    """Two commits of a C++ operator, of which the second needs twice the arithmetic."""
    repository = Repository(folder / "repository")
    for name in ("kernels", "csrc"):
        shutil.copytree(SOFTSIGN / name, repository.path / name)
    source = (SOFTSIGN / "csrc/softsign/softsign.cpp").read_text()
    assert LOOP in source
    base, head = (
        repository.commit(steps, {"csrc/softsign/softsign.cpp": source.replace(LOOP, HEAVY.replace("STEPS", steps))})
        for steps in ("16", "32")
    )
    spec = JobSpec(pairs=[PAIR], rounds=6, budget_ns=20_000_000)
    return JobRequest(JobKind.COMPARE, repository.url, head, "softsign", spec, base)


def test_one_commit_under_two_compiler_flags(tools: Tools, request_of: JobRequest, tmp_path: Path) -> None:
    spec = replace(request_of.spec, toolchains=("o3", "o0"))
    outcome = execute(replace(request_of, base_sha=request_of.sha, spec=spec), tools, Diary(), tmp_path)
    (row,) = outcome.comparisons
    assert row.status is Status.OK, row.message
    effect = judge_toolchains(row.base_ns, row.head_ns, "cpu")
    assert effect.verdict == Verdict.CONFIRMED
    assert effect.ratio is not None
    assert effect.ratio > 2, "without optimization every step goes through memory"
    assert outcome.environment.facts["variables"] == {"CXXFLAGS": "-O0"}, "times of toolchains are never one line"


@pytest.mark.nightly
def test_two_commits_under_two_compiler_flags(tools: Tools, request_of: JobRequest, tmp_path: Path) -> None:
    """Both the commit and the flags made it slower."""
    spec = replace(request_of.spec, toolchains=("o3", "o0"))
    (row,) = execute(replace(request_of, spec=spec), tools, Diary(), tmp_path).comparisons
    assert row.cells is not None, row.message
    assert attribute(row.cells, "cpu").origin == ChangeOrigin.BOTH


@pytest.mark.parametrize(
    ("variable", "is_forked"),
    [("CXXFLAGS", True), ("NVCCFLAGS", True), ("OMP_PROC_BIND", False), ("LD_PRELOAD", False)],
)
def test_a_child_is_started_anew_for_what_libraries_read(tmp_path: Path, variable: str, is_forked: bool) -> None:
    """Both children of a comparison are forked where only the compilers read the variable."""
    if not templates.exist():
        pytest.skip("templates need Linux")
    assert ChildSpec(tmp_path, "cpu", tmp_path, 1, variables=((variable, "-O1"),)).is_forked is is_forked


class Guilty:
    """Stands for the comparisons of a list of toolchains of which one made a pair slower, and one does not run."""

    asked: ClassVar[list[tuple[str, str]]] = []

    def effects(self, old: str, new: str, pairs: object = None) -> dict[tuple[str, str], OriginEffect]:
        self.asked.append((old, new))
        if new == "t1":
            return {}
        slower = old < "t3" <= new
        verdict = Verdict.CONFIRMED if slower else Verdict.DISMISSED
        return {PAIR: OriginEffect(verdict, 1.45 if slower else 1.0, 0.99, 1.46)}


def test_the_command_finds_the_toolchain_in_a_list(
    monkeypatch: pytest.MonkeyPatch, repository: Repository, tmp_path: Path
) -> None:
    repository.commit("Add nothing", {"README.md": "nothing"})
    monkeypatch.setenv("WARPWATCH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(compare_command, "_comparing", lambda *_: nullcontext(Guilty()))
    words = ["compare", "--repository", repository.url, "--operator", "softsign", "--toolchains"]
    result = CliRunner().invoke(app, [*words, "t0,t1,t2,t3,t4"])
    assert result.exit_code == 0, result.output
    assert "v3 n=65536,f32,fwd changed from t2 to t3" in result.output
    assert Guilty.asked[0] == ("t0", "t4")
    assert CliRunner().invoke(app, [*words, "t0"]).exit_code == 2


def test_an_unknown_toolchain_is_no_run(tools: Tools, request_of: JobRequest, tmp_path: Path) -> None:
    spec = replace(request_of.spec, toolchains=("o3", "o2"))
    with pytest.raises(CannotRunError):
        execute(replace(request_of, spec=spec), tools, Diary(), tmp_path)
