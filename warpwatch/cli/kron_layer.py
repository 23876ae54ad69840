"""Implementation of `warpwatch kron`.

Data, calls and tolerances are the harness's own, so that this command and a job agree.
"""

from __future__ import annotations

import math
import sys
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.benchmark import Compare, Timer

from warpwatch import native
from warpwatch.cli.build import local_checkout
from warpwatch.cli.kron import KronCommand
from warpwatch.settings import library_cache, trace_folder
from warpwatch.worker.harness.child.loader import Loader
from warpwatch.worker.harness.failures import WrongResultError
from warpwatch.worker.harness.oracle import Oracle, explain
from warpwatch.worker.harness.problem import CaseProblem

if TYPE_CHECKING:
    from warpwatch.operator import DeviceKind, Direction, Operator, Variant

SEED = 0
BENCH_SECONDS = 0.5
DIRECTIONS: tuple[Direction, Direction] = ("fwd", "bwd")


class KronError(Exception):
    """The command names something that does not exist; the message lists what exists."""


class Layer:
    """The operator `kron` of the local checkout, its variants ready to run on the order's device."""

    def __init__(self, order: KronCommand) -> None:
        self.order = order
        self.device = torch.device(order.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise KronError("--device cuda: torch finds no GPU here")
        root, project = local_checkout()
        native.configure(root / project.native, library_cache(), self.device.type)
        loader = Loader(root, project.operators)
        if "kron" not in loader.names():
            raise KronError(f"{root / project.operators} has no operator kron")
        self.operator: Operator = loader.load("kron")

    @cached_property
    def variants(self) -> dict[str, Variant]:
        """The variants that were asked for and can run this command; those that cannot are listed on standard error
        with the reason."""
        runnable, known = {}, self.operator.variants
        if unknown := [name for name in self.order.variants if name not in known]:
            raise KronError(f"--variants {','.join(unknown)}: choose from {', '.join(known)}")
        for name in self.order.variants or known:
            variant = known[name]
            reason = self._reason_unsupported(variant)
            if reason is None:
                runnable[name] = variant
            else:
                print(f"{name}: {reason}", file=sys.stderr)
        return runnable

    def problem(self, variant: Variant, direction: Direction) -> CaseProblem:
        return CaseProblem(self.operator, variant, self.order.case(direction), self.device)

    def _reason_unsupported(self, variant: Variant) -> str | None:
        kind: DeviceKind = "cuda" if self.device.type == "cuda" else "cpu"
        for direction in DIRECTIONS:
            reason = variant.reason_unsupported(self.order.case(direction), kind)
            if reason is not None:
                return f"unsupported: {reason}"
        return self._native_failure if variant.native else None

    @cached_property
    def _native_failure(self) -> str | None:
        try:
            native.load(self.operator.name)
        except native.NativeUnavailable as error:
            return f"{error.status}: {error}"
        if self.operator.native is not None:
            self.operator.native()
        return None


def check(layer: Layer) -> bool:
    """Prints norms of outputs (y) and of the gradients of x (g), then every pair of variants.

    True when all of them are right: the gradients of the weights are compared as well, and printed where variants
    differ.
    """
    results: dict[str, dict[Direction, dict[str, Tensor]]] = {}
    allowed: dict[Direction, dict[str, float]] = {direction: {} for direction in DIRECTIONS}
    right = True
    for name, variant in layer.variants.items():
        results[name] = {}
        for direction in DIRECTIONS:
            results[name][direction], tolerances = _judged(layer, name, variant, direction)
            right &= tolerances is not None
            allowed[direction] |= tolerances or {}
            printed, _ = _split(results[name][direction])
            print(f"||{name}_{_letter(direction)}|| = {_norm(printed)!r}")
    for one, other in combinations(results, 2):
        for direction in DIRECTIONS:
            letter = _letter(direction)
            both = zip(_split(results[one][direction]), _split(results[other][direction]), strict=True)
            (equal, difference), (weights_equal, of_weights) = (_compare(a, b, allowed[direction]) for a, b in both)
            print(f"{one}_{letter} == {other}_{letter}: {equal} ({difference:.1e})")
            if not weights_equal:
                print(f"{one} and {other}: gradients of the weights differ ({of_weights:.1e})", file=sys.stderr)
            right &= equal and weights_equal
    return right


def bench(layer: Layer) -> bool:
    """Prints the layer's size and cost, then a table of times on `--threads` CPU threads: one row forward, one for all
    gradients."""
    order = layer.order
    cost = layer.operator.cost(order.case("fwd"))
    print(f"state size : {order.state_size}")
    print(f"AI         : {order.intensity:.1e}")
    print(f"FLOP/byte  : {cost.flops / cost.bytes:.1e}")
    measurements = []
    for name, variant in layer.variants.items():
        for direction in DIRECTIONS:
            problem = layer.problem(variant, direction)
            with problem.modes():
                call = problem.call(problem.data(SEED))
                row = order.label if direction == "fwd" else f"{order.label} backward"
                labels = {"label": "benchmark", "sub_label": row, "description": name}
                timer = Timer("call()", globals={"call": call}, num_threads=order.threads, **labels)  # type: ignore[arg-type]
                measurements.append(timer.blocked_autorange(min_run_time=BENCH_SECONDS))
    Compare(measurements).print()
    return True


def profile(layer: Layer) -> bool:
    """Profiles forward and backward of one variant; writes traces to {impl}_{dtype}_{f1xf2}.{step}.json in the folder
    that the command names."""
    order = layer.order
    variant = layer.variants.get(order.implementation)
    if variant is None:
        raise KronError(f"--implementation {order.implementation}: choose from {', '.join(layer.variants)}")
    factors = "x".join(map(str, order.factors))
    folder = Path(order.output) if order.output else trace_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KronError(f"--output {folder}: {error.strerror}") from None

    def write(profiler: Any) -> None:
        path = folder / f"{order.implementation}_{order.dtype}_{factors}.{profiler.step_num}.json"
        profiler.export_chrome_trace(str(path))
        print(profiler.key_averages().table(sort_by=f"self_{layer.device.type}_time_total", row_limit=10))
        print(path)

    problem = layer.problem(variant, "bwd")
    data = problem.data(SEED)
    schedule = torch.profiler.schedule(wait=order.wait, warmup=order.warmup, active=order.active, repeat=1)
    with problem.modes(), torch.profiler.profile(schedule=schedule, on_trace_ready=write) as profiler:
        for _ in range(order.wait + order.warmup + order.active):
            problem.run(data)
            profiler.step()
    return True


def _judged(
    layer: Layer, name: str, variant: Variant, direction: Direction
) -> tuple[dict[str, Tensor], dict[str, float] | None]:
    """A variant's results, and the tolerance of each against the float64 oracle; None, with words on stderr, when one
    is wrong."""
    problem = layer.problem(variant, direction)
    with problem.modes():
        data = problem.data(SEED)
        try:
            results = problem.run(data)
            errors = Oracle(problem, data, lambda: data).judge(results)
        except WrongResultError as error:
            print(f"{name} {direction}: {error}", file=sys.stderr)
            return {}, None
    wrong = [error for error in errors if not error.right]
    for tensor in wrong:
        print(f"{name} {direction}: {explain(tensor, results[tensor.name])}", file=sys.stderr)
    detached = {key: result.detach() for key, result in results.items()}
    return detached, None if wrong else {tensor.name: tensor.tolerance for tensor in errors}


def _compare(one: dict[str, Tensor], other: dict[str, Tensor], allowed: dict[str, float]) -> tuple[bool, float]:
    """Whether all tensors agree, each variant's error counted, and the largest relative difference."""
    if one.keys() != other.keys() or any(one[name].shape != other[name].shape for name in one):
        return False, math.inf
    differences = {name: _relative(one[name], other[name]) for name in one}
    equal = all(difference <= 2 * allowed.get(name, 0.0) for name, difference in differences.items())
    return equal, max(differences.values(), default=math.inf)


def _split(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(the output, or the gradient of x; the gradients of the weights)."""
    weights = {name: tensor for name, tensor in tensors.items() if name.startswith("grad w")}
    return {name: tensor for name, tensor in tensors.items() if name not in weights}, weights


def _relative(one: Tensor, other: Tensor) -> float:
    scale = float(other.double().norm()) or 1.0
    return float((one.double() - other.double()).norm()) / scale


def _norm(tensors: dict[str, Tensor]) -> float:
    """Of all tensors together; NaN where there is no result."""
    if not tensors:
        return math.nan
    return math.hypot(*(float(tensor.double().norm()) for tensor in tensors.values()))


def _letter(direction: Direction) -> str:
    return "y" if direction == "fwd" else "g"
