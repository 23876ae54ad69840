"""What the kernel tests share: native libraries, built once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import libraries
from warpwatch import native
from warpwatch.contract.messages import CheckReply
from warpwatch.operator import Case, Direction, Operator, Precision, Size
from warpwatch.worker.harness.checks.check import check
from warpwatch.worker.harness.checks.probes import ProbeHistory
from warpwatch.worker.harness.problem import CaseProblem

ROOT = Path(__file__).parents[2]
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
COMPILED_IN_CI = ("vector_add", "embedding")
"""Operators whose variant of torch.compile every run checks, forward and backward. It is torch's code that those of the
others check, with a compiler that takes 2 to 20 seconds each, so nightly runs them."""


@dataclass(slots=True)
class Opchecks:
    """What was put through opcheck, by device.

    opcheck takes two thirds of the time of these tests, so each variant has it once in each direction, as in a child of
    a worker. every_trace: for every kind of case that `_traced_as` tells apart, which --opcheck-all asks for.
    """

    every_trace: bool = False
    _histories: defaultdict[Any, ProbeHistory] = field(default_factory=lambda: defaultdict(ProbeHistory))

    def of(self, case: Case, device: str) -> ProbeHistory:
        return self._histories[device, _traced_as(case) if self.every_trace else None]


_registered: set[str] = set()
_opchecks = Opchecks()


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Gives torch and our own code so many threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """What these tests compute is small, and threads that wait for each other would take a quarter of their time."""
    with threads(1):
        yield


@pytest.fixture(scope="session", autouse=True)
def _opcheck_every_trace(request: pytest.FixtureRequest) -> None:
    _opchecks.every_trace = request.config.getoption("--opcheck-all")


@pytest.fixture(scope="session")
def build_cache() -> Path:
    return libraries.build_cache()


@pytest.fixture(scope="module")
def operator(request: pytest.FixtureRequest, build_cache: Path) -> Operator:
    """The operator that a test file is about, which it imports as `module`, with its library loaded."""
    return ready(request.module.module.operator, build_cache)


@pytest.fixture
def _fresh_native() -> Iterator[None]:
    """native's state as it was, after tests that configure it otherwise."""
    before = native._state
    yield
    native._state = before


def ready(operator: Operator, cache: Path) -> Operator:
    """`operator` with its library loaded: for the GPU where there is one, which covers the CPU as well."""
    if operator.name not in _registered:
        native.configure(ROOT / "csrc", cache, DEVICES[-1], fingerprints=False)
        with libraries.quick_flags():
            for library in operator.uses or (operator.name,):
                native.load(library)
            assert operator.native is not None
            operator.native()
        _registered.add(operator.name)
    return operator


def runnable(operator: Operator, cases: Iterable[Case], compiled: bool = False) -> list[Any]:
    """Parameters (variant, case, device) for what can run here; torch.compile takes seconds and is asked for on its
    own."""
    marks = [pytest.mark.nightly] if compiled and operator.name not in COMPILED_IN_CI else []
    return [
        pytest.param(variant.name, case, device, id=f"{variant.name}-{case.key}-{device}", marks=marks)
        for device in DEVICES
        for variant in operator.variants.values()
        for case in cases
        if (variant.name == "compile") is compiled
        and variant.reason_unsupported(case, "cuda" if device == "cuda" else "cpu") is None
    ]


def check_variant(operator: Operator, name: str, case: Case, device: str) -> CheckReply:
    """What the harness says of a variant that can run. Our own code divides its work among two threads."""
    variant = operator.variants[name]
    problem = CaseProblem(operator, variant, case, torch.device(device))
    with threads(2 if variant.native else 1):
        return check(problem, 7, _opchecks.of(case, device), lambda done, total, text: None)


def _traced_as(case: Case) -> tuple[Any, ...]:
    """What opcheck's traces of a case depend on.

    Tracing takes a second and its sizes are symbols, which stand for every size but 0 and 1.
    """
    sizes = {name: value if isinstance(value, tuple) else (value,) for name, value in case.sizes}
    special = [(name, [size if size in (0, 1) else None for size in value]) for name, value in sizes.items()]
    return case.precision, case.layout, str(special)


def sized(precision: Precision, direction: Direction, **sizes: Size) -> Case:
    return Case(tuple(sizes.items()), precision, direction)
