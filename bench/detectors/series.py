"""Series of timings: public ones from a table, synthetic ones, and steps put into either."""

from __future__ import annotations

import csv
import gzip
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path
from statistics import median, quantiles
from zlib import crc32

from warpwatch.db.job_sources import LEAST_SHIFTS
from warpwatch.server.verdicts.changes import LEVEL
from warpwatch.server.verdicts.noise import Reading
from warpwatch.server.verdicts.thresholds import THRESHOLDS

GPU = "NVIDIA H100 80GB HBM3"
CONTROLS = ("torch", "huggingface")
LEAST_POINTS = 24
NS_PER_MS = 1e6
SHIFT_SHARE, SHIFT_LEAST = 0.8, 0.03
LENGTH = 60
LEAST_LEVEL = THRESHOLDS["cuda"].level_readings


@dataclass(frozen=True, slots=True)
class Series:
    """One line of one kernel on one GPU, oldest reading first.

    shifts: indices of readings at which a whole family shifted.
    """

    kernel: str
    family: tuple[str, ...]
    readings: list[Reading]
    shifts: frozenset[int] = frozenset()


def load_controls(path: Path, gpu: str = GPU) -> list[Series]:
    """Every series of code that was not under test, with at least LEAST_POINTS readings on this GPU; marked where
    frameworks shifted."""
    found: dict[tuple[str, ...], dict[int, Reading]] = defaultdict(dict)
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        for row in csv.DictReader(lines):
            if row["provider"] in CONTROLS and row["gpu"] == gpu and row["p50_ms"]:
                key = row["kernel"], row["provider"], row["mode"], row["x_name"], row["x_value"], row["config"]
                found[key][int(row["run_idx"])] = _reading(row)
    series = [
        Series(key[0], key[:3], [own[run] for run in sorted(own)])
        for key, own in sorted(found.items())
        if len(own) >= LEAST_POINTS
    ]
    return mark_shifts(series)


def _reading(row: dict[str, str]) -> Reading:
    """A row as a reading; the repeats of a commit carry its short name with a tag behind it."""
    commit = crc32(row["commit"].partition("-")[0].encode())
    middle, low, high = (float(row[name] or row["p50_ms"]) * NS_PER_MS for name in ("p50_ms", "p20_ms", "p80_ms"))
    return Reading(int(row["run_idx"]), commit, 1, middle, low, high)


def mark_shifts(series: list[Series]) -> list[Series]:
    """Marks readings at which a kernel's series of one provider and mode all shifted alike: the framework changed, and
    no alarm is false.

    Alike: four fifths of at least eight series go the same way, by 3 % in the median, and the quartiles lie within a
    sixth of that.
    """
    steps: dict[tuple[tuple[str, ...], int], list[float]] = defaultdict(list)
    for one in series:
        for index in range(8, len(one.readings)):
            past = median(reading.median_ns for reading in one.readings[:index])
            steps[one.family, one.readings[index].ordinal].append(log(one.readings[index].median_ns / past))
    marked = {key for key, shifts in steps.items() if _alike(shifts)}
    return [
        replace(
            one,
            shifts=frozenset(
                index for index, reading in enumerate(one.readings) if (one.family, reading.ordinal) in marked
            ),
        )
        for one in series
    ]


def _alike(shifts: list[float]) -> bool:
    if len(shifts) < 8:
        return False
    low, middle, high = quantiles(shifts, n=4)
    same = sum(shift * middle > 0 for shift in shifts) / len(shifts)
    return abs(middle) >= SHIFT_LEAST and same >= SHIFT_SHARE and high - low < abs(middle) / 6


def with_step(readings: list[Reading], index: int, factor: float) -> list[Reading]:
    """The same readings, `factor` times as long from `index` on."""
    return readings[:index] + [scaled(reading, factor) for reading in readings[index:]]


