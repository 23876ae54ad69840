"""The rules that other services go by, small enough to be read.

Each takes all readings and says at which a change begins.

Rules for one new reading judge every reading by those before it, so later ones change nothing. The others look at the
whole series: a decision at the newest reading is what they say when it is the last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import copysign, erf, log, sqrt

import numpy as np
import numpy.typing as npt

from warpwatch.server.verdicts.changes import find_changes
from warpwatch.server.verdicts.noise import Reading
from warpwatch.server.verdicts.thresholds import THRESHOLDS

Signs = dict[int, int]
"""Indices of the first readings behind a change, and 1 for slower, -1 for faster."""
Detector = Callable[[Sequence[Reading]], Signs]
Vector = npt.NDArray[np.float64]
PERFHERDER_WINDOW, PERFHERDER_T = 12, 7.0
HUNTER_WINDOW, SIGNIFICANT = 50, 0.001
LEAST = 3


def ours(readings: Sequence[Reading]) -> Signs:
    """Our rule for alarms without a comparison."""
    return {
        change.border: 1 if change.ratio > 1 else -1
        for change in find_changes(readings, "cuda", THRESHOLDS["cuda"].alarm)
    }


def suspicions(readings: Sequence[Reading]) -> Signs:
    """Our rule for what a comparison is to decide."""
    return {
        change.border: 1 if change.ratio > 1 else -1
        for change in find_changes(readings, "cuda", THRESHOLDS["cuda"].suspicion)
    }


def _values(readings: Sequence[Reading]) -> Vector:
    return np.array([one.median_ns for one in readings])


def _each(judge: Callable[[Vector, float], float]) -> Detector:
    """A detector of what `judge`(past, new) calls slower (> 0) or faster (< 0)."""

    def detect(readings: Sequence[Reading]) -> Signs:
        values = _values(readings)
        said = {index: judge(values[:index], values[index]) for index in range(LEAST, len(values))}
        return {index: int(copysign(1, sign)) for index, sign in said.items() if sign}

    return detect


def _beyond(shift: float, limit: float) -> float:
    return shift if abs(shift) > limit else 0.0


def _fixed(past: Vector, new: float) -> float:
    return _beyond(new / float(np.median(past)) - 1, 0.03)


def _pairwise(past: Vector, new: float) -> float:
    return _beyond(new / past[-1] - 1, 0.05)


def _z(past: Vector, new: float) -> float:
    return _beyond(new - float(past.mean()), 5 * float(past.std(ddof=1)))


def _prediction(past: Vector, new: float) -> float:
    """Outside Student's 99 % interval for the mean of one new reading."""
    spread = float(past.std(ddof=1)) * sqrt(1 + 1 / len(past))
    shift = new - float(past.mean())
    return shift if spread == 0 or chance(abs(shift) / spread, len(past) - 1) < 0.01 else 0.0


def _interquartile(past: Vector, new: float) -> float:
    """rustc-perf's: a step that lies three interquartile ranges above the third quartile of all steps before."""
    steps = np.abs(np.diff(past)) / past[:-1]
    first, third = np.quantile(steps, (0.25, 0.75))
    return _beyond(new / past[-1] - 1, float(third + 3 * (third - first)))


def chance(t: float, freedom: int) -> float:
    """Student's two-sided chance, by Wallace's approximation (1959)."""
    normal = (8 * freedom + 1) / (8 * freedom + 3) * sqrt(freedom * log(1 + t * t / freedom))
    return 1 - erf(normal / sqrt(2))


def _t(before: Vector, after: Vector) -> float:
    """Student's t of two samples; the larger variance counts where one has a single value."""
    freedom = len(before) + len(after) - 2
    squares = float(((before - before.mean()) ** 2).sum() + ((after - after.mean()) ** 2).sum())
    spread = sqrt(squares / freedom * (1 / len(before) + 1 / len(after)))
    return float(after.mean() - before.mean()) / spread if spread else 0.0


