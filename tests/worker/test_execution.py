"""Jobs end to end without a database: a real repository, a real child, and every status a variant can meet."""

from __future__ import annotations

import gzip
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.rewording import Switch
from tests.waiting import wait_until
from tests.worker import probes
from tests.worker.conftest import Diary, Repository, identify, processes_with
from warpwatch.contract.catalogue import CaseEntry, OperatorEntry
from warpwatch.contract.messages import BuildReply
from warpwatch.contract.outcome import Outcome, PartialOutcome
from warpwatch.contract.spec import JobRequest, JobSpec
from warpwatch.contract.words import JobKind, Reason, Status
from warpwatch.operator import Cost, Operator
from warpwatch.settings import Settings
from warpwatch.worker import comparison, execution
from warpwatch.worker.checkout import Checkout
from warpwatch.worker.execution import execute
from warpwatch.worker.host import Host
from warpwatch.worker.measurer import build_native
from warpwatch.worker.plan import choose_cases
from warpwatch.worker.reporter import CannotRunError, Reporter, Stopped
from warpwatch.worker.tools import Tools

CASES = ["n=100,f32,fwd", "n=101,f32,fwd", "n=102,f32,fwd"]
KNOWN = {"variants": ["ok", "loop"], "cases": CASES[:2]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("execution")


@pytest.fixture(scope="module")
def tools(folder: Path) -> Iterator[Tools]:
    """Tools shared by the module, so that children stay warm as they do in a worker; short time limits."""
    settings = Settings(home=folder / "home", case_timeout_seconds=8, build_timeout_seconds=60, memory_bytes=8 * 2**30)
    identify(settings.home)
    tools = Tools(Host(settings, "cpu"))
    yield tools
    tools.close()
    assert processes_with(str(folder)) == []
    assert list((settings.home / "worktrees").iterdir()) == []


@pytest.fixture(scope="module")
def repository(folder: Path) -> Repository:
    return Repository(folder / "repository")


@pytest.fixture(scope="module")
def good(repository: Repository) -> str:
    return repository.commit("good", probes.files())


def order(repository: Repository, sha: str, kind: str = "check", **spec: object) -> JobRequest:
    return JobRequest(JobKind(kind), repository.url, sha, "probe", JobSpec.from_stored(spec))


def test_edge_cases_are_checked_along_and_not_timed() -> None:
    cases = [CaseEntry(name, {}, "f32", "fwd", "contiguous", [name], 1, 1) for name in ("quick", "full", "edge")]
    entry = OperatorEntry("probe", "", [], cases)

    def chosen(kind: str, **spec: object) -> list[str]:
        return [case.key for case in choose_cases(entry, JobSpec.from_stored(spec), kind)]

    assert chosen("check", suite="quick") == ["quick", "edge"]
    assert chosen("check", suite="full") == ["full", "edge"]
    assert chosen("bench", suite="full") == chosen("profile", suite="full") == ["full"]
    assert chosen("check", suite="quick", cases=["full"]) == ["full"]


@pytest.mark.parametrize(("factor", "status"), [(1, Status.TIMED_OUT), (10, Status.OK)])
def test_an_operator_may_ask_for_more_time(repository: Repository, tmp_path: Path, factor: int, status: Status) -> None:
    slow = probes.OPERATOR.replace("return x + x", "import time; time.sleep(0.5); return x + x")
    slow = slow.replace("inputs=inputs,", f"inputs=inputs, timeout_factor={factor},")
    sha = repository.commit(f"slow, {factor}", probes.files() | {"kernels/probe.py": slow})
    settings = Settings(home=tmp_path / "home", case_timeout_seconds=2, build_timeout_seconds=60)
    identify(settings.home)
    tools = Tools(Host(settings, "cpu"))
    try:
        checked = run(order(repository, sha, variants=["last"], cases=CASES[:1]), tools, tmp_path)
    finally:
        tools.close()
    assert [finding.status for finding in checked.findings] == [status]


@pytest.mark.parametrize("factor", [0.5, 11, float("nan")])
def test_a_time_limit_that_no_operator_gets_is_refused(factor: float) -> None:
    with pytest.raises(ValueError, match="timeout_factor must be 1 to 10"):
        Operator("probe", "", lambda case, make: {}, lambda: None, lambda case: Cost(1, 1), {}, timeout_factor=factor)


def test_a_job_begins_with_its_turn_of_the_device(
    tools: Tools, repository: Repository, good: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[Reporter] = []

    @contextmanager
    def stopped_while_waiting(reporter: Reporter) -> Iterator[None]:
        turns.append(reporter)
        raise Stopped("cancelled")
        yield

    monkeypatch.setattr(tools, "device_turn", stopped_while_waiting)
    for kind in ("check", "bench", "profile"):
        with pytest.raises(Stopped, match="cancelled"):
            run(order(repository, good, kind, variants=["ok"], cases=CASES[:1]), tools, tmp_path)
    assert len(turns) == 3


def test_undeclared_cases_are_measured_where_the_operator_can_have_them(
    tools: Tools, repository: Repository, good: str, tmp_path: Path
) -> None:
    asked = ["n=123,f32,fwd", CASES[0], "m=5,f32,fwd"]
    checked = run(order(repository, good, variants=["ok"], cases=asked), tools, tmp_path)
    assert {finding.case: finding.status for finding in checked.findings} == dict.fromkeys(asked[:2], Status.OK)
    (derived,) = checked.derived_cases
    assert (derived.key, derived.sizes, derived.suites) == (asked[0], {"n": 123}, [])
    with pytest.raises(CannotRunError):
        run(order(repository, good, variants=["ok"], cases=["m=5,f32,fwd"]), tools, tmp_path)


def run(order: JobRequest, tools: Tools, tmp_path: Path, diary: Diary | None = None) -> Outcome:
    traces = tmp_path / "traces"
    traces.mkdir(exist_ok=True)
    return execute(order, tools, diary or Diary(), traces)


def statuses(outcome: Outcome) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for finding in outcome.findings:
        found.setdefault(finding.variant, []).append(str(finding.status))
    return found


def test_every_variant_meets_its_fate_and_the_others_go_on(
    repository: Repository, good: str, tools: Tools, tmp_path: Path
) -> None:
    diary = Diary()
    outcome = run(order(repository, good), tools, tmp_path, diary)
    assert statuses(outcome) == {
        "ok": ["ok", "ok", "ok"],
        "wrong": ["wrong", "wrong", "wrong"],
        "raise": ["crashed", "crashed", "skipped"],
        "segfault": ["crashed", "crashed", "skipped"],
        "loop": ["timed_out", "skipped", "skipped"],
        "memory": ["out_of_memory"] * 3,
        "unsupported": ["unsupported"] * 3,
        "last": ["ok", "ok", "ok"],
    }
    messages = {finding.variant: finding.message for finding in reversed(outcome.findings)}
    for variant, quoted in (("segfault", "about to die"), ("raise", "no such luck"), ("unsupported", "not on a cpu")):
        assert quoted in messages[variant] or Switch.is_on, "a message quotes what the kernel's code said"
    assert outcome.catalogue is not None
    assert [finding.check.tensors for finding in outcome.findings if finding.variant == "wrong" and finding.check]
    assert f"check ok {CASES[0]} ok" in diary.lines
    assert diary.steps[-1][:2] == (24, 24)
    assert outcome.peaks == {"copy": 1e10, "f32": 1e11}


def test_nobody_answers_for_the_damage_of_another(repository: Repository, tools: Tools, tmp_path: Path) -> None:
    sha = repository.commit("damage", {"kernels/probe.py": probes.DAMAGE})
    outcome = run(order(repository, sha, variants=["culprit", "victim"], cases=CASES[:1]), tools, tmp_path)
    assert statuses(outcome) == {"culprit": ["ok"], "victim": ["ok"]}
    diary = Diary()
    names = ["scribbler", "scribbled", "wrong_too"]
    outcome = run(order(repository, sha, variants=names, cases=CASES[:2]), tools, tmp_path, diary)
    assert statuses(outcome) == {"scribbler": ["ok"] * 2, "scribbled": ["ok"] * 2, "wrong_too": ["wrong"] * 2}
    assert all(finding.message for finding in outcome.findings if finding.variant == "scribbled")
    # `scribbled` on both cases, and `wrong_too` until it was wrong alone.
    assert sum("once more in a fresh one" in line for line in diary.lines) == 3


def test_checks_in_several_children_say_what_checks_in_one_do(
    repository: Repository, good: str, tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["ok", "wrong", "raise", "segfault", "unsupported", "last"]
    alone = run(order(repository, good, variants=names, cases=CASES[:2]), tools, tmp_path)
    monkeypatch.setattr(execution, "lanes_of", lambda host, kind, cells: 2)
    diary = Diary()
    beside = run(order(repository, good, variants=names, cases=CASES[:2]), tools, tmp_path, diary)
    assert [(found.variant, found.case, found.status) for found in beside.findings] == [
        (found.variant, found.case, found.status) for found in alone.findings
    ]
    assert len({found.variant for found in beside.findings}) == len(names)
    assert next(text for _, _, text in diary.steps).startswith("last "), "what is most elaborate begins first"


def test_what_needs_no_library_is_checked_while_it_is_built(
    repository: Repository, tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"kernels/probe.py": probes.NATIVE_OPERATOR, "csrc/probe/probe.cpp": "nor does this compile;"}
    sha = repository.commit("does not compile beside", changes)
    monkeypatch.setattr(execution, "lanes_of", lambda host, kind, cells: 2)
    diary = Diary()

    def build_late(checkout: Checkout, entry: OperatorEntry, reporter: Reporter) -> BuildReply:
        wait_until(lambda: f"check ok {CASES[0]} ok" in diary.lines, explain=lambda: "the check waits for the build")
        return build_native(checkout, entry, reporter)

    monkeypatch.setattr(execution, "build_native", build_late)
    outcome = run(order(repository, sha, variants=["ok", "native"], cases=CASES[:1]), tools, tmp_path, diary)
    assert statuses(outcome) == {"ok": ["ok"], "native": ["build_failed"]}
    assert outcome.build is not None
    assert outcome.build.status is Status.BUILD_FAILED


def test_a_check_goes_on_with_the_child_that_read_the_catalogue(
    repository: Repository, good: str, tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "lanes_of", lambda host, kind, cells: 2)
    (checkout,) = tools.checkouts(repository.url, [good], Diary())
    checkout.environment(Diary())
    first = checkout._child
    assert first is not None
    monkeypatch.setattr(Host, "launch_child", lambda *_: pytest.fail("one that joins a second later has nothing to do"))
    outcome = run(order(repository, good, variants=["ok", "last"], cases=CASES[:1]), tools, tmp_path)
    assert statuses(outcome) == {"ok": ["ok"], "last": ["ok"]}
    assert not first.alive, "it ends with its lane"


def test_the_next_job_begins_with_children_that_were_started_before(
    repository: Repository, good: str, tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "lanes_of", lambda host, kind, cells: 2)
    monkeypatch.setattr(execution, "spares_of", lambda host: 2)
    wanted = {"variants": ["ok", "last"], "cases": CASES[:1]}
    check, profile = (order(repository, good, kind, **wanted) for kind in ("check", "profile"))
    (checkout,) = tools.checkouts(repository.url, [good], Diary())
    for after in (None, replace(profile, sha="0" * 40), replace(profile, kind=JobKind.COMPARE)):
        tools.upcoming = after
        run(check, tools, tmp_path)
        assert not checkout._spares, "nobody asks for them"
    tools.upcoming = profile
    run(check, tools, tmp_path)
    spares = [*checkout._spares]
    assert len(spares) == 2
    tools.upcoming = None
    monkeypatch.setattr(Host, "launch_child", lambda *_: pytest.fail("there are enough"))
    assert statuses(run(profile, tools, tmp_path)) == {"ok": ["ok"], "last": ["ok"]}
    assert not any(spare.alive for spare in spares), "they end with their lanes"


def test_children_that_were_started_before_greet_before_anything_is_timed(
    repository: Repository, good: str, tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkout,) = tools.checkouts(repository.url, [good], Diary())
    checkout.drop_child()
    checkout.start_spares(3, Diary())
    first, useless, last = checkout._spares

    def refuse() -> None:
        raise CannotRunError("the harness did not start")

    monkeypatch.setattr(useless, "wait_ready", refuse)
    diary = Diary()
    checkout.await_spares(diary)
    assert [*checkout._spares] == [first, last]
    assert any("a spare child is of no use" in line for line in diary.lines)
    os.kill(first.pid or 0, signal.SIGKILL)
    wait_until(lambda: not first.alive)
    measured = order(repository, good, "bench", variants=["ok"], cases=CASES[:1], budget_ns=50_000_000)
    assert statuses(run(measured, tools, tmp_path)) == {"ok": ["ok"]}, "one that died between two jobs harms neither"
    assert checkout._child is last
    check = replace(measured, kind=JobKind.CHECK)
    run(check, tools, tmp_path)
    assert last.alive, "a CPU has no launches to record"

    def be_a_cpu_again(*_: Any) -> int:
        monkeypatch.setattr(Host, "kind", "cpu")
        return 1

    # The number of lanes is asked for after the child was chosen.
    monkeypatch.setattr(execution, "lanes_of", be_a_cpu_again)
    monkeypatch.setattr(Host, "kind", "cuda")
    run(check, tools, tmp_path)
    assert not last.alive, "a child that was profiled cannot record them"
    assert not (checkout._child and checkout._child.has_profiled)


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_job_makes_room_between_two_cells_and_goes_on_later(
    repository: Repository, good: str, tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lanes: int
) -> None:
    monkeypatch.setattr(execution, "lanes_of", lambda host, kind, cells: lanes)
    request = order(repository, good, variants=["ok", "raise", "last"], cases=CASES)
    whole = run(request, tools, tmp_path)
    with pytest.raises(Stopped) as stopped:
        run(request, tools, tmp_path, Diary(urgent=(5, 7)))
    assert stopped.value.yielded_to == 7
    outcome = stopped.value.outcome
    assert outcome is not None
    assert 5 <= len(outcome.findings) < len(whole.findings)
    diary = Diary()
    earlier = PartialOutcome(outcome.environment.key, outcome.findings)
    rest = execute(request, tools, diary, tmp_path / "traces", earlier)
    assert sorted((found.variant, found.case, found.status) for found in rest.findings) == sorted(
        (found.variant, found.case, found.status) for found in whole.findings
    )
    begun = [text for _, _, text in diary.steps if text]
    assert len(begun) == len(whole.findings) - len(outcome.findings), "nothing is measured twice"
    # Another environment: what was found does not fit.
    diary = Diary()
    execute(request, tools, diary, tmp_path / "traces", replace(earlier, environment_key="another"))
    assert len([text for _, _, text in diary.steps if text]) == len(whole.findings)


def test_a_profile_is_not_interrupted(repository: Repository, good: str, tools: Tools, tmp_path: Path) -> None:
    request = order(repository, good, "profile", variants=["ok", "last"], case_limit=1)
    assert len(run(request, tools, tmp_path, Diary(urgent=(0, 7))).findings) == 2


def test_the_time_of_a_job_is_accounted_for(
    repository: Repository, good: str, tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools.checkouts(repository.url, [good], Diary())[0].drop_child()
    tools.host.stopwatch.take()
    begin = time.perf_counter()
    run(order(repository, good, "bench", variants=["ok"], cases=CASES[:1], budget_ns=50_000_000), tools, tmp_path)
    times, seconds = tools.host.stopwatch.take(), time.perf_counter() - begin
    assert min(times.start, times.inputs, times.oracle, times.warm_up, times.samples, times.verify) > 0
    # Closing children and asking after the health of the device are the rest.
    assert seconds / 2 < times.total <= seconds
    monkeypatch.setattr(execution, "lanes_of", lambda host, kind, cells: 2)
    tools.checkouts(repository.url, [good], Diary())[0].drop_child()
    begin = time.perf_counter()
    run(order(repository, good, variants=["ok", "last"], cases=CASES[:1]), tools, tmp_path)
    times, seconds = tools.host.stopwatch.take(), time.perf_counter() - begin
    assert min(times.start, times.inputs, times.oracle, times.warm_up, times.verify) > 0
    assert times.samples == 0
    assert times.total <= seconds


def test_bench_and_profile(repository: Repository, good: str, tools: Tools, tmp_path: Path) -> None:
    wanted = {"variants": ["ok", "wrong"], "cases": CASES[:1], "budget_ns": 50_000_000}
    bench = run(order(repository, good, "bench", **wanted), tools, tmp_path)
    assert statuses(bench) == {"ok": ["ok"], "wrong": ["wrong"]}
    measured = bench.findings[0].bench
    assert measured is not None
    assert {m.metric for m in measured.measurements} == {"hot", "cold"}
    assert all(m.samples_ns and m.low_ns <= m.median_ns <= m.high_ns for m in measured.measurements)
    profile = run(order(repository, good, "profile", variants=["ok"], case_limit=1), tools, tmp_path)
    assert statuses(profile) == {"ok": ["ok"]}
    reply = profile.findings[0].profile
    assert reply is not None
    assert reply.path is not None
    with gzip.open(reply.path) as trace:
        assert json.load(trace)["traceEvents"]


def test_a_lasting_commit_stays_checked_out(repository: Repository, good: str, tools: Tools) -> None:
    other = repository.commit("other", {"notes.md": "of nothing"})
    tools.lasting = frozenset({good})
    (kept,) = tools.checkouts(repository.url, [good], Diary())
    (left,) = tools.checkouts(repository.url, [other], Diary())
    assert tools.checkouts(repository.url, [good], Diary()) == [kept]
    assert (kept.root.place.is_dir(), left.root.place.is_dir()) == (True, False)
    tools.lasting = frozenset()
    tools.checkouts(repository.url, [other], Diary())
    assert not kept.root.place.is_dir()


def test_an_operator_may_be_loaded_without_the_others(repository: Repository, tools: Tools) -> None:
    before = repository.head()
    head = repository.commit("another", probes.files() | {"kernels/another.py": "raise SystemExit\n"})
    (checkout,) = tools.checkouts(repository.url, [head], Diary())
    checkout.loads_together = False
    catalogue, entry = checkout.catalogue("probe", Diary())
    assert catalogue.operators == [entry]
    repository.reset(before)


def test_a_comparison_is_paired_and_profiled(repository: Repository, good: str, tools: Tools, tmp_path: Path) -> None:
    slower = probes.OPERATOR.replace(
        "def ok(x):\n    return x * 2", "def ok(x):\n    for _ in range(30):\n        y = x * 2\n    return y"
    )
    assert slower != probes.OPERATOR
    head = repository.commit("slower", {"kernels/probe.py": slower})
    pairs = [["ok", CASES[0]], ["wrong", CASES[0]], ["segfault", CASES[0]], ["gone", CASES[0]]]
    compare = replace(
        order(repository, head, "compare", pairs=pairs, stop={"earliest": 3, "ratio": 1.02}), base_sha=good
    )
    outcome = run(compare, tools, tmp_path)
    by_variant = {found.variant: found for found in outcome.comparisons}
    assert {name: str(found.status) for name, found in by_variant.items()} == {
        "ok": "ok",
        "wrong": "wrong",
        "segfault": "crashed",
        "gone": "skipped",
    }
    right = by_variant.pop("ok")
    assert {found.reason for found in by_variant.values()} == {Reason.BASE_FAILED}
    # On a busy machine a wait of a few percent may not be found in three rounds, which is no objection to a change.
    assert right.reason in (None, Reason.CONTROL_MISSED)
    assert len(right.base_ns) == len(right.head_ns) == 3
    assert all(h > 3 * b for b, h in zip(right.base_ns, right.head_ns, strict=True)), "thirty times the work shows"
    for findings in (outcome.findings, outcome.base_findings):
        assert [f.profile.path for f in findings if f.profile and f.variant == "ok"]
    assert len({f.profile.path for f in outcome.findings + outcome.base_findings if f.profile}) == 2


def test_a_burst_that_hits_neighbouring_slices_alike_does_not_show() -> None:
    burst = [1.0, 1.8, 1.0, 1.7, 1.6, 1.0, 1.0, 1.9]
    base = [100 * share for share in burst]
    head = [110 * share for share in burst[:-1]] + [110.0]
    base_ns, head_ns = comparison.middle(base, head)
    assert head_ns == pytest.approx(1.1 * base_ns)
    assert comparison.middle([100.0, 110.0], [120.0, 140.0]) == (105.0, 130.0), "on a GPU the mean of both pairs"


def test_an_unknown_contract_is_a_status(repository: Repository, tools: Tools, tmp_path: Path) -> None:
    sha = repository.commit("from the future", {"warpwatch.toml": "contract = 99\n"})
    outcome = run(order(repository, sha, known=KNOWN), tools, tmp_path)
    assert statuses(outcome) == {"ok": ["unsupported"] * 2, "loop": ["unsupported"] * 2}
    assert "99" in outcome.findings[0].message or Switch.is_on
    with pytest.raises(CannotRunError, match="contract 99"):
        run(order(repository, sha), tools, tmp_path)
    repository.commit("back", {"warpwatch.toml": probes.TOML})


def test_a_file_that_does_not_load_breaks_its_own_rows_only(
    repository: Repository, tools: Tools, tmp_path: Path
) -> None:
    sha = repository.commit("broken", {"kernels/probe.py": "import no_such_module", "kernels/second.py": probes.SECOND})
    outcome = run(order(repository, sha, known=KNOWN), tools, tmp_path)
    assert statuses(outcome) == {"ok": ["missing_dependency"] * 2, "loop": ["missing_dependency"] * 2}
    assert "no_such_module" in outcome.findings[0].message or Switch.is_on
    other = replace(order(repository, sha, variants=["ok"]), operator="second")
    assert statuses(run(other, tools, tmp_path)) == {"ok": ["ok"] * 3}


def test_a_file_that_ends_the_child_breaks_its_own_rows_only(
    repository: Repository, tools: Tools, tmp_path: Path
) -> None:
    sha = repository.commit("deadly", {"kernels/probe.py": "import os\nos.abort()", "kernels/second.py": probes.SECOND})
    outcome = run(order(repository, sha, known=KNOWN), tools, tmp_path)
    assert statuses(outcome) == {"ok": ["crashed"] * 2, "loop": ["crashed"] * 2}
    other = replace(order(repository, sha, variants=["ok"]), operator="second")
    assert statuses(run(other, tools, tmp_path)) == {"ok": ["ok"] * 3}


def test_a_compile_error_costs_the_native_variants_only(repository: Repository, tools: Tools, tmp_path: Path) -> None:
    changes = {"kernels/probe.py": probes.NATIVE_OPERATOR, "csrc/probe/probe.cpp": "this does not compile;"}
    sha = repository.commit("does not compile", changes)
    outcome = run(order(repository, sha, variants=["ok", "native"], cases=CASES[:1]), tools, tmp_path)
    assert statuses(outcome) == {"ok": ["ok"], "native": ["build_failed"]}
    assert outcome.build is not None
    assert outcome.build.status is Status.BUILD_FAILED
    assert "probe.cpp" in outcome.findings[1].message or Switch.is_on


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"operator": "no_such_operator"}, "no operator 'no_such_operator'"),
        ({"spec": JobSpec(variants=["no_such_variant"])}, "none of the variants"),
        ({"sha": "0" * 40}, "0000000"),
        ({"url": "/no/such/repository"}, "no/such/repository"),
    ],
)
def test_what_cannot_run_says_why(
    repository: Repository, good: str, tools: Tools, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(CannotRunError, match=words):
        run(replace(order(repository, good), **change), tools, tmp_path)


def test_a_detached_commit_can_be_measured(repository: Repository, good: str, tools: Tools, tmp_path: Path) -> None:
    sha = repository.detached_commit("on no branch", good)
    outcome = run(order(repository, sha, variants=["ok"], cases=CASES[:1]), tools, tmp_path)
    assert statuses(outcome) == {"ok": ["ok"]}


def test_a_stop_ends_the_job_and_its_child(repository: Repository, good: str, tools: Tools, tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        run(order(repository, good, variants=["loop"]), tools, tmp_path, Diary(stop_after=3))
    assert processes_with(str(tools.host.home)) == []
