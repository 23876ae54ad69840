"""How numbers, times and names are written on pages. Every function in FILTERS is a Jinja filter of the same name."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from warpwatch.contract.commit_ids import short_sha
from warpwatch.contract.words import JudgementVerdict
from warpwatch.contract.written_numbers import MINUS, THIN
from warpwatch.contract.written_numbers import change as change
from warpwatch.contract.written_numbers import significant as significant

DURATION_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
ENERGY_UNITS = ((1.0, "J"), (1e-3, "mJ"), (1e-6, "µJ"), (1e-9, "nJ"))
_AGES = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))

NOTABLE_CHANGE = 0.03
"""A change smaller than this, or than twice the noise, is written but not coloured."""

SURE_OF_DRIFT = 0.01
NOTABLE_DRIFT, NOTABLE_DEPENDENCE, NOTABLE_OUTLIERS = 0.005, 0.4, 0.05
"""A drift, an autocorrelation and a share of outliers below these are not reported."""

STATUS_NAMES = {
    "ok": "ok",
    "wrong": "wrong",
    "crashed": "crashed",
    "timed_out": "timed out",
    "out_of_memory": "out of memory",
    "build_failed": "build failed",
    "unreadable": "unreadable results",
    "missing_dependency": "missing dependency",
    "unsupported": "unsupported",
    "skipped": "skipped",
}
STATE_NAMES = {"unsure": "inconclusive", "alive": "online", "silent": "not responding"}
PHASE_NAMES = {
    "unpaired": "suspected, cannot be confirmed here",
    "bisecting": "confirmed, bisecting",
    "culprit": "confirmed",
    "dismissed": "no change",
    "unsure": "inconclusive",
}
KIND_NAMES = {"compare": "A/B"}
JUDGEMENT_WORDS = {
    JudgementVerdict.CHEATS: "cheats",
    JudgementVerdict.WRONG: "wrong",
    JudgementVerdict.CANNOT_BUILD: "does not build",
    JudgementVerdict.FAILED: "could not run on every case",
    JudgementVerdict.OVER_BUDGET: "over budget",
    JudgementVerdict.CANCELLED: "cancelled",
    JudgementVerdict.MIXED: "faster and slower",
    JudgementVerdict.SLOWER: "slower",
    JudgementVerdict.FASTER: "faster",
    JudgementVerdict.SAME: "not told apart",
}
ORIGIN_NAMES = {"cli": "CLI", "api": "API", "ci": "CI", "judge": "Warpwatch", "confirm": "Warpwatch"}
"""Shown instead of the stored word; any other word is shown as it is."""
_COMPILER_ERROR = re.compile(r"\b(fatal )?error(:| #|\s+[A-Z]+\d+:)")
_NUMBER = r"\d[\d.,]*"
# Times, rates and sizes in memory, percentages, factors, errors, the words for shares and multiples, and those that
# rank variants, which hold on one device alone.
_MEASURED = re.compile(
    rf"{_NUMBER}\s*(?:ns|µs|us|ms|s|seconds?|minutes?|[kMG]B|%|percent|TFLOPs?|GFLOPs?|times)(?![\w/])"
    rf"|{_NUMBER}\s*[%×](?!\s*\d)|{_NUMBER}\s*x\b(?!\s*\d)|\d[\d.]*e[-−]?\d"
    r"|\b(?:half|halves|thirds?|quarters?|fourths?|fifths?|tenths?|twice|thrice)\b"
    r"|\b(?:two|three|four|five|six|ten) times (?:as|faster|slower|the)\b"
    r"|\b(?:(?:fast|slow)(?:er|est)|as (?:fast|slow) as|beats|loses (?:to|with)|(?:close|far) behind|[AHB][1-3]00)\b",
    re.IGNORECASE,
)
_SHARES = ("steal", "idle", "pressure")
"""Readings of the host that are shares of one."""


def unit_of(ns: float) -> tuple[float, str]:
    """The unit a duration is written in: its size in nanoseconds and its name."""
    return _largest_unit(ns, DURATION_UNITS)


def _largest_unit(value: float, units: Sequence[tuple[float, str]]) -> tuple[float, str]:
    """The largest unit of which there is at least one, as it is written; else the smallest. units: from the largest."""
    return next(((size, name) for size, name in units if abs(value) >= size * 0.9995), units[-1])


def duration(ns: float | None, digits: int = 3) -> str:
    """12.3 µs; an en dash where nothing was measured."""
    if ns is None:
        return "–"
    size, name = unit_of(ns)
    return f"{significant(ns / size, digits)}{THIN}{name}"


def sci(value: float | None) -> str:
    """An error: 3.1e−06; ∞ for the largest number, which stands for it in JSON; an en dash where it is unknown."""
    if value is None:
        return "–"
    return "0" if value == 0 else "∞" if value >= sys.float_info.max else f"{value:.1e}".replace("-", MINUS)


def rounded(value: float) -> float:
    """The value with as many digits as a chart can show; sixteen are a third of what the page weighs."""
    return float(f"{value:.6g}")


def seconds(value: float | None) -> str:
    return duration(None if value is None else value * 1e9, 2)


def interval(low: float | None, high: float | None) -> str:
    """An interval of a ratio as percentages: −1.4 … +1.8 %; empty where there is none."""
    if low is None or high is None:
        return ""
    first, last = change(low), change(high)
    return f"{first.removesuffix(f'{THIN}%')} … {last}" if last.endswith("%") else f"{first} … {last}"


def direction(ratio: float | None, noise: float | None = None) -> str:
    """slower | faster | same: how a ratio of new over old is coloured, given the noise of the new value."""
    if ratio is None or abs(ratio - 1) < max(NOTABLE_CHANGE, 2 * (noise or 0.0)):
        return "same"
    return "slower" if ratio > 1 else "faster"


def share(value: float | None, digits: int = 0) -> str:
    """A share of one as a percentage; below 10 % with one digit, so that a small share does not read as 0."""
    if value is None:
        return "–"
    percent = value * 100
    return f"{percent:.{max(digits, 1 if 0 < percent < 9.95 else 0)}f}{THIN}%"


def size(count: float | None) -> str:
    """Bytes in binary units."""
    if count is None:
        return "–"
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{significant(value) if unit != 'B' else int(value)}{THIN}{unit}"
        value /= 1024
    return f"{significant(value)}{THIN}TiB"


def energy_unit(value: float) -> tuple[float, str]:
    """The unit an energy is written in: its size in joules and its name."""
    return _largest_unit(value, ENERGY_UNITS)


def joules(value: float, digits: int = 3) -> str:
    """12.3 mJ."""
    size, name = energy_unit(value)
    return f"{significant(value / size, digits)}{THIN}{name}"


def quantity(value: float | None, unit: str = "", digits: int = 3) -> str:
    """A count or rate in decimal units: 1.34 GFLOP, 3.00 TB/s."""
    if value is None:
        return "–"
    amount = float(value)
    for prefix in ("", "k", "M", "G", "T"):
        if abs(amount) < 999.5:
            return f"{significant(amount, digits) if prefix else f'{amount:g}'}{THIN}{prefix}{unit}".rstrip()
        amount /= 1000
    return f"{significant(amount, digits)}{THIN}P{unit}".rstrip()


def short_ids(message: str) -> str:
    """The message with every commit id shortened."""
    return re.sub(r"\b[0-9a-f]{40}\b", lambda match: short_sha(match[0]), message)


def ago(when: datetime, now: datetime | None = None) -> str:
    """How long ago, in one unit: "3 h ago"; the day itself when it is more than a month."""
    age = ((now or datetime.now(UTC)) - when).total_seconds()
    if age > 30 * 86400:
        return f"{when.astimezone(UTC):%Y-%m-%d}"
    return next((f"{int(age // length)}{THIN}{name} ago" for length, name in _AGES if age >= length), "just now")


def absolute(when: datetime) -> str:
    # A history has a thousand of these, and strftime takes twice as long.
    return f"{when.astimezone(UTC).isoformat(' ', 'seconds')[:19]} UTC"


def day(when: datetime) -> str:
    return f"{when.astimezone(UTC):%Y-%m-%d}"


def span(value: float | None) -> str:
    """How long people or machines took, given seconds, in one unit: "3.2 h"; an en dash where nothing was timed."""
    if value is None:
        return "–"
    size, name = next(((size, name) for size, name in (*_AGES, (1.0, "s")) if value >= size), (1.0, "s"))
    return f"{value / size:.{0 if value >= 10 * size or value < 1 else 1}f}{THIN}{name}"


def moment(when: datetime) -> str:
    """A future time in UTC, to the minute."""
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M}"


def status_name(status: str) -> str:
    return STATUS_NAMES.get(status, status)


def state_name(state: str) -> str:
    """A state or verdict as pages show it."""
    return STATE_NAMES.get(state, state.replace("_", " "))


def phase_name(phase: str) -> str:
    """A phase of a change as pages show it."""
    return PHASE_NAMES.get(phase, phase)


def outcome_name(outcome: str) -> str:
    """Outcome of a job, or its state until it has ended, as pages show it."""
    return {"could_not_run": "could not run", "not_run": "not run", "queued": "waiting"}.get(outcome, outcome)


def kind_name(kind: str) -> str:
    """A kind of job as pages show it."""
    return KIND_NAMES.get(kind, kind)


def origin_name(origin: str) -> str:
    """Who or what started a submission, as pages show it."""
    return ORIGIN_NAMES.get(origin, origin)


def headline(message: str) -> str:
    """One line that stands for a message: a traceback's last line, a compiler's first error, else the first line."""
    lines = message.strip().splitlines() or [""]
    if lines[0].startswith("Traceback"):
        return lines[-1]
    return next((line.strip() for line in lines if _COMPILER_ERROR.search(line)), lines[0])


def states_result(text: str) -> bool:
    """Whether a text states something measured, such as "82 µs", "a third of v1's time" or "beats v1". Sizes such as
    128 x 128, names such as f32 and counts of a kernel's own steps are not measured."""
    return _MEASURED.search(text) is not None


