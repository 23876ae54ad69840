"""`warpwatch.load`: the operators that ship with Warpwatch, for programs that compute with them.

It needs neither a server nor a database, only torch, ninja and a C++ compiler, and nvcc for CUDA. docs/using-kernels.md
explains it to users.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpwatch import _toolchain, native, settings
from warpwatch.operator import Case, DeviceKind, Direction, Precision

if TYPE_CHECKING:
    from torch import Tensor, nn

    from warpwatch.operator import Operator, Variant

__all__ = [
    "LoadError",
    "LoadedOperator",
    "LoadedVariant",
    "UnavailableError",
    "UnknownOperatorError",
    "UnknownVariantError",
    "UnsupportedDeviceError",
    "UnsupportedInputError",
    "load_operator",
    "operator_names",
]

_SHIPPED = Path(__file__).parent / "bundled"
_PACKAGE = "warpwatch.bundled.kernels"
"""A name of its own, so that a package of the program may be called `kernels`."""

_lock = threading.RLock()
_operators: dict[str, LoadedOperator] = {}
_target: list[DeviceKind] = []
"""The device that libraries of this process are built for. A second library of one operator would register its torch
operators again, which torch refuses."""


class LoadError(Exception):
    """An operator cannot be loaded, or a variant cannot be called; the message names the remedy."""


class UnknownOperatorError(LoadError):
    """No operator of this name ships with Warpwatch."""


class UnknownVariantError(LoadError, AttributeError):
    """The operator has no variant of this name."""


class UnavailableError(LoadError):
    """This machine or process lacks what the operator needs, such as torch or a compiler, or its library does not
    compile."""


class UnsupportedDeviceError(LoadError):
    """The variant cannot run on any device of the tensors that it was given."""


class UnsupportedInputError(LoadError, ValueError):
    """The variant takes no inputs of this precision, shape or layout, or has no gradients for them."""


_Kind = tuple[DeviceKind, Precision, Direction]
"""What a case is beside its sizes and its layout."""


class LoadedVariant:
    """One implementation of a loaded operator. A call takes the operator's inputs, by position or by name.

    idea: how it computes. refusals: why it cannot run, by type of device; devices that it can run on are not named.
    """

    def __init__(self, operator: Operator, variant: Variant, target: DeviceKind) -> None:
        functools.update_wrapper(self, variant.function)
        self.operator = operator.name
        self.name = variant.name
        self.idea = variant.idea
        reasons = _reasons(operator, variant)
        self.refusals: dict[str, str] = _refusals(reasons, variant, target)
        # Calls of these kinds need not describe their inputs, and those of most variants are not looked at.
        self._supported = {kind for kind, found in reasons.items() if found == [None]}
        others = {kind for kind in reasons.keys() - self._supported if kind[1] not in ("3xtf32", "tf32")}
        if any(isinstance(size, str) for case in operator.all_cases() for _, size in case.sizes):
            # No precision has cases of all number formats.
            self._supported = set()
        self._takes_all = not self.refusals and not others
        declared = {precision for _, precision, _ in reasons}
        self._of_floats: list[Precision] = ["f32", "3xtf32"] if "3xtf32" in declared else ["f32"]
        self._rounds = "tf32" in declared
        self._function = variant.function
        self._prepare = variant.prepare
        self._parameters = tuple(inspect.signature(variant.function).parameters)
        self._reason_unsupported = variant.reason_unsupported
        some = operator.all_cases()[0]
        self._case_of: Callable[..., Case] = operator.case_of or (lambda **inputs: some)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._takes_all:
            self._refuse_unsupported(self._by_name(args, kwargs))
        try:
            return self._function(*args, **kwargs)
        except Exception as error:
            self._name_empty_inputs(self._by_name(args, kwargs), error)
            raise

    def _by_name(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        # In order of the parameters, because the first tensor of floats tells the precision. Where there are too many
        # arguments, the function itself says so.
        given = {**dict(zip(self._parameters, args, strict=False)), **kwargs}
        return {name: given[name] for name in dict.fromkeys((*self._parameters, *given)) if name in given}

    def _name_empty_inputs(self, inputs: dict[str, Any], error: Exception) -> None:
        """Raises an error that names the inputs without elements, which most libraries' errors do not."""
        empty = [
            f"{name} {'x'.join(map(str, tensor.shape))}"
            for name, value in inputs.items()
            for tensor in _tensors([value])
            if tensor.numel() == 0
        ]
        if empty:
            raise UnsupportedInputError(
                f"{self.operator}.{self.name} does not take inputs without elements ({', '.join(empty)}): {error}"
            ) from error

    def _refuse_unsupported(self, inputs: dict[str, Any]) -> None:
        """Raises where the operator calls these inputs unsupported: the results might be wrong."""
        import torch

        tensors = _tensors(inputs.values())
        # Devices as such count as well. An operator may take tensors on several, so one that suits is enough.
        devices = {t.device.type for t in tensors} | {v.type for v in inputs.values() if isinstance(v, torch.device)}
        refused = [self.refusals.get(device) for device in devices]
        if refused and None not in refused:
            raise UnsupportedDeviceError(f"{self.operator}.{self.name}: {refused[0]}")
        direction: Direction = "bwd" if torch.is_grad_enabled() and any(t.requires_grad for t in tensors) else "fwd"
        usable: list[DeviceKind] = [d for d in ("cpu", "cuda") if d in devices and d not in self.refusals]
        precisions = self._precisions_of(tensors, inputs)
        if not usable or any((device, precisions[0], direction) in self._supported for device in usable):
            return
        try:
            case = self._case_of(**inputs)
        except Exception:  # noqa: BLE001, whatever is wrong with the inputs, the function itself says it
            return
        reasons = self._reasons_of(case, usable, precisions, direction)
        if None not in reasons:
            runs_forward = None in self._reasons_of(case, usable, precisions, "fwd")
            remedy = "; its forward pass takes them: call it under torch.no_grad()" if runs_forward else ""
            raise UnsupportedInputError(f"{self.operator}.{self.name}: {reasons[0]}{remedy}")

    def _precisions_of(self, tensors: list[Tensor], inputs: dict[str, Any]) -> list[Precision]:
        """The precisions of cases with these inputs: that of the result where an input names its dtype. A program that
        allows TF32 takes more accurate results as well."""
        import torch

        named = (value for value in inputs.values() if isinstance(value, torch.dtype))
        dtype = next(named, next((t.dtype for t in tensors if t.dtype.is_floating_point), None))
        if dtype == torch.float32:
            return (
                [*self._of_floats, "tf32"]
                if self._rounds and torch.backends.cuda.matmul.allow_tf32
                else self._of_floats
            )
        if dtype == torch.float64:
            return ["f64"]
        return ["bf16" if dtype == torch.bfloat16 else "f16" if dtype == torch.float16 else "i32"]

    def _reasons_of(
        self, case: Case, devices: list[DeviceKind], precisions: list[Precision], direction: Direction
    ) -> list[str | None]:
        return [
            self._reason_unsupported(Case(case.sizes, precision, direction, case.layout), device)
            for device in devices
            for precision in precisions
        ]

    def __repr__(self) -> str:
        return f"<variant {self.operator}.{self.name}: {self.idea}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # A process that unpickles a model loads the operator. Copies in this one are the same object.
        return _find_variant, (load_operator(self.operator), self.name)

    def prepare(self, **inputs: Any) -> dict[str, Any]:
        """Further arguments of a call with these inputs, such as a converted format; empty for most variants."""
        return {} if self._prepare is None else self._prepare(**inputs)


