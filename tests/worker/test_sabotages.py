"""Sabotages of our own pipeline: none ends with a wrong verdict, and each is noticed by something that says so.

The rounds are taken by the real code from simulated commits, whose truth is known. Checkouts, builds, results files and
the database are real.
"""

from __future__ import annotations

import os
import random
import shutil
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.builders import CASES, CPU, GPU, Lab, catalogue, make_repository
from tests.worker.conftest import Diary, Repository
from tests.worker.test_comparison import PAIR, REQUEST
from tests.worker.test_gate import FIT, HOT, PEAKS, Device
from warpwatch import git
from warpwatch.bundle import BundleError, BundleReader, BundleWriter
from warpwatch.contract.messages import BuildReply, CanaryReply, GraphPlan, SampleReply
from warpwatch.contract.outcome import Comparison, Finding, Outcome
from warpwatch.contract.words import Reason, Status
from warpwatch.db import runs
from warpwatch.db.database import Database
from warpwatch.db.errors import OutcomeError, StaleRunError
from warpwatch.server.verdicts.held import classify_trial
from warpwatch.settings import Settings
from warpwatch.worker import building, gate
from warpwatch.worker.building import LIBRARY, RECORD, BuildRequest, BuiltLibrary, LibraryStore, build
from warpwatch.worker.checkout import Checkout, OperatorSources
from warpwatch.worker.compared_side import ComparedSide
from warpwatch.worker.comparison import _Rounds, expect_one_interpreter
from warpwatch.worker.gate import LastCanary, expect_healthy
from warpwatch.worker.host import Host
from warpwatch.worker.plan import JobPlan
from warpwatch.worker.plausibility import TimeLimits
from warpwatch.worker.reporter import BoundedReporter, CannotRunError, UnhealthyError
from warpwatch.worker.sandbox import Confinement
from warpwatch.worker.tools import Tools
from warpwatch.worker.trees import Tree

NS = 100_000.0
ROUNDS = 12


@dataclass
class Scene:
    """A repository of two commits, and what a sabotage may need besides."""

    repository: Repository
    base: str
    head: str
    tools: Tools
    folder: Path
    monkeypatch: pytest.MonkeyPatch
    database: Database

    def lab(self) -> Lab:
        source = self.folder / "kernels"
        return Lab(self.database, source, make_repository(source, 2), self.folder)


@dataclass
class SimulatedCommit:
    """A commit whose slices take `ns`, changed by the sabotage: its slice number, and the wait that it was asked for,
    give the time."""

    name: str
    ns: float
    sabotage: Callable[[float, int, float], float] = lambda ns, number, wait: ns * (1 + wait)
    metric: str = "graph"
    status: Status = Status.OK
    checkout: Any = field(default_factory=lambda: SimpleNamespace(host=SimpleNamespace(kind="cuda"), running=False))
    chance: random.Random = field(default_factory=lambda: random.Random(4))
    slices: int = 0

    def ask(self, verb: str, *_names: Any, wait: float = 0.0, **_fields: Any) -> SampleReply:
        if self.status is not Status.OK:
            return SampleReply(self.status, "it ended")
        if verb == "plan":
            return SampleReply(Status.OK, metric=self.metric, plan=GraphPlan(8, 6, 16, 2, metric=self.metric))
        self.slices += verb == "sample"
        noise = self.chance.gauss(1, 0.0003)
        ns = self.sabotage(self.ns * noise, self.slices, wait)
        return SampleReply(Status.OK, "", [ns] if verb == "sample" else [], self.metric)

    def entry_of(self, _case: str) -> None:
        return None

    def send(self, verb: str, *names: Any, **fields: Any) -> Callable[[], SampleReply]:
        return partial(self.ask, verb, *names, **fields)


