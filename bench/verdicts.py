"""Measures how often change detectors find real steps and false ones: our rule and those of other services.

python bench/verdicts.py [FILE] [--gpu NAME] [--positions 3] [--fast] [--scenarios] [--paired FILE.json]

FILE holds public timings in the format of bench/data/h100-kernel-series.csv.gz (see the README there), the default. Its
control series measure code that was not under test, so every change found there is a false alarm, except where a whole
family of series shifted at once. Steps are inserted at random positions after at least eight readings. *Online* is the
decision at the newest reading. *Later* is the decision on the whole series, within one reading of the step. The
constants of our rule were chosen on this file; the results on kernels that were not used for tuning are printed
separately.

The second table adds comparisons: paired rounds measure every suspicion, with noise as measured on a GPU, and
server/verdicts/paired.py decides. *Changed code* also measures series whose noise may hide a change, at every commit,
as if the code had changed at each. *As judged* plays the service: it asks as readings come, comparisons answer with the
truth, and what was compared is known from then on. *Less common shifts* takes off what each run did to all series.

The scenarios at the end are those in which the rules once failed; --scenarios prints them alone.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from math import exp
from pathlib import Path
from statistics import median, quantiles
from typing import Literal

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.detectors.operators import operators_of
from bench.detectors.rules import LOOK_AHEAD, RULES, Detector, ours, suspicions
from bench.detectors.scenarios import (
    alarms,
    cost_of_two_speeds,
    drifting,
    false_changes_of_two_speeds,
    is_confirmed,
    judge_along,
    judged_after_outliers,
    order_of_repeats,
    same,
    step_at,
    steps_after_outliers,
    steps_in,
    steps_of_two_speeds,
)
from bench.detectors.series import (
    GPU,
    SHAPES,
    Series,
    load_controls,
    synthesize,
    with_step,
    without_common_shifts,
)
from warpwatch.db.reads.judging import KnownChange
from warpwatch.server.verdicts.changes import find_changes, span
from warpwatch.server.verdicts.noise import Reading, detectable, is_blind, learn
from warpwatch.server.verdicts.paired import decide
from warpwatch.server.verdicts.thresholds import THRESHOLDS

DATA = Path(__file__).parent / "data" / "h100-kernel-series.csv.gz"
STEPS = (1.05, 1.10, 1.20)
CONFIRMED_STEP = 1.03
JUDGED_STEPS = (1.02, 1.03, *STEPS)
DRIFTS = 20
LEAST_BEFORE = 8
"""Readings before a point that is judged here."""
NEAR = 1
"""Readings by which a detected step may miss its place."""
SOON = 3
"""Readings after a step within which it is still found soon."""
LATER = 8
"""Readings after a step in which a suspicion still counts."""
PAIRED_DEVIATION = 0.0025
"""Standard deviation of the log ratio of one paired round of identical code on an H100: 14 fresh pairs of a 13.5 µs
kernel lay in 0.9965 … 1.0041."""
PAIRED_OUTLIERS = 0.05, 4.0
"""This share of rounds gets this many times the deviation. It is pessimistic, since no outlier was measured."""
IDENTICAL = 100_000
TUNED_ON = ("dyt_beta=False", "embedding", "llama4_rope", "softmax", "kl_div", "fused_linear_jsd")
SYNTHETIC = 40


@dataclass(slots=True)
class Tally:
    """False alarms among points, and detected steps by size, of `steps` each."""

    points: int = 0
    false: int = 0
    detected: dict[float, int] = field(default_factory=dict)
    steps: int = 0

    @property
    def false_share(self) -> float:
        return self.false / self.points

    def share(self, factor: float) -> float:
        return self.detected[factor] / self.steps

    def __str__(self) -> str:
        return f"{self.false_share:7.2%} " + "/".join(f"{100 * self.share(factor):3.0f}" for factor in self.detected)


def positions(series: Series, count: int) -> list[int]:
    """Random positions for a step: first readings of a commit with enough readings before, outside framework shifts."""
    readings = series.readings
    possible = [
        index
        for index in range(LEAST_BEFORE, len(readings))
        if index not in series.shifts and readings[index].commit_id != readings[index - 1].commit_id
    ]
    draw = random.Random(f"{series.family} {readings[0].median_ns}")
    return sorted(draw.sample(possible, min(count, len(possible))))


def tally_online(detect: Detector, dataset: Sequence[Series], count: int, steps: Sequence[float] = STEPS) -> Tally:
    """Decisions at every newest reading, from it and all readings before."""
    return tally_by(lambda series, index: "", detect, dataset, count, steps)[""]


def tally_by(
    key: Callable[[Series, int], str],
    detect: Detector,
    dataset: Sequence[Series],
    count: int,
    steps: Sequence[float] = STEPS,
) -> dict[str, Tally]:
    """The same by a key of series and index."""
    tallies: dict[str, Tally] = defaultdict(lambda: Tally(detected=dict.fromkeys(steps, 0)))
    for series in dataset:
        for index in range(LEAST_BEFORE, len(series.readings)):
            if index not in series.shifts:
                tally = tallies[key(series, index)]
                tally.points += 1
                tally.false += index in detect(series.readings[: index + 1])
        for index in positions(series, count):
            tally = tallies[key(series, index)]
            tally.steps += 1
            for factor in steps:
                stepped = with_step(series.readings, index, factor)[: index + 1]
                tally.detected[factor] += detect(stepped).get(index) == 1
    return tallies


def tally_soon(detect: Detector, dataset: Sequence[Series], count: int, steps: Sequence[float] = STEPS) -> list[float]:
    """Shares of steps that are detected at once or within SOON more readings, within one reading of the step."""
    cases = [(series.readings, index) for series in dataset for index in positions(series, count)]

    def is_detected(readings: Sequence[Reading], index: int) -> bool:
        ends = range(index + 1, min(index + 1 + SOON, len(readings)) + 1)
        near = range(index - NEAR, index + NEAR + 1)
        return any(detect(readings[:end]).get(place) == 1 for end in ends for place in near)

    return [
        sum(is_detected(with_step(readings, index, factor), index) for readings, index in cases) / len(cases)
        for factor in steps
    ]


def tally_later(detect: Detector, dataset: Sequence[Series], count: int, steps: Sequence[float] = STEPS) -> Tally:
    """Decisions on whole series."""
    tally = Tally(detected=dict.fromkeys(steps, 0))
    for series in dataset:
        tally.points += len(series.readings) - LEAST_BEFORE - sum(index >= LEAST_BEFORE for index in series.shifts)
        tally.false += sum(i >= LEAST_BEFORE and i not in series.shifts for i in detect(series.readings))
        for index in positions(series, count):
            tally.steps += 1
            for factor in steps:
                changes = detect(with_step(series.readings, index, factor))
                tally.detected[factor] += any(changes.get(index + off) == 1 for off in range(-NEAR, NEAR + 1))
    return tally


# --- with comparisons -----------------------------------------------------------------------------------------


def paired_normal(draw: random.Random, factor: float) -> list[tuple[float, float]]:
    """The rounds of one comparison as (base, head) times."""
    share, wider = PAIRED_OUTLIERS
    return [
        (1.0, factor * exp(draw.gauss(0, PAIRED_DEVIATION * (wider if draw.random() < share else 1))))
        for _ in range(THRESHOLDS["cuda"].rounds)
    ]


def paired_measured(
    rounds: Sequence[Sequence[tuple[float, float]]], draw: random.Random, factor: float
) -> list[tuple[float, float]]:
    """Rounds of identical code from bench/trials.py, of one of its cases; the roles of both sides are drawn too."""
    drawn = draw.choices(draw.choice(rounds), k=THRESHOLDS["cuda"].rounds)
    return [
        (base, head * factor) for base, head in ((pair[:2] if draw.random() < 0.5 else pair[1::-1]) for pair in drawn)
    ]


Paired = Callable[[random.Random, float], list[tuple[float, float]]]


def confirmed(paired: Paired, draw: random.Random, factor: float, suspected: float) -> bool:
    rounds = paired(draw, factor)
    direction: Literal["slower", "faster"] = "slower" if suspected > 1 else "faster"
    base_ns, head_ns = [base for base, _ in rounds], [head for _, head in rounds]
    return decide(base_ns, head_ns, direction, suspected, "cuda").decision == "confirmed"


def is_suspected(readings: Sequence[Reading], *, code_changed: bool) -> bool:
    """Whether the service would compare the newest commit with the one before."""
    changes, newest = find_changes(readings, "cuda"), readings[-1].commit_id
    if changes and readings[changes[-1].head].commit_id == newest:
        return True
    return code_changed and is_blind(learn([r for r in readings if r.commit_id != newest], "cuda"), "cuda")


def suspicions_after(readings: Sequence[Reading], first: int) -> Iterator[set[int]]:
    """Heads of all suspicions after each reading from `first` on."""
    for end in range(first + 1, min(first + LATER, len(readings)) + 1):
        yield set(suspicions(readings[:end]))


@dataclass(frozen=True, slots=True)
class Stages:
    """Rates of two-stage detection.

    compared: comparisons per point. false: upper bound of false confirmations per point. confirmed: share of steps.
    """

    compared: float
    false: float
    confirmed: float


@cache
def false_confirmations(paired: Paired) -> float:
    """Upper bound (95 %, rule of three) of the share of identical code that is confirmed when suspected 3 % slower."""
    draw = random.Random(1)
    return (3 + sum(confirmed(paired, draw, 1.0, CONFIRMED_STEP) for _ in range(IDENTICAL))) / IDENTICAL


def tally_stages(dataset: Sequence[Series], count: int, paired: Paired, *, code_changed: bool, later: bool) -> Stages:
    """Suspicions at the newest reading, and with `later` after up to eight more, each decided by a comparison."""
    draw, compared, points, confirmations, steps = random.Random(2), 0, 0, 0, 0
    newest = partial(is_suspected, code_changed=code_changed)
    for series in dataset:
        heads: set[int] = set()
        for index in range(LEAST_BEFORE, len(series.readings)):
            heads |= {index} if newest(series.readings[: index + 1]) else set()
            heads |= set(suspicions(series.readings[: index + 1])) if later else set()
            points += 1
        compared += len(heads)
        for index in positions(series, count):
            stepped = with_step(series.readings, index, CONFIRMED_STEP)
            suspected = newest(stepped[: index + 1])
            suspected = suspected or (later and any(index in heads for heads in suspicions_after(stepped, index)))
            steps += 1
            confirmations += suspected and confirmed(paired, draw, CONFIRMED_STEP, CONFIRMED_STEP)
    return Stages(compared / points, compared / points * false_confirmations(paired), confirmations / steps)


# --- printing -------------------------------------------------------------------------------------------------


def print_rules(title: str, dataset: Sequence[Series], count: int) -> None:
    print(f"\n{title}: {len(dataset)} series, {sum(len(series.readings) for series in dataset)} readings")
    print(f"{'false alarms per point, % found at +5/+10/+20 %':50} {'online':>20} {'later':>20}")
    for name, detect in RULES.items():
        later = str(tally_later(detect, dataset, count)) if name in LOOK_AHEAD else ""
        print(f"{name:50} {tally_online(detect, dataset, count)!s:>20} {later:>20}", flush=True)


def print_stages(title: str, dataset: Sequence[Series], count: int, paired: Paired) -> None:
    bound = f"of {IDENTICAL:,} pairs of identical code at most {false_confirmations(paired):.3%} are confirmed"
    print(f"\nwith comparisons, {title}, +{CONFIRMED_STEP - 1:.0%}; {bound}")
    print(f"{'':50} {'compared / 1000':>16} {'false / 10,000 ≤':>18} {'found':>8}")
    for name, code_changed, later in (
        ("suspicions, at once", False, False),
        ("suspicions, and as 8 more readings arrive", False, True),
        ("and changed code, at once", True, False),
        ("and changed code, and as 8 more arrive", True, True),
    ):
        stages = tally_stages(dataset, count, paired, code_changed=code_changed, later=later)
        rates = f"{1000 * stages.compared:16.1f} {10_000 * stages.false:18.2f} {stages.confirmed:8.1%}"
        print(f"{name:50} {rates}", flush=True)


def print_halves(controls: Sequence[Series], count: int) -> None:
    """Prints our rule on the kernels that its constants were chosen on, and on the others, with the range over kernels
    and over runs."""
    tuned, untuned = ([series for series in controls if (series.kernel in TUNED_ON) is on] for on in (True, False))
    for name, dataset in (("all kernels", controls), ("kernels tuned on", tuned), ("other kernels", untuned)):
        if not dataset:
            continue
        soon = "/".join(f"{100 * share:3.0f}" for share in tally_soon(ours, dataset, count))
        online, later = tally_online(ours, dataset, count), tally_later(ours, dataset, count)
        print(f"ours, {name:20} online {online}   within {SOON} more {soon}   later {later}", flush=True)
        by_kernel = tally_by(lambda series, index: series.kernel, ours, dataset, count)
        by_run = tally_by(lambda series, index: str(series.readings[index].ordinal), ours, dataset, count)
        for title, tallies in (("kernels", by_kernel), ("runs", by_run)):
            false = [tally.false_share for tally in tallies.values()]
            found = [tally.share(STEPS[1]) for tally in tallies.values() if tally.steps]
            print(
                f"    over {len(tallies)} {title}: false {min(false):.2%} to {max(false):.2%}, "
                f"{STEPS[1] - 1:+.0%} found at once {min(found):.0%} to {max(found):.0%}"
            )


def print_judged(controls: Sequence[Series], count: int) -> None:
    """Prints what the service asks for and finds as readings come, with and without the common shifts of runs."""
    print(f"\nas judged; steps are confirmed at once or within {SOON} more readings")
    for title, dataset in (("as measured", controls), ("less common shifts", without_common_shifts(controls))):
        for name, is_tuned in (("tuned on", True), ("others", False)):
            half = [series for series in dataset if (series.kernel in TUNED_ON) is is_tuned]
            if not half:
                continue
            points = sum(len(series.readings) - LEAST_BEFORE for series in half)
            compared = sum(len(judge_along(series.readings, same)) for series in half)
            shares = []
            for factor in JUDGED_STEPS:
                cases = [
                    (with_step(s.readings, i, factor)[: i + 1 + SOON], i) for s in half for i in positions(s, count)
                ]
                shares.append(
                    sum(is_confirmed(judge_along(readings, step_at(i), i - SOON)) for readings, i in cases) / len(cases)
                )
            steps = ", ".join(
                f"{factor - 1:+.0%}: {share:.0%}" for factor, share in zip(JUDGED_STEPS, shares, strict=True)
            )
            print(f"{title}, {name:10} {1000 * compared / points:5.1f} comparisons / 1000, {steps}", flush=True)


def print_operators(controls: Sequence[Series], every: int) -> None:
    """Prints what the service asks for and finds where all series of an operator are judged together, at most six in
    one comparison: series compared, and comparisons, per 1,000 readings of a series. every: of so many series one is
    stepped."""
    print(f"\nas judged, all series of an operator together; steps in one of {every} series")
    halves = {"all": controls} | {
        name: [series for series in controls if (series.kernel in TUNED_ON) is is_tuned]
        for name, is_tuned in (("tuned on", True), ("others", False))
    }
    for name, dataset in halves.items():
        if not dataset or (name != "all" and len(dataset) == len(controls)):
            continue
        points, compared, comparisons, most, cases = 0, 0, 0, 0, 0
        found = dict.fromkeys(STEPS, 0)
        for operator in operators_of(dataset):
            known: list[KnownChange] = []
            before: dict[int, int] = {}
            for run in operator.runs:
                before[run] = len(known)
                operator.judge([run], known)
            points, comparisons = points + operator.points, comparisons + len(known)
            per_series = Counter(number for change in known for number in change.series)
            compared, most = compared + per_series.total(), max(most, *per_series.values(), 0)
            for number, series in list(enumerate(operator.series))[::every]:
                for index in positions(series, 1):
                    run, cases = series.readings[index].ordinal, cases + 1
                    runs = operator.runs[operator.runs.index(run) :][: 1 + SOON]
                    for factor in STEPS:
                        step = operator.step(number, index, factor)
                        found[factor] += operator.judge(runs, known[: before[run]], step)
        shares = ", ".join(f"{factor - 1:+.0%}: {count / cases:.0%}" for factor, count in found.items())
        rates = f"{1000 * compared / points:5.1f} series in {1000 * comparisons / points:4.1f} comparisons / 1000"
        print(f"{name:10} {rates}, at most {most} of a series, {shares}", flush=True)


def print_scenarios(controls: Sequence[Series], count: int) -> None:
    """Prints the scenarios in which our rules once failed."""
    tuned, untuned = ([series for series in controls if (series.kernel in TUNED_ON) is on] for on in (True, False))
    print(f"\n(a) steps of +10 % right after an outlier:   {steps_after_outliers()}")
    for name, dataset in (("tuned on", tuned), ("others", untuned)):
        placement = steps_in(dataset, partial(positions, count=count)) if dataset else ""
        print(f"    steps of +10 % in controls, {name:10}       {placement}")
    triangles = sum(len(alarms(series.readings)) for series in controls)
    print(
        f"(b) triangles at unchanged code: {triangles} in {sum(len(s.readings) for s in controls)} readings, all grey"
    )
    print(f"(d) series that change with the order of repeats: {order_of_repeats():.1%}")
    steps = steps_of_two_speeds()
    for name, share in false_changes_of_two_speeds().items():
        print(f"(e) two speeds, {name:40} end with a false change {share:4.0%}, named +20 % {steps[name]:4.0%}")
    found = [judge_along(drifting(seed), lambda base, head: (base, head)) for seed in range(DRIFTS)]
    at = median(known[0].head_ordinal if known else len(drifting(0)) for known in found)
    cleared = [len(judge_along(drifting(seed), same)) for seed in range(DRIFTS)]
    print(f"(f) +35 % by drift: {sum(map(is_confirmed, found))} of {DRIFTS} said, at reading {at:.0f} of 300 (median);")
    print(f"    of the machine: {sum(cleared) / DRIFTS:.1f} comparisons, none confirmed")
    print(f"(g) one more reading at two speeds: {cost_of_two_speeds():.1f} ms")
    judged = list(judged_after_outliers())
    compared = sum(map(len, judged)) / len(judged)
    print(
        f"(h) steps behind an outlier of their size: {sum(map(is_confirmed, judged))} of {len(judged)} confirmed, ",
        end="",
    )
    print(f"{compared:.1f} comparisons each")


def print_detectable(dataset: Sequence[Series], count: int) -> None:
    """Prints how often a step as large as the detectable change of its series is suspected at once."""
    least_changes, suspected = [], 0
    for series in dataset:
        for index in positions(series, count):
            past = series.readings[:index]
            least = detectable(learn(past, "cuda"), "cuda", past[-1].median_ns)
            least_changes.append(least)
            suspected += suspicions(with_step(series.readings, index, 1 + least)[: index + 1]).get(index) == 1
    quartiles = ", ".join(f"{value:.1%}" for value in quantiles(least_changes, n=4))
    share = f"such a step is suspected at once in {suspected / len(least_changes):.0%}"
    print(f"\ndetectable, as shown: quartiles {quartiles}; {share}")


def print_speed(count: int = 10_000) -> None:
    """Prints the time to judge one more reading after `count` others."""
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
    one_more = f"{1e3 * times[0]:.1f} ms at the end, {1e3 * median(times):.1f} ms anywhere"
    print(f"\none more reading after {count:,}: {one_more}; the whole series {whole:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, default=DATA)
    parser.add_argument("--gpu", default=GPU)
    parser.add_argument("--positions", type=int, default=3, help="steps inserted into each series, per size")
    parser.add_argument("--every", type=int, default=3, help="of so many series of an operator, one is stepped")
    parser.add_argument("--fast", action="store_true", help="only our rule on the control series")
    parser.add_argument("--scenarios", action="store_true", help="only the scenarios in which our rule once failed")
    parser.add_argument("--paired", type=Path, help="rounds written by bench/trials.py --output")
    arguments = parser.parse_args()
    controls = load_controls(arguments.file, arguments.gpu)
    if not controls:
        parser.error(f"{arguments.file} has no control series of {arguments.gpu!r} with enough points")
    shifts = sum(len(series.shifts) for series in controls)
    print(f"{arguments.file.name}: {shifts} readings left out, at which a whole family of series shifted")
    if not arguments.scenarios:
        print_halves(controls, arguments.positions)
        print_judged(controls, 1)
        print_operators(controls, arguments.every)
    if not arguments.fast:
        print_scenarios(controls, arguments.positions)
    if arguments.fast or arguments.scenarios:
        return
    print_rules("H100 controls", controls, arguments.positions)
    paired: Paired = paired_normal
    if arguments.paired:
        rounds = json.loads(arguments.paired.read_text())["rounds"]
        paired = partial(paired_measured, [case["identical"] for case in rounds.values()])
    print_stages("as measured", controls, arguments.positions, paired)
    print_stages("less common shifts", without_common_shifts(controls), arguments.positions, paired)
    print_detectable(controls, arguments.positions)
    for shape in SHAPES:
        print_rules(f"synthetic, {shape}", synthesize(shape, SYNTHETIC), 1)
    print_speed()


if __name__ == "__main__":
    main()