class LoadedOperator:
    """An operator whose torch operators are registered, with its variants as attributes: `load("kron").v3`.

    reference: the formula, written for clarity. variants: all of them by name.
    """

    def __init__(self, operator: Operator, variants: Mapping[str, LoadedVariant]) -> None:
        self.name = operator.name
        self.summary = operator.summary
        self.reference: Callable[..., Any] = operator.reference
        self.variants = dict(variants)
        # Plain attributes are what torch.compile can look up without a graph break.
        vars(self).update(variants)

    def __getattr__(self, name: str) -> LoadedVariant:
        # Python calls this only for names that are no attributes.
        raise UnknownVariantError(f"{self.name} has no variant {name!r}; {_nearest(name, self.variants)}")

    def __reduce__(self) -> tuple[Any, ...]:
        return load_operator, (self.name, *_target)

    def __repr__(self) -> str:
        return f"<operator {self.name}: {', '.join(self.variants)}>"


def operator_names() -> list[str]:
    """Names of the operators that ship with Warpwatch, sorted."""
    return sorted(path.stem for path in (_SHIPPED / "kernels").glob("[!_]*.py"))


def load_operator(name: str, device: DeviceKind | None = None) -> LoadedOperator:
    """Implements `warpwatch.load`; see there."""
    if name not in operator_names():
        raise UnknownOperatorError(f"no operator {name!r} ships with Warpwatch; {_nearest(name, operator_names())}")
    with _lock:
        target = _choose_target(device)
        if name not in _operators:
            module = importlib.import_module(f"{_PACKAGE}.{name}")
            operator: Operator = module.operator
            if any(variant.native for variant in operator.variants.values()):
                _register(operator, target)
            variants = {key: LoadedVariant(operator, variant, target) for key, variant in operator.variants.items()}
            _operators[name] = LoadedOperator(operator, variants)
        return _operators[name]


