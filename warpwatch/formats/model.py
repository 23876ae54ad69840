"""Types that every reader returns, and the checks that all formats share."""

from __future__ import annotations

import codecs
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from itertools import pairwise
from math import inf, isfinite, sqrt
from statistics import median
from typing import Any, TypeVar

from warpwatch.contract.measurement import LONGEST_NS, SHORTEST_NS
from warpwatch.contract.words import Status

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
MESSAGE_LIMIT = 2000
"""Characters of what a program says of a benchmark that failed."""
_FEWEST_FOR_INTERVAL = 6
_NUMBER = re.compile(r"-?\d{1,15}")
_SHA = re.compile(r"[0-9a-f]{7,64}")
_ASSIGNMENT = re.compile(r"\s*window\.[A-Za-z_]+\s*=\s*(?={)")
"""What a page's script writes before the JSON that it keeps."""
_ASSIGNED_HOSTS = (
    (re.compile(r"fv-az[\d-]+|runnervm\w+|(Mac|sat12)-\d+.*"), "GitHub-hosted runner"),
    (re.compile(r"runner-[\w-]+-project-\d+.*"), "GitLab runner"),
    (re.compile(r"ip-(\d{1,3}-){3}\d{1,3}(\..*)?"), "EC2 host"),
    (re.compile(r"[0-9a-f]{12}"), "container"),
)
"""Host names that clouds and container engines make up for every job."""
T = TypeVar("T")


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

    name: unique in its file, without blanks. status: ok; crashed or skipped where the program says so; unreadable where
    its part of the file is none of the format. message: why it has no times, where it is not ok. sizes: those of its
    parameters that are whole numbers. dropped: samples that are shorter than any call, as a clock that ticked between
    them shows them. device: the model of device that it ran on, "" for that of the file.
    """

    name: str
    status: Status = Status.OK
    message: str = ""
    samples_ns: list[float] = field(default_factory=list)
    median_ns: float = 0.0
    low_ns: float = 0.0
    high_ns: float = 0.0
    noise: float = 0.0
    sizes: dict[str, int] = field(default_factory=dict)
    dropped: int = 0
    device: str = ""


@dataclass(frozen=True, slots=True)
class ForeignResults:
    """All results of one file.

    device_name: "" where the file does not say. facts: what it says of the machine. left_out: what could not be read
    and belongs to no benchmark, a sentence for each part. commit: that the file says it measured, "" where it does not.
    is_dirty: whether the file says that changes lay over it. measured_at: None where the file does not say.
    """

    format: str
    device_kind: str
    device_name: str
    facts: dict[str, Any]
    benchmarks: list[ForeignBenchmark]
    left_out: list[str] = field(default_factory=list)
    commit: str = ""
    is_dirty: bool = False
    measured_at: datetime | None = None

    def list_faults(self) -> list[str]:
        """What of the file could not be read: what belongs to no benchmark, and the benchmarks that are unreadable."""
        return [*self.left_out, *(item.message for item in self.benchmarks if item.status is Status.UNREADABLE)]


def invalid(message: str, remedy: str = "give the file as the program wrote it") -> FormatError:
    return FormatError(FormatFault.INVALID, message, remedy)


def parse_json(data: bytes) -> dict[str, Any]:
    """The object of a JSON text; FormatError for anything else, and for one that would take far more memory than its
    length."""
    text = _without_greeting(_decode(data)).rstrip()
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


def parse_lines(data: bytes) -> dict[str, Any]:
    """The lines of a text, as `lines`; FormatError within the limits of parse_json, and where there is none."""
    lines = [line for line in _decode(data).splitlines() if line.strip()]
    if not lines:
        raise FormatError(FormatFault.EMPTY, "it is empty", "run the program again")
    return {"lines": lines}


def _decode(data: bytes) -> str:
    smaller = "measure fewer benchmarks per file"
    if len(data) > FILE_LIMIT:
        raise FormatError(FormatFault.TOO_LARGE, f"it has more than {FILE_LIMIT >> 20} MiB", smaller)
    if data.count(b"{") + data.count(b"[") > OBJECT_LIMIT or data.count(b",") > VALUE_LIMIT:
        message = f"it has more than {OBJECT_LIMIT} objects or {VALUE_LIMIT} values"
        raise FormatError(FormatFault.TOO_LARGE, message, smaller)
    # PowerShell writes what a program prints as UTF-16.
    is_utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        return data.decode("utf-16" if is_utf16 else "utf-8-sig")
    except UnicodeDecodeError:
        raise invalid("it is neither UTF-8 nor UTF-16 text with its mark", "write it as UTF-8") from None


def _without_greeting(text: str) -> str:
    """What follows the lines that a program printed before the first one that begins a JSON object."""
    if text.startswith("{"):
        return text
    if assigned := _ASSIGNMENT.match(text):
        return text[assigned.end() :]
    start = text.find("\n{")
    return text[start + 1 :] if start >= 0 else text


def expect_version(version: object, known: tuple[int, ...], what: str) -> None:
    """FormatError unless the major version is one that the reader was written for."""
    if version not in known or isinstance(version, bool):
        names = " or ".join(map(str, known))
        remedy = f"write version {names}, or update Warpwatch"
        raise FormatError(FormatFault.UNKNOWN_VERSION, f"{what} is of version {_short(version)}", remedy)


def objects(values: dict[str, Any], key: str, left_out: list[str] | None = None) -> list[dict[str, Any]]:
    """The objects of the list at `key`, of which null is an empty one; FormatError where there is no list.

    left_out: where every item that is no object is named; without it such an item is a FormatError.
    """
    items = values.get(key, ...)
    if items is None:
        return []
    if not isinstance(items, list):
        raise invalid(f"{key}: expected a list of objects")
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            fault = f"{key}[{index}]: expected an object, got {_short(item)}"
            if left_out is None:
                raise invalid(fault)
            left_out.append(fault)
    return [item for item in items if isinstance(item, dict)]


def read_rows(
    rows: Iterable[T], name: Callable[[T], str], read: Callable[[str, T], ForeignBenchmark], left_out: list[str]
) -> list[ForeignBenchmark]:
    """Every row as a benchmark. A row that `read` refuses is unreadable, and one without a name is left out."""
    named: list[tuple[str, T]] = []
    for row in rows:
        try:
            named.append((name(row), row))
        except FormatError as error:
            left_out.append(error.message)
    benchmarks = []
    for key, (_, row) in zip(keys_of([text for text, _ in named]), named, strict=True):
        try:
            benchmarks.append(read(key, row))
        except FormatError as error:
            benchmarks.append(ForeignBenchmark(key, Status.UNREADABLE, str(error)[:MESSAGE_LIMIT]))
    return benchmarks


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
    ordered = sorted(samples_ns)
    middle = median(ordered) if centre_ns is None else centre_ns
    shortest, longest = min(ordered[0], middle), max(ordered[-1], middle)
    if shortest < 0 or longest > LONGEST_NS:
        raise invalid(f"{name}: {shortest:g} to {longest:g} ns are no durations of at most a day", "check the unit")
    if middle < SHORTEST_NS:
        # Programs say so of a benchmark that the compiler left empty. It must not cost the others.
        return ForeignBenchmark(name, Status.SKIPPED, f"{middle:g} ns: it does nothing", sizes=sizes or {})
    low, high = _interval(ordered, middle)
    quarter = len(ordered) // 4
    spread = (ordered[-1 - quarter] - ordered[quarter]) / middle
    kept = [sample for sample in samples_ns if sample >= SHORTEST_NS] or [middle]
    return ForeignBenchmark(
        name,
        samples_ns=kept,
        median_ns=middle,
        low_ns=max(SHORTEST_NS, min(low, middle)),
        high_ns=max(high, middle),
        noise=spread,
        sizes=sizes or {},
        dropped=len(samples_ns) - len(kept),
    )


def spread_by(benchmark: ForeignBenchmark, deviation_ns: float | None, count: int) -> ForeignBenchmark:
    """The benchmark with the interval and noise that a standard deviation of `count` samples gives it; as it is where
    the deviation is unknown, as of one sample."""
    if benchmark.status is not Status.OK or deviation_ns is None:
        return benchmark
    half = 1.96 * abs(deviation_ns) / sqrt(max(count, 1))
    low = max(SHORTEST_NS, benchmark.median_ns - half)
    high = min(LONGEST_NS, benchmark.median_ns + half)
    # The interquartile range of a normal distribution is 1.349 deviations.
    return replace(benchmark, low_ns=low, high_ns=high, noise=1.349 * abs(deviation_ns) / benchmark.median_ns)


def bounded(benchmark: ForeignBenchmark, low_ns: float, high_ns: float) -> ForeignBenchmark:
    """The benchmark with the interval that its program gave, as far as it holds the time; as it is where the interval
    is infinite."""
    if benchmark.status is not Status.OK or not (isfinite(low_ns) and isfinite(high_ns)):
        return benchmark
    low, high = sorted((low_ns, high_ns))
    low = min(max(SHORTEST_NS, low), benchmark.median_ns)
    high = max(min(LONGEST_NS, high), benchmark.median_ns)
    return replace(benchmark, low_ns=low, high_ns=high, noise=(high - low) / benchmark.median_ns)


def commit_of(value: object) -> str:
    """The id of a commit that a file names; "" for anything else, which git must not see."""
    return value if isinstance(value, str) and _SHA.fullmatch(value) else ""


def moment_of(milliseconds: object) -> datetime | None:
    """A time in milliseconds since 1970; None for what is none, or lies ahead."""
    try:
        moment = datetime.fromtimestamp(number(milliseconds, "date") / 1000, UTC)
    except (FormatError, OverflowError, OSError, ValueError):
        return None
    return moment if moment <= datetime.now(UTC) else None


def deviation(value: object) -> float | None:
    """A standard deviation, in any unit; None for what programs write where there is none: null, NaN, infinity."""
    try:
        found = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else inf
    except ValueError:
        return None
    return abs(found) if isfinite(found) else None


def name_of(text: str) -> str:
    """A benchmark's name as a key: without blanks and control characters, and no longer than NAME_LIMIT."""
    name = re.sub(r"[\s\x00-\x1f\x7f]+", "_", text.encode("utf-8", "replace").decode("utf-8").strip())
    return name if len(name) <= NAME_LIMIT else _with_hash(name[: NAME_LIMIT - 9], name)


