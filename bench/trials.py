"""Measures how often a comparison confirms a real change, and how often it confirms one in identical code.

python bench/trials.py [--device cuda:0] [--rounds 24] [--change 2] [--signal kernel] [--output FILE.json]

A second call with the same output file adds rounds to those in it, with the slow-down found by the first, so that a
shared machine is not held for long.

Like a comparison of two commits, every round uses two fresh processes that are alive at once and measures in slices
A B B A (B A A B in every other round; on a CPU eight times over, in both orders by turns). It measures identical code,
and the same code with a known slow-down: a wait on a GPU, or with `--signal launch` before the launches on its host,
and a repeated share of the work on a CPU.

A comparison is drawn from at most twelve of the rounds without replacement, and ends early by the service's own rule.
As in the service, an unsure one is drawn again from 36 rounds if there are so many (`--rounds 48`). For identical code
the roles of the two processes are drawn too. The printed comparisons share rounds, so their rates are estimates from
this many rounds and not from independent trials.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.fresh import ROOT, FreshProcess, fresh_processes, open_verbs, serve
from warpwatch.contract.codec import from_json, to_json
from warpwatch.contract.measurement import JUDGED, LAUNCH
from warpwatch.contract.messages import GraphPlan, Request
from warpwatch.contract.outcome import Comparison
from warpwatch.contract.rounds import LOOKS, StopRule, confirmed_ratio, judge_controls, wait_share
from warpwatch.contract.words import Signal, Status
from warpwatch.server.verdicts.paired import decide
from warpwatch.server.verdicts.thresholds import kind_of_time, stop_rule, thresholds_of
from warpwatch.worker.comparison import list_undecided, middle, middle_ratio, turns_of, typical

OPERATORS = {"cuda": "calibrated", "cpu": "product"}
CASES = {
    "cuda": (
        *(f"work={work},n=2048,f32,fwd" for work in ("square", "transpose", "softmax", "chain")),
        "work=product,n=2048,bf16,fwd",
    ),
    "cpu": ("n=256,f32,fwd", "n=512,f32,fwd"),
}
BUDGET_NS = 1_000_000_000
IDENTICAL, CHANGED = 1000, 1000
_TRIES, _TRIED = 2, 4
"""Attempts to calibrate the slow-down, and the rounds of each."""

Pair = Sequence[float]
"""A round: ns of base and head and, unless it was measured before there were controls, the ratios of the base to itself
and of the base with a wait to itself."""
Pairs = list[Pair]


def child(device: torch.device) -> None:
    verbs = open_verbs(ROOT / "bench" / "calibrated", device)
    rounds = thresholds_of(device.type).rounds

    def handle(fields: dict[str, Any]) -> dict[str, Any]:
        named = {"id": 0, "operator": OPERATORS[device.type], "budget_ns": BUDGET_NS, "rounds": rounds}
        request = from_json(Request, {**named, **fields})
        reply: dict[str, Any] = to_json(getattr(verbs, request.verb)(request, lambda *_: None))
        return reply

    serve(handle)


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured. signal: the time of a call on a GPU that is slowed down; a CPU has one."""

    device: str
    signal: Signal
    case: str

    @property
    def device_kind(self) -> str:
        return torch.device(self.device).type

    @property
    def metric(self) -> str:
        device_time, *others = JUDGED[self.device_kind]
        return others[0] if self.signal is Signal.LAUNCH else device_time

    @property
    def time_kind(self) -> str:
        return kind_of_time(self.device_kind, self.metric, "")

    def slow_down(self, share: float, plain: float) -> dict[str, str]:
        """The environment in which `slower` takes a share of `plain` nanoseconds longer."""
        on_host = {"CALIBRATED_ON_HOST": "1"} if self.signal is Signal.LAUNCH else {}
        return {"CALIBRATED_EXTRA_SHARE": str(share), "CALIBRATED_EXTRA_NS": str(round(plain * share)), **on_host}


def agree_on_plan(base: FreshProcess, head: FreshProcess, variant: str, case: str) -> GraphPlan:
    """The plan that fits `plain` in the process `base` and `variant` in the process `head`, as of a comparison."""
    sides = (base, "plain"), (head, variant)
    replies = [process.request(verb="plan", variant=name, case=case, sides=2) for process, name in sides]
    first, second = (from_json(GraphPlan, reply["plan"]) for reply in replies)
    return first & second


