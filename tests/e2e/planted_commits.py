"""A repository of twenty-five commits along first parents, with two merged branches and planted faults: three
slow-downs, a speed-up, a wrong gradient, a wrong result, a crash, a hang, a commit that asks for all memory and a
compile error.

Three operators are Python: each takes its steps so many times, which changes no result. `cube` is C++, of the module
`repositories`.
Eleven commits along first parents touch no operator, or its comments alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tests.e2e import repositories
from tests.e2e.repositories import git

ROOTS = """
import torch

from warpwatch import Cost, Operator, case

operator = Operator(
    "roots", "Square roots.", inputs=lambda case, make: {"x": make.normal(case["n"]).abs() + 1},
    reference=torch.sqrt, cost=lambda case: Cost(flops=case["n"], bytes=8 * case["n"]),
    no_special_values="Newton's method starts from ordinary numbers",
    cases={"quick": (case(n=256), case(n=300))},
)


@operator.variant("newton", idea="Newton's method")
def newton(x):
    # REMARK
    root = (x + 1) / 2
    for _ in range(FIRST if x.numel() == 256 else SECOND):
        root = 0.5 * (root + x / root)
    return root
"""
WAVES = """
import torch

from warpwatch import Cost, Operator, both_directions, case


class Wave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        for _ in range(STEPS):
            wave = torch.sin(x)
        return wave

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        for _ in range(40):
            gradient = g * torch.cos(x)
        return gradient * FACTOR


operator = Operator(
    "waves", "Sines.", inputs=lambda case, make: {"x": make.normal(case["n"])}, reference=torch.sin, gradients=("x",),
    cost=lambda case: Cost(flops=case["n"], bytes=8 * case["n"]), cases={"quick": both_directions(case(n=512))},
)


@operator.variant("wave", idea="a function of its own")
def wave(x):
    return Wave.apply(x)
"""
SUMS = """
import os
import signal

import torch

from warpwatch import Cost, Operator, case

operator = Operator(
    "sums", "2 x", inputs=lambda case, make: {"x": make.normal(case["n"])}, reference=lambda x: 2 * x,
    cost=lambda case: Cost(flops=case["n"], bytes=8 * case["n"]), cases={"quick": (case(n=400),)},
)


@operator.variant("adds", idea="adds it to itself")
def adds(x):
    FAULT
    for _ in range(60):
        total = x + x
    return total
"""


@dataclass
class State:
    """What the operators say at a commit."""

    first: int = 40
    second: int = 40
    remark: str = "as it was"
    steps: int = 60
    factor: str = "1.0"
    fault: str = "pass"
    native: str = "// fault"
    words: int = 0


Step = Callable[[State], State]
STEPS: dict[int, tuple[str, Step]] = {
    3: ("Take 30 % more steps", lambda s: replace(s, first=52)),
    5: ("Crash", lambda s: replace(s, fault="os.kill(os.getpid(), signal.SIGSEGV)")),
    6: ("Mend the crash", lambda s: replace(s, fault="pass")),
    7: ("Return a wrong gradient", lambda s: replace(s, factor="1.01")),
    8: ("Mend the gradient", lambda s: replace(s, factor="1.0")),
    9: ("Never return", lambda s: replace(s, fault="while True: pass")),
    10: ("Return", lambda s: replace(s, fault="pass")),
    11: ("Take 30 % fewer steps", lambda s: replace(s, second=28)),
    12: ("Break the build", lambda s: replace(s, native="this does not compile;")),
    13: ("Mend the build", lambda s: replace(s, native="// fault")),
    14: ("Ask for all the memory", lambda s: replace(s, fault="torch.empty(1 << 42)")),
    15: ("Ask for less", lambda s: replace(s, fault="pass")),
    19: ("Take 20 % more steps", lambda s: replace(s, first=62)),
    20: ("Return a wrong result", lambda s: replace(s, fault="x = 1.01 * x")),
    21: ("Mend the result", lambda s: replace(s, fault="pass")),
    23: ("Reword a remark", lambda s: replace(s, remark="reworded")),
}
COMMITS = 25
SLOW_BRANCH, WORDS_BRANCH = 17, 22
"""Commits that merge a branch: one whose second commit takes 40 % more steps, and one of words alone."""
CULPRIT = "Take a longer way"
STATUSES = {
    ("sums", 5): "crashed",
    ("waves", 7): "wrong",
    ("sums", 9): "timed_out",
    ("cube", 12): "build_failed",
    ("sums", 14): "out_of_memory",
    ("sums", 20): "wrong",
}
"""The worst status of an operator's own variant at a commit; at all others it is ok."""
EVENTS = {
    ("slower", "roots", 3),
    ("faster", "roots", 11),
    ("slower", "roots", 19),
    ("slower", "waves", SLOW_BRANCH),
    *(("broken", operator, number) for operator, number in STATUSES),
}
"""(direction, operator, culprit)."""


def build_planted_commits(folder: Path) -> list[str]:
    """The repository at `folder`; ids of its commits along first parents, oldest first."""
    repositories.create(folder)
    state, shas = State(), []
    for number in range(COMMITS):
        if number == SLOW_BRANCH:
            longer = replace(state, steps=84)
            _merge(folder, "side", [("Prepare", replace(state, words=100)), (CULPRIT, replace(longer, words=100))])
            state = replace(longer, words=100)
        elif number == WORDS_BRANCH:
            state = replace(state, words=200)
            _merge(folder, "words", [("Write a preface", replace(state, words=199)), ("Write an index", state)])
        else:
            subject, step = STEPS.get(number, (f"Write page {number}", lambda s, page=number: replace(s, words=page)))
            state = step(state)
            _commit(folder, subject, state)
        shas.append(git(folder, "rev-parse", "HEAD"))
    return shas


def _merge(folder: Path, branch: str, commits: list[tuple[str, State]]) -> None:
    git(folder, "checkout", "--quiet", "-b", branch)
    for subject, state in commits:
        _commit(folder, subject, state)
    git(folder, "checkout", "--quiet", "main")
    git(folder, "merge", "--quiet", "--no-ff", "--message", f"Merge {branch}", branch)
    git(folder, "branch", "--quiet", "-D", branch)


def _commit(folder: Path, subject: str, state: State) -> None:
    texts = {
        "kernels/roots.py": ROOTS.replace("FIRST", str(state.first))
        .replace("SECOND", str(state.second))
        .replace("REMARK", state.remark),
        "kernels/waves.py": WAVES.replace("STEPS", str(state.steps)).replace("FACTOR", state.factor),
        "kernels/sums.py": SUMS.replace("FAULT", state.fault),
        "csrc/cube/cube.cpp": repositories.NATIVE.replace("// fault", state.native),
        "manual.md": f"page {state.words}\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", subject)