def take_rounds(base: SimulatedCommit, head: SimulatedCommit) -> Comparison:
    """The rounds of the device's time."""
    sides: Any = base, head
    request = replace(REQUEST, spec=replace(REQUEST.spec, rounds=ROUNDS))
    rounds = _Rounds(request, sides[0], sides[1], BoundedReporter(Diary()))
    key = (*PAIR, "graph")
    for index in range(ROUNDS):
        if rounds._comparisons[key].status is Status.OK:
            rounds._round(PAIR, index, ["graph"])
    return rounds._comparisons[key]


def noticed(comparison: Comparison, truth: str) -> str:
    """What noticed a sabotage of the rounds, which must not end with another verdict than the truth."""
    if comparison.status is not Status.OK:
        return str(comparison.reason or comparison.status)
    outcome = classify_trial(comparison.base_ns, comparison.head_ns, "cuda", comparison.reason).outcome
    assert outcome in (truth, "unsure"), f"the sabotage ended green: {outcome}"
    return str(comparison.reason) if comparison.reason is not None else f"verdict {outcome}"


def of_rounds(truth: str, head_ns: float, **sabotaged: Any) -> Callable[[Scene], str]:
    """Both commits are sabotaged alike."""

    def act(_scene: Scene) -> str:
        return noticed(
            take_rounds(SimulatedCommit("base", NS, **sabotaged), SimulatedCommit("head", head_ns, **sabotaged)), truth
        )

    return act


def of_one_side(truth: str, base: dict[str, Any], head: dict[str, Any]) -> Callable[[Scene], str]:
    def act(_scene: Scene) -> str:
        sides = SimulatedCommit("base", NS, **base), SimulatedCommit("head", NS, **head)
        return noticed(take_rounds(*sides), truth)

    return act


def raising(kind: type[Exception], act: Callable[[Scene], object]) -> Callable[[Scene], str]:
    """The sabotage must end in this error; its reason, or else its type, says what noticed it."""

    def noticing(scene: Scene) -> str:
        with pytest.raises(kind) as caught:
            act(scene)
        return str(getattr(caught.value, "reason", None) or kind.__name__)

    return noticing


# --- clocks, cards and neighbours -----------------------------------------------------------------------------


def is_busy(ns: float, number: int, wait: float) -> float:
    """A neighbour that takes 10 % during the first half of every round."""
    return ns * (1 + wait) * (1.1 if number % 3 == 1 else 1.0)


def is_busy_at_random(ns: float, number: int, wait: float) -> float:
    return ns * (1 + wait) * (1.1 if random.Random(number * 7919 + int(ns)).random() < 0.3 else 1.0)


def throttles(ns: float, number: int, wait: float) -> float:
    """A card that becomes 1 % slower with every slice, and cools between rounds."""
    return ns * (1 + wait) * (1 + 0.01 * (number % 3))


def claim(samples_ns: list[float]) -> Callable[[Scene], str]:
    """A child whose clock is patched; the parent has its own clock and knows the ceilings."""

    def act(scene: Scene) -> str:
        reply = SampleReply(Status.OK, "", samples_ns, "graph")
        checkout: Any = SimpleNamespace(
            host=SimpleNamespace(kind="cuda"),
            timeout_seconds=lambda _: 60.0,
            send=lambda *_, **__: None,
            answer=lambda *_: reply,
        )
        limits = TimeLimits(PEAKS, "cuda", lambda: PEAKS)
        plan = JobPlan(REQUEST, (checkout, checkout), OperatorSources(), scene.folder)
        side = ComparedSide("head", plan, checkout, BoundedReporter(Diary()), limits)
        entry: Any = SimpleNamespace(flops=0, bytes=2**30)
        side._cases = {PAIR[1]: entry}
        answer = side.ask("sample", *PAIR, 10**9, 1)
        assert answer.samples_ns == []
        return str(answer.status)

    return act


def measure_on(answer: CanaryReply) -> Callable[[Scene], object]:
    def act(scene: Scene) -> None:
        scene.monkeypatch.setattr(gate, "WAIT_SECONDS", 0.05)
        scene.monkeypatch.setattr(gate, "PAUSE_SECONDS", 0.01)
        expect_healthy(Device(answer), "cuda:0", PEAKS, Diary(), LastCanary())

    return act


