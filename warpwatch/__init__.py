"""The SDK that operator files import. It needs the standard library alone; native code lives in warpwatch.native."""

from typing import TYPE_CHECKING

from warpwatch.operator import (
    CONTRACT,
    Case,
    Cost,
    DeviceKind,
    Direction,
    Maker,
    Operator,
    Precision,
    Variant,
    both_directions,
    case,
    gap,
)

__all__ = [
    "CONTRACT",
    "Case",
    "Cost",
    "DeviceKind",
    "Direction",
    "Maker",
    "Operator",
    "Precision",
    "Variant",
    "both_directions",
    "case",
    "gap",
]

if TYPE_CHECKING:
    __version__: str
else:

    def __getattr__(name: str) -> str:
        # importlib.metadata takes 20 ms to import, and most processes that import the SDK never ask for the version.
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("warpwatch")
        except PackageNotFoundError:
            # A child may run with an interpreter that loads the package from its folder.
            return "0+unknown"
