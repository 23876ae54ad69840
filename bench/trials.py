"""How often a comparison sees a real change, and how often it sees one in identical code.

python bench/trials.py [--device cuda:0] [--rounds 24] [--change 2] [--output FILE.json]

Every round takes two fresh processes that are alive at once, as a comparison of two commits does, and measures in
slices A B B A (B A A B in every other round; eight times over on a CPU): identical code against itself, and against the
same code with a known slow-down, which is a wait on a GPU and a share of the work done again on a CPU. A comparison is
drawn from twelve of the rounds, without replacement, and one that is unsure once more from 36 where there are as many
(`--rounds 48`), as the service does; in the identical pair the roles of the two processes are drawn too, since nothing
tells them apart. So the comparisons printed share rounds: their rates are estimates from this many rounds, not from as
many independent trials.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.fresh import ROOT, Fresh, fresh_ones, open_verbs, serve
from warpwatch.contract.protocol import Request
from warpwatch.server.verdicts.paired import decide
from warpwatch.server.verdicts.thresholds import thresholds_of
from warpwatch.worker.comparison import middle, turns_of, typical

OPERATORS = {"cuda": "calibrated", "cpu": "product"}
CASES = {"cuda": ("n=256,f32,fwd", "n=2048,f32,fwd", "n=6144,f32,fwd"), "cpu": ("n=256,f32,fwd", "n=512,f32,fwd")}
BUDGET_NS = 1_000_000_000
IDENTICAL, CHANGED = 1000, 1000
_TRIES, _TRIED = 2, 8
"""Of the slow-down, and rounds of each."""

Pairs = list[tuple[float, float]]


def child(device: torch.device) -> None:
    verbs = open_verbs(ROOT / "bench" / "calibrated", device)
    rounds = thresholds_of(device.type).rounds

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        reply = getattr(verbs, request["verb"])(
            Request(0, operator=OPERATORS[device.type], budget_ns=BUDGET_NS, rounds=rounds, **request), _silent
        )
        return {"samples": reply.samples_ns, "metric": reply.metric, "message": reply.message}

    serve(answer)


def _silent(_done: int, _total: int, _text: str) -> None:
    pass


def one_round(base: Fresh, head: Fresh, kind: str, variant: str, case: str, index: int) -> tuple[float, float]:
    """(ns of `plain` in the process `base`, ns of `variant` in the process `head`)."""
    sides = {"base": (base, "plain"), "head": (head, variant)}
    turns = turns_of(index, kind)
    for side in turns[:2]:
        process, name = sides[side]
        process.ask(verb="prepare", variant=name, case=case)
    samples: dict[str, list[float]] = {"base": [], "head": []}
    for side in turns:
        process, name = sides[side]
        samples[side].append(typical(process.ask(verb="sample", variant=name, case=case)["samples"], kind))
    for process, name in sides.values():
        process.ask(verb="finish", variant=name, case=case)
    return middle(samples["base"], samples["head"])


def measure(device: str, case: str, rounds: int, **slow_down: str) -> tuple[Pairs, Pairs]:
    """(rounds of identical code, rounds of changed code)."""
    same, changed, kind = [], [], torch.device(device).type
    children = fresh_ones(Path(__file__), device, 2 * rounds, ahead=2, **slow_down)
    for index in range(rounds):
        base, head = next(children), next(children)
        same.append(one_round(base, head, kind, "plain", case, index))
        changed.append(one_round(base, head, kind, "slower", case, index))
        base.close()
        head.close()
    return same, changed


def calibrate(device: str, case: str, change: float) -> dict[str, str]:
    """What makes `slower` take `change` percent longer.

    A launch hides part of a wait, and a small product is no bargain, so it is tried.
    """
    plain = median(base for base, _ in measure(device, case, 1)[0])
    share = change / 100
    for _ in range(_TRIES):
        found = median(head / base - 1 for base, head in measure(device, case, _TRIED, **_slow_down(share, plain))[1])
        share *= min(2.0, max(0.5, change / 100 / found)) if found > 0 else 2.0
    return _slow_down(share, plain)


def _slow_down(share: float, plain: float) -> dict[str, str]:
    return {"CALIBRATED_EXTRA_SHARE": str(share), "CALIBRATED_EXTRA_NS": str(round(plain * share))}


def verdicts(pairs: Pairs, count: int, suspected: float, device_kind: str, may_swap: bool) -> Counter[str]:
    """What `count` comparisons drawn from the rounds say, each suspected to be `suspected` times as slow.

    What is unsure is asked once more with more rounds, where there are as many.
    """
    draw, said = random.Random(0), Counter[str]()

    def decision(rounds: int) -> str:
        drawn = draw.sample(pairs, rounds)
        if may_swap:
            drawn = [pair if draw.random() < 0.5 else pair[::-1] for pair in drawn]
        return decide(
            [base for base, _ in drawn], [head for _, head in drawn], "slower", suspected, device_kind
        ).decision

    thresholds = thresholds_of(device_kind)
    for _ in range(count):
        first = decision(thresholds.rounds)
        may_repeat = first == "unsure" and len(pairs) >= thresholds.more_rounds
        said[decision(thresholds.more_rounds) if may_repeat else first] += 1
    return said


def describe(case: str, device_kind: str, change: float, same: Pairs, changed: Pairs) -> str:
    factor = 1 + change / 100
    ratios = {
        name: sorted(head / base for base, head in pairs) for name, pairs in (("same", same), ("changed", changed))
    }
    spread = {name: f"{median(found):.4f} ({found[0]:.4f} … {found[-1]:.4f})" for name, found in ratios.items()}
    false = verdicts(same, IDENTICAL, factor, device_kind, may_swap=True)
    true = verdicts(changed, CHANGED, factor, device_kind, may_swap=False)
    return (
        f"{case}: {median(base for base, _ in same) / 1e3:.2f} µs; ratio of identical code {spread['same']}, of +{change:g} % {spread['changed']}\n"
        f"  identical: {dict(false)} of {IDENTICAL}; changed: {dict(true)} of {CHANGED}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--change", type=float, default=2.0, help="percent that the slower variant takes longer")
    parser.add_argument("--cases", nargs="*", help="default: all")
    parser.add_argument("--output", type=Path, help="where every round's two times go, as JSON")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(torch.device(given.device))
        return
    found, kind = {}, torch.device(given.device).type
    for case in given.cases or CASES[kind]:
        same, changed = measure(given.device, case, given.rounds, **calibrate(given.device, case, given.change))
        found[case] = {"identical": same, "changed": changed}
        print(describe(case, kind, given.change, same, changed), flush=True)
    print(
        f"load {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores; {given.rounds} rounds of fresh processes on {given.device}"
    )
    if given.output:
        name = torch.cuda.get_device_name(given.device) if kind == "cuda" else f"{os.cpu_count()} CPU cores"
        given.output.write_text(
            json.dumps({"device": name, "protocol": " ".join(sys.argv), "rounds": found}), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
