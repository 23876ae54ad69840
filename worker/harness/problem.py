"""One variant on one case: its seeded inputs, how it is called, and its float64 oracle."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any

import torch
from torch import Tensor

from warpwatch.contract.activities import Activity
from warpwatch.contract.words import Fault, Status
from warpwatch.operator import Case, DeviceKind, Direction, Operator, Variant
from warpwatch.quantization import is_coded

from .coded_inputs import draw_codes, draw_quantizable
from .driver import cuda_driver
from .failures import Refusal, WrongResultError
from .turns import STOPWATCH, ChildTurns

DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "3xtf32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "i32": torch.int32,
}


class SeededMaker:
    """The Maker that operator files use: the same seed gives the same tensors on the same kind of device."""

    def __init__(self, seed: int, device: torch.device, precision: str) -> None:
        self.seed = seed
        self._device = device
        self._dtype = DTYPES[precision]
        self._generator = torch.Generator(device=device)
        self._generator.manual_seed(seed)

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Normal numbers with standard deviation `scale`, in the case's dtype; ValueError in an i32 case."""
        if not self._dtype.is_floating_point:
            raise ValueError("make.normal makes floating-point numbers: use make.integers in cases of precision i32")
        drawn_as = torch.float64 if self._dtype == torch.float64 else torch.float32
        drawn = torch.randn(shape, generator=self._generator, device=self._device, dtype=drawn_as)
        return drawn.mul_(scale).to(self._dtype)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Integers in [low, high): int32 in i32 cases, elsewhere int64, which torch accepts as indices."""
        dtype = torch.int64 if self._dtype.is_floating_point else self._dtype
        return torch.randint(low, high, shape, generator=self._generator, device=self._device, dtype=dtype)

    def codes(self, number_format: str, rows: int, columns: int) -> tuple[Tensor, Any]:
        """(codes, scales) of a matrix in a number format, see coded_inputs.py."""
        return draw_codes(number_format, rows, columns, self._generator)

    def quantizable(self, number_format: str, rows: int, columns: int) -> Tensor:
        """A matrix in the case's dtype that is hard to quantize to a number format."""
        return draw_quantizable(number_format, rows, columns, self._dtype, self._generator)


@contextmanager
def precision_switches(precision: str) -> Iterator[None]:
    """Turns TF32 on for tf32 cases and off for all others, whatever an operator file set; restores it afterwards."""
    matmul, convolution = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    use_tf32 = precision == "tf32"
    torch.set_float32_matmul_precision("high" if use_tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = use_tf32
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = convolution


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor: Tensor) -> Tensor:
    """The bits of the tensor as integers, which compare equal where both are the same NaN."""
    return tensor.detach().contiguous().view(_INTEGERS[tensor.element_size()])


def index_of(flat: int, shape: torch.Size) -> list[int]:
    """The index of the element at `flat` in row-major order.

    torch.unravel_index imports sympy, which takes seconds in every child.
    """
    index: list[int] = []
    for size in reversed(shape):
        flat, place = divmod(flat, size)
        index.append(place)
    return index[::-1]


_POISON_INTEGER = 77
_POISON_NAN = {2: 0x7FFB, 4: 0x7FFB_7FFB, 8: 0x7FFB_7FFB_7FFB_7FFB}
"""Bits of a NaN, by bytes of an element, that no computation makes: its own NaN has other bits."""
_MOSTLY_POISON = 0.9


def poison_memory(shapes: Iterable[tuple[tuple[int, ...], torch.dtype]], device: torch.device) -> None:
    """Leaves poison in the memory that the allocator hands out next for tensors of these shapes, so that an element
    that is never written is not zero."""
    poisoned = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in shapes]
    for tensor in poisoned:
        fill_with_poison(tensor)
    del poisoned


def fill_with_poison(tensor: Tensor) -> None:
    """Fills a tensor with a NaN that no computation makes, or with 77."""
    if tensor.dtype.is_floating_point and tensor.element_size() in _POISON_NAN:
        # A view shares the memory; a detached tensor needs no gradient.
        tensor.detach().view(_INTEGERS[tensor.element_size()]).fill_(_POISON_NAN[tensor.element_size()])
    else:
        tensor.detach().fill_(float("nan") if tensor.dtype.is_floating_point else _POISON_INTEGER)