def swap_bert_products(model: nn.Module, device: DeviceKind | None = None) -> int:
    """Implements `warpwatch.swap_bert`; see there."""
    load_operator("cublas_matmul", device)
    count: int = importlib.import_module(f"{_PACKAGE}._bert_swap").swap(model)
    return count


def _find_variant(operator: LoadedOperator, name: str) -> LoadedVariant:
    return operator.variants[name]


def _choose_target(device: DeviceKind | None) -> DeviceKind:
    """The device to build for. Libraries for CUDA run on the CPU as well."""
    if device not in (None, "cpu", "cuda"):
        raise ValueError(f"device={device!r}: give 'cpu' or 'cuda', without an index")
    if _target:
        if device == "cuda" and _target == ["cpu"]:
            raise UnavailableError(
                "this process has loaded libraries for the CPU; give device='cuda' at its first call of load"
            )
        return _target[0]
    try:
        _toolchain.torch()
    except _toolchain.ToolMissingError:
        raise UnavailableError("torch is not installed: pip install 'warpwatch[measure]'") from None
    import torch

    return device or ("cuda" if torch.cuda.is_available() else "cpu")


def _register(operator: Operator, target: DeviceKind) -> None:
    """Builds and loads the libraries of an operator, and registers shapes and gradients of its torch operators."""
    with native.configured(_SHIPPED / "csrc", settings.library_cache(), target, fingerprints=False):
        try:
            for library in operator.uses or (operator.name,):
                native.load(library)
                _target[:] = [target]
        except native.NativeUnavailable as error:
            remedy = "; device='cpu' builds it without CUDA" if error.status == "unsupported" else ""
            raise UnavailableError(f"{operator.name}: {error}{remedy}") from error
    if operator.native is not None:
        operator.native()


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    """The tensors in lists, tuples and dicts."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, (list, tuple)):
            found += _tensors(value)
        elif isinstance(value, dict):
            found += _tensors(value.values())
        elif hasattr(value, "requires_grad"):
            found.append(value)
    return found


def _reasons(operator: Operator, variant: Variant) -> dict[_Kind, list[str | None]]:
    """Why a variant does not run declared cases on devices of this machine, each reason once; None where it does."""
    import torch

    devices: tuple[DeviceKind, ...] = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    reasons: dict[_Kind, list[str | None]] = {}
    for device in devices:
        for case in dict.fromkeys(case.as_declared for case in operator.all_cases()):
            found = reasons.setdefault((device, case.precision, case.direction), [])
            reason = variant.reason_unsupported(case, device)
            if reason not in found:
                found.append(reason)
    return reasons


def _refusals(reasons: Mapping[_Kind, list[str | None]], variant: Variant, target: DeviceKind) -> dict[str, str]:
    """Why a variant runs no case of its operator, by device of this machine; empty where it runs on all of them."""
    refusals: dict[str, str] = {}
    for device in dict.fromkeys(device for device, _, _ in reasons):
        of_device = [reason for kind, found in reasons.items() if kind[0] == device for reason in found]
        if None not in of_device:
            refusals[device] = str(of_device[0])
        elif variant.native and device == "cuda" and target == "cpu":
            refusals[device] = "its library was built for the CPU; give device='cuda' at the first call of load"
    return refusals


def _nearest(name: str, names: Mapping[str, Any] | list[str]) -> str:
    """The remedy for an unknown name: the nearest one, else all that there are."""
    nearest = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {nearest[0]!r}?" if nearest else f"choose from {', '.join(names)}"
