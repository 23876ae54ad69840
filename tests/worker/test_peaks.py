"""The ceilings of a device: measured once, and on a CPU once more where nothing else of ours runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.worker import probes
from tests.worker.conftest import Diary, Repository
from warpwatch.contract.spec import JobRequest, JobSpec
from warpwatch.contract.words import JobKind
from warpwatch.worker.execution import execute
from warpwatch.worker.host import Host
from warpwatch.worker.tools import MeasuredPeaks, Tools, read_peaks, store_peaks


@pytest.fixture
def tools(host: Host) -> Iterator[Tools]:
    tools = Tools(host)
    yield tools
    tools.close()


@pytest.fixture
def key(tools: Tools) -> str:
    return tools.identify(Diary())[0].key


def lay_in(host: Host, key: str, copy: float, f32: float, at_rest: bool = False) -> None:
    store_peaks(host.home, key, MeasuredPeaks({"copy": copy, "f32": f32}, at_rest))


def test_a_bench_measures_again_what_was_measured_beside_others(tools: Tools, key: str, repository: Repository) -> None:
    lay_in(tools.host, key, copy=1e3, f32=1e18)
    spec = JobSpec(variants=["ok"], cases=["n=100,f32,fwd"], budget_ns=10_000_000)
    sha = repository.commit("good", probes.files())
    for kind, is_again in ((JobKind.CHECK, False), (JobKind.BENCH, True)):
        job = JobRequest(kind, repository.url, sha, "probe", spec)
        peaks = execute(job, tools, Diary(), tools.host.home).peaks
        assert peaks is not None
        assert peaks["f32"] == 1e18, "the highest counts"
        assert (peaks["copy"] > 1e8) is is_again


def test_what_was_measured_at_rest_stays(tools: Tools, key: str) -> None:
    lay_in(tools.host, key, copy=1e3, f32=1e3, at_rest=True)
    diary = Diary()
    tools.measure_peaks_at_rest(diary)
    assert read_peaks(tools.host.home, key) == MeasuredPeaks({"copy": 1e3, "f32": 1e3}, at_rest=True)
    assert diary.lines == []


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", '{"copy": 1e10}', '{"values": {"copy": "much"}, "at_rest": true}']
)
def test_a_file_that_cannot_be_used_counts_as_none(host: Host, text: str) -> None:
    (host.home / "peaks").mkdir(exist_ok=True)
    (host.home / "peaks" / "key.json").write_text(text)
    assert read_peaks(host.home, "key") is None


def test_bounds_and_not_ceilings_of_a_busy_host_accuse_on_a_cpu(tools: Tools, key: str) -> None:
    """Products that other work interrupts made honest ones of a third of their size look 30 times too fast."""
    ceilings = {"copy": 1e3, "f32": 1e5}
    lay_in(tools.host, key, **ceilings, at_rest=True)
    diary = Diary()
    limits = tools.time_limits(ceilings, diary)
    assert limits.objection([1e5] * 9, 10**6, 10**6, elapsed_seconds=1.0) is None, "a megabyte in 100 µs is plausible"
    assert diary.lines == ["measuring the bounds of this device"]
    assert limits.objection([1.0] * 9, 10**6, 10**6, elapsed_seconds=1.0) is not None
    known = read_peaks(tools.host.home, key)
    assert known is not None
    assert known.values == ceilings, "bounds are no ceilings of a roofline"
