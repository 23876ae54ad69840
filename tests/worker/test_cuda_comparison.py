"""On a GPU, a comparison of honest code with itself accuses nobody, however short its kernels are."""

from __future__ import annotations

import pytest
import torch

from tests.worker.conftest import Diary, Repository
from warpwatch.contract.rounds import StopRule
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


def test_no_honest_pair_is_accused(settings: Settings, repository: Repository, diary: Diary) -> None:
    settings.home.mkdir(parents=True)
    base = repository.commit("Add cube", {"warpwatch.toml": 'operators = "kernels"\n', "kernels/cube.py": CUBE})
    head = repository.commit("Comment", {"kernels/cube.py": f"# The same.\n{CUBE}"})
    pairs = [(variant, f"n={n},f32,fwd") for variant in ("products", "power") for n in SIZES]
    spec = JobSpec(pairs=pairs, stop=StopRule(3, 1.005), rounds=6)
    tools = Tools(Host(settings, "cuda:0"))
    try:
        request = JobRequest(JobKind.COMPARE, repository.url, head, "cube", spec, base)
        comparisons = execute(request, tools, diary, settings.home).comparisons
    finally:
        tools.close()
    assert [(pair.status, pair.message) for pair in comparisons] == [(Status.OK, "")] * len(pairs)
    assert all(len(pair.ratios) >= 3 for pair in comparisons)
