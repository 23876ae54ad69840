"""Types that every reader returns, and the checks that all formats share."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import isfinite, sqrt
from statistics import median
from typing import Any

from warpwatch.contract.measurement import LONGEST_NS, SHORTEST_NS

FILE_LIMIT = 64 * 2**20
"""Bytes of one file."""
OBJECT_LIMIT = 400_000
VALUE_LIMIT = 4_000_000
"""Objects and lists, and values, that one file may hold: each takes many times its length in memory."""
BENCHMARK_LIMIT = 20_000
SAMPLE_LIMIT = 1_000_000
"""Benchmarks of one file, and samples of one benchmark."""
NAME_LIMIT = 200
"""Characters of a benchmark's name; a longer one, such as a C++ template's, is cut and gets a hash."""
UNIT_NS = {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}
_FEWEST_FOR_INTERVAL = 6
_NUMBER = re.compile(r"-?\d{1,15}")


class FormatFault(StrEnum):
    """Fault of a file of results.

    truncated: the file ends in the middle. invalid: the file is not of the format. too_large: more bytes, objects or
    samples than are read. unknown_version: a version of the format that no reader knows. empty: the file holds no
    benchmark. unknown_format: there is no reader of this name.
    """

    TRUNCATED = "truncated"
    INVALID = "invalid"
    TOO_LARGE = "too_large"
    UNKNOWN_VERSION = "unknown_version"
    EMPTY = "empty"
    UNKNOWN_FORMAT = "unknown_format"


class FormatError(ValueError):
    """A file of results cannot be used. remedy: what to do about it."""

    def __init__(self, fault: FormatFault, message: str, remedy: str) -> None:
        super().__init__(f"{message}; {remedy}")
        self.fault = fault
        self.message = message
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class ForeignBenchmark:
    """One benchmark with one set of parameters.

    name: unique in its file, without blanks. sizes: those of its parameters that are whole numbers. error: what the
    program said of a benchmark that failed; it has no times then. skipped: whether the program left it out itself.
    """

    name: str
    samples_ns: list[float] = field(default_factory=list)
    median_ns: float = 0.0
    low_ns: float = 0.0
    high_ns: float = 0.0
    noise: float = 0.0
    sizes: dict[str, int] = field(default_factory=dict)
    error: str | None = None
    skipped: bool = False


@dataclass(frozen=True, slots=True)
class ForeignResults:
    """All results of one file. device_name: "" where the file does not say. facts: what it says of the machine."""

    format: str
    device_kind: str
    device_name: str
    facts: dict[str, Any]
    benchmarks: list[ForeignBenchmark]


def invalid(message: str, remedy: str = "give the file as the program wrote it") -> FormatError:
    return FormatError(FormatFault.INVALID, message, remedy)


def parse_json(data: bytes) -> dict[str, Any]:
    """The object of a JSON text; FormatError for anything else, and for one that would take far more memory than its
    length."""
    smaller = "measure fewer benchmarks per file"
    if len(data) > FILE_LIMIT:
        raise FormatError(FormatFault.TOO_LARGE, f"it has more than {FILE_LIMIT >> 20} MiB", smaller)
    if data.count(b"{") + data.count(b"[") > OBJECT_LIMIT or data.count(b",") > VALUE_LIMIT:
        message = f"it has more than {OBJECT_LIMIT} objects or {VALUE_LIMIT} values"
        raise FormatError(FormatFault.TOO_LARGE, message, smaller)
    try:
        text = data.decode("utf-8-sig").rstrip()
    except UnicodeDecodeError:
        raise invalid("it is not UTF-8 text") from None
    try:
        # NaN is valid where nothing is read; `number` refuses it where something is.
        values = json.loads(text, parse_constant=float)
    except json.JSONDecodeError as error:
        # Where a text ends within a word or a string, the error lies before its end.
        if error.pos >= len(text) or (text.startswith("{") and not text.endswith("}")):
            again = "run the program again; it ended before it had written all of its results"
            raise FormatError(FormatFault.TRUNCATED, "it ends in the middle", again) from None
        raise invalid(f"it is not JSON: {error.msg} in line {error.lineno}") from None
    except RecursionError:
        raise invalid("its JSON is nested too deeply") from None
    except ValueError:
        raise invalid("it holds a number with too many digits") from None
    if not isinstance(values, dict):
        raise invalid("it is not a JSON object")
    return values


def expect_version(version: object, known: tuple[int, ...], what: str) -> None:
    """FormatError unless the major version is one that the reader was written for."""
    if version not in known or isinstance(version, bool):
        names = " or ".join(map(str, known))
        remedy = f"write version {names}, or update Warpwatch"
        raise FormatError(FormatFault.UNKNOWN_VERSION, f"{what} is of version {_short(version)}", remedy)


def objects(values: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """The list of objects at `key`; FormatError where there is something else."""
    items = values.get(key)
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise invalid(f"{key}: expected a list of objects")
    return items


def number(value: object, where: str) -> float:
    """A finite number; FormatError for NaN, infinity, text and truth values."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise invalid(f"{where}: expected a finite number, got {_short(value)}")
    return float(value)


