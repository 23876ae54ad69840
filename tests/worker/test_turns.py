"""Children of one job take turns on its device."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.waiting import wait_until
from tests.worker import probes
from tests.worker.conftest import SCRIPTED, Diary, Repository, identify
from warpwatch.contract.spec import JobRequest, JobSpec
from warpwatch.contract.words import JobKind, LaneUse, Status
from warpwatch.settings import Settings
from warpwatch.worker import execution, levels
from warpwatch.worker.child import Child, ChildFailure, ChildSpec
from warpwatch.worker.execution import execute
from warpwatch.worker.host import Host
from warpwatch.worker.reporter import Stopped
from warpwatch.worker.tools import Tools
from warpwatch.worker.turns import DeviceTurns, LaneTurns

CASES = ["n=100,f32,fwd", "n=101,f32,fwd"]
FATES = {"ok": Status.OK, "last": Status.OK, "wrong": Status.WRONG, "unsupported": Status.UNSUPPORTED}


def never() -> None:
    return None


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def test_one_lane_at_a_time_has_the_device(pool: ThreadPoolExecutor) -> None:
    turns = DeviceTurns(3)
    first, second, capturing = (LaneTurns(turns) for _ in range(3))
    first.use(LaneUse.DEVICE, never)
    second_has_it = pool.submit(second.use, LaneUse.DEVICE, never)
    capturing.use(LaneUse.HOST, never)
    time.sleep(0.05)
    assert not second_has_it.done()
    first.use(LaneUse.HOST, never)
    assert second_has_it.result(20) >= 0.05


def test_what_times_its_host_waits_for_captures_and_they_wait_for_it(pool: ThreadPoolExecutor) -> None:
    turns = DeviceTurns(2)
    capturing, quiet = LaneTurns(turns), LaneTurns(turns)
    capturing.use(LaneUse.HOST, never)
    waiting = pool.submit(quiet.use, LaneUse.QUIET, never)
    wait_until(lambda: turns._waiting_for_quiet > 0)
    # It makes room when it pauses.
    again = pool.submit(capturing.use, LaneUse.HOST, never)
    waiting.result(20)
    assert not again.done()
    quiet.leave()
    again.result(20)


def test_what_has_the_device_keeps_it_while_it_waits_for_quiet(pool: ThreadPoolExecutor) -> None:
    turns = DeviceTurns(3)
    timing, capturing, next_one = (LaneTurns(turns) for _ in range(3))
    timing.use(LaneUse.DEVICE, never)
    capturing.use(LaneUse.HOST, never)
    taken = pool.submit(next_one.use, LaneUse.DEVICE, never)
    quiet = pool.submit(timing.use, LaneUse.QUIET, never)
    wait_until(lambda: turns._waiting_for_quiet > 0)
    time.sleep(0.05)
    assert not quiet.done()
    assert not taken.done()
    capturing.leave()
    quiet.result(20)
    timing.use(LaneUse.DEVICE, never)
    assert not taken.done()
    timing.leave()
    taken.result(20)


def test_a_lane_that_stops_while_it_waits_for_quiet_gives_the_device_up() -> None:
    turns = DeviceTurns(2)
    timing, capturing = LaneTurns(turns), LaneTurns(turns)
    timing.use(LaneUse.DEVICE, never)
    capturing.use(LaneUse.HOST, never)
    with pytest.raises(Stopped, match="cancelled"):
        timing.use(LaneUse.QUIET, lambda: "cancelled")
    capturing.use(LaneUse.DEVICE, never)


def test_children_start_together_and_not_beside_what_is_timed(pool: ThreadPoolExecutor) -> None:
    turns = DeviceTurns(3)
    first, second, timing = (LaneTurns(turns) for _ in range(3))
    first.use(LaneUse.OPENING, never)
    second.use(LaneUse.OPENING, never)
    timed = pool.submit(timing.use, LaneUse.DEVICE, never)
    first.leave()
    time.sleep(0.05)
    assert not timed.done()
    second.leave()
    timed.result(20)


def test_a_job_that_must_stop_waits_for_no_turn() -> None:
    turns = DeviceTurns(2)
    holder = LaneTurns(turns)
    holder.use(LaneUse.DEVICE, never)
    with pytest.raises(Stopped, match="cancelled"):
        LaneTurns(turns).use(LaneUse.QUIET, lambda: "cancelled")
    # Nobody waits any more.
    LaneTurns(turns).use(LaneUse.HOST, never)


@pytest.fixture
def turns() -> DeviceTurns:
    return DeviceTurns(2)


@pytest.fixture
def child(tmp_path: Path, diary: Diary, turns: DeviceTurns) -> Iterator[Child]:
    spec = ChildSpec(tmp_path, "cpu", tmp_path / "cache", 1, bootstrap=SCRIPTED)
    child = Child(spec, levels.confinement(tmp_path, 2**30), diary, LaneTurns(turns))
    child.wait_ready()
    yield child
    child.close()


def test_a_child_waits_for_its_turn_without_losing_time(
    child: Child, diary: Diary, turns: DeviceTurns, pool: ThreadPoolExecutor
) -> None:
    other = LaneTurns(turns)
    other.use(LaneUse.DEVICE, never)
    child.send("bench", variant="times", case="device")
    threading.Timer(1.0, other.leave).start()
    # The limit is shorter than the wait, which it leaves out.
    assert child.receive(0.8, diary)["message"] == "['turn']"
    other.use(LaneUse.DEVICE, never)


@pytest.mark.usefixtures("bare_templates")
@pytest.mark.parametrize(("variant", "use"), [("segfault", ""), ("times", "twice"), ("times then dies", "device")])
def test_whatever_a_child_does_the_others_get_the_device(
    child: Child, diary: Diary, turns: DeviceTurns, variant: str, use: str
) -> None:
    child.send("bench", variant=variant, case=use)
    with pytest.raises(ChildFailure) as caught:
        child.receive(20, diary)
    assert caught.value.status is Status.CRASHED
    LaneTurns(turns).use(LaneUse.QUIET, lambda: "the device is taken")


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[Tools]:
    settings = Settings(home=tmp_path / "home", case_timeout_seconds=60, memory_bytes=8 * 2**30)
    identify(settings.home)
    tools = Tools(Host(settings, "cpu"))
    yield tools
    tools.close()


@pytest.mark.parametrize(
    ("kind", "fates", "uses"),
    [
        (JobKind.BENCH, FATES, {LaneUse.DEVICE}),
        # A profile shows what a call does, right or wrong.
        pytest.param(
            JobKind.PROFILE,
            FATES | {"wrong": Status.OK},
            {LaneUse.DEVICE, LaneUse.QUIET},
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_what_is_timed_in_several_lanes_says_what_it_does_in_a_single_one(
    tools: Tools,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: JobKind,
    fates: dict[str, Status],
    uses: set[LaneUse],
) -> None:
    monkeypatch.setattr(execution, "lanes_of", lambda host, kind, cells: 2)
    beside: list[tuple[LaneUse, list[LaneUse]]] = []
    use_device = DeviceTurns.use

    def use(self: DeviceTurns, lane: LaneTurns, use: LaneUse, should_stop: Callable[[], str | None]) -> None:
        use_device(self, lane, use, should_stop)
        with self._changed:
            beside.append((use, [other for who, other in self._uses.items() if who is not lane]))

    monkeypatch.setattr(DeviceTurns, "use", use)
    repository = Repository(tmp_path / "repository")
    sha = repository.commit("probes", probes.files())
    spec = JobSpec.from_stored({"variants": list(FATES), "cases": CASES, "budget_ns": 20_000_000})
    (tmp_path / "traces").mkdir()
    request = JobRequest(kind, repository.url, sha, "probe", spec)
    outcome = execute(request, tools, Diary(), tmp_path / "traces")
    assert {(found.variant, found.status) for found in outcome.findings} == set(fates.items())
    assert len(outcome.findings) == len(FATES) * len(CASES)
    # Each has the device from its first call on.
    assert sum(use in uses for use, _ in beside) >= 3 * len(CASES)
    assert [others for use, others in beside if use in uses and not uses.isdisjoint(others)] == []
    traces = [found.profile.path for found in outcome.findings if found.profile is not None and found.profile.path]
    assert len(traces) == len(set(traces)) == (3 * len(CASES) if kind is JobKind.PROFILE else 0)
    assert any(others for _, others in beside)