def host_class(host: str) -> str:
    """A host's name, or the kind of host where each job gets another one of another name: what ran on two of them is
    one device, told apart by its other facts."""
    return next((name for pattern, name in _ASSIGNED_HOSTS if pattern.fullmatch(host)), host)


def keys_of(names: Sequence[str]) -> list[str]:
    """The key of each name, see name_of. Where another name is written as the key already, a hash tells them apart, so
    `a b` beside `a_b` changes neither the key of `a_b` nor that of any third name."""
    texts = dict.fromkeys(names)
    written: dict[str, list[str]] = {}
    for text in texts:
        written.setdefault(name_of(text), []).append(text)
    keys = {
        text: key if text == key or len(same) == 1 else _with_hash(key[: NAME_LIMIT - 9], text)
        for key, same in written.items()
        for text in same
    }
    return [keys[text] for text in names]


def _with_hash(start: str, text: str) -> str:
    return f"{start}~{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:8]}"


def whole(value: object) -> int | None:
    """A parameter as a whole number; None where it is none."""
    if isinstance(value, bool):
        return None
    text = str(value)
    return int(text) if _NUMBER.fullmatch(text) else None


def expect_usable(results: ForeignResults) -> ForeignResults:
    """The results, where two of one name are unreadable; FormatError where there are none, too many, or none that can
    be read."""
    if not results.benchmarks and not results.left_out:
        remedy = "check which benchmarks the program was told to run"
        raise FormatError(FormatFault.EMPTY, "it holds no benchmark", remedy)
    if len(results.benchmarks) > BENCHMARK_LIMIT:
        remedy = "measure fewer benchmarks per file"
        raise FormatError(FormatFault.TOO_LARGE, f"it holds more than {BENCHMARK_LIMIT} benchmarks", remedy)
    named: dict[tuple[str, str], ForeignBenchmark] = {}
    for benchmark in results.benchmarks:
        identity = (benchmark.device, benchmark.name)
        if identity in named:
            fault = str(invalid(f"two benchmarks are called {benchmark.name!r}", "give each its own name"))
            benchmark = ForeignBenchmark(benchmark.name, Status.UNREADABLE, fault, device=benchmark.device)
        named[identity] = benchmark
    benchmarks = [*named.values()]
    usable = replace(results, benchmarks=benchmarks)
    faults = usable.list_faults()
    if faults and all(benchmark.status is Status.UNREADABLE for benchmark in benchmarks):
        others = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise invalid(f"nothing in it can be read: {faults[0]}{others}")
    return usable


def _interval(ordered: list[float], middle: float) -> tuple[float, float]:
    """The 95 % interval of the median of sorted samples, by their ranks; all of them where they are few.

    Where most samples repeat others, a coarse clock took them, and none of them is exact: the interval holds half a
    tick of the clock to either side.
    """
    count = len(ordered)
    rank = max(0, int((count - 1.96 * sqrt(count)) / 2)) if count >= _FEWEST_FOR_INTERVAL else 0
    gaps = [after - before for before, after in pairwise(ordered) if after > before]
    half_tick = min(gaps, default=0.0) / 2 if 2 * len(gaps) < count else 0.0
    return min(ordered[rank], middle - half_tick), max(ordered[count - 1 - rank], middle + half_tick)


def _short(value: object) -> str:
    return repr(value)[:60]