def unit_of(value: object, where: str) -> float:
    """A unit of time in nanoseconds."""
    if not isinstance(value, str) or value not in UNIT_NS:
        raise invalid(f"{where}: {_short(value)} is no unit of time", f"use {', '.join(UNIT_NS)}")
    return UNIT_NS[value]


def text_of(value: object, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise invalid(f"{where}: expected a text, got {_short(value)}")
    return value


def timed(
    name: str, samples_ns: list[float], sizes: dict[str, int] | None = None, centre_ns: float | None = None
) -> ForeignBenchmark:
    """A benchmark from its samples; FormatError where they are no times. centre_ns: what the program calls its
    result, where the samples are not all that it took."""
    if not samples_ns:
        raise invalid(f"{name}: no times", "let the program write a value or samples")
    if len(samples_ns) > SAMPLE_LIMIT:
        remedy = "let the program take fewer samples"
        raise FormatError(FormatFault.TOO_LARGE, f"{name}: more than {SAMPLE_LIMIT} samples", remedy)
    shortest = min(samples_ns if centre_ns is None else [*samples_ns, centre_ns])
    longest = max(samples_ns if centre_ns is None else [*samples_ns, centre_ns])
    if shortest < 0 or longest > LONGEST_NS:
        raise invalid(f"{name}: {shortest:g} to {longest:g} ns are no durations of at most a day", "check the unit")
    if shortest < SHORTEST_NS:
        # Programs say so of a benchmark that the compiler left empty. It must not cost the others.
        return ForeignBenchmark(name, sizes=sizes or {}, error=f"{shortest:g} ns: it does nothing", skipped=True)
    ordered = sorted(samples_ns)
    middle = median(ordered) if centre_ns is None else centre_ns
    low, high = _interval(ordered)
    quarter = len(ordered) // 4
    spread = (ordered[-1 - quarter] - ordered[quarter]) / middle
    return ForeignBenchmark(name, samples_ns, middle, min(low, middle), max(high, middle), spread, sizes or {})


def spread_by(benchmark: ForeignBenchmark, deviation_ns: float, count: int) -> ForeignBenchmark:
    """The benchmark with the interval and noise that a standard deviation of `count` samples gives it."""
    if benchmark.error is not None:
        return benchmark
    half = 1.96 * abs(deviation_ns) / sqrt(max(count, 1))
    low = max(SHORTEST_NS, benchmark.median_ns - half)
    high = min(LONGEST_NS, benchmark.median_ns + half)
    # The interquartile range of a normal distribution is 1.349 deviations.
    return replace(benchmark, low_ns=low, high_ns=high, noise=1.349 * abs(deviation_ns) / benchmark.median_ns)


def name_of(text: str) -> str:
    """A benchmark's name as a key: without blanks and control characters, and no longer than NAME_LIMIT."""
    name = re.sub(r"[\s\x00-\x1f\x7f]+", "_", text.encode("utf-8", "replace").decode("utf-8").strip())
    if len(name) <= NAME_LIMIT:
        return name
    return f"{name[: NAME_LIMIT - 9]}~{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def whole(value: object) -> int | None:
    """A parameter as a whole number; None where it is none."""
    if isinstance(value, bool):
        return None
    text = str(value)
    return int(text) if _NUMBER.fullmatch(text) else None


def unique(results: ForeignResults) -> ForeignResults:
    """The results; FormatError where there are none, too many, or two of one name."""
    names = [benchmark.name for benchmark in results.benchmarks]
    if not names:
        raise FormatError(
            FormatFault.EMPTY, "it holds no benchmark", "check which benchmarks the program was told to run"
        )
    if len(names) > BENCHMARK_LIMIT:
        remedy = "measure fewer benchmarks per file"
        raise FormatError(FormatFault.TOO_LARGE, f"it holds more than {BENCHMARK_LIMIT} benchmarks", remedy)
    (name, count), *_ = Counter(names).most_common(1)
    if count > 1:
        raise invalid(f"two benchmarks are called {name!r}", "give each its own name")
    return results


def _interval(ordered: list[float]) -> tuple[float, float]:
    """The 95 % interval of the median of sorted samples, by their ranks; all of them where they are few."""
    count = len(ordered)
    if count < _FEWEST_FOR_INTERVAL:
        return ordered[0], ordered[-1]
    rank = max(0, int((count - 1.96 * sqrt(count)) / 2))
    return ordered[rank], ordered[count - 1 - rank]


def _short(value: object) -> str:
    return repr(value)[:60]