def windowed_t(readings: Sequence[Reading]) -> Signs:
    """Perfherder's: t of the twelve readings before and the up to twelve from here on, over 7, at its largest."""
    values = _values(readings)
    size = PERFHERDER_WINDOW
    scores = {i: _t(values[max(0, i - size) : i], values[i : i + size]) for i in range(LEAST, len(values))}
    found = {}
    for index, score in scores.items():
        near = [abs(scores.get(other, 0.0)) for other in range(index - size // 2, index + size // 2 + 1)]
        if abs(score) > PERFHERDER_T and abs(score) == max(near):
            found[index] = int(copysign(1, score))
    return found


def e_divisive(readings: Sequence[Reading]) -> Signs:
    """Splits where the energy distance of both sides is largest (Matteson & James 2014), while Student's t finds it
    significant.

    The t-test in place of permutations is Hunter's (Fleming et al. 2023), now Apache Otava; a side may have one
    reading.
    """
    found: Signs = {}
    _split(_values(readings), 0, found)
    return found


def _split(values: Vector, offset: int, found: Signs) -> None:
    if len(values) < 2 * LEAST:
        return
    distances = np.abs(values[:, None] - values[None, :])
    total = distances.cumsum(0).cumsum(1)
    count = np.arange(1, len(values))
    inside, across = total[count - 1, count - 1], total[count - 1, -1] - total[count - 1, count - 1]
    behind = total[-1, -1] - 2 * total[count - 1, -1] + inside
    rest = len(values) - count
    energy = (
        2 * across / (count * rest)
        - inside / np.maximum(count * (count - 1), 1)
        - behind / np.maximum(rest * (rest - 1), 1)
    )
    best = int(count[np.argmax(energy * count * rest / len(values))])
    t = _t(values[:best], values[best:])
    if chance(abs(t), len(values) - 2) >= SIGNIFICANT:
        return
    found[offset + best] = int(copysign(1, t))
    _split(values[:best], offset, found)
    _split(values[best:], offset + best, found)


def potts(readings: Sequence[Reading]) -> Signs:
    """asv's: the piecewise constant fit of least absolute deviations, with as many steps as its information criterion
    allows."""
    values = _values(readings)
    count = len(values)
    costs = np.full((count + 1, count + 1), np.inf)
    for first in range(count):
        for end in range(first + 1, count + 1):
            part = np.sort(values[first:end])
            half = len(part) // 2
            costs[first, end] = part[len(part) - half :].sum() - part[:half].sum()
    best, ways = costs[0].copy(), [[0] * (count + 1)]
    least, steps = np.inf, 0
    floor = 0.1 * float(np.median(np.abs(np.diff(values)))) or 1e-12
    for number in range(1, min(count, 12) + 1):
        criterion = 4 * log(count) / count * number + log(floor + best[count] / count)
        if criterion < least:
            least, steps = criterion, number
        sums = best[:, None] + costs
        ways.append([int(way) for way in sums.argmin(0)])
        best = sums.min(0)
    return _steps(values, ways, steps)


def _steps(values: Vector, ways: list[list[int]], steps: int) -> Signs:
    """The borders of the best fit with so many levels."""
    borders, end = [], len(values)
    for level in range(steps - 1, 0, -1):
        borders.append(end)
        end = ways[level][end]
        borders[-1] = end
    edges = [0, *sorted(borders), len(values)]
    found = {}
    for before, border, after in zip(edges, edges[1:], edges[2:], strict=False):
        shift = float(np.median(values[border:after]) - np.median(values[before:border]))
        if shift:
            found[border] = int(copysign(1, shift))
    return found


RULES: dict[str, Detector] = {
    "ours": ours,
    "fixed 3 %": _each(_fixed),
    "pairwise 5 %": _each(_pairwise),
    "z = 5": _each(_z),
    "t, 99 %": _each(_prediction),
    "3 × IQR": _each(_interquartile),
    "windowed t > 7": windowed_t,
    "E-divisive, p = .001": e_divisive,
    "Potts steps": potts,
}
LOOK_AHEAD = frozenset({"ours", "windowed t > 7", "E-divisive, p = .001", "Potts steps"})
"""Rules to which later readings say more."""
