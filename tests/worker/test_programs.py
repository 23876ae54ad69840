"""Benchmark programs of a repository: run in a jail, read like files from elsewhere, and compared in turn."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.worker.conftest import Diary, Repository, identify, processes_with
from warpwatch.contract.outcome import Comparison, Finding, Outcome
from warpwatch.contract.spec import JobRequest, JobSpec
from warpwatch.contract.words import JobKind, Reason, Status
from warpwatch.project import FILE_NAME, ProjectError, parse_project
from warpwatch.settings import Settings
from warpwatch.sources import Sources
from warpwatch.worker.execution import execute
from warpwatch.worker.harness.child.programs import visible_device
from warpwatch.worker.host import Host
from warpwatch.worker.reporter import CannotRunError, Stopped
from warpwatch.worker.tools import Tools

PROGRAM = """
import json, os, sys
print("starting")
print(json.dumps({"warpwatch_results": 1, "benchmarks": [
    {"name": "sum", "unit": "us", "samples": [FACTOR * value for value in (99, 100, 101)]},
    {"name": "max", "unit": "us", "value": 50}]}))
"""
KNOWN = {"variants": ["program"], "cases": ["sum", "max"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module")
def tools(folder: Path) -> Iterator[Tools]:
    settings = Settings(folder / "home", build_timeout_seconds=20, program_timeout_seconds=5, memory_bytes=4 * 2**30)
    identify(settings.home)
    tools = Tools(Host(settings, "cpu"))
    yield tools
    tools.close()
    assert processes_with(str(folder)) == []


@pytest.fixture(scope="module")
def repository(folder: Path) -> Repository:
    return Repository(folder / "repository")


def described(command: str = "python bench.py", **more: str) -> str:
    values = {"name": "sums", "command": command, "format": "plain"} | more
    return "[[program]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())


def commit(repository: Repository, command: str = "python bench.py", factor: float = 1.0, **more: str) -> str:
    files = {FILE_NAME: described(command, **more), "bench.py": PROGRAM.replace("FACTOR", str(factor))}
    return repository.commit(command[:40], files)


def run(
    tools: Tools,
    repository: Repository,
    sha: str,
    path: Path,
    kind: str = "bench",
    base: str | None = None,
    **spec: Any,
) -> Outcome:
    path.mkdir(exist_ok=True)
    request = JobRequest(JobKind(kind), repository.url, sha, "sums", JobSpec.from_stored(spec), base)
    return execute(request, tools, Diary(), path)


def statuses(outcome: Outcome) -> dict[str, Status]:
    return {finding.case: finding.status for finding in outcome.findings}


def only(items: list[Any]) -> Any:
    assert items
    return items[0]


def test_benchmarks_of_a_program_become_cases(tools: Tools, repository: Repository, tmp_path: Path) -> None:
    outcome = run(tools, repository, commit(repository), tmp_path)
    finding: Finding = next(item for item in outcome.findings if item.case == "sum")
    assert finding.status is Status.OK, finding.message
    assert finding.bench is not None
    measurement = only(finding.bench.measurements)
    assert (measurement.median_ns, measurement.protocol, measurement.metric) == (100_000.0, "plain", "hot")
    assert outcome.catalogue is not None
    (entry,) = outcome.catalogue.operators
    assert (entry.name, [case.key for case in entry.cases]) == ("sums", ["sum", "max"])
    assert run(tools, repository, repository.head(), tmp_path, cases=["max"]).findings[0].case == "max"
    with pytest.raises(CannotRunError):
        run(tools, repository, repository.head(), tmp_path, cases=["min"])


def test_a_program_is_built_once_and_finds_what_its_build_left(
    tools: Tools, repository: Repository, tmp_path: Path
) -> None:
    build = 'cp bench.py "$WARPWATCH_BUILD/built.py"'
    sha = commit(
        repository,
        'python "$WARPWATCH_BUILD/built.py" > "$WARPWATCH_OUTPUT.tmp" && '
        'tail -n 1 "$WARPWATCH_OUTPUT.tmp" > "$WARPWATCH_OUTPUT"',
        build=build,
    )
    assert statuses(run(tools, repository, sha, tmp_path)) == {"sum": Status.OK, "max": Status.OK}
    diary = Diary()
    request = JobRequest(JobKind.CHECK, repository.url, sha, "sums", JobSpec())
    assert statuses(execute(request, tools, diary, tmp_path)) == {"sum": Status.OK, "max": Status.OK}
    assert not [line for line in diary.lines if line.startswith("build ")], "the next job of the commit builds nothing"


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("exit 1", Status.WRONG),
        ("kill -SEGV $$", Status.CRASHED),
        ("python bench.py; exit 3", Status.WRONG),
        ("sleep 60", Status.TIMED_OUT),
        ("no-such-program", Status.BUILD_FAILED),
        ("""echo '{"warpwatch_results": 1, "bench'""", Status.UNREADABLE),
        ("echo nothing of use", Status.UNREADABLE),
        ("true", Status.UNREADABLE),
        ("""echo '{"warpwatch_results": 1, "benchmarks": []}'""", Status.UNREADABLE),
        ("""echo '{"warpwatch_results": 9, "benchmarks": []}'""", Status.UNSUPPORTED),
        ('mkfifo "$WARPWATCH_OUTPUT"', Status.UNREADABLE),
        ('ln -s /etc/passwd "$WARPWATCH_OUTPUT"', Status.UNREADABLE),
    ],
)
def test_every_way_to_fail_has_a_status(
    tools: Tools, repository: Repository, tmp_path: Path, command: str, status: Status
) -> None:
    """Each known benchmark has it, and nothing of the run before is lost."""
    sha = commit(repository, command)
    outcome = run(tools, repository, sha, tmp_path, known=KNOWN)
    assert statuses(outcome) == {"sum": status, "max": status}
    assert all(finding.message for finding in outcome.findings)
    assert outcome.catalogue is None
    assert statuses(run(tools, repository, sha, tmp_path)) == {"all": status}, "while no benchmark is known"


def test_a_build_that_fails_is_told_from_a_program_that_does(
    tools: Tools, repository: Repository, tmp_path: Path
) -> None:
    sha = commit(repository, build="echo no compiler here; exit 2")
    outcome = run(tools, repository, sha, tmp_path, known=KNOWN)
    assert statuses(outcome) == {"sum": Status.BUILD_FAILED, "max": Status.BUILD_FAILED}
    assert "no compiler here" in outcome.findings[0].message


def test_a_check_asks_for_the_exit_status(tools: Tools, repository: Repository, tmp_path: Path) -> None:
    sha = commit(repository, check="exit 4")
    assert statuses(run(tools, repository, sha, tmp_path, "check", known=KNOWN)) == {
        "sum": Status.WRONG,
        "max": Status.WRONG,
    }
    outcome = run(tools, repository, commit(repository), tmp_path, "check")
    assert statuses(outcome) == {"sum": Status.OK, "max": Status.OK}
    assert all(finding.bench is None for finding in outcome.findings)
    assert statuses(run(tools, repository, repository.head(), tmp_path, "profile", known=KNOWN)) == {
        "sum": Status.UNSUPPORTED,
        "max": Status.UNSUPPORTED,
    }


def test_a_program_reaches_neither_network_nor_secrets(tools: Tools, repository: Repository, tmp_path: Path) -> None:
    if not tools.host.confinement().has_namespaces:
        pytest.skip("this host has no namespaces")
    look = "import os, socket; s = socket.socket(); s.settimeout(2); assert s.connect_ex(('1.1.1.1', 53))"
    home = f"assert not os.path.exists({str(tools.host.home / 'mirrors')!r})"
    sha = commit(repository, f'python -c "{look}; {home}" && python bench.py')
    assert statuses(run(tools, repository, sha, tmp_path)) == {"sum": Status.OK, "max": Status.OK}


def compared(outcome: Outcome) -> Comparison:
    (item,) = outcome.comparisons
    return item


def test_both_commits_run_in_turn(tools: Tools, repository: Repository, tmp_path: Path) -> None:
    base, head = commit(repository), commit(repository, factor=1.5)
    spec = {"pairs": [["program", "sum"]], "rounds": 6}
    item = compared(run(tools, repository, head, tmp_path, "compare", base, **spec))
    assert item.status is Status.OK, item.message
    assert (item.protocol, item.metric, len(item.ratios)) == ("plain", "hot", 6)
    assert item.ratios == pytest.approx([1.5] * 6)
    outcome = run(tools, repository, head, tmp_path, "compare", base, **spec, stop={"earliest": 3, "ratio": 1.02})
    assert len(compared(outcome).ratios) == 3, "it ends where it is decided"
    assert outcome.catalogue is not None
    everything = run(tools, repository, head, tmp_path, "compare", base, rounds=6).comparisons
    assert {item.case: round(item.ratios[0], 3) for item in everything} == {"sum": 1.5, "max": 1.0}


def test_a_comparison_says_which_side_failed(tools: Tools, repository: Repository, tmp_path: Path) -> None:
    good, bad = commit(repository), commit(repository, "exit 1")
    other = commit(repository, "python bench.py", format="google-benchmark")
    none = repository.commit("none", {FILE_NAME: ""})
    spec = {"pairs": [["program", "sum"]]}
    item = compared(run(tools, repository, bad, tmp_path, "compare", good, **spec))
    assert (item.status, item.reason) == (Status.WRONG, None)
    item = compared(run(tools, repository, good, tmp_path, "compare", bad, **spec))
    assert (item.status, item.reason) == (Status.WRONG, Reason.BASE_FAILED)
    assert compared(run(tools, repository, good, tmp_path, "compare", other, **spec)).status is Status.UNSUPPORTED
    item = compared(run(tools, repository, good, tmp_path, "compare", none, **spec))
    assert (item.status, item.reason) == (Status.SKIPPED, Reason.BASE_FAILED)
    item = compared(run(tools, repository, good, tmp_path, "compare", good, pairs=[["program", "gone"]]))
    assert (item.status, item.reason) == (Status.SKIPPED, Reason.BASE_FAILED)


def test_a_program_stops_when_its_job_does(tools: Tools, repository: Repository, tmp_path: Path) -> None:
    # Other programs of this machine sleep, too.
    command = f"sleep 50.{os.getpid()}"
    sha = commit(repository, command)
    request = JobRequest(JobKind.BENCH, repository.url, sha, "sums", JobSpec())
    with pytest.raises(Stopped):
        execute(request, tools, Diary(stop_after=0.5), tmp_path)
    assert processes_with(command) == []


@pytest.mark.parametrize(
    ("device", "visible", "shown"),
    [("cpu", "", None), ("cuda", "", "0"), ("cuda:1", "", "1"), ("cuda:1", "4,6", "6"), ("cuda:0", "GPU-a", "GPU-a")],
)
def test_a_program_sees_the_gpu_that_its_worker_measures_on(device: str, visible: str, shown: str | None) -> None:
    words = ["programs.py", "--root", "/", "--device", device, "--threads", "0"]
    assert visible_device(words, visible).get("CUDA_VISIBLE_DEVICES") == shown


def test_the_same_sources_are_those_that_a_program_names(repository: Repository, tools: Tools) -> None:
    first = commit(repository)
    text = described().replace("[[program]]\n", '[[program]]\nsources = ["bench.py"]\n')
    named = repository.commit("sources", {FILE_NAME: text})
    same = repository.commit("unrelated", {"README": "more"})
    changed = repository.commit("bench", {"bench.py": "1"})
    sources = Sources(repository.path)
    assert sources.of(first, "sums") == f"{first}-{first}", "without sources every commit counts as a change"
    assert sources.of(named, "sums") == sources.of(same, "sums") != sources.of(changed, "sums")
    assert sources.of(named, "other") is None
    assert sources.paths(named, "sums") == ["bench.py", FILE_NAME]


@pytest.mark.parametrize(
    "text",
    [
        "program = 3",
        "[program]\nname = 'a'",
        described().replace("sums", "a/b"),
        described() + "colour = 'red'",
        described(format="criterion"),
        described(command=" "),
        described() * 2,
        described().replace('command = "python bench.py"\n', ""),
        described().replace("[[program]]\n", '[[program]]\nsources = ["/etc"]\n'),
        described().replace("[[program]]\n", '[[program]]\nsources = ["../x"]\n'),
        described().replace("[[program]]\n", "[[program]]\nsources = 'x'\n"),
    ],
)
def test_a_description_with_a_mistake_is_refused(text: str) -> None:
    with pytest.raises(ProjectError):
        parse_project(text)
