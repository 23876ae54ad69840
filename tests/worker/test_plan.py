"""A job is planned once: git is asked, and commits are checked out, before a child of the job starts."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tests.worker import probes
from tests.worker.conftest import Diary, Repository
from warpwatch import git
from warpwatch.contract.outcome import Comparison, Finding, Outcome
from warpwatch.contract.spec import JobRequest, JobSpec, name_environment
from warpwatch.contract.words import JobKind, Status
from warpwatch.worker import cells, checkout, comparison, worktrees
from warpwatch.worker.checkout import Checkout
from warpwatch.worker.execution import execute
from warpwatch.worker.host import Host
from warpwatch.worker.plan import JobPlan, plan_job
from warpwatch.worker.reporter import BoundedReporter, CannotRunError
from warpwatch.worker.tools import Tools

CASE = "n=100,f32,fwd"
SPEC = JobSpec(variants=["ok", "last"], cases=[CASE], budget_ns=10_000_000, rounds=1)
TOOLCHAINS = '[toolchain.o3]\nvariables = { CXXFLAGS = "-O3" }\n\n[toolchain.o0]\nvariables = { CXXFLAGS = "-O0" }\n'


@pytest.fixture(autouse=True)
def _one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round of a comparison starts two children, and one says as much of the plan as all."""
    monkeypatch.setattr(comparison, "MIN_ROUNDS", 1)


