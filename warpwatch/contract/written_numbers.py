"""How numbers are written that the rules of verdicts and pages both write."""

from __future__ import annotations

from math import floor, log10

MINUS = "\u2212"
THIN = "\u2009"


def significant(value: float, digits: int = 3) -> str:
    """A number with `digits` significant digits, never in scientific notation between 0.001 and 10⁶."""
    if value == 0:
        return "0"
    if not 1e-3 <= abs(value) < 1e6:
        return f"{value:.{digits - 1}e}"
    rounded = float(f"{value:.{digits - 1}e}")
    decimals = max(digits - 1 - floor(log10(abs(rounded))), 0)
    return f"{rounded:.{decimals}f}".replace("-", MINUS)


def change(ratio: float | None) -> str:
    """A ratio of new over old as a signed percentage; large ones as a factor."""
    if ratio is None:
        return ""
    percent = (ratio - 1) * 100
    if abs(percent) < 0.05:
        return f"±0.0{THIN}%"
    if percent >= 300:
        return f"×{significant(ratio)}"
    return f"{'+' if percent > 0 else MINUS}{abs(percent):.1f}{THIN}%"
