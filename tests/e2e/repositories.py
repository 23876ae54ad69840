"""Git repositories that the end-to-end tests measure: one operator, `cube`, in torch (v1) and in C++ (v3)."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

OPERATOR = """
import torch

from warpwatch import Cost, Operator, both_directions, case


def inputs(case, make):
    return {"x": make.normal(case["n"])}


def reference(x):
    return x * x * x


def cost(case):
    times = 2 if case.direction == "fwd" else 3
    return Cost(flops=times * case["n"], bytes=times * 4 * case["n"])


def register():
    @torch.library.register_fake("cube::forward")
    def _(x):
        return torch.empty_like(x)

    def setup(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    def backward(ctx, g):
        return torch.ops.cube.backward(g.contiguous(), ctx.saved_tensors[0])

    torch.library.register_autograd("cube::forward", backward, setup_context=setup)


operator = Operator(
    "cube", "Element-wise cube.", inputs=inputs, reference=reference, cost=cost, gradients=("x",), native=register,
    cases={"quick": both_directions(case(n=2000), directions=("fwd", "bwd"))},
)


@operator.variant("v1", idea="plain torch")
def v1(x):
    return x * x * x


@operator.variant("v3", idea="one loop in C++", native=True, devices=("cpu",))
def v3(x):
    return torch.ops.cube.forward(x.contiguous())
"""

NATIVE = """
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <vector>

using torch::stable::Tensor;

// The work is repeated so that its time is many times the cost of a call; the barrier keeps the compiler from folding
// it.
constexpr int REPEATS = 400;

// A function that begins elsewhere in its cache line can take a tenth longer, which would be a true slow-down that no
// commit is to have.
#define AT_A_LINE __attribute__((aligned(64)))

AT_A_LINE Tensor forward(const Tensor& x) {
    Tensor y = torch::stable::empty_like(x);
    const float* in = static_cast<const float*>(x.data_ptr());
    float* out = static_cast<float*>(y.data_ptr());
    // fault
    for (int repeat = 0; repeat < REPEATS; ++repeat) {
        for (int64_t i = 0; i < x.numel(); ++i) out[i] = in[i] * in[i] * in[i];
        asm volatile("" ::: "memory");
    }
    return y;
}

AT_A_LINE Tensor backward(const Tensor& g, const Tensor& x) {
    Tensor y = torch::stable::empty_like(x);
    const float* in = static_cast<const float*>(x.data_ptr());
    const float* gradient = static_cast<const float*>(g.data_ptr());
    float* out = static_cast<float*>(y.data_ptr());
    for (int repeat = 0; repeat < REPEATS; ++repeat) {
        for (int64_t i = 0; i < x.numel(); ++i) out[i] = 3 * gradient[i] * in[i] * in[i];
        asm volatile("" ::: "memory");
    }
    return y;
}

STABLE_TORCH_LIBRARY(cube, m) {
    m.def("forward(Tensor x) -> Tensor");
    m.def("backward(Tensor g, Tensor x) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(cube, CPU, m) {
    m.impl("forward", TORCH_BOX(&forward));
    m.impl("backward", TORCH_BOX(&backward));
}
"""


@dataclass(frozen=True)
class Change:
    """One commit: what it replaces in the good native source, and what must come out of it for v3."""

    subject: str
    old: str
    new: str
    forward: str
    backward: str


FORWARD_LOOP = (
    "for (int repeat = 0; repeat < REPEATS; ++repeat) {\n"
    "        for (int64_t i = 0; i < x.numel(); ++i) out[i] = in[i] * in[i] * in[i];"
)
TEN_COMMITS = (
    Change("Cube in C++", "", "", "ok", "ok"),
    Change("Do 30 % more work", FORWARD_LOOP, FORWARD_LOOP.replace("REPEATS", "REPEATS * 13 / 10"), "ok", "ok"),
    Change("Take the extra work back", "", "", "ok", "ok"),
    Change(
        "Return a wrong result",
        "out[i] = in[i] * in[i] * in[i]",
        "out[i] = in[i] * in[i] * in[i] * 1.01f",
        "wrong",
        "ok",
    ),
    Change("Return a wrong gradient", "out[i] = 3 * gradient[i]", "out[i] = 2 * gradient[i]", "ok", "wrong"),
    Change("Break the build", "// fault", "this does not compile;", "build_failed", "build_failed"),
    Change("Never return", "// fault", "for (volatile int stay = 1; stay;) {}", "timed_out", "skipped"),
    Change("Write to nowhere", "// fault", "*static_cast<volatile int*>(nullptr) = 1;", "crashed", "crashed"),
    Change(
        "Ask for all the memory",
        "// fault",
        "std::vector<char> all(std::size_t(1) << 42, 1); out[0] = all[7];",
        "out_of_memory",
        "out_of_memory",
    ),
    Change("Cube in C++ once more", "", "", "ok", "ok"),
)


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=Tester", "-c", "user.email=tester@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def create(folder: Path) -> None:
    """An empty repository with the operator file but no native code yet."""
    (folder / "kernels").mkdir(parents=True)
    (folder / "csrc" / "cube").mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch=main")
    (folder / "warpwatch.toml").write_text('contract = 1\noperators = "kernels"\nnative = "csrc"\n')
    (folder / "kernels" / "cube.py").write_text(OPERATOR)


def commit(folder: Path, change: Change, number: int) -> str:
    """Commit the good source with one change; the full id."""
    if change.old:
        assert change.old in NATIVE
    source = NATIVE.replace(change.old, change.new) if change.old else NATIVE
    (folder / "csrc" / "cube" / "cube.cpp").write_text(f"// revision {number}\n{source}")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", change.subject)
    return git(folder, "rev-parse", "HEAD")


def build_ten_commits(folder: Path) -> list[str]:
    """A repository at `folder` with the ten commits; their ids, oldest first."""
    create(folder)
    return [commit(folder, change, number) for number, change in enumerate(TEN_COMMITS)]