def measure_round(
    base: FreshProcess, head: FreshProcess, subject: Subject, variant: str, index: int, plans: dict[str, GraphPlan]
) -> Pair:
    """A round of `plain` in the process `base` and `variant` in the process `head`. plans: by variant, from the first
    round on."""
    kind, case, metric = subject.device_kind, subject.case, subject.metric
    waiting, timed = ("launch_wait", "launch_ns") if metric == LAUNCH else ("wait", "samples_ns")
    if kind == "cuda" and variant not in plans:
        plans[variant] = agree_on_plan(base, head, variant, case)
    prepared = {"plan": to_json(plans[variant]) if variant in plans else None, "metrics": [metric]}
    sides = {"base": (base, "plain"), "head": (head, variant)}
    turns = turns_of(index, kind)
    for turn in turns[:2]:
        process, name = sides[turn.side]
        process.request(verb="prepare", variant=name, case=case, **prepared)
    samples: dict[str, list[float]] = {"base": [], "head": []}
    waited: list[float] = []
    # Launches of both sides are timed on one core.
    core: int | None = None
    for turn in turns:
        process, name = sides[turn.side]
        wait = wait_share(kind, metric, samples["base"]) if turn.waits else 0.0
        reply = process.request(verb="sample", variant=name, case=case, core=core, **{waiting: wait})
        core = reply["core"]
        if not reply[timed]:
            raise SystemExit(f"{metric} of {name} on {case} is not measured: {reply['no_launch'] or reply['message']}")
        slice_ns = typical(reply[timed], subject.time_kind)
        if turn.waits:
            waited.append(slice_ns / samples[turn.side][-1])
        else:
            samples[turn.side].append(slice_ns)
    for process, name in sides.values():
        process.request(verb="finish", variant=name, case=case)
    first, second = samples["base"][::2], samples["base"][1::2]
    controls = middle_ratio(first, second), median(waited)
    return *middle(samples["base"], samples["head"]), *controls


def measure(subject: Subject, rounds: int, **slow_down: str) -> Iterator[tuple[Pair, Pair]]:
    """(identical code, changed code) of each round."""
    children = fresh_processes(Path(__file__), subject.device, 2 * rounds, ahead=4, **slow_down)
    plans: dict[str, GraphPlan] = {}
    for index in range(rounds):
        base, head = next(children), next(children)
        same = measure_round(base, head, subject, "plain", index, plans)
        changed = measure_round(base, head, subject, "slower", index, plans)
        base.close()
        head.close()
        yield same, changed


def calibrate(subject: Subject, change: float) -> dict[str, str]:
    """The environment that makes `slower` take `change` percent longer.

    It is found by trial, because a launch hides part of a wait, and a small product is relatively slow.
    """
    ((plain, *_), _) = next(measure(subject, 1))
    share = change / 100
    for _ in range(_TRIES):
        rounds = measure(subject, _TRIED, **subject.slow_down(share, plain))
        reached = median(pair[1] / pair[0] - 1 for _, pair in rounds)
        share *= min(2.0, max(0.5, change / 100 / reached)) if reached > 0 else 2.0
    return subject.slow_down(share, plain)


def verdicts(
    pairs: Pairs, count: int, suspected: float, subject: Subject, may_swap: bool
) -> tuple[Counter[str], float]:
    """The decisions of `count` comparisons drawn from the rounds, and how many rounds one took on average.

    suspected: the ratio that each comparison tests. An unsure one is drawn again with more rounds if there are so many.
    """
    draw, decisions, taken = random.Random(0), Counter[str](), 0
    thresholds, rule = thresholds_of(subject.time_kind), stop_rule(subject.device_kind, is_suspected=True)

    def decision(rounds: int, rule: StopRule | None) -> str:
        nonlocal taken
        drawn = draw.sample(pairs, rounds)
        if may_swap:
            drawn = [pair if draw.random() < 0.5 else [pair[1], pair[0], *pair[2:]] for pair in drawn]
        comparisons = (_compared(drawn[:count], subject) for count in (*LOOKS, rounds) if count <= rounds)
        ended = next(item for item in comparisons if _has_ended(item, rounds, rule))
        taken += len(ended.base_ns)
        return decide(ended.base_ns, ended.head_ns, "slower", suspected, subject.time_kind, ended.reason).decision

    for _ in range(count):
        first = decision(thresholds.rounds, rule)
        may_repeat = first == "unsure" and len(pairs) >= thresholds.more_rounds
        decisions[decision(thresholds.more_rounds, None) if may_repeat else first] += 1
    return decisions, taken / count