@pytest.fixture
def request_of(repository: Repository) -> JobRequest:
    """A comparison of two commits with a variant that exists since the one before them, which git alone can tell."""
    first = repository.commit("first", probes.files())
    since = probes.OPERATOR.replace('"last", idea=', f'"last", since="{first}", idea=')
    base = repository.commit("base", {"kernels/probe.py": since})
    head = repository.commit("head", {"kernels/probe.py": f"{since}\nUNUSED = 1\n"})
    return JobRequest(JobKind.COMPARE, repository.url, head, "probe", SPEC, base)


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes, in order: "git" for a process of git, "child" for a start, the id of a commit that is checked out."""
    events: list[str] = []
    run_git, launch, lay_out = git.git, Host.launch_child, worktrees.lay_out

    def note(event: str, inner: Any) -> Any:
        def noting(*arguments: Any, **options: Any) -> Any:
            events.append(event or arguments[0].sha)
            return inner(*arguments, **options)

        return noting

    monkeypatch.setattr(git, "git", note("git", run_git))
    monkeypatch.setattr(Host, "launch_child", note("child", launch))
    monkeypatch.setattr(checkout, "lay_out", note("", lay_out))
    return events


def expect_planned(events: list[str], commits: list[str]) -> None:
    """Git was asked before the first child alone, and so often was each commit checked out."""
    assert "git" in events
    assert "git" not in events[events.index("child") :], events
    assert sorted(set(events) - {"git", "child"}) == sorted(set(commits))
    assert {sha: events.count(sha) for sha in commits} == {sha: commits.count(sha) for sha in commits}
    events.clear()


@pytest.mark.parametrize("kind", [JobKind.CHECK, JobKind.BENCH, JobKind.COMPARE])
def test_git_is_asked_before_the_first_child_alone(
    tools: Tools, request_of: JobRequest, events: list[str], tmp_path: Path, kind: JobKind
) -> None:
    base_sha = request_of.base_sha if kind is JobKind.COMPARE else None
    # Only a comparison is measured under toolchains; this machine has none of these.
    toolchains = None if kind is JobKind.COMPARE else ("o3", "o0")
    request = replace(request_of, kind=kind, base_sha=base_sha, spec=replace(SPEC, toolchains=toolchains))
    outcome = execute(request, tools, Diary(), tmp_path)
    results: list[Finding | Comparison] = [*outcome.findings, *outcome.comparisons]
    assert {(result.variant, result.status) for result in results} == {("ok", Status.OK), ("last", Status.OK)}
    expect_planned(events, [sha for sha in (base_sha, request.sha) if sha is not None])
    execute(request, tools, Diary(), tmp_path)
    assert events.count("git") == (1 if base_sha is None else 2), "the files of each commit are looked at once more"
    assert not {request.sha, base_sha} & set(events), "its checkout is kept"


def test_both_commits_are_checked_out_once_for_each_toolchain(
    tools: Tools, request_of: JobRequest, events: list[str], tmp_path: Path
) -> None:
    (tools.host.home / "worker.toml").write_text(TOOLCHAINS)
    spec = replace(SPEC, variants=["ok"], toolchains=("o3", "o0"))
    (row,) = execute(replace(request_of, spec=spec), tools, Diary(), tmp_path).comparisons
    assert (row.variant, row.case, row.status) == ("ok", CASE, Status.OK)
    assert request_of.base_sha is not None
    expect_planned(events, [request_of.base_sha, request_of.sha] * 2)


def test_both_commits_are_run_with_the_interpreter_that_one_of_them_asks_for(
    tools: Tools, request_of: JobRequest, repository: Repository, tmp_path: Path
) -> None:
    """Else each would be run with its own, and the comparison would take the interpreter for the code."""
    head = repository.commit("head", {"warpwatch.toml": f'interpreter = "{sys.executable}"\n'})
    (checkout,) = tools.checkouts(request_of.url, [head], Diary())
    name = name_environment(checkout.environment_of(checkout.sources_of("probe"), Diary()).key)
    spec = replace(SPEC, toolchains=(name, name))
    planned = plan_job(replace(request_of, sha=head, spec=spec), tools, Diary(), tmp_path)
    assert [item.project.interpreter for item in planned.checkouts] == [sys.executable] * 4


def test_a_toolchain_that_gives_two_commits_two_environments_is_refused() -> None:
    class Stub:
        def __init__(self, key: str) -> None:
            self.key = key

        def environment(self, _reporter: object) -> Stub:
            return self

    def expect(keys: str) -> None:
        cells._expect_same_toolchains(cast("list[Checkout]", [Stub(key) for key in keys]), BoundedReporter(Diary()))

    expect("aabb")
    for keys in ("abab", "aabc"):
        with pytest.raises(CannotRunError, match="two commits different environments"):
            expect(keys)


def test_an_environment_is_found_among_the_toolchains(tools: Tools, request_of: JobRequest, tmp_path: Path) -> None:
    """A comparison that names environments gets the toolchains that give them, that of the commit itself among them."""
    (tools.host.home / "worker.toml").write_text(TOOLCHAINS)
    (checkout,) = tools.checkouts(request_of.url, [request_of.sha], Diary())
    plain = checkout.environment_of(checkout.sources_of("probe"), Diary())
    old, gone = (plain.with_facts({"variables": {"CXXFLAGS": flag}}) for flag in ("-O0", "-O9"))

    def plan(*keys: str) -> JobPlan:
        spec = replace(SPEC, toolchains=(name_environment(keys[0]), name_environment(keys[1])))
        return plan_job(replace(request_of, base_sha=request_of.sha, spec=spec), tools, Diary(), tmp_path)

    planned = plan(old.key, plain.key)
    assert [item.environment_of(planned.sources, Diary()).key for item in planned.checkouts] == [old.key, plain.key]
    with pytest.raises(CannotRunError, match=f"gives the environment {gone.key[:12]}"):
        plan(gone.key, plain.key)


@pytest.mark.parametrize(
    ("since", "message"),
    [
        ('"no-such-tag"', "since: no commit, branch or tag 'no-such-tag'"),
        ('"".join(("v", "1"))', "write it as one string"),
    ],
)
def test_a_commit_that_git_was_not_asked_about_is_named(
    tools: Tools, repository: Repository, tmp_path: Path, since: str, message: str
) -> None:
    operator = probes.OPERATOR.replace('"last", idea=', f'"last", since={since}, idea=')
    sha = repository.commit("unknown", probes.files() | {"kernels/probe.py": operator})
    with pytest.raises(CannotRunError, match=message):
        execute(JobRequest(JobKind.CHECK, repository.url, sha, "probe", SPEC), tools, Diary(), tmp_path)


def test_a_variant_may_name_its_commit_anywhere_in_its_file(
    tools: Tools, repository: Repository, tmp_path: Path
) -> None:
    """A tag, in a constant; and a commit of another branch, which is no ancestor."""
    first = repository.commit("first", probes.files())
    repository._git("tag", "v1")
    other = repository.detached_commit("other", first)
    repository._git("branch", "other", other)
    operator = f"START = \"v1\"\nELSEWHERE = 'other'\n{probes.OPERATOR}"
    operator = operator.replace('"last", idea=', '"last", since=START, idea=')
    operator = operator.replace('"raise", idea=', '"raise", since=ELSEWHERE, idea=')
    sha = repository.commit("since", {"kernels/probe.py": operator})
    request = JobRequest(JobKind.CHECK, repository.url, sha, "probe", replace(SPEC, variants=["last", "raise"]))
    outcome: Outcome = execute(request, tools, Diary(), tmp_path)
    assert [(finding.variant, finding.status) for finding in outcome.findings] == [("last", Status.OK)]
