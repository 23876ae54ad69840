"""On a GPU, a comparison of honest code with itself accuses nobody, however short its kernels are and however long the
host takes."""

from __future__ import annotations

from statistics import median

import pytest
import torch

from tests.worker.conftest import Diary, Repository
from warpwatch.contract.outcome import Comparison
from warpwatch.contract.rounds import StopRule, interval_of_rounds, launch_ratio
from warpwatch.contract.spec import JobRequest, JobSpec
from warpwatch.contract.words import JobKind, Status
from warpwatch.settings import Settings
from warpwatch.worker.execution import execute
from warpwatch.worker.host import Host
from warpwatch.worker.tools import Tools

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]
SIZES = (2**14, 2**16, 2**18, 2**20)
CUBE = f"""
import torch

from warpwatch import Cost, Operator, case


def inputs(case, make):
    return {{"x": make.normal(case["n"])}}


def reference(x):
    return x * x * x


operator = Operator(
    "cube", "Element-wise cube.", inputs=inputs, reference=reference,
    cost=lambda case: Cost(flops=2 * case["n"], bytes=8 * case["n"]),
    cases={{"quick": [case(n=n) for n in {SIZES}]}},
)


@operator.variant("products", idea="two products")
def products(x):
    return x * x * x


@operator.variant("power", idea="one power")
def power(x):
    return torch.pow(x, 3)
"""


WAITING = """

def wait(microseconds):
    from time import perf_counter_ns

    end = perf_counter_ns() + 1000 * microseconds
    while perf_counter_ns() < end:
        pass


@operator.variant("slower", idea="waits on the host at the head")
def slower(x):
    wait({at_head})
    return x * x * x


@operator.variant("faster", idea="waits on the host at the base")
def faster(x):
    wait({at_base})
    return x * x * x


@operator.variant("reads", idea="waits for the device at the head")
def reads(x):
    if {at_head}:
        torch.cuda.current_stream().synchronize()
    return x * x * x
"""


def compare(
    settings: Settings, repository: Repository, diary: Diary, sources: tuple[str, str], pairs: list[tuple[str, str]]
) -> list[Comparison]:
    """The comparisons of two commits with these sources of the operator."""
    settings.home.mkdir(parents=True)
    base, head = (
        repository.commit("Change", {"warpwatch.toml": 'operators = "kernels"\n', "kernels/cube.py": source})
        for source in sources
    )
    spec = JobSpec(pairs=pairs, stop=StopRule(3, 1.005), rounds=6)
    tools = Tools(Host(settings, "cuda:0"))
    try:
        request = JobRequest(JobKind.COMPARE, repository.url, head, "cube", spec, base)
        return execute(request, tools, diary, settings.home).comparisons
    finally:
        tools.close()


def test_no_honest_pair_is_accused(settings: Settings, repository: Repository, diary: Diary) -> None:
    pairs = [(variant, f"n={n},f32,fwd") for variant in ("products", "power") for n in SIZES]
    comparisons = compare(settings, repository, diary, (CUBE, f"# The same.\n{CUBE}"), pairs)
    assert [(item.variant, item.case, item.metric) for item in comparisons] == [
        (*pair, metric) for pair in pairs for metric in ("graph", "launch")
    ]
    assert [(item.status, item.message) for item in comparisons] == [(Status.OK, "")] * len(comparisons)
    assert all(len(item.ratios) >= 3 for item in comparisons)


def test_time_on_the_host_changes_launch_alone(settings: Settings, repository: Repository, diary: Diary) -> None:
    sources = [CUBE + WAITING.format(at_base=base, at_head=head) for base, head in ((300, 0), (0, 300))]
    pairs = [(variant, f"n={n},f32,fwd") for variant in ("slower", "faster") for n in SIZES[-2:]]
    comparisons = compare(settings, repository, diary, (sources[0], sources[1]), pairs)
    assert len(comparisons) == 2 * len(pairs)
    for item in comparisons:
        low, high = interval_of_rounds(item.ratios) or (0.0, 0.0)
        print(item.variant, item.case, item.metric, item.ratios, item.again, item.waited)
        if item.metric == "graph":
            assert abs(median(item.ratios) - 1) < 0.004
        else:
            bound = launch_ratio(item.base_ns)
            assert (low > bound) if item.variant == "slower" else (high < 1 / bound)


def test_a_head_that_begins_to_wait_for_the_device_is_told(
    settings: Settings, repository: Repository, diary: Diary
) -> None:
    sources = [CUBE + WAITING.format(at_base=0, at_head=head) for head in (0, 1)]
    pairs = [("reads", f"n={SIZES[0]},f32,fwd")]
    device, launch = compare(settings, repository, diary, (sources[0], sources[1]), pairs)
    print(device, launch)
    assert (device.metric, device.status) == ("kernel", Status.OK)
    assert launch.status is Status.UNSUPPORTED
    assert launch.message.startswith("head: no launch: every call returned after the device had slept")
