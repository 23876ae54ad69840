"""`warpwatch.load`: the operators that ship with Warpwatch, for programs that compute with them.

It needs neither a server nor a database, only torch, ninja and a C++ compiler, and nvcc for CUDA. docs/using-kernels.md
explains it to users.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpwatch import _toolchain, native, settings

if TYPE_CHECKING:
    from torch import nn

    from warpwatch.operator import DeviceKind, Operator, Variant

__all__ = [
    "LoadError",
    "LoadedOperator",
    "LoadedVariant",
    "UnavailableError",
    "UnknownOperatorError",
    "UnknownVariantError",
    "UnsupportedDeviceError",
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


class LoadedVariant:
    """One implementation of a loaded operator. A call takes the operator's inputs, by position or by name.

    idea: how it computes. refusals: why it cannot run, by type of device; devices that it can run on are not named.
    """

    def __init__(self, operator: str, variant: Variant, refusals: Mapping[str, str]) -> None:
        functools.update_wrapper(self, variant.function)
        self.operator = operator
        self.name = variant.name
        self.idea = variant.idea
        self.refusals = dict(refusals)
        self._function = variant.function
        self._prepare = variant.prepare

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Tensors, and devices as such. An operator may take tensors on several devices, so one that suits is enough.
        kinds = [getattr(getattr(value, "device", value), "type", None) for value in (*args, *kwargs.values())]
        reasons = [self.refusals.get(kind) for kind in kinds if kind is not None]
        if reasons and None not in reasons:
            raise UnsupportedDeviceError(f"{self.operator}.{self.name}: {reasons[0]}")
        return self._function(*args, **kwargs)

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
            _operators[name] = _load(name, target)
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


def _load(name: str, target: DeviceKind) -> LoadedOperator:
    module = importlib.import_module(f"{_PACKAGE}.{name}")
    operator: Operator = module.operator
    if any(variant.native for variant in operator.variants.values()):
        _register(operator, target)
    variants = {
        key: LoadedVariant(name, variant, _refusals(operator, variant, target))
        for key, variant in operator.variants.items()
    }
    return LoadedOperator(operator, variants)


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


def _refusals(operator: Operator, variant: Variant, target: DeviceKind) -> dict[str, str]:
    """Why a variant runs no case of its operator, by device of this machine; empty where it runs on all of them."""
    import torch

    refusals: dict[str, str] = {}
    kinds: tuple[DeviceKind, ...] = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    for kind in kinds:
        reasons = [variant.reason_unsupported(case, kind) for case in operator.all_cases()]
        if reasons and None not in reasons:
            refusals[kind] = str(reasons[0])
        elif variant.native and kind == "cuda" and target == "cpu":
            refusals[kind] = "its library was built for the CPU; give device='cuda' at the first call of load"
    return refusals


def _nearest(name: str, names: Mapping[str, Any] | list[str]) -> str:
    """The remedy for an unknown name: the nearest one, else all that there are."""
    nearest = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {nearest[0]!r}?" if nearest else f"choose from {', '.join(names)}"