# --- checkouts and builds -------------------------------------------------------------------------------------


def check_out(scene: Scene) -> list[Checkout]:
    return scene.tools.checkouts(scene.repository.url, [scene.base, scene.head], Diary())


def lay_out_another(scene: Scene) -> None:
    """Both commits get the files of the base."""
    check_out_instead(scene, lambda _: scene.base)


def swap_commits(scene: Scene) -> None:
    check_out_instead(scene, {scene.base: scene.head, scene.head: scene.base}.__getitem__)


def check_out_instead(scene: Scene, other: Callable[[str], str]) -> None:
    genuine = git.check_out

    def wrong(mirror: Path, path: Path, sha: str, names: Iterable[str] | None = None) -> None:
        genuine(mirror, path, other(sha), names)

    scene.monkeypatch.setattr(git, "check_out", wrong)
    check_out(scene)


def edit_checkout(scene: Scene) -> None:
    _, head = check_out(scene)
    (head.root.place / "kernels" / "square.py").write_text("# the base again\n")
    check_out(scene)


def store_with(scene: Scene, address: str, key: str) -> LibraryStore:
    store = LibraryStore(scene.folder / "libraries")
    folder = store.folder / address
    folder.mkdir(parents=True, exist_ok=True)
    (folder / LIBRARY).write_bytes(key.encode())
    (folder / RECORD).write_text(f'{{"status": "ok", "key": "{key}"}}')
    return store


def ignore_build(scene: Scene) -> None:
    """The library of the base is linked where the head's belongs."""
    store = store_with(scene, "head", "b" * 64)
    store_with(scene, "base", "a" * 64)
    genuine = os.link
    scene.monkeypatch.setattr(os, "link", lambda _source, target: genuine(store.folder / "base" / LIBRARY, target))
    BuiltLibrary(BuildReply(Status.OK, key="b" * 64), store.folder / "head").lay_out(scene.folder / "laid out")


def leave_stale_library(scene: Scene) -> str:
    """The store has the library of older sources at the address of the new ones: it must be built anew."""
    asked: list[str] = []

    class Builder:
        temp = Tree(scene.folder / "temp")

        def __init__(self, *_: object) -> None: ...

        def wait_ready(self) -> None: ...

        def close(self) -> None: ...

        def ask(self, _kind: Any, verb: str, *_: Any, **__: Any) -> BuildReply:
            asked.append(verb)
            built = self.temp.place / building._FOLDER / ("b" * 64) / LIBRARY
            built.parent.mkdir(parents=True, exist_ok=True)
            built.write_bytes(b"new")
            return BuildReply(Status.OK, key="b" * 64)

    scene.monkeypatch.setattr(building, "Child", Builder)
    store = LibraryStore(scene.folder / "libraries")
    request = BuildRequest(scene.folder, "csrc", "square", "cpu")
    confinement = Confinement("none", None, (), scene.folder, 1, 1)
    first = build(request, store, confinement, 1.0, Diary())
    assert first.folder is not None
    store_with(scene, first.folder.name, "a" * 64)
    again = build(request, store, confinement, 1.0, Diary())
    assert again.folder is not None
    assert (again.folder / LIBRARY).read_bytes() == b"new"
    return f"rebuilt after {asked.count('build')} builds"


def mix_interpreters(_scene: Scene) -> None:
    expect_one_interpreter(CPU, CPU.with_facts({"torch": "2.14.0"}))


# --- results --------------------------------------------------------------------------------------------------


def write_twice(scene: Scene) -> None:
    """A run that lost its job to another one comes back with its results."""
    lab = scene.lab()
    job = lab.submit("bench", 1)
    stale = lab.begin(job)
    with scene.database.session() as s:
        runs.fail_run(s, stale, "the worker was paused", retry=True)
    with scene.database.session() as s:
        runs.finish_run(s, stale, lab.outcome([]))


