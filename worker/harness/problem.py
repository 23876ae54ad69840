"""One variant on one case: its data, how it is called, and what the float64 oracle says the answer is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import torch
from torch import Tensor

from warpwatch.contract.words import Status
from warpwatch.operator import Case, DeviceKind, Operator, Variant

from .failures import Refusal, WrongResultError
from .inputs import DTYPES, SeededMaker, map_tensors, named_tensors, precision_switches
from .integrity import expect_plain

_INCOMING_SEED = 0x5EED
"""Told apart from the inputs' seeds, so that an incoming gradient never equals an input."""


@dataclass(frozen=True, slots=True)
class CaseData:
    """The tensors of one call: keyword arguments, and in backward cases the gradients that come in."""

    inputs: dict[str, Any]
    incoming: tuple[Tensor, ...] = ()

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from named_tensors(self.inputs)
        yield from named_tensors(list(self.incoming), "incoming gradient")

    def clone(self) -> CaseData:
        return CaseData(map_tensors(lambda t: t.detach().clone(), self.inputs), tuple(t.clone() for t in self.incoming))

    def map(self, function: Callable[[Tensor], Tensor]) -> CaseData:
        """The same call with function(tensor) for every tensor; what gradients are asked of stays so."""
        inputs = map_tensors(lambda t: function(t).requires_grad_(t.requires_grad), self.inputs)
        return CaseData(inputs, tuple(function(t) for t in self.incoming))

    @property
    def nbytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for _, tensor in self.tensors())

    def fits(self, other: CaseData) -> bool:
        """Whether `other`'s numbers can go into these very buffers: same shapes, and no two elements in one place."""
        pairs = list(zip(self.tensors(), other.tensors(), strict=False))
        return all(mine.shape == theirs.shape and not _overlaps(mine) for (_, mine), (_, theirs) in pairs)

    def overwrite(self, other: CaseData) -> None:
        """Puts `other`'s numbers, which must fit, into these very buffers."""
        with torch.no_grad():
            for (_, mine), (_, theirs) in zip(self.tensors(), other.tensors(), strict=True):
                mine.copy_(theirs)

    def changed_since(self, pristine: CaseData) -> str | None:
        """Name of the first tensor that no longer holds what `pristine` holds."""
        pairs = zip(self.tensors(), pristine.tensors(), strict=True)
        return next((name for (name, now), (_, then) in pairs if not torch.equal(now, then)), None)