def without_common_shifts(dataset: Sequence[Series]) -> list[Series]:
    """The same series, less what each run did to all: the median by which the series of other kernels lie off their
    levels in it, from this and earlier runs alone. The service does the same from the benches it has judged."""
    by_run = [{reading.ordinal: reading for reading in series.readings} for series in dataset]
    past: list[list[float]] = [[] for _ in dataset]
    common: dict[tuple[str, int], float] = {}
    for run in sorted({run for readings in by_run for run in readings}):
        shifts = [
            (series.kernel, log(readings[run].median_ns) - median(levels[-LEVEL:]))
            for series, readings, levels in zip(dataset, by_run, past, strict=True)
            if run in readings and len(levels) >= LEAST_LEVEL
        ]
        for kernel in {series.kernel for series in dataset}:
            others = [shift for other, shift in shifts if other != kernel]
            common[kernel, run] = median(others) if len(others) >= LEAST_SHIFTS else 0.0
        for series, readings, levels in zip(dataset, by_run, past, strict=True):
            if run in readings:
                levels.append(log(readings[run].median_ns) - common[series.kernel, run])
    return [
        replace(
            series,
            readings=[scaled(reading, exp(-common[series.kernel, reading.ordinal])) for reading in series.readings],
        )
        for series in dataset
    ]


def scaled(reading: Reading, factor: float) -> Reading:
    """The same reading, so many times as long."""
    median_ns, low_ns, high_ns = (factor * ns for ns in (reading.median_ns, reading.low_ns, reading.high_ns))
    return replace(reading, median_ns=median_ns, low_ns=low_ns, high_ns=high_ns)


# --- synthetic series -----------------------------------------------------------------------------------------

Shape = Callable[[random.Random], Iterable[float]]
"""Log times of LENGTH runs of unchanged code, around 0."""


def _quiet(draw: random.Random) -> Iterable[float]:
    return (draw.gauss(0, 0.004) for _ in range(LENGTH))


def _drift(draw: random.Random) -> Iterable[float]:
    """One per cent in twenty runs."""
    return (0.0005 * index + draw.gauss(0, 0.004) for index in range(LENGTH))


def _outliers(draw: random.Random) -> Iterable[float]:
    """One run in twelve takes 10 to 70 % longer."""
    return (draw.gauss(0, 0.004) + (draw.uniform(0.1, 0.5) if draw.random() < 1 / 12 else 0) for _ in range(LENGTH))


def _bimodal(draw: random.Random) -> Iterable[float]:
    """Two speeds 8 % apart, by chance."""
    return (draw.gauss(0, 0.003) + (0.08 if draw.random() < 0.35 else 0) for _ in range(LENGTH))


def _heavy_tails(draw: random.Random) -> Iterable[float]:
    """Student's t with three degrees of freedom."""
    return (0.006 * draw.gauss(0, 1) / (draw.gammavariate(1.5, 2) / 3) ** 0.5 for _ in range(LENGTH))


def _wandering(draw: random.Random) -> Iterable[float]:
    """Neighbouring runs are alike: an autoregression with 0.7."""
    value = 0.0
    for _ in range(LENGTH):
        value = 0.7 * value + draw.gauss(0, 0.005)
        yield value


SHAPES: dict[str, Shape] = {
    "quiet": _quiet,
    "drift": _drift,
    "outliers": _outliers,
    "bimodal": _bimodal,
    "heavy tails": _heavy_tails,
    "wandering": _wandering,
}


def synthesize(shape: str, count: int) -> list[Series]:
    """`count` series of unchanged code, seeded; the interval inside a run is a fifth of the usual noise and says
    nothing of it."""
    found = []
    for seed in range(count):
        draw = random.Random(f"{shape} {seed}")
        level = exp(draw.uniform(log(2e4), log(5e6)))
        readings = []
        for index, value in enumerate(SHAPES[shape](draw)):
            middle, half = level * exp(value), abs(draw.gauss(0.001, 0.0003))
            readings.append(Reading(index, index, 1, middle, middle * exp(-half), middle * exp(half)))
        found.append(Series(shape, (shape,), readings))
    return found
