"""Measures how often `warpwatch try` is wrong on a CPU, beside other work of a known amount.

python bench/busy_trials.py [--trials 40] [--load 12] [--seconds 6] [--output FILE.json]
python bench/busy_trials.py --read FILE.json …

A trial is one comparison as `try` makes it, with its limit of time, of two commits of a repository of its own. Each of
the five operators repeats its work so and so often, forward and backward; the head repeats one direction a few times
more or less, or neither, so the ratio of every row is known. `--load` processes that never sleep run meanwhile; what
else the machine does is printed as the load average.

A row is wrong if it says slower or faster of code that is not, no change of code that is 5 % slower, or not slower. It
is also wrong if it says slower or faster and its interval lies beyond the truth by more than 3 %, because a
repeated call finds its data in the cache. Everything that the rounds leave open could not be told.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from warpwatch import git
from warpwatch.cli.working_tree import BUDGET_MS, MOST_ROUNDS, SECONDS
from warpwatch.contract.codec import from_json, to_json
from warpwatch.contract.outcome import Comparison
from warpwatch.contract.spec import JobRequest, JobSpec
from warpwatch.contract.words import JobKind
from warpwatch.server.verdicts.held import PairVerdict, classify_comparison
from warpwatch.server.verdicts.thresholds import stop_rule, thresholds_of
from warpwatch.settings import load_settings
from warpwatch.worker.execution import execute
from warpwatch.worker.host import Host
from warpwatch.worker.reporter import SilentReporter
from warpwatch.worker.tools import Tools

OPERATORS = {
    "product": ("n=160", '{"x": make.normal(case["n"], case["n"])}', "x @ x / 16", 8),
    "softmax": ("n=96", '{"x": make.normal(case["n"], 256)}', "torch.softmax(x, dim=1)", 48),
    "square": ("n=150000", '{"x": make.normal(case["n"])}', "x * x", 48),
    "scan": ("n=64", '{"x": make.normal(case["n"], 512)}', "torch.cumsum(x, dim=1) / 32", 12),
    "small": ("n=100", '{"x": make.normal(case["n"])}', "torch.tanh(x * 2)", 96),
}
"""By name: the size, the inputs, the work, and how often the base repeats it."""
CHANGES = ((1.0, 1.0), (1.25, 1.0), (1.0, 1.25), (0.75, 1.0), (1.0, 1.0))
"""By how much more often the head repeats the forward and the backward work: one trial of each in turn."""
TOLERANCE = 0.03
SOURCE = '''
"""Work that is repeated."""

import torch

from warpwatch.operator import Case, Cost, Maker, Operator, case

FORWARD, BACKWARD = {forward}, {backward}


def work(x):
    return {work}


class Repeated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        for _ in range(FORWARD):
            y = work(x)
        return y

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        for _ in range(BACKWARD):
            with torch.enable_grad():
                leaf = x.detach().requires_grad_()
                (dx,) = torch.autograd.grad(work(leaf), leaf, dy)
        return dx


operator = Operator(
    "{name}",
    "Work that is repeated.",
    inputs=lambda case, make: {inputs},
    reference=work,
    gradients=("x",),
    cost=lambda case: Cost(1, case.element_bytes),
    cases={{"quick": (case("f32", "fwd", {size}), case("f32", "bwd", {size}))}},
)


@operator.variant("v1", idea="repeats the work")
def v1(x):
    return Repeated.apply(x)
'''


@dataclass(frozen=True, slots=True)
class Trial:
    """One comparison. truth: head over base by direction. load: the load average at its end."""

    operator: str
    truth: dict[str, float]
    load: float
    seconds: float
    comparisons: list[Comparison]


def write(folder: Path, name: str, forward: float, backward: float) -> str:
    """Commits the operator with its repeats times these factors; returns the commit."""
    size, inputs, work, repeats = OPERATORS[name]
    numbers = {"forward": round(repeats * forward), "backward": round(repeats * backward)}
    (folder / "kernels").mkdir(parents=True, exist_ok=True)
    (folder / "warpwatch.toml").write_text('contract = 1\noperators = "kernels"\n')
    text = SOURCE.format(name=name, size=size, inputs=inputs, work=work, **numbers)
    # A head that repeats nothing more differs by its last line alone.
    (folder / "kernels" / f"{name}.py").write_text(f"{text}\n\nNUMBER = {random.random()}\n")
    git.git("add", "--all", cwd=folder)
    names = ("user.name=bench", "user.email=bench@localhost")
    git.git("commit", "--quiet", "--message", "Repeat", cwd=folder, config=names)
    return git.git("rev-parse", "HEAD", cwd=folder).strip()


@contextmanager
def burning(count: int) -> Iterator[None]:
    """Processes that never sleep."""
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def measure(count: int, load: int, seconds: float) -> Iterator[Trial]:
    """So many trials, of each operator and each change in turn."""
    tools = Tools(Host(replace(load_settings(), fork_isolation="none"), "cpu"))
    reporter = SilentReporter()
    with tempfile.TemporaryDirectory(prefix="busy-") as place, burning(load):
        folder = Path(place, "repository")
        folder.mkdir()
        git.git("init", "--quiet", cwd=folder)
        tools.host.start_template(reporter)
        try:
            for number in range(count):
                name = [*OPERATORS][number % len(OPERATORS)]
                forward, backward = CHANGES[(number // len(OPERATORS) + number) % len(CHANGES)]
                base, head = write(folder, name, 1.0, 1.0), write(folder, name, forward, backward)
                repeats = OPERATORS[name][3]
                truth = {"fwd": round(repeats * forward) / repeats, "bwd": round(repeats * backward) / repeats}
                begin = time.monotonic()
                outcome = execute(request(folder, name, base, head, seconds), tools, reporter, Path(place))
                yield Trial(name, truth, os.getloadavg()[0], time.monotonic() - begin, outcome.comparisons)
        finally:
            tools.close()


def request(folder: Path, name: str, base: str, head: str, seconds: float) -> JobRequest:
    """A comparison as `try` asks for it."""
    pairs = [("v1", f"{OPERATORS[name][0]},f32,{direction}") for direction in ("fwd", "bwd")]
    stop = replace(stop_rule("cpu", is_suspected=False), seconds=seconds)
    spec = JobSpec(pairs=pairs, stop=stop, rounds=MOST_ROUNDS, budget_ns=int(BUDGET_MS * 1e6))
    return JobRequest(JobKind.COMPARE, str(folder), head, name, spec, base)


def judge(verdict: PairVerdict, truth: float) -> str:
    """right, wrong, or open."""
    if verdict.outcome == "unsure" or verdict.low is None or verdict.high is None:
        return "open"
    same = thresholds_of("cpu").same_ratio
    if verdict.outcome == "same":
        return "right" if 1 / same <= truth <= same else "wrong"
    if verdict.outcome == "not_slower":
        return "right" if truth <= same else "wrong"
    is_right = truth > 1 if verdict.outcome == "slower" else truth < 1
    return "right" if is_right and covers(verdict, truth) else "wrong"


def covers(verdict: PairVerdict, truth: float) -> bool:
    assert verdict.low is not None
    assert verdict.high is not None
    # Rows without a change have exactly the same code.
    slack = TOLERANCE if truth != 1 else 0.0
    return verdict.low * (1 - slack) <= truth <= verdict.high * (1 + slack)


def describe(trials: Sequence[Trial], seconds: float) -> Iterator[str]:
    """Every row that is wrong, and the counts."""
    counts, covered, widths = Counter[str](), Counter[tuple[bool, bool]](), list[float]()
    stop = replace(stop_rule("cpu", is_suspected=False), seconds=seconds)
    wrong_trials = 0
    for trial in trials:
        is_wrong = False
        for row in trial.comparisons:
            rounds = row.base_ns, row.head_ns, "cpu"
            verdict = classify_comparison(*rounds, len(trial.comparisons), stop, row.reason)
            truth = trial.truth[row.case.rpartition(",")[2]]
            answer = judge(verdict, truth)
            counts[answer] += 1
            if verdict.low is not None and verdict.high is not None:
                covered[answer != "open", covers(verdict, truth)] += 1
                widths.append(verdict.high / verdict.low - 1)
            if answer == "wrong":
                is_wrong = True
                yield (
                    f"wrong: {trial.operator} {row.case} {verdict.outcome} {verdict.ratio:.3f} ({verdict.low:.3f} … "
                    f"{verdict.high:.3f}), truth {truth:.3f}, {len(row.ratios)} rounds, load {trial.load:.0f}"
                )
        wrong_trials += is_wrong
    loads = sorted(trial.load for trial in trials)
    yield (
        f"{len(trials)} trials at load {loads[0]:.0f} to {loads[-1]:.0f}: {wrong_trials} with a wrong row; rows: "
        f"{counts['right']} right, {counts['wrong']} wrong, {counts['open']} could not be told"
    )
    for is_decided, name in ((True, "decided"), (False, "open")):
        total = covered[is_decided, True] + covered[is_decided, False]
        if total:
            yield f"{name}: the interval covers the truth in {covered[is_decided, True]} of {total}"
    seconds_taken = sorted(trial.seconds for trial in trials)
    yield (
        f"interval {sorted(widths)[len(widths) // 2]:.1%} wide (median), "
        f"{seconds_taken[len(trials) // 2]:.0f} s a trial (median)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=25)
    parser.add_argument("--load", type=int, default=0, help="processes that never sleep")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="the limit of time of a trial")
    parser.add_argument("--output", type=Path, help="append every trial to this file, as lines of JSON")
    parser.add_argument("--read", type=Path, nargs="+", help="judge the trials of these files instead")
    arguments = parser.parse_args()
    trials = list[Trial]()
    if arguments.read:
        lines = [line for path in arguments.read for line in path.read_text().splitlines()]
        trials = [from_json(Trial, json.loads(line)) for line in lines]
    else:
        for trial in measure(arguments.trials, arguments.load, arguments.seconds):
            trials.append(trial)
            if arguments.output:
                with arguments.output.open("a") as file:
                    file.write(json.dumps(to_json(trial)) + "\n")
    for line in describe(trials, arguments.seconds):
        print(line)


if __name__ == "__main__":
    main()