def _compared(rounds: Pairs, subject: Subject) -> Comparison:
    """A comparison of these rounds, with what its controls say."""
    again, waited = ([pair[place] for pair in rounds if len(pair) > place] for place in (2, 3))
    base_ns, head_ns = [pair[0] for pair in rounds], [pair[1] for pair in rounds]
    confirmed = confirmed_ratio(subject.device_kind, subject.metric, base_ns)
    comparison = Comparison("", "", subject.metric, "", Status.OK, "", base_ns, head_ns, None, again, waited)
    return replace(comparison, reason=judge_controls(again, waited, confirmed, comparison.ratios))


def _has_ended(comparison: Comparison, rounds: int, rule: StopRule | None) -> bool:
    return len(comparison.base_ns) == rounds or not list_undecided({("", ""): comparison}, rule)


def describe(subject: Subject, change: float, same: Pairs, changed: Pairs) -> str:
    factor = 1 + change / 100
    ratios = {
        name: sorted(pair[1] / pair[0] for pair in pairs) for name, pairs in (("same", same), ("changed", changed))
    }
    spread = {name: f"{median(rows):.4f} ({rows[0]:.4f} … {rows[-1]:.4f})" for name, rows in ratios.items()}
    false, false_rounds = verdicts(same, IDENTICAL, factor, subject, may_swap=True)
    true, true_rounds = verdicts(changed, CHANGED, factor, subject, may_swap=False)
    return (
        f"{subject.metric} of {subject.case}: {median(pair[0] for pair in same) / 1e3:.2f} µs; "
        f"ratio of identical code {spread['same']}, of +{change:g} % {spread['changed']}\n"
        f"  identical: {dict(false)} of {IDENTICAL} in {false_rounds:.1f} rounds on average; "
        f"changed: {dict(true)} of {CHANGED} in {true_rounds:.1f}\n"
        f"  controls of all rounds: {_compared(same, subject).reason}, {_compared(changed, subject).reason}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--change", type=float, default=2.0, help="percent by which the slower variant is slower")
    parser.add_argument("--signal", type=Signal, choices=[*Signal], default=Signal.KERNEL, help="what is slowed down")
    parser.add_argument("--share", type=float, help="on a CPU: the share of the work to repeat, instead of trying some")
    parser.add_argument("--cases", nargs="*", help="default: all")
    parser.add_argument("--output", type=Path, help="write both times of every round to this file, as JSON")
    parser.add_argument("--read", type=Path, help="draw from the rounds in this file instead of measuring")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(torch.device(arguments.device))
        return
    kind = torch.device(arguments.device).type
    if arguments.signal is Signal.LAUNCH and kind == "cpu":
        parser.error("--signal launch: a CPU launches nothing; choose a GPU by --device")
    if arguments.read:
        for case, measured in json.loads(arguments.read.read_text())["rounds"].items():
            subject = Subject(arguments.device, arguments.signal, case)
            print(describe(subject, arguments.change, measured["identical"], measured["changed"]))
        return
    stored = _read(arguments.output)
    for case in arguments.cases or CASES[kind]:
        subject = Subject(arguments.device, arguments.signal, case)
        slow_down = stored["slow_downs"].get(case) or (
            subject.slow_down(arguments.share, 0)
            if arguments.share is not None
            else calibrate(subject, arguments.change)
        )
        stored["slow_downs"][case] = slow_down
        measured = stored["rounds"].setdefault(case, {"identical": [], "changed": []})
        for same, changed in measure(subject, arguments.rounds, **slow_down):
            measured["identical"].append(same)
            measured["changed"].append(changed)
            _write(arguments.output, arguments.device, stored)
        if len(measured["identical"]) >= thresholds_of(subject.time_kind).rounds:
            print(describe(subject, arguments.change, measured["identical"], measured["changed"]), flush=True)
    load = f"load {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores"
    print(f"{load}; {arguments.rounds} rounds of fresh processes on {arguments.device}")


def _write(output: Path | None, device: str, stored: dict[str, Any]) -> None:
    if output is None:
        return
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else f"{os.cpu_count()} CPU cores"
    output.write_text(json.dumps({"device": name, "protocol": " ".join(sys.argv), **stored}), encoding="utf-8")


def _read(output: Path | None) -> dict[str, Any]:
    """The rounds and slow-downs by case that an earlier call wrote, empty without one."""
    if output is None or not output.exists():
        return {"slow_downs": {}, "rounds": {}}
    content = json.loads(output.read_text())
    return {"slow_downs": content["slow_downs"], "rounds": content["rounds"]}


if __name__ == "__main__":
    main()
