"""What the kernel tests share: native libraries, built once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import libraries
from warpwatch import native
from warpwatch.contract.messages import CheckReply
from warpwatch.operator import Case, Direction, Operator, Precision, Size, Variant
from warpwatch.worker.harness.checks.check import check
from warpwatch.worker.harness.checks.probes import ProbeHistory
from warpwatch.worker.harness.problem import CaseProblem

ROOT = Path(__file__).parents[2]
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
COMPILED_IN_CI = ("vector_add",)
"""Operators whose variant of torch.compile every run checks, forward and backward. It is torch's code that those of the
others check, with a compiler that takes 2 to 20 seconds each, so nightly runs them."""


class OncePerOperator(ProbeHistory):
    """Puts each torch operator through opcheck once, whatever variant calls it, and with gradients where it has any."""

    with_gradients: bool = False

    def is_new(self, *key: str) -> bool:
        name, direction = key[-1].split()
        return (direction != "fwd" or not self.with_gradients) and super().is_new(name)


@dataclass(slots=True)
class Opchecks:
    """What was put through opcheck, by device.

    opcheck takes two thirds of the time of these tests. every_trace: of every variant, in each direction, as in a child
    of a worker, and for every kind of case that `_traced_as` tells apart, which --opcheck-all asks for.
    """

    every_trace: bool = False
    _histories: defaultdict[Any, ProbeHistory] = field(default_factory=lambda: defaultdict(ProbeHistory))
    _once: defaultdict[str, OncePerOperator] = field(default_factory=lambda: defaultdict(OncePerOperator))

    def of(self, operator: Operator, variant: Variant, case: Case, device: str) -> ProbeHistory:
        if self.every_trace:
            return self._histories[device, _traced_as(case)]
        history = self._once[device]
        backward = replace(case, direction="bwd")
        reason = variant.reason_unsupported(backward, "cuda" if device == "cuda" else "cpu")
        history.with_gradients = bool(operator.gradients) and reason is None
        return history


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
        # Nightly looks at results of the code that ships.
        with nullcontext() if _opchecks.every_trace else libraries.quick_flags():
            for library in operator.uses or (operator.name,):
                native.load(library)
            assert operator.native is not None
            operator.native()
        _registered.add(operator.name)
    return operator


def runnable(operator: Operator, cases: Iterable[Case], compiled: bool = False) -> list[Any]:
    """Parameters (variant, case, device) for what can run here; torch.compile takes seconds and is asked for on its
    own. Nightly runs what torch builds at the first call, and steps whose two halves every run checks."""
    cases = list(cases)
    steps = {
        case
        for case in cases
        if case.direction == "step" and {replace(case, direction="fwd"), replace(case, direction="bwd")} <= set(cases)
    }
    return [
        pytest.param(
            variant.name,
            case,
            device,
            id=f"{variant.name}-{case.key}-{device}",
            marks=[pytest.mark.nightly]
            if variant.name == "load_inline" or case in steps or (compiled and operator.name not in COMPILED_IN_CI)
            else [],
        )
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
        return check(problem, 7, _opchecks.of(operator, variant, case, device), lambda done, total, text: None)


def _traced_as(case: Case) -> tuple[Any, ...]:
    """What opcheck's traces of a case depend on.

    Tracing takes a second and its sizes are symbols, which stand for every size but 0 and 1.
    """
    sizes = {name: value if isinstance(value, tuple) else (value,) for name, value in case.sizes}
    special = [(name, [size if size in (0, 1) else None for size in value]) for name, value in sizes.items()]
    return case.precision, case.layout, str(special)


def sized(precision: Precision, direction: Direction, **sizes: Size) -> Case:
    return Case(tuple(sizes.items()), precision, direction)