def is_poison(result: Tensor) -> bool:
    """Whether it is the NaN of `fill_with_poison`, but for a few bytes that an allocator writes into memory that was
    freed."""
    pattern = _POISON_NAN.get(result.element_size())
    if not result.numel() or not result.is_floating_point() or pattern is None:
        return False
    return bool((bits(result) == pattern).float().mean() > _MOSTLY_POISON)


def map_tensors(function: Callable[[Tensor], Any], value: Any) -> Any:
    """`value` with every tensor in its lists, tuples and dicts replaced by function(tensor)."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: map_tensors(function, item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map_tensors(function, item) for item in value)
    return value


def named_tensors(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor in `value` with a name such as `w` or `w[1]`, in a fixed order."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from named_tensors(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from named_tensors(item, f"{name}[{index}]")


_INCOMING_SEED = 0x5EED
"""Combined with the seed of the inputs, so that an incoming gradient never equals an input."""

Progress = Callable[[int, int, str], None]
"""Reports (steps done, all steps, text) to the parent."""


@dataclass(frozen=True, slots=True)
class CaseData:
    """The tensors of one call: keyword arguments, and the incoming gradients of a call that goes backward."""

    inputs: dict[str, Any]
    incoming: tuple[Tensor, ...] = ()

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from named_tensors(self.inputs)
        yield from named_tensors(list(self.incoming), "incoming gradient")

    def clone(self) -> CaseData:
        return CaseData(map_tensors(lambda t: t.detach().clone(), self.inputs), tuple(t.clone() for t in self.incoming))

    def map(self, function: Callable[[Tensor], Tensor]) -> CaseData:
        """The same call with function(tensor) for every tensor; leaves that require gradients still do."""
        inputs = map_tensors(lambda t: function(t).requires_grad_(t.requires_grad), self.inputs)
        return CaseData(inputs, tuple(function(t) for t in self.incoming))

    @property
    def nbytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for _, tensor in self.tensors())

    def fits(self, other: CaseData) -> bool:
        """Whether `other` can be copied into these buffers: same shapes and plain values, and no two elements share
        memory."""
        if _without_tensors(self.inputs) != _without_tensors(other.inputs):
            return False
        pairs = list(zip(self.tensors(), other.tensors(), strict=False))
        return all(mine.shape == theirs.shape and not has_overlap(mine) for (_, mine), (_, theirs) in pairs)

    def overwrite(self, other: CaseData) -> None:
        """Copies `other`, which must fit, into these buffers."""
        with torch.no_grad():
            for (_, mine), (_, theirs) in zip(self.tensors(), other.tensors(), strict=True):
                mine.copy_(theirs)

    def rewrite(self, same: CaseData) -> None:
        """Copies the numbers that these buffers hold into them again: the traffic of `overwrite` without new numbers.

        Nothing tells the tensors from untouched ones: they keep their versions, which count writes.
        """
        with torch.no_grad():
            for (_, mine), (_, theirs) in zip(self.tensors(), same.tensors(), strict=True):
                mine.data.copy_(theirs)

    def changed_since(self, pristine: CaseData) -> str | None:
        """The name of the first tensor that differs from `pristine`; None when all are equal."""
        pairs = zip(self.tensors(), pristine.tensors(), strict=True)
        return next((name for (name, now), (_, then) in pairs if not is_same(now, then)), None)


@dataclass(frozen=True, slots=True, eq=False)
class TrainingStep:
    """One call of a step: the forward pass with gradients recorded, and the gradients. Returns (outputs, gradients).

    The outputs are detached, so the recorded graph ends with the call, as it does with the loss of a training step.
    differentiable: the outputs that carry a gradient. explain: raises WrongResultError where the form of the outputs is
    why autograd fails. It runs after that alone, because it takes as long as a small call. keep_graph: whether what was
    recorded before the call, by `prepare`, is needed by the next call.
    """

    forward: partial[Any]
    differentiable: tuple[int, ...]
    leaves: tuple[Tensor, ...]
    incoming: tuple[Tensor, ...]
    explain: Callable[[Any], object]
    keep_graph: bool

    def __call__(self) -> tuple[tuple[Any, ...], tuple[Tensor | None, ...]]:
        returned = self.forward()
        values = returned if isinstance(returned, (tuple, list)) else (returned,)
        try:
            outputs = [values[index] for index in self.differentiable]
            gradients = torch.autograd.grad(
                outputs, self.leaves, self.incoming, retain_graph=self.keep_graph, allow_unused=True
            )
        except (RuntimeError, IndexError, TypeError, AttributeError):
            self.explain(returned)
            raise
        return tuple(_detached(value) for value in values), gradients


def _detached(output: Any) -> Any:
    """The numbers of an output, in its memory. Anything but a plain tensor stays as it is, for `results` to refuse."""
    return output.detach() if type(output) is Tensor and not vars(output) else output


def keywords_of(call: Callable[[], Any]) -> dict[str, Any]:
    """The keyword arguments of the forward pass that a call makes."""
    forward = call.forward if isinstance(call, TrainingStep) else call
    assert isinstance(forward, partial)
    return forward.keywords


class CaseProblem:
    """A variant on a case on a device.

    Results are dicts from names ("y", "y[1]", "grad x") to tensors: the outputs of a forward case, the gradients of a
    backward case, and both of a step. turns: with the other children that use the device.

    records: whether gradients are recorded, in all directions but fwd. backward: whether a call computes the gradients
    alone, after a forward pass that belongs to the call's inputs. uses_default_stream: whether the variant launches on
    CUDA's default stream; None where nobody has looked. is_in_order: whether that and the stream of the problem wait
    for each other.
    """

    uses_default_stream: bool | None = None
    is_in_order = False

    def __init__(
        self, operator: Operator, variant: Variant, case: Case, device: torch.device, turns: ChildTurns | None = None
    ) -> None:
        self.turns = turns or ChildTurns()
        self.operator = operator
        self.variant = variant
        self.case = case
        self.device = device
        self.records = case.direction != "fwd"
        self.backward = case.direction == "bwd"
        self._returns_outputs = case.direction != "bwd"
        self._returns_gradients = case.direction in ("bwd", "step")

    def refuse_unsupported(self) -> None:
        """Raises Refusal when the variant does not support this case, or the operator has no gradients for it."""
        kind: DeviceKind = "cuda" if self.device.type == "cuda" else "cpu"
        reason = self.variant.reason_unsupported(self.case, kind)
        if reason is None and self.records and (self.case.precision == "i32" or not self.operator.gradients):
            reason = f"{self.operator.name} has no gradients in {self.case.precision}"
        if reason is not None:
            raise Refusal(Status.UNSUPPORTED, reason)

    @contextmanager
    def modes(self) -> Iterator[None]:
        """Records gradients in all directions but fwd, sets TF32 for the case's precision, and uses our own stream.

        On a GPU this is not the default stream, so a kernel that ignores the current stream races with its inputs.
        """
        choose = ordered_stream if self.is_in_order else _work_stream
        stream = torch.cuda.stream(choose(self.device)) if self.device.type == "cuda" else nullcontext()
        with precision_switches(self.case.precision), torch.set_grad_enabled(self.records), stream:
            yield

    @STOPWATCH.measure(Activity.INPUTS)
    def data(self, seed: int) -> CaseData:
        """New inputs from `seed`, and new incoming gradients where a call goes backward."""
        inputs = self._inputs(seed)
        if not self.records:
            return CaseData(inputs)
        for _, leaf in self._leaves(inputs):
            leaf.requires_grad_()
        if not self._returns_gradients:
            return CaseData(inputs)
        make = SeededMaker(seed ^ _INCOMING_SEED, self.device, self.case.precision)
        expected = [self.expected[index] for index in self._differentiable]
        return CaseData(inputs, tuple(make.normal(*shape).to(dtype) for shape, dtype in expected))

    @cached_property
    def expected(self) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of every forward output, as the reference returns them in the case's own precision."""
        dtype = DTYPES[self.case.precision]
        outputs, is_narrow = self._reference_outputs
        return [(tuple(y.shape), y.dtype if is_narrow or not y.dtype.is_floating_point else dtype) for y in outputs]

    @property
    def is_differentiable(self) -> bool:
        """Whether an output of the reference carries a gradient, in cases that record them."""
        return bool(self._differentiable)

    @property
    def _differentiable(self) -> tuple[int, ...]:
        """Which outputs of the reference carry a gradient; a mean that a norm returns beside its result has none."""
        return tuple(index for index, output in enumerate(self._reference_outputs[0]) if output.requires_grad)

    @cached_property
    def _reference_outputs(self) -> tuple[tuple[Tensor, ...], bool]:
        """(the outputs of the reference without their numbers, whether it ran in the case's own precision)."""
        inputs = self._inputs(0)
        try:
            return self._without_numbers(inputs), True
        except RuntimeError:
            # torch lacks an operation in this precision; float64 gives the same shapes.
            return self._without_numbers(_widened(inputs)), False

    def _without_numbers(self, inputs: dict[str, Any]) -> tuple[Tensor, ...]:
        leaves = [leaf for _, leaf in self._leaves(inputs)] if self.records else []
        for leaf in leaves:
            leaf.requires_grad_()
        with torch.set_grad_enabled(self.records):
            outputs = _as_tensors(self.operator.reference(**inputs))
        return tuple(y.detach().to("meta").requires_grad_(y.requires_grad) for y in outputs)

    @cached_property
    def _unused(self) -> set[str]:
        """The gradients that autograd leaves out for the reference, whose result does not depend on these inputs."""
        wide = self.widened(self.data(0))
        for _, leaf in self._leaves(wide.inputs):
            leaf.requires_grad_()
        with torch.enable_grad():
            gradients = self._differentiated(self.operator.reference, wide)()
        return {name for name, gradient in zip(self._gradient_names, gradients, strict=True) if gradient is None}

    def replaceable(self, data: CaseData) -> CaseData:
        """The tensors of `data` that may change between two calls.

        In a backward case the recorded forward run belongs to the inputs, so only the incoming gradients may change.
        """
        return CaseData({}, data.incoming) if self.backward else data

    def call(self, data: CaseData) -> Callable[[], Any]:
        """The call that is timed: the forward call, a step, or the gradients alone after one forward run done here."""
        return self._prepared_call(self.prepared(data), data)

    def forward_pass(self, call: Callable[[], Any], data: CaseData) -> Callable[[], Any]:
        """The forward pass behind a call on `data`, with gradients recorded in all directions but fwd."""
        if self.backward:
            return partial(self.variant.function, **self.prepared(data), **data.inputs)
        return call.forward if isinstance(call, TrainingStep) else call

    def _prepared_call(self, prepared: dict[str, Any], data: CaseData) -> Callable[[], Any]:
        """The call with what the variant prepared for `data`. Where that carries gradients, its numbers come from those
        that a training changes, so every step prepares anew."""
        function, prepare = self.variant.function, self.variant.prepare
        is_recorded = self.records and any(tensor.requires_grad for _, tensor in named_tensors(prepared))
        if self.backward or prepare is None or not is_recorded:
            return self._call(partial(function, **prepared), data)
        return self._call(lambda **inputs: function(**prepare(**inputs), **inputs), data)

    def prepared(self, data: CaseData) -> dict[str, Any]:
        """The keyword arguments that the variant prepares from its inputs; empty for most variants."""
        return {} if self.variant.prepare is None else self.variant.prepare(**data.inputs)

    def refreshed(self, call: Callable[[], Any], data: CaseData) -> Callable[[], Any]:
        """The call to use after the inputs in `data` changed.

        Prepared arguments are prepared again and copied in place. When their shapes or plain values differ, a new call
        is returned; otherwise `call` itself.
        """
        if self.variant.prepare is None or self.backward:
            return call
        # It may keep what it prepares elsewhere, and return nothing.
        fresh, keywords = self.prepared(data), keywords_of(call)
        if not fresh.keys() <= keywords.keys():
            # Each step prepares anew.
            return call
        old = CaseData({name: keywords[name] for name in fresh})
        if not old.fits(CaseData(fresh)):
            return self._prepared_call(fresh, data)
        old.overwrite(CaseData(fresh))
        return call

    def results(self, returned: Any) -> dict[str, Tensor]:
        """The tensors that a call returned, by name; WrongResultError when one is missing or no plain tensor.

        Codes of eight bits come as bytes, because few of torch's operators take their dtypes.
        """
        if not self._returns_gradients:
            return self._outputs(returned)
        if not self._returns_outputs:
            return self._gradients(returned)
        outputs, gradients = returned
        return self._outputs(outputs) | self._gradients(gradients)

    def _outputs(self, returned: Any) -> dict[str, Tensor]:
        named = _name_outputs(_as_tensors(returned))
        if self.case.direction == "fwd_train":
            for index, (name, output) in enumerate(named.items()):
                if index in self._differentiable and not output.requires_grad:
                    raise _without_gradient(name)
        for (name, output), (_, dtype) in zip(named.items(), self.expected, strict=False):
            if is_coded(output):
                if output.dtype != dtype:
                    message = f"{name} is {dtype_name(output.dtype)}, expected {dtype_name(dtype)}"
                    raise WrongResultError(message, Fault.WRONG_FORM, name)
                named[name] = as_bytes(output)
        return named

    def _gradients(self, returned: tuple[Any, ...]) -> dict[str, Tensor]:
        if len(returned) != len(self._gradient_names):
            message = f"The variant has {len(returned)} gradients, expected {len(self._gradient_names)}"
            raise WrongResultError(message, Fault.WRONG_FORM)
        leaves = [leaf for _, leaf in self._leaves(self._inputs(0))] if None in returned else []
        for index, (name, gradient) in enumerate(zip(self._gradient_names, returned, strict=True)):
            if gradient is None and name in self._unused:
                returned = (*returned[:index], torch.zeros_like(leaves[index]), *returned[index + 1 :])
            elif gradient is None:
                message = f"{name} is None: the backward pass does not compute it"
                raise WrongResultError(message, Fault.MISSING_GRADIENT, name)
        # A gradient that is zero everywhere may have no memory until it is copied.
        plain = [gradient.clone() if gradient._is_zerotensor() else gradient for gradient in returned]
        return dict(zip(self._gradient_names, plain, strict=True))

    def run(self, data: CaseData) -> dict[str, Tensor]:
        """Calls the variant once and waits for the device."""
        return self.prepare_and_run(data)[1]

    def prepare_and_run(self, data: CaseData) -> tuple[Callable[[], Any], dict[str, Tensor]]:
        """As `run`: (the call, which keeps its prepared arguments alive; its results)."""
        with _gradient_errors():
            call = self.call(data)
            results = self.results(call())
        self.synchronize()
        return call, results

    def depth(self, name: str) -> int:
        """The length of the longest sum behind one element of a result."""
        direction: Direction = "bwd" if name.startswith("grad ") else "fwd"
        return self.operator.depth(replace(self.case, direction=direction))

    def oracle(self, data: CaseData) -> dict[str, Tensor]:
        """The reference's result in float64 on the same inputs; integers keep their type, so that they wrap alike."""
        return self.evaluate_reference(self.widened(data))

    def evaluate_reference(self, data: CaseData) -> dict[str, Tensor]:
        """The reference's result on these very tensors."""
        return self._evaluate(self.operator.reference, data)

    @staticmethod
    def widened(data: CaseData) -> CaseData:
        """Detached copies in float64; integers keep their type."""
        return CaseData(_widened(data.inputs), tuple(g.double() for g in data.incoming))

    def own_precision(self, data: CaseData) -> dict[str, Tensor] | None:
        """torch's own result in the case's precision (in float32 for f64 cases); None where torch cannot run it."""
        try:
            return self._evaluate(self._own_function, self._narrowed(data))
        except (RuntimeError, NotImplementedError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            return None

    def own_call(self, data: CaseData) -> Callable[[], Any]:
        """The call behind `own_precision`, without what the harness does around it."""
        return self._call(self._own_function, self._recorded(self._narrowed(data)))

    @property
    def _own_function(self) -> Callable[..., Any]:
        return self.operator.by_torch or self.operator.reference

    def _narrowed(self, data: CaseData) -> CaseData:
        is_f64 = self.case.precision == "f64"
        return data.clone().map(lambda t: t.float() if is_f64 and t.dtype == torch.float64 else t)

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _evaluate(self, function: Callable[..., Any], data: CaseData) -> dict[str, Tensor]:
        """The outputs of `function`, its gradients, or both, by name."""
        with torch.set_grad_enabled(self.records):
            returned = self._call(function, self._recorded(data))()
        leaves = [leaf for _, leaf in self._leaves(data.inputs)]

        def with_zeros(gradients: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
            """Autograd returns None for an input that the result does not depend on; its gradient is zero."""
            return tuple(torch.zeros_like(x) if g is None else g for g, x in zip(gradients, leaves, strict=True))

        if self.backward:
            returned = with_zeros(returned)
        elif self._returns_gradients:
            returned = returned[0], with_zeros(returned[1])
        return {name: tensor.detach() for name, tensor in self.results(returned).items()}

    def _recorded(self, data: CaseData) -> CaseData:
        """The same data, whose inputs require gradients where the case records them."""
        if self.records:
            for _, leaf in self._leaves(data.inputs):
                leaf.requires_grad_()
        return data

    def _call(self, function: Callable[..., Any], data: CaseData) -> Callable[[], Any]:
        forward = partial(function, **data.inputs)
        if not self._returns_gradients:
            return forward
        if self.backward:
            return self._differentiated(function, data)
        leaves = tuple(leaf for _, leaf in self._leaves(data.inputs))
        has_prepared = self.variant.prepare is not None
        explain = partial(self._expect_differentiable, incoming=data.incoming)
        return TrainingStep(forward, self._differentiable, leaves, data.incoming, explain, has_prepared)

    def _differentiated(self, function: Callable[..., Any], data: CaseData) -> Callable[[], Any]:
        """The call of the gradients alone, after one forward run of `function`."""
        outputs = self._expect_differentiable(function(**data.inputs), data.incoming)
        leaves = [leaf for _, leaf in self._leaves(data.inputs)]
        return partial(torch.autograd.grad, outputs, leaves, data.incoming, retain_graph=True, allow_unused=True)

    def _expect_differentiable(self, returned: Any, incoming: tuple[Tensor, ...]) -> list[Tensor]:
        """The outputs that carry a gradient; WrongResultError for any that lacks it, or has another form."""
        returned = _as_tensors(returned)
        if len(returned) != len(self.expected):
            message = f"The variant returns {len(returned)} tensors, expected {len(self.expected)}"
            raise WrongResultError(message, Fault.WRONG_FORM)
        named = list(_name_outputs(returned).items())
        outputs = [returned[index] for index in self._differentiable]
        for index, gradient in zip(self._differentiable, incoming, strict=True):
            name, output = named[index]
            if output.shape != gradient.shape:
                message = f"{name} has shape {tuple(output.shape)}, expected {tuple(gradient.shape)}"
                raise WrongResultError(message, Fault.WRONG_FORM, name)
            if not output.requires_grad:
                raise _without_gradient(name)
        return outputs

    @cached_property
    def _gradient_names(self) -> list[str]:
        return [f"grad {name}" for name, _ in self._leaves(self._inputs(0))]

    def _leaves(self, inputs: dict[str, Any]) -> list[tuple[str, Tensor]]:
        chosen = {name: inputs[name] for name in self.operator.gradients}
        return [(name, tensor) for name, tensor in named_tensors(chosen) if tensor.dtype.is_floating_point]

    def _inputs(self, seed: int) -> dict[str, Any]:
        # Seeded for operator files that draw random numbers themselves.
        # torch.manual_seed keeps a stack trace of every call, for a later start of devices that are not there.
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed_all(seed)
        return self.operator.inputs(self.case.as_declared, SeededMaker(seed, self.device, self.case.precision))


class LiveCall:
    """A call of a problem whose inputs change in place, as those of timers do. data: its buffers, with the numbers of
    `seed` at first. seeds: of all numbers that were drawn."""

    def __init__(self, problem: CaseProblem, seed: int) -> None:
        self.problem = problem
        self.seeds = [seed]
        self.data = problem.data(seed)
        with STOPWATCH.measure(Activity.WARM_UP):
            self._call = problem.call(self.data)
            self.first_returned = self._call()
            problem.synchronize()

    @property
    def can_change(self) -> bool:
        """Whether other numbers can be copied into the buffers."""
        buffers = self.problem.replaceable(self.data)
        return buffers.fits(buffers)

    def draw(self, seed: int) -> CaseData:
        """The numbers of `seed` for those buffers that may change between two calls."""
        self.seeds.append(seed)
        return self.problem.replaceable(self.problem.data(seed))

    def change(self, numbers: CaseData, *, are_the_same: bool = False) -> Callable[[], Any]:
        """Copies numbers into the buffers; returns the call to make on them. are_the_same: the buffers hold them
        already, and nothing tells the tensors from untouched ones."""
        buffers = self.problem.replaceable(self.data)
        (buffers.rewrite if are_the_same else buffers.overwrite)(numbers)
        return self.problem.refreshed(self._call, self.data)

    def redraw(self, seed: int) -> CaseData:
        """New tensors with what the buffers hold once the numbers of `seed` are copied into them."""
        drawn = self.problem.data(seed)
        return CaseData(self.data.inputs, drawn.incoming) if self.problem.backward else drawn


@cache
def _work_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _without_gradient(name: str) -> WrongResultError:
    message = f"{name} carries no gradient: its backward pass is missing"
    return WrongResultError(message, Fault.MISSING_GRADIENT, name)


_ORDINARY = 0
"""CU_STREAM_DEFAULT, the kind of stream that waits for the default stream, and that for it. Those of torch do not."""


@cache
def ordered_stream(device: torch.device) -> torch.cuda.Stream:
    """A stream of which CUDA's default stream waits for all earlier work, and which waits for that of the default
    stream; OSError where the driver makes none."""
    with torch.cuda.device(device):
        torch.cuda.synchronize()
        driver, handle = cuda_driver(), ctypes.c_void_p()
        if driver is None or driver.cuStreamCreate(ctypes.byref(handle), _ORDINARY) != 0 or handle.value is None:
            raise OSError("the driver makes no stream")
        return torch.cuda.ExternalStream(handle.value, device)  # type: ignore[no-untyped-call]


@contextmanager
def _gradient_errors() -> Iterator[None]:
    """Turns autograd's error for a gradient of wrong shape or number into WrongResultError, since it is no crash."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if "returned an invalid gradient" in text or "returned an incorrect number of gradients" in text:
            raise WrongResultError(text, Fault.WRONG_FORM) from error
        raise


def _widened(inputs: dict[str, Any]) -> dict[str, Any]:
    """Detached float64 copies; integer tensors keep their dtype."""
    widened: dict[str, Any] = map_tensors(
        lambda t: t.detach().clone() if not t.dtype.is_floating_point else t.detach().to(torch.float64, copy=True),
        inputs,
    )
    return widened


def _without_tensors(arguments: dict[str, Any]) -> Any:
    """The arguments with every tensor replaced by its name."""
    names = {id(tensor): name for name, tensor in named_tensors(arguments)}
    return map_tensors(lambda tensor: names[id(tensor)], arguments)


def _as_tensors(value: Any) -> tuple[Tensor, ...]:
    if isinstance(value, (tuple, list)):
        # Python's own code reads the items of a plain one, as it does those of a named tuple.
        base: type = tuple if isinstance(value, tuple) else list
        if any(
            getattr(type(value), name) is not getattr(base, name) for name in ("__iter__", "__getitem__", "__len__")
        ):
            raise WrongResultError(
                f"The variant returns a {type(value).__name__} that reads its items in its own way, so they may be "
                "computed only when they are read",
                Fault.LAZY_RESULT,
            )
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    for item in values:
        if not isinstance(item, Tensor):
            message = f"The variant returns {type(item).__name__}, expected a tensor"
            raise WrongResultError(message, Fault.WRONG_FORM)
        expect_plain(item)
    return values


def _name_outputs(outputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
    if len(outputs) == 1:
        return {"y": outputs[0]}
    return {f"y[{index}]": output for index, output in enumerate(outputs)}


def as_bytes(tensor: Tensor) -> Tensor:
    """The bytes of codes of eight bits, which torch copies and indexes everywhere; any other tensor as it is."""
    return tensor.view(torch.uint8) if is_coded(tensor) else tensor


def is_same(now: Tensor, then: Tensor) -> bool:
    """Whether both hold the same numbers; a NaN is the same as itself."""
    if not is_coded(now) and torch.equal(now, then):
        return True
    return now.dtype.is_floating_point and now.layout is torch.strided and torch.equal(bits(now), bits(then))


def has_overlap(tensor: Tensor) -> bool:
    """Whether two elements of the tensor share memory, as in an expanded view."""
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


def expect_plain(result: Tensor) -> None:
    """Raises WrongResultError for a lazy tensor, which would be computed after the clock has stopped.

    A plain tensor with a method of its own is lazy too, because the method may compute.
    """
    if type(result) not in (Tensor, torch.nn.Parameter):
        kind = type(result).__name__
        raise WrongResultError(
            f"The variant returns a {kind} and not a plain torch.Tensor, which may be computed only when it is read",
            Fault.LAZY_RESULT,
        )
    replaced = sorted(name for name in vars(result) if hasattr(Tensor, name))
    if replaced:
        raise WrongResultError(
            f"The variant returns a tensor with its own {replaced[0]!r}, which may be computed only when it is read",
            Fault.LAZY_RESULT,
        )
    if result.is_neg() or result.is_conj():
        message = "The variant returns a lazy view, which is computed only when it is read"
        raise WrongResultError(message, Fault.LAZY_RESULT)
