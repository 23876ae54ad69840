"""How often detectors of changes see a step that is there, and one that is not: ours beside the rules of other
services.

python bench/verdicts.py [FILE] [--gpu NAME] [--positions 3] [--fast] [--paired FILE.json]

FILE holds public timings in the form of bench/data/h100-kernel-series.csv.gz (see the README there), which is the
default. Its control series are code that was not under test: any change found there is a false alarm, save where a
whole family of series shifted at once. Steps are put in at random positions with at least eight readings before them.
*Online* is the decision at the newest reading, without waiting; *later* is what is said once the whole series is there,
within one reading of the step. The constants of our rule were chosen on this file; how they do on the kernels that they
were not tuned on is printed, too.

The second table adds the comparison: what history suspects is measured in pairs, whose noise is drawn from what a GPU
showed, and decided by server/verdicts/paired.py. *Changed code* is what is measured besides: series whose times may
hide a change, at every commit where their code changed, which is taken to be so at each.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from math import exp
from pathlib import Path
from statistics import median, quantiles
from typing import Literal

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.detectors.rules import LOOK_AHEAD, RULES, Detector, ours, suspicions
from bench.detectors.series import GPU, SHAPES, Series, load_controls, synthesize, with_step
from warpwatch.server.verdicts.changes import find_changes, span
from warpwatch.server.verdicts.noise import Reading, detectable, is_blind, learn
from warpwatch.server.verdicts.paired import ROUNDS, decide

DATA = Path(__file__).parent / "data" / "h100-kernel-series.csv.gz"
STEPS = (1.05, 1.10, 1.20)
CONFIRMED_STEP = 1.03
LEAST_BEFORE = 8
"""Readings that a point must have before it to be judged here."""
NEAR = 1
"""Readings by which a step found later may miss its place."""
LATER = 8
"""Readings after a step within which a suspicion may still come."""
PAIRED_DEVIATION = 0.0025
"""Of the ratio of one paired round of identical code on an H100: 14 fresh pairs of a 13.5 µs kernel lay in 0.9965 …
1.0041."""
PAIRED_OUTLIERS = 0.05, 4.0
"""One round in twenty is drawn so much wider: pessimistic, none was seen."""
IDENTICAL = 100_000
TUNED_ON = ("dyt_beta=False", "embedding", "llama4_rope", "softmax", "kl_div", "fused_linear_jsd")
SYNTHETIC = 40


@dataclass(slots=True)
class Tally:
    """False alarms among points, and steps found by size: (found, of so many)."""

    points: int = 0
    false: int = 0
    found: dict[float, int] = field(default_factory=dict)
    steps: int = 0

    @property
    def false_share(self) -> float:
        return self.false / self.points

    def share(self, factor: float) -> float:
        return self.found[factor] / self.steps

    def __str__(self) -> str:
        return f"{self.false_share:7.2%} " + "/".join(f"{100 * self.share(factor):3.0f}" for factor in self.found)


def positions(series: Series, count: int) -> list[int]:
    """Random places for a step: first readings of a commit, with enough before them, none where the framework shifted."""
    readings = series.readings
    possible = [
        index
        for index in range(LEAST_BEFORE, len(readings))
        if index not in series.shifts and readings[index].commit_id != readings[index - 1].commit_id
    ]
    draw = random.Random(f"{series.family} {readings[0].median_ns}")
    return sorted(draw.sample(possible, min(count, len(possible))))


def hold_online(detect: Detector, series: Sequence[Series], count: int, steps: Sequence[float] = STEPS) -> Tally:
    """Decisions at every newest reading, by all before it and itself."""
    tally = Tally(found=dict.fromkeys(steps, 0))
    for one in series:
        for index in range(LEAST_BEFORE, len(one.readings)):
            if index not in one.shifts:
                tally.points += 1
                tally.false += index in detect(one.readings[: index + 1])
        for index in positions(one, count):
            tally.steps += 1
            for factor in steps:
                tally.found[factor] += detect(with_step(one.readings, index, factor)[: index + 1]).get(index) == 1
    return tally


def hold_later(detect: Detector, series: Sequence[Series], count: int, steps: Sequence[float] = STEPS) -> Tally:
    """What is said of whole series."""
    tally = Tally(found=dict.fromkeys(steps, 0))
    for one in series:
        tally.points += len(one.readings) - LEAST_BEFORE - sum(index >= LEAST_BEFORE for index in one.shifts)
        tally.false += sum(index >= LEAST_BEFORE and index not in one.shifts for index in detect(one.readings))
        for index in positions(one, count):
            tally.steps += 1
            for factor in steps:
                said = detect(with_step(one.readings, index, factor))
                tally.found[factor] += any(said.get(index + off) == 1 for off in range(-NEAR, NEAR + 1))
    return tally


# --- with comparisons -----------------------------------------------------------------------------------------


def paired_normal(draw: random.Random, factor: float) -> list[tuple[float, float]]:
    """The rounds of one comparison, as times of base and head."""
    share, wider = PAIRED_OUTLIERS
    return [
        (1.0, factor * exp(draw.gauss(0, PAIRED_DEVIATION * (wider if draw.random() < share else 1))))
        for _ in range(ROUNDS)
    ]


def paired_measured(
    rounds: Sequence[Sequence[tuple[float, float]]], draw: random.Random, factor: float
) -> list[tuple[float, float]]:
    """Rounds of identical code as bench/trials.py measured them, of one of its cases; which side is which is drawn,
    too."""
    drawn = draw.choices(draw.choice(rounds), k=ROUNDS)
    return [(base, head * factor) for base, head in ((pair if draw.random() < 0.5 else pair[::-1]) for pair in drawn)]


Paired = Callable[[random.Random, float], list[tuple[float, float]]]


def confirmed(paired: Paired, draw: random.Random, factor: float, suspected: float) -> bool:
    rounds = paired(draw, factor)
    direction: Literal["slower", "faster"] = "slower" if suspected > 1 else "faster"
    return (
        decide([base for base, _ in rounds], [head for _, head in rounds], direction, suspected, "cuda").decision
        == "confirmed"
    )


def is_suspected(readings: Sequence[Reading], *, code_changed: bool) -> bool:
    """Whether a comparison of the newest commit with the one before is asked for."""
    changes, newest = find_changes(readings, "cuda"), readings[-1].commit_id
    if changes and readings[changes[-1].head].commit_id == newest:
        return True
    return code_changed and is_blind(learn([one for one in readings if one.commit_id != newest], "cuda"), "cuda")


def suspicions_after(readings: Sequence[Reading], first: int) -> Iterator[set[int]]:
    """Heads of all suspicions as each reading from `first` on arrives."""
    for end in range(first + 1, min(first + LATER, len(readings)) + 1):
        yield set(suspicions(readings[:end]))


@dataclass(frozen=True, slots=True)
class Stages:
    """Two-stage detection.

    asked: comparisons per point; false: at most so many confirmed per point; found: share of steps confirmed.
    """

    asked: float
    false: float
    found: float


@cache
def false_confirmations(paired: Paired) -> float:
    """At most this share of comparisons of identical code, suspected to be 3 % slower, is confirmed (95 %, rule of
    three)."""
    draw = random.Random(1)
    return (3 + sum(confirmed(paired, draw, 1.0, CONFIRMED_STEP) for _ in range(IDENTICAL))) / IDENTICAL


def hold_stages(series: Sequence[Series], count: int, paired: Paired, *, code_changed: bool, later: bool) -> Stages:
    """Suspicions at the newest reading, and with `later` as up to eight more arrive, each decided by a comparison."""
    draw, asked, points, found, steps = random.Random(2), 0, 0, 0, 0
    newest = partial(is_suspected, code_changed=code_changed)
    for one in series:
        heads: set[int] = set()
        for index in range(LEAST_BEFORE, len(one.readings)):
            heads |= {index} if newest(one.readings[: index + 1]) else set()
            heads |= set(suspicions(one.readings[: index + 1])) if later else set()
            points += 1
        asked += len(heads)
        for index in positions(one, count):
            stepped = with_step(one.readings, index, CONFIRMED_STEP)
            seen = newest(stepped[: index + 1])
            seen = seen or (later and any(index in heads for heads in suspicions_after(stepped, index)))
            steps += 1
            found += seen and confirmed(paired, draw, CONFIRMED_STEP, CONFIRMED_STEP)
    return Stages(asked / points, asked / points * false_confirmations(paired), found / steps)


# --- printing -------------------------------------------------------------------------------------------------


def print_rules(title: str, series: Sequence[Series], count: int) -> None:
    print(f"\n{title}: {len(series)} series, {sum(len(one.readings) for one in series)} readings")
    print(f"{'false alarms per point, % found at +5/+10/+20 %':50} {'online':>20} {'later':>20}")
    for name, detect in RULES.items():
        later = str(hold_later(detect, series, count)) if name in LOOK_AHEAD else ""
        print(f"{name:50} {hold_online(detect, series, count)!s:>20} {later:>20}", flush=True)


def print_stages(series: Sequence[Series], count: int, paired: Paired) -> None:
    most = f"{false_confirmations(paired):.3%}"
    print(
        f"\nwith comparisons, +{CONFIRMED_STEP - 1:.0%}; of {IDENTICAL:,} pairs of identical code at most {most} are confirmed"
    )
    print(f"{'':50} {'compared / 1000':>16} {'false / 10,000 ≤':>18} {'found':>8}")
    for name, code_changed, later in (
        ("suspicions, at once", False, False),
        ("suspicions, and as 8 more readings arrive", False, True),
        ("and changed code, at once", True, False),
        ("and changed code, and as 8 more arrive", True, True),
    ):
        stages = hold_stages(series, count, paired, code_changed=code_changed, later=later)
        print(f"{name:50} {1000 * stages.asked:16.0f} {10_000 * stages.false:18.2f} {stages.found:8.1%}", flush=True)


def print_detectable(series: Sequence[Series], count: int) -> None:
    """How often a step that a series is said to show is suspected at once."""
    said, found = [], 0
    for one in series:
        for index in positions(one, count):
            past = one.readings[:index]
            least = detectable(learn(past, "cuda"), "cuda", past[-1].median_ns)
            said.append(least)
            found += suspicions(with_step(one.readings, index, 1 + least)[: index + 1]).get(index) == 1
    quartiles = ", ".join(f"{value:.1%}" for value in quantiles(said, n=4))
    print(f"\ndetectable, as shown: quartiles {quartiles}; such a step is suspected at once in {found / len(said):.0%}")


def print_speed(count: int = 10_000) -> None:
    """What one more reading costs with so many before it."""
    draw = random.Random(3)
    readings = [
        Reading(i, i, 1, middle, middle * 0.999, middle * 1.001)
        for i in range(count)
        for middle in [1e6 * exp(draw.gauss(0, 0.01))]
    ]
    times = []
    for ordinal in (count - 1, *(draw.randrange(count) for _ in range(20))):
        first, last = span(ordinal)
        start = time.perf_counter()
        find_changes(readings[max(0, first) : last + 1], "cuda", around=ordinal)
        times.append(time.perf_counter() - start)
    start = time.perf_counter()
    find_changes(readings, "cuda")
    whole = time.perf_counter() - start
    print(
        f"\none more reading beside {count:,}: {1e3 * times[0]:.1f} ms at the end, {1e3 * median(times):.1f} ms anywhere; all anew {whole:.2f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, default=DATA)
    parser.add_argument("--gpu", default=GPU)
    parser.add_argument("--positions", type=int, default=3, help="steps put into each series, per size")
    parser.add_argument("--fast", action="store_true", help="our rule on the controls alone")
    parser.add_argument("--paired", type=Path, help="rounds as bench/trials.py --output writes them")
    given = parser.parse_args()
    controls = load_controls(given.file, given.gpu)
    if not controls:
        parser.error(f"{given.file} has no control series of {given.gpu!r} with enough points")
    shifts = sum(len(one.shifts) for one in controls)
    print(f"{given.file.name}: {shifts} readings left out, at which a whole family of series shifted")
    own, other = ([one for one in controls if (one.kernel in TUNED_ON) is tuned] for tuned in (True, False))
    for name, series in (("all kernels", controls), ("kernels tuned on", own), ("other kernels", other)):
        if series:
            print(
                f"ours, {name:20} online {hold_online(ours, series, given.positions)}   later {hold_later(ours, series, given.positions)}"
            )
    if given.fast:
        return
    print_rules("H100 controls", controls, given.positions)
    paired: Paired = paired_normal
    if given.paired:
        paired = partial(
            paired_measured, [case["identical"] for case in json.loads(given.paired.read_text())["rounds"].values()]
        )
    print_stages(controls, given.positions, paired)
    print_detectable(controls, given.positions)
    for shape in SHAPES:
        print_rules(f"synthetic, {shape}", synthesize(shape, SYNTHETIC), 1)
    print_speed()


if __name__ == "__main__":
    main()
