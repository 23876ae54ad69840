"""Classes that an operator file imports: Case, Cost, Variant, Operator.

An operator file imports this module only, defines one module-level `operator`, and decorates its variants::

    operator = Operator("square", "Element-wise square.", inputs=inputs, reference=reference, cost=cost, cases=cases)

    @operator.variant("v1", idea="one torch call")
    def v1(a: Tensor) -> Tensor:
        return torch.square(a)

This module imports the standard library only, so that reading a catalogue needs no torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from warpwatch.contract.case import Case, Direction, Precision, Size, derive_case
from warpwatch.contract.catalogue import MOST_TIMEOUT_FACTOR, SizeQuestion
from warpwatch.contract.measurement import Curves

__all__ = [
    "CONTRACT",
    "Case",
    "Cost",
    "Curves",
    "DeviceKind",
    "Direction",
    "Maker",
    "Operator",
    "Precision",
    "QuantizedOutput",
    "Size",
    "SizeQuestion",
    "Variant",
]

if TYPE_CHECKING:
    from torch import Tensor

DeviceKind = Literal["cpu", "cuda"]
CONTRACT = 1
"""Version of the contract between operator files and the harness; a commit that asks for another is not measured."""


def case(precision: Precision = "f32", direction: Direction = "fwd", layout: str = "contiguous", **sizes: Size) -> Case:
    """A Case in one readable line: `case("f32", "bwd", batch=32, factors=(128, 128))`, or with number formats
    `case("bf16", m=64, n=64, k=64, a="e4m3-row", b="e4m3-row")`."""
    return Case(tuple(sizes.items()), precision, direction, layout)


def both_directions(*cases: Case, directions: Sequence[Direction] | None = None) -> tuple[Case, ...]:
    """Every case given, forward (`fwd`) and backward (`bwd`), and the first case as a training step (`step`) as well.
    directions: of every case, instead of these."""
    if directions is None:
        return (*both_directions(*cases, directions=("fwd", "bwd")), *both_directions(*cases[:1], directions=("step",)))
    return tuple(replace(case, direction=direction) for case in cases for direction in directions)


def gap(remedy: str) -> Any:
    """Stands for what nobody has written yet. Raises NotImplementedError with the file and line of the call."""
    caller = sys._getframe(1)
    file = "/".join(Path(caller.f_code.co_filename).parts[-2:])
    raise NotImplementedError(f"{file}, line {caller.f_lineno}: {remedy}")


@dataclass(frozen=True, slots=True)
class Cost:
    """Least work of a case: floating-point operations (a multiply-add is 2) and bytes moved, each byte read or written
    once."""

    flops: int
    bytes: int


class Maker(Protocol):
    """Makes the tensors of one case: seeded, on the device under test, in the dtype of the case's precision."""

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Normal numbers with standard deviation `scale`, in the case's dtype. ValueError in an i32 case."""
        ...

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Integers in [low, high): int32 in i32 cases, elsewhere int64, which torch accepts as indices."""
        ...

    def codes(self, number_format: str, rows: int, columns: int) -> tuple[Tensor, Any]:
        """(codes, scales) of a matrix in a number format, with all finite codes, extremes, zeros, denormals, equal
        blocks and blocks with one outlier. scales: None without any, (of blocks, of the tensor) for nvfp4."""
        ...

    def quantizable(self, number_format: str, rows: int, columns: int) -> Tensor:
        """A matrix in the case's dtype to quantize to a number format, with ties, extremes, zeros, denormals, equal
        blocks and blocks with one outlier."""
        ...


@dataclass(frozen=True, slots=True)
class QuantizedOutput:
    """Outputs of a quantizer, which are judged code by code and scale by scale.

    source -> the input that is quantized, a matrix.
    number_format -> the format of the codes, such as `e4m3-row`.
    codes -> which output holds the codes.
    scale -> which output holds the scales of the blocks; None where the format has none.
    tensor_scale -> which output is the scale of the whole tensor, for nvfp4.
    rounding -> `nearest_even`, or `stochastic`: up with the probability of the distance.
    transposed -> whether the codes are those of the transposed matrix.
    """

    source: str
    number_format: str
    codes: int = 0
    scale: int | None = 1
    tensor_scale: int | None = None
    rounding: Literal["nearest_even", "stochastic"] = "nearest_even"
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class Variant:
    """One implementation of an operator.

    name -> unique within the operator; by convention v1, v2 … or the name of the package that it calls.
    function(**inputs) -> the same results as the reference's, in the same order.
    devices -> kinds of devices that it can run on.
    idea -> one line on how it computes.
    outcome -> one line of words on what limits the idea, such as memory bandwidth. It holds no figures and ranks no
        variants: the operator's page computes both from stored results of the device that it shows.
    unsupported(case, device) -> the reason why it cannot run there, or None.
    native -> whether it calls the operator's own library, which the harness builds and loads first.
    prepare(**inputs) -> further keyword arguments for `function` (a converted format, a plan, an autotuned choice). It
        runs once per set of numbers; its time is reported as `setup`. It is part of a call's only where a call depends
        on nothing but what was prepared, since every new input then needs it again. It must not compute the answer.
    no_special_values -> why NaN and infinities spread further in this formula than in the reference (a transform, a
        product with zeros); empty where they do not.
    since -> the commit (a full id, or a tag) that brought what it calls; only that commit and its descendants have the
        variant. For definitions that lie beside the history they measure.
    """

    name: str
    function: Callable[..., Any]
    idea: str
    outcome: str = ""
    devices: tuple[DeviceKind, ...] = ("cpu", "cuda")
    native: bool = False
    unsupported: Callable[[Case, DeviceKind], str | None] = lambda case, device: None
    prepare: Callable[..., dict[str, Any]] | None = None
    no_special_values: str = ""
    since: str = ""

    def reason_unsupported(self, case: Case, device: DeviceKind) -> str | None:
        """Why this variant cannot run `case` on `device`; None when it can."""
        if device not in self.devices:
            return f"{self.name} has no implementation for {device}"
        return self.unsupported(case.as_declared, device)


@dataclass(frozen=True, slots=True)
class Operator:
    """A mathematical function: its inputs, its reference, its cost, its cases and its variants.

    name -> the name of the operator's file.
    summary -> one line for the operator's page.
    gradients -> names of the inputs that cases of all directions but fwd differentiate; a missing gradient is wrong.
    case_of(**inputs) -> the case that has these inputs, with the sizes and the layout that any variant's `unsupported`
        reads; the caller knows precision and direction. A call through warpwatch.load asks it whether the variant takes
        its inputs. Operators whose variants never ask for sizes do without.
    variants -> filled by the decorator `variant`.
    inputs(case, make) -> dict of keyword arguments for `reference` and every variant. Floating-point tensors
        named in `gradients` are differentiated in cases of all directions but fwd. This function and those below see
        cases in the directions fwd and bwd alone: bwd stands for `step` and `fwd_train` as well.
    reference(**inputs) -> Tensor or tuple of Tensors. The harness calls it with float64 copies of the inputs
        and differentiates it; it is the oracle, so it is written for clarity alone. A variant's results must lie on the
        same device as the reference's.
    by_torch(**inputs) -> torch's own implementation, for operators where it errs more than the reference does in the
        case's precision. The tolerance is then widened by its error instead of the reference's.
    cost(case) -> Cost of that case, in the case's direction. That of a step is the sum of both.
    depth(case) -> length of the longest sum behind one output element, in a backward case of a gradient's element;
        tolerances grow with it.
    cases -> suite name ("quick", "full") to cases; "full" contains "quick" only where the mapping repeats its cases.
        Cases of the suite "edge" (length 1, empty, odd, tile ± 1) are checked with either of them, and timed only
        where a filter names them.
    native -> called once after the operator's library was loaded: registers fake kernels and autograd with torch.
    no_special_values -> why NaN, infinities and denormals in the inputs mean nothing here; empty where they do.
    quantized(case) -> of a quantizer: the outputs that hold codes and scales.
    curves(case, *outputs) -> Curves to draw of a right result in a forward case, or None.
    uses -> operators whose libraries the native variants call, by default this one alone. A list replaces the default:
        name this operator in it as well if it has a library.
    batch -> the size of a case that counts independent rows, the leading dimension of inputs and results. A check runs
        some of them as a smaller batch, and says whether their bits stay the same. Where it is empty, a check takes a
        size that the cases vary.
    timeout_factor -> how many times WARPWATCH_CASE_TIMEOUT a variant may take for one of its cases, 1 to 10; for
        references that take minutes.
    questions -> questions that the operator's page answers from times over one size, such as from which sparsity on
        another variant beats the dense one.
    """

    name: str
    summary: str
    inputs: Callable[[Case, Maker], dict[str, Any]]
    reference: Callable[..., Any]
    cost: Callable[[Case], Cost]
    cases: Mapping[str, tuple[Case, ...]]
    gradients: tuple[str, ...] = ()
    case_of: Callable[..., Case] | None = None
    depth: Callable[[Case], int] = lambda case: 1
    by_torch: Callable[..., Any] | None = None
    native: Callable[[], None] | None = None
    no_special_values: str = ""
    quantized: Callable[[Case], tuple[QuantizedOutput, ...]] = lambda case: ()
    curves: Callable[..., Curves | None] = lambda case, *outputs: None
    uses: tuple[str, ...] = ()
    batch: str = ""
    timeout_factor: float = 1.0
    questions: tuple[SizeQuestion, ...] = ()
    variants: dict[str, Variant] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """ValueError for a time limit that the service does not grant."""
        if not 1 <= self.timeout_factor <= MOST_TIMEOUT_FACTOR:
            raise ValueError(
                f"operator {self.name}: timeout_factor must be 1 to {MOST_TIMEOUT_FACTOR}, not {self.timeout_factor}"
            )

    def variant(self, name: str, *, idea: str, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register the decorated function as variant `name`; `options` are the fields of Variant."""

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            if name in self.variants:
                raise ValueError(f"operator {self.name} has two variants called {name}")
            self.variants[name] = Variant(name, function, idea, **options)
            return function

        return register

    def cost_of(self, case: Case) -> Cost:
        """The least work of a case in any direction. A step costs the forward and the backward pass; to record what the
        backward pass needs is no work of the operator's."""
        forward, declared = replace(case, direction="fwd"), case.as_declared
        if case.direction != "step":
            return self.cost(declared if case.direction == "bwd" else forward)
        costs = self.cost(forward), self.cost(declared)
        return Cost(sum(cost.flops for cost in costs), sum(cost.bytes for cost in costs))

    def all_cases(self) -> tuple[Case, ...]:
        """Every case of every suite, each once, in order of first appearance."""
        return tuple(dict.fromkeys(case for suite in self.cases.values() for case in suite))

    def find_case(self, key: str) -> Case | None:
        """The case of this key, declared or derived from those that are; None where the operator cannot have it."""
        declared = self.all_cases()
        case = next((case for case in declared if case.key == key), None)
        if case is not None:
            return case
        try:
            derived = derive_case(key, declared)
        except ValueError:
            return None
        return derived if derived.key == key else None
