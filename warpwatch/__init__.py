"""The SDK that operator files import. It needs the standard library alone; native code lives in warpwatch.native."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from warpwatch.operator import (
    CONTRACT,
    Case,
    Cost,
    DeviceKind,
    Direction,
    Maker,
    Operator,
    Precision,
    QuantizedOutput,
    Variant,
    both_directions,
    case,
    gap,
)

__version__ = "0.2.0"

__all__ = [
    "CONTRACT",
    "Case",
    "Cost",
    "DeviceKind",
    "Direction",
    "Maker",
    "Operator",
    "Precision",
    "QuantizedOutput",
    "Variant",
    "both_directions",
    "case",
    "gap",
    "load",
    "swap_bert",
]

if TYPE_CHECKING:
    from warpwatch.loading import LoadedOperator


def load(operator: str, device: DeviceKind | None = None) -> LoadedOperator:
    """An operator that ships with Warpwatch, such as `load("kron")`, with its torch operators registered.

    Its variants are attributes: `load("kron").v3(x, w1, w2, factors)`. The first call on a machine compiles its
    library. device: what libraries are built for, "cpu" or "cuda" (which runs on the CPU as well), the same for all
    operators of a process; by default "cuda" where torch finds a GPU. Raises warpwatch.loading.LoadError.
    """
    # An operator file imports this package, and needs neither compilers nor torch for it.
    from warpwatch.loading import load_operator

    return load_operator(operator, device)


def swap_bert(model: Any, device: DeviceKind | None = None) -> int:
    """Swaps the products of a Hugging Face BERT in place, for cuBLAS on a GPU and our C++ on a CPU: its linear layers
    and both products of attention. Returns the number of linear layers.

    Parameters, their names and all other steps stay. device: as in `load`. Needs the package transformers.
    """
    from warpwatch.loading import swap_bert_products

    return swap_bert_products(model, device)
