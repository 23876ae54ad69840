"""Simulates what an undecided comparison gains from more rounds: a second one of 36, or going on to 48.

python bench/more_rounds.py bench/trials_cpu.json --device-kind cpu [--draws 4000]

Rounds are drawn, with replacement and with both sides swapped at random, from the rounds of identical code that
bench/trials.py wrote, and multiplied by a change. Going on looks again after 18, 24, 36 and 48 rounds.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from warpwatch.contract.rounds import LOOKS, ROUNDS
from warpwatch.server.verdicts.paired import decide
from warpwatch.server.verdicts.thresholds import stop_rule, thresholds_of

CHANGES = (1.0, 1.02, 1.03, 1.05)
PLANS = {"12 rounds": (), "36 more, anew": (), "on to 48": (18, 24, 36, 48)}


def decision(ratios: Sequence[float], kind: str, suspected: float) -> str:
    return decide([1.0] * len(ratios), ratios, "slower", suspected, kind).decision


def simulate(
    pool: Sequence[float], change: float, plan: str, kind: str, suspected: float, draw: random.Random
) -> tuple[str, int]:
    """(decision, rounds taken) of one comparison."""

    def rounds(count: int) -> list[float]:
        return [draw.choice(pool) ** draw.choice((1, -1)) * change for _ in range(count)]

    rule, ratios = stop_rule(kind, is_suspected=True), rounds(ROUNDS)
    ends = next((count for count in LOOKS if rule.is_met(ratios[:count])), ROUNDS)
    verdict = decision(ratios[:ends], kind, suspected)
    if verdict != "unsure" or plan == "12 rounds":
        return verdict, ends
    if plan == "36 more, anew":
        more = thresholds_of(kind).more_rounds
        return decision(rounds(more), kind, suspected), ends + more
    for count in PLANS[plan]:
        ratios += rounds(count - len(ratios))
        verdict = decision(ratios, kind, suspected)
        if verdict != "unsure":
            return verdict, count
    return verdict, len(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rounds", type=Path)
    parser.add_argument("--device-kind", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--suspected", type=float, default=1.05)
    parser.add_argument("--draws", type=int, default=4000)
    arguments = parser.parse_args()
    for case, measured in json.loads(arguments.rounds.read_text())["rounds"].items():
        pool = [head / base for base, head, *_ in measured["identical"]]
        print(f"{case}, {len(pool)} rounds of identical code")
        print("| change | plan | confirmed | dismissed | unsure | rounds |\n|---|---|---|---|---|---|")
        for change in CHANGES:
            for plan in PLANS:
                draw, decisions, taken = random.Random(1), Counter[str](), 0
                for _ in range(arguments.draws):
                    verdict, count = simulate(pool, change, plan, arguments.device_kind, arguments.suspected, draw)
                    decisions[verdict] += 1
                    taken += count
                shares = " | ".join(
                    f"{decisions[name] / arguments.draws:.2%}" for name in ("confirmed", "dismissed", "unsure")
                )
                print(f"| {change - 1:+.0%} | {plan} | {shares} | {taken / arguments.draws:.1f} |")


if __name__ == "__main__":
    main()
