"""The SDK that operator files import. It needs the standard library alone; native code lives in warpwatch.native."""

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
]
__version__ = "0.1.0"