def record(change: Callable[[Lab, Outcome], Outcome]) -> Callable[[Scene], object]:
    def act(scene: Scene) -> None:
        lab = scene.lab()
        finding = Finding("v1", CASES[0], Status.OK)
        lab.finish(lab.submit("check", 1), change(lab, lab.outcome([finding])))

    return act


def compare_alone(_lab: Lab, outcome: Outcome) -> Outcome:
    row = Comparison("v1", CASES[0], "hot", "1", Status.OK, "", [1e3] * 6, [1e3] * 6)
    return replace(outcome, comparisons=[row])


def lose_rounds(_scene: Scene) -> None:
    Comparison("v1", CASES[0], "hot", "1", Status.OK, "", [1e3] * 6, [1e3] * 5)


def forge_controls(_scene: Scene) -> None:
    Comparison("v1", CASES[0], "hot", "1", Status.OK, again=[inf])


def edit_results_file(scene: Scene) -> None:
    """One member of a results file is replaced, as somebody would who wants another time in it."""
    path, edited = scene.folder / "a.wwb", scene.folder / "b.wwb"
    info = git.describe(scene.repository.path, scene.head)
    with BundleWriter(path, "kernels", scene.repository.url, [info], "1") as bundle:
        outcome = Outcome(CPU, None, catalogue(), findings=[Finding("v1", CASES[0], Status.OK)])
        bundle.add(replace(REQUEST, sha=scene.head, base_sha=None), outcome, datetime.now(UTC), datetime.now(UTC))
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(edited, "w") as target:
        for name in source.namelist():
            data = source.read(name)
            target.writestr(name, data.replace(b'"v1"', b'"v2"') if "manifest" not in name else data)
    read_all(edited)


def read_all(path: Path) -> None:
    with BundleReader(path) as bundle:
        list(bundle.runs())


