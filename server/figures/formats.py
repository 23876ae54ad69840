"""How numbers, times and names are written on pages. Every function is a Jinja filter of the same name."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from math import floor, log10
from typing import Any

_MINUS = "\u2212"
_THIN = "\u2009"
_DURATIONS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
_AGES = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))

NOTABLE_CHANGE = 0.03
"""A change smaller than this, or than twice the noise, is written but not coloured."""

SURE_OF_DRIFT = 0.01
NOTABLE_DRIFT, NOTABLE_DEPENDENCE, NOTABLE_OUTLIERS = 0.005, 0.4, 0.05
"""A drift, a correlation of neighbours and a share of outliers below these are not worth a word."""

STATUS_NAMES = {
    "ok": "ok",
    "wrong": "wrong",
    "crashed": "crashed",
    "timed_out": "timed out",
    "out_of_memory": "out of memory",
    "build_failed": "build failed",
    "unsupported": "unsupported",
    "skipped": "skipped",
}


def unit_of(ns: float) -> tuple[float, str]:
    """The unit a duration is written in: its size in nanoseconds and its name."""
    return next(((size, name) for size, name in _DURATIONS if abs(ns) >= size * 0.9995), _DURATIONS[-1])


def duration(ns: float | None, digits: int = 3) -> str:
    """12.3 µs; an en dash where nothing was measured."""
    if ns is None:
        return "–"
    size, name = unit_of(ns)
    return f"{significant(ns / size, digits)}{_THIN}{name}"


def significant(value: float, digits: int = 3) -> str:
    """A number with `digits` significant digits, never in scientific notation between 0.001 and 10⁶."""
    if value == 0:
        return "0"
    if not 1e-3 <= abs(value) < 1e6:
        return f"{value:.{digits - 1}e}"
    rounded = float(f"{value:.{digits - 1}e}")
    decimals = max(digits - 1 - floor(log10(abs(rounded))), 0)
    return f"{rounded:.{decimals}f}".replace("-", _MINUS)


def sci(value: float | None) -> str:
    """An error: 3.1e−06; an en dash where it is unknown."""
    return "–" if value is None else "0" if value == 0 else f"{value:.1e}".replace("-", _MINUS)


def seconds(value: float | None) -> str:
    return duration(None if value is None else value * 1e9, 2)


def change(ratio: float | None) -> str:
    """A ratio of new over old as a signed percentage; large ones as a factor."""
    if ratio is None:
        return ""
    percent = (ratio - 1) * 100
    if abs(percent) < 0.05:
        return f"±0.0{_THIN}%"
    if percent >= 300:
        return f"×{significant(ratio)}"
    return f"{'+' if percent > 0 else _MINUS}{abs(percent):.1f}{_THIN}%"


def direction(ratio: float | None, noise: float | None = None) -> str:
    """slower | faster | same: whether a ratio of new over old is worth colouring, given the noise of the new value."""
    if ratio is None or abs(ratio - 1) < max(NOTABLE_CHANGE, 2 * (noise or 0.0)):
        return "same"
    return "slower" if ratio > 1 else "faster"


def share(value: float | None, digits: int = 0) -> str:
    """A share of one as a percentage; small ones keep a digit, so that they do not look like nothing."""
    if value is None:
        return "–"
    percent = value * 100
    return f"{percent:.{max(digits, 1 if 0 < percent < 9.95 else 0)}f}{_THIN}%"


def size(count: float | None) -> str:
    """Bytes in binary units."""
    if count is None:
        return "–"
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{significant(value) if unit != 'B' else int(value)}{_THIN}{unit}"
        value /= 1024
    return f"{significant(value)}{_THIN}TiB"


def quantity(value: float | None, unit: str = "", digits: int = 3) -> str:
    """A count or rate in decimal units: 1.34 GFLOP, 3.00 TB/s."""
    if value is None:
        return "–"
    amount = float(value)
    for prefix in ("", "k", "M", "G", "T"):
        if abs(amount) < 999.5:
            return f"{significant(amount, digits) if prefix else f'{amount:g}'}{_THIN}{prefix}{unit}".rstrip()
        amount /= 1000
    return f"{significant(amount, digits)}{_THIN}P{unit}".rstrip()


def short(sha: str) -> str:
    return sha[:8]


def short_ids(message: str) -> str:
    """The message with every id of a commit cut to what `short` leaves of it."""
    return re.sub(r"\b[0-9a-f]{40}\b", lambda found: short(found[0]), message)


def ago(when: datetime, now: datetime | None = None) -> str:
    """How long ago, in one unit: "3 h ago"; the day itself when it is more than a month."""
    age = ((now or datetime.now(UTC)) - when).total_seconds()
    if age > 30 * 86400:
        return f"{when.astimezone(UTC):%Y-%m-%d}"
    return next((f"{int(age // length)}{_THIN}{name} ago" for length, name in _AGES if age >= length), "just now")


def absolute(when: datetime) -> str:
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def day(when: datetime) -> str:
    return f"{when.astimezone(UTC):%Y-%m-%d}"


def span(value: float | None) -> str:
    """How long people or machines took, given seconds, in one unit: "3.2 h"; an en dash where nothing was timed."""
    if value is None:
        return "–"
    size, name = next(((size, name) for size, name in (*_AGES, (1.0, "s")) if value >= size), (1.0, "s"))
    return f"{value / size:.{0 if value >= 10 * size or value < 1 else 1}f}{_THIN}{name}"


def moment(when: datetime) -> str:
    """A moment to come, to the minute."""
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M}"


def status_name(status: str) -> str:
    return STATUS_NAMES.get(status, status)


def headline(message: str) -> str:
    """The line of a message that says most: the last of a traceback, the first of anything else."""
    lines = message.strip().splitlines() or [""]
    return lines[-1] if lines[0].startswith("Traceback") else lines[0]


def natural(text: str) -> list[tuple[bool, int, str]]:
    """Sorts 16 before 128, in names that hold numbers."""
    return [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", text) if part]


def variant_order(name: str) -> tuple[bool, list[tuple[bool, int, str]]]:
    """Numbered versions first, in their order, then everything they are held against."""
    return re.fullmatch(r"v\d+", name) is None, natural(name)


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}".replace(",", _THIN)


def shape(told: dict[str, Any] | None) -> list[str]:
    """What is worth saying about a set of samples (contract.measurement.Distribution as JSON) besides its median; often
    nothing."""
    if not told:
        return []
    found = []
    if told["modes"]:
        places = (f"{duration(mode['ns'])} ({share(mode['share'])})" for mode in told["modes"])
        found.append(f"two modes: {' and '.join(places)}")
    if told["drift_chance"] < SURE_OF_DRIFT and abs(told["drift"]) >= NOTABLE_DRIFT:
        found.append(f"drifts {change(1 + told['drift'])} over the run")
    if told["autocorrelation"] > NOTABLE_DEPENDENCE:
        found.append(
            f"neighbours alike (ρ {told['autocorrelation']:.2f}): worth {told['effective']:.0f} independent samples"
        )
    if told["outliers"] > NOTABLE_OUTLIERS:
        found.append(f"{share(told['outliers'])} outliers")
    return found


def fact(value: Any) -> str:
    """A value of an environment's facts as text."""
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "–"
    if isinstance(value, dict):
        return ", ".join(f"{key} {fact(inner)}" for key, inner in value.items()) or "–"
    return "–" if value in (None, "") else str(value)


FILTERS = (
    duration,
    significant,
    sci,
    seconds,
    change,
    direction,
    share,
    size,
    quantity,
    short,
    short_ids,
    ago,
    absolute,
    moment,
    day,
    span,
    status_name,
    headline,
    plural,
    shape,
    fact,
)
