"""A repository of forty commits: three slow-downs, an improvement, a wrong result, a commit that does not build, a new
environment.

Two operators take square roots by Newton's method, each case with a number of iterations of its own. More iterations
than needed change no result and cost exactly their share: 206 instead of 200 take 3 % longer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.repositories import git

OPERATOR = """
import torch

from warpwatch import Cost, Operator, case


def inputs(case, make):
    return {"x": make.normal(case["n"]).abs() + 1}


def register():
    @torch.library.register_fake("NAME::forward")
    def _(x):
        return torch.empty_like(x)


operator = Operator(
    "NAME", "Square roots.", inputs=inputs, reference=torch.sqrt,
    cost=lambda case: Cost(flops=case["n"], bytes=8 * case["n"]),
    native=register, no_special_values="Newton's method starts from ordinary numbers",
    cases={"quick": (case(n=FIRST), case(n=SECOND))},
)


@operator.variant("newton", idea="Newton's method in C++", native=True, devices=("cpu",))
def newton(x):
    return torch.ops.NAME.forward(x.contiguous())
"""

NATIVE = """
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

using torch::stable::Tensor;

// REMARK
// Each iteration waits for the one before, of the number before too, so the time is their number times the latency of
// one.
__attribute__((noinline)) void roots(const float* in, float* out, int64_t count, int iterations) {
    double last = 0;
    for (int64_t i = 0; i < count; ++i) {
        double root = in[i] + 0 * last;
        for (int step = 0; step < iterations; ++step) root = 0.5 * (root + in[i] / root);
        out[i] = static_cast<float>(last = root);
    }
}

Tensor forward(const Tensor& x) {
    Tensor y = torch::stable::empty_like(x);
    const float* in = static_cast<const float*>(x.data_ptr());
    float* out = static_cast<float*>(y.data_ptr());
    const int64_t count = x.numel();
    roots(in, out, count, count == FIRST ? FIRST_ITERATIONS : SECOND_ITERATIONS);
    // AFTERWARDS
    return y;
}

STABLE_TORCH_LIBRARY(NAME, m) { m.def("forward(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(NAME, CPU, m) { m.impl("forward", TORCH_BOX(&forward)); }
"""

SIZES = {"coarse": (250, 300), "fine": (350, 400)}
COMMITS = 40
MEASURED = (*range(0, COMMITS, 5), COMMITS - 1)
ENVIRONMENT_CHANGES = 20
"""From this commit on warpwatch.toml names an interpreter that lets idle OpenMP threads spin for longer."""


@dataclass
class State:
    """What the sources of one operator say at a commit."""

    iterations: list[int]
    afterwards: str = ""
    remark: str = "as it was"


@dataclass
class History:
    """Both operators, changed step by step."""

    operators: dict[str, State] = field(
        default_factory=lambda: {"coarse": State([200, 200]), "fine": State([200, 200])}
    )

    def iterations(self, name: str, which: int, count: int) -> None:
        self.operators[name].iterations[which] = count

    def afterwards(self, name: str, text: str) -> None:
        self.operators[name].afterwards = text

    def remark(self, name: str, text: str) -> None:
        self.operators[name].remark = text


Step = Callable[[History], None]
STEPS: dict[int, tuple[str, Step]] = {
    3: ("Take 30 % more iterations", lambda h: h.iterations("coarse", 0, 260)),
    4: ("Reword a remark", lambda h: h.remark("coarse", "reworded")),
    7: ("Take fewer iterations", lambda h: h.iterations("coarse", 1, 160)),
    9: ("Say why fewer do", lambda h: h.remark("coarse", "they converge")),
    12: ("Break the build", lambda h: h.afterwards("fine", "this does not compile;")),
    13: ("Mend the build", lambda h: h.afterwards("fine", "")),
    14: ("Take 8 % more iterations", lambda h: h.iterations("fine", 0, 216)),
    23: ("Take 3 % more iterations", lambda h: h.iterations("fine", 1, 206)),
    24: ("Explain a loop", lambda h: h.remark("fine", "a loop")),
    31: (
        "Return a wrong result",
        lambda h: h.afterwards("coarse", "for (int64_t i = 0; count == SECOND && i < count; ++i) out[i] *= 1.01f;"),
    ),
    33: ("Say more", lambda h: h.remark("coarse", "more")),
}
EVENTS = {
    ("slower", "coarse", 2, 3),
    ("faster", "coarse", 6, 7),
    ("slower", "fine", 13, 14),
    ("slower", "fine", 22, 23),
    ("broken", "coarse", 30, 31),
}
"""(direction, operator, last good commit, first bad one)."""


def build_forty_commits(folder: Path, interpreter: Path) -> list[str]:
    """The repository at `folder`; ids of its commits, oldest first.

    interpreter: a Python to be written and named from one commit on.
    """
    _write_interpreter(interpreter)
    history = History()
    (folder / "kernels").mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch=main")
    shas = []
    for number in range(COMMITS):
        subject, step = STEPS.get(number, (f"Write page {number} of the manual", None))
        if step is not None:
            step(history)
        (folder / "manual.md").write_text(f"page {number if step is None else number - 1}\n")
        _write(folder, history, interpreter if number >= ENVIRONMENT_CHANGES else None)
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--message", subject)
        shas.append(git(folder, "rev-parse", "HEAD"))
    return shas


def _write(folder: Path, history: History, interpreter: Path | None) -> None:
    lines = [
        "contract = 1",
        'operators = "kernels"',
        'native = "csrc"',
        *([f'interpreter = "{interpreter}"'] if interpreter else []),
    ]
    (folder / "warpwatch.toml").write_text("\n".join(lines) + "\n")
    for name, state in history.operators.items():
        first, second = SIZES[name]
        words = {
            "NAME": name,
            "FIRST_ITERATIONS": state.iterations[0],
            "SECOND_ITERATIONS": state.iterations[1],
            "AFTERWARDS": "after\n    " + state.afterwards,
            "REMARK": state.remark,
            "FIRST": first,
            "SECOND": second,
        }
        (folder / "csrc" / name).mkdir(parents=True, exist_ok=True)
        for path, text in (
            (folder / "kernels" / f"{name}.py", OPERATOR),
            (folder / "csrc" / name / f"{name}.cpp", NATIVE),
        ):
            for word, value in words.items():
                text = text.replace(word, str(value))
            path.write_text(text)


def _write_interpreter(path: Path) -> None:
    """The Python of these tests, in which idle OpenMP threads wait in another way: a fact of every environment."""
    path.write_text(f'#!/bin/sh\nexport GOMP_SPINCOUNT=2000\nexec "{sys.executable}" "$@"\n')
    path.chmod(0o755)