class CaseProblem:
    """A variant on a case on a device.

    A result is a dict from names ("y", "y[1]", "grad x") to tensors: the outputs of a forward case, the
    gradients of a backward one.
    """

    def __init__(self, operator: Operator, variant: Variant, case: Case, device: torch.device) -> None:
        self.operator = operator
        self.variant = variant
        self.case = case
        self.device = device
        self.backward = case.direction == "bwd"

    def refuse_unsupported(self) -> None:
        """Raises Refusal when the variant, or the operator, has nothing to run in this case."""
        kind: DeviceKind = "cuda" if self.device.type == "cuda" else "cpu"
        reason = self.variant.reason_unsupported(self.case, kind)
        if reason is None and self.backward and (self.case.precision == "i32" or not self.operator.gradients):
            reason = f"{self.operator.name} has no gradients in {self.case.precision}"
        if reason is not None:
            raise Refusal(Status.UNSUPPORTED, reason)

    @contextmanager
    def modes(self) -> Iterator[None]:
        """Gradients recorded in backward cases only; TF32 as the case's precision says; on a GPU a stream of our own.

        That stream is not the default one, so a kernel that ignores the current stream runs beside its own inputs.
        """
        stream = torch.cuda.stream(_work_stream(self.device)) if self.device.type == "cuda" else nullcontext()
        with precision_switches(self.case.precision), torch.set_grad_enabled(self.backward), stream:
            yield

    def data(self, seed: int) -> CaseData:
        inputs = self._inputs(seed)
        if not self.backward:
            return CaseData(inputs)
        make = SeededMaker(seed ^ _INCOMING_SEED, self.device, self.case.precision)
        incoming = tuple(make.normal(*shape).to(dtype) for shape, dtype in self.expected if dtype.is_floating_point)
        for _, leaf in self._leaves(inputs):
            leaf.requires_grad_()
        return CaseData(inputs, incoming)

    @cached_property
    def expected(self) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of every forward output, as the reference has them in the case's own precision."""
        inputs = self._inputs(0)
        with torch.no_grad():
            try:
                outputs = _as_tensors(self.operator.reference(**inputs))
                return [(tuple(y.shape), y.dtype) for y in outputs]
            except RuntimeError:
                # torch has no such operation in this precision; float64 shows the shapes all the same.
                outputs = _as_tensors(self.operator.reference(**_widened(inputs)))
        own = DTYPES[self.case.precision]
        return [(tuple(y.shape), own if y.dtype.is_floating_point else y.dtype) for y in outputs]

    def call(self, data: CaseData) -> Callable[[], Any]:
        """What is timed: the forward call, or the gradients alone with the forward run done here, once."""
        return self._call(partial(self.variant.function, **self.prepared(data)), data)

    def prepared(self, data: CaseData) -> dict[str, Any]:
        """What the variant makes of its inputs before it is called; empty for most."""
        return {} if self.variant.prepare is None else self.variant.prepare(**data.inputs)

    def refreshed(self, call: Callable[[], Any], data: CaseData) -> Callable[[], Any]:
        """`call` after the numbers of `data` changed: what was prepared from them is made anew, in place where it fits.

        Only a forward call for which other shapes or plain values were prepared is a new one.
        """
        if self.variant.prepare is None or self.backward:
            return call
        assert isinstance(call, partial)
        fresh = self.prepared(data)
        old = CaseData({name: call.keywords[name] for name in fresh})
        if _plain(old.inputs) != _plain(fresh) or not old.fits(CaseData(fresh)):
            return self._call(partial(self.variant.function, **fresh), data)
        old.overwrite(CaseData(fresh))
        return call

    def results(self, raw: Any) -> dict[str, Tensor]:
        """What a call returned, by name; WrongResultError for what is not there."""
        if not self.backward:
            return _name_outputs(_as_tensors(raw))
        if len(raw) != len(self._gradient_names):
            raise WrongResultError(f"it returned {len(raw)} gradients and not {len(self._gradient_names)}")
        for name, gradient in zip(self._gradient_names, raw, strict=True):
            if gradient is None:
                raise WrongResultError(f"{name} is None: the backward pass does not compute it")
        return dict(zip(self._gradient_names, raw, strict=True))

    def run(self, data: CaseData, calls: list[Callable[[], Any]] | None = None) -> dict[str, Tensor]:
        """The variant called once, with everything that it started on the device done.

        calls: takes the call, which keeps alive what the variant prepared for it.
        """
        with _gradient_errors():
            call = self.call(data)
            if calls is not None:
                calls.append(call)
            results = self.results(call())
        self.synchronize()
        return results

    def oracle(self, data: CaseData) -> dict[str, Tensor]:
        """The reference in float64 on the same numbers; whole numbers stay as they are, so they wrap as the variant's
        do."""
        wide = CaseData(_widened(data.inputs), tuple(g.double() for g in data.incoming))
        return self._evaluate(self.operator.reference, wide)

    def own_precision(self, data: CaseData) -> dict[str, Tensor] | None:
        """What torch makes of the case in its own precision, in float32 where that is the oracle's; None where it
        cannot run it."""
        try:
            wide = self.case.precision == "f64"
            narrow = data.clone().map(lambda t: t.float() if wide and t.dtype == torch.float64 else t)
            return self._evaluate(self.operator.by_torch or self.operator.reference, narrow)
        except (RuntimeError, NotImplementedError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            return None

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _evaluate(self, function: Callable[..., Any], data: CaseData) -> dict[str, Tensor]:
        """The outputs of `function`, or its gradients in a backward case, by name."""
        if self.backward:
            for _, leaf in self._leaves(data.inputs):
                leaf.requires_grad_()
        with torch.set_grad_enabled(self.backward):
            raw = self._call(function, data)()
        if self.backward:
            # A gradient that the mathematics does not have is zero, whoever says None.
            leaves = [leaf for _, leaf in self._leaves(data.inputs)]
            raw = tuple(torch.zeros_like(x) if g is None else g for g, x in zip(raw, leaves, strict=True))
        return {name: tensor.detach() for name, tensor in self.results(raw).items()}

    def _call(self, function: Callable[..., Any], data: CaseData) -> Callable[[], Any]:
        if not self.backward:
            return partial(function, **data.inputs)
        outputs = [y for y in _as_tensors(function(**data.inputs)) if y.dtype.is_floating_point]
        self._expect_differentiable(outputs, data.incoming)
        leaves = [leaf for _, leaf in self._leaves(data.inputs)]
        return partial(torch.autograd.grad, outputs, leaves, data.incoming, retain_graph=True, allow_unused=True)

    def _expect_differentiable(self, outputs: list[Tensor], incoming: tuple[Tensor, ...]) -> None:
        if len(outputs) != len(incoming):
            raise WrongResultError(f"it returned {len(outputs)} floating-point outputs and not {len(incoming)}")
        for (name, output), gradient in zip(_name_outputs(tuple(outputs)).items(), incoming, strict=True):
            if output.shape != gradient.shape:
                raise WrongResultError(f"{name} has shape {tuple(output.shape)} and not {tuple(gradient.shape)}")
            if not output.requires_grad:
                raise WrongResultError(f"{name} carries no gradient: its backward pass is missing")

    @cached_property
    def _gradient_names(self) -> list[str]:
        return [f"grad {name}" for name, _ in self._leaves(self._inputs(0))]

    def _leaves(self, inputs: dict[str, Any]) -> list[tuple[str, Tensor]]:
        chosen = {name: inputs[name] for name in self.operator.gradients}
        return [(name, tensor) for name, tensor in named_tensors(chosen) if tensor.dtype.is_floating_point]

    def _inputs(self, seed: int) -> dict[str, Any]:
        # An operator file that draws its own random numbers is repeatable too.
        if self.device.type == "cuda":
            torch.manual_seed(seed)
        else:
            # Without a GPU torch.manual_seed keeps a stack trace for each call, in case CUDA starts one day.
            torch.default_generator.manual_seed(seed)
        return self.operator.inputs(self.case, SeededMaker(seed, self.device, self.case.precision))


@cache
def _work_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@contextmanager
def _gradient_errors() -> Iterator[None]:
    """Autograd itself refuses a gradient of the wrong shape or number: that is a wrong result and no crash."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if "returned an invalid gradient" in text or "returned an incorrect number of gradients" in text:
            raise WrongResultError(text) from error
        raise


def _widened(inputs: dict[str, Any]) -> dict[str, Any]:
    """Detached float64 copies; tensors of whole numbers stay what they are."""
    widened: dict[str, Any] = map_tensors(
        lambda t: t.detach().clone() if not t.dtype.is_floating_point else t.detach().to(torch.float64, copy=True),
        inputs,
    )
    return widened


def _plain(prepared: dict[str, Any]) -> Any:
    """What was prepared, with every tensor replaced by its name."""
    names = {id(tensor): name for name, tensor in named_tensors(prepared)}
    return map_tensors(lambda tensor: names[id(tensor)], prepared)


def _as_tensors(value: Any) -> tuple[Tensor, ...]:
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    for item in values:
        if not isinstance(item, Tensor):
            raise WrongResultError(f"it returned {type(item).__name__} where a tensor belongs")
        expect_plain(item)
    return values


def _name_outputs(outputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
    if len(outputs) == 1:
        return {"y": outputs[0]}
    return {f"y[{index}]": output for index, output in enumerate(outputs)}


def _overlaps(tensor: Tensor) -> bool:
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