SABOTAGES: dict[str, tuple[Callable[[Scene], str], str]] = {
    "a dead graph: every slice takes the same, whatever it is asked for": (
        of_rounds("slower", NS, sabotage=lambda ns, number, wait: ns),
        Reason.CONTROL_MISSED,
    ),
    "a cache answers with the samples of the first round": (
        of_rounds("slower", NS, sabotage=lambda ns, number, wait: NS),
        Reason.CONTROL_MISSED,
    ),
    "the clock rounds to a tenth of the time": (
        of_rounds("slower", NS * 1.02, sabotage=lambda ns, number, wait: round(ns * (1 + wait), -4)),
        Reason.CONTROL_MISSED,
    ),
    "the card throttles within a round": (of_rounds("same", NS, sabotage=throttles), Reason.CONTROL_MOVED),
    "a neighbour takes 10 % in the first half of a round": (
        of_rounds("same", NS, sabotage=is_busy),
        Reason.CONTROL_MOVED,
    ),
    "a neighbour takes 10 % now and then": (of_rounds("same", NS, sabotage=is_busy_at_random), "verdict unsure"),
    "the base is throttled to half speed at random": (
        of_one_side("same", {"sabotage": lambda ns, number, wait: ns * (1 + wait) * (1 + number % 2)}, {}),
        Reason.CONTROL_MOVED,
    ),
    "the sides are measured by two metrics": (
        of_one_side("same", {}, {"metric": "cold"}),
        Status.UNSUPPORTED,
    ),
    "the base crashes": (of_one_side("same", {"status": Status.CRASHED}, {}), Reason.BASE_FAILED),
    "the head hangs": (of_one_side("same", {}, {"status": Status.TIMED_OUT}), Status.TIMED_OUT),
    "the clock stands": (raising(ValueError, of_rounds("same", NS, sabotage=lambda *_: 0.0)), "ValueError"),
    "the clock runs backwards": (raising(ValueError, of_rounds("same", NS, sabotage=lambda *_: -NS)), "ValueError"),
    "the clock is a thousand times too fast": (claim([1e12]), Status.WRONG),
    "the clock is a thousand times too slow": (claim([1e2] * 9), Status.WRONG),
    "the sensor says that the card is throttled": (raising(UnhealthyError, measure_on(HOT)), Reason.UNFIT_DEVICE),
    "the card reaches half of its ceilings": (
        raising(UnhealthyError, measure_on(replace(FIT, rates={"copy": 1.5e12, "f32": 2.6e13}))),
        Reason.UNFIT_DEVICE,
    ),
    "the wrong commit is checked out": (raising(CannotRunError, lay_out_another), Reason.HOST_FAULT),
    "base and head are swapped": (raising(CannotRunError, swap_commits), Reason.HOST_FAULT),
    "a file is edited after the checkout": (raising(CannotRunError, edit_checkout), Reason.HOST_FAULT),
    "the head's build is ignored": (raising(CannotRunError, ignore_build), Reason.HOST_FAULT),
    "the library of older sources lies in the store": (leave_stale_library, "rebuilt after 2 builds"),
    "base and head run with two interpreters": (
        raising(CannotRunError, mix_interpreters),
        Reason.INTERPRETER_MISMATCH,
    ),
    "a run that lost its job writes its results": (raising(StaleRunError, write_twice), "StaleRunError"),
    "the job runs on another device": (
        raising(OutcomeError, record(lambda _, outcome: replace(outcome, environment=GPU))),
        "OutcomeError",
    ),
    "a cell has two results": (
        raising(OutcomeError, record(lambda _, outcome: replace(outcome, findings=outcome.findings * 2))),
        "OutcomeError",
    ),
    "a case that no commit declares has a result": (
        raising(OutcomeError, record(lambda _, outcome: replace(outcome, findings=[Finding("v1", "n=2", Status.OK)]))),
        "OutcomeError",
    ),
    "a comparison lacks its base": (raising(OutcomeError, record(compare_alone)), "OutcomeError"),
    "rounds of one side are lost": (raising(ValueError, lose_rounds), "ValueError"),
    "controls are forged": (raising(ValueError, forge_controls), "ValueError"),
    "a results file is edited": (raising(BundleError, edit_results_file), "BundleError"),
}
"""By what is done to the pipeline: the sabotage, and what notices it: a reason, a status, an error or a verdict."""


@pytest.fixture
def scene(
    repository: Repository, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: Database
) -> Iterator[Scene]:
    base, head = (repository.commit(text, {"kernels/square.py": f"TEXT = {text!r}\n"}) for text in ("old", "new"))
    settings.home.mkdir(parents=True, exist_ok=True)
    tools = Tools(Host(replace(settings, fork_isolation="none"), "cpu"))
    yield Scene(repository, base, head, tools, tmp_path, monkeypatch, database)
    monkeypatch.undo()
    tools.close()
    shutil.rmtree(tmp_path / "libraries", ignore_errors=True)


@pytest.mark.parametrize("name", SABOTAGES)
def test_a_sabotage_is_noticed(name: str, scene: Scene) -> None:
    act, by = SABOTAGES[name]
    assert act(scene) == str(by)


def test_there_are_at_least_twenty_five() -> None:
    assert len(SABOTAGES) >= 25


def test_without_sabotage_all_is_green(scene: Scene) -> None:
    """The same pipeline decides by the truth: nothing that is honest is taken for a sabotage."""
    for head_ns, truth in ((NS, "same"), (NS * 1.02, "slower"), (NS / 1.02, "faster")):
        comparison = take_rounds(SimulatedCommit("base", NS), SimulatedCommit("head", head_ns))
        assert noticed(comparison, truth) == f"verdict {truth}"
    base, head = check_out(scene)
    texts = [side.root.read("kernels/square.py", 100) for side in (base, head)]
    assert texts == [b"TEXT = 'old'\n", b"TEXT = 'new'\n"]