def natural(text: str) -> list[tuple[bool, int, str]]:
    """A sort key that puts 16 before 128 in names that contain numbers."""
    return [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", text) if part]


def variant_order(name: str) -> tuple[bool, list[tuple[bool, int, str]]]:
    """A sort key: v1, v2, … first, then the variants they are compared with."""
    return re.fullmatch(r"v\d+", name) is None, natural(name)


def plural(count: int, noun: str) -> str:
    ending = "" if count == 1 else "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{ending}".replace(",", THIN)


def shape(distribution: dict[str, Any] | None) -> list[str]:
    """Remarks on a set of samples (contract.measurement.Distribution as JSON); empty for an unremarkable set."""
    if not distribution:
        return []
    remarks = []
    if distribution["modes"]:
        modes = (f"{duration(mode['ns'])} ({share(mode['share'])})" for mode in distribution["modes"])
        remarks.append(f"bimodal: {' and '.join(modes)}")
    if distribution["drift_chance"] < SURE_OF_DRIFT and abs(distribution["drift"]) >= NOTABLE_DRIFT:
        remarks.append(f"drifts {change(1 + distribution['drift'])} over the run")
    if distribution["autocorrelation"] > NOTABLE_DEPENDENCE:
        rho, effective = distribution["autocorrelation"], distribution["effective"]
        remarks.append(f"autocorrelated (ρ {rho:.2f}, n_eff {effective:.0f})")
    if distribution["outliers"] > NOTABLE_OUTLIERS:
        remarks.append(f"{share(distribution['outliers'])} outliers")
    return remarks


def fact(value: Any) -> str:
    """A value of an environment's facts as text."""
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "–"
    if isinstance(value, dict):
        return ", ".join(f"{key} {fact(inner)}" for key, inner in value.items()) or "–"
    return "–" if value in (None, "") else str(value)


def host_fact(value: Any, name: str) -> str:
    """A reading of the host: shares as percentages with one digit, other fractions with three significant digits."""
    if isinstance(value, float):
        return share(value, 1) if name in _SHARES else significant(value)
    return fact(value)


def host(address: str) -> str:
    """The name of the machine in an address: "id.example" of https://id.example/realms/acme."""
    return urlsplit(address).hostname or address


FILTERS = (
    duration,
    host,
    significant,
    sci,
    seconds,
    change,
    interval,
    direction,
    share,
    size,
    joules,
    quantity,
    short_sha,
    short_ids,
    ago,
    absolute,
    moment,
    day,
    span,
    status_name,
    state_name,
    phase_name,
    kind_name,
    outcome_name,
    origin_name,
    headline,
    plural,
    shape,
    fact,
    host_fact,
)
