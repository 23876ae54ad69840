"""y[i] = the sum of row i: two threads on a CPU, one block with shared partial sums on a GPU."""

import torch

from warpwatch import Cost, Operator, case

RIGHT, FAULTY = 0, 1

caught_by = {
    "lost_updates": "wrong_values y",
    "missing_barrier": "sanitizer",
}
sanitize = {"missing_barrier": "racecheck"}

operator = Operator(
    "total",
    "Sums of rows.",
    inputs=lambda case, make: {"x": make.normal(case["rows"], case["columns"])},
    reference=lambda x: x.sum(dim=1),
    cost=lambda case: Cost(case["rows"] * case["columns"], case.element_bytes * case["rows"] * case["columns"]),
    depth=lambda case: case["columns"],
    native=lambda: torch.library.register_fake("mutant_total::run", lambda x, fault: x.new_empty(x.shape[0])),
    cases={"quick": (case(rows=5, columns=1000),), "edge": (case(rows=1, columns=1), case(rows=3, columns=257))},
)


def large_only(case, device):
    return None if case["columns"] >= 1000 else "too few elements for the threads to run at the same time"


@operator.variant("shared", idea="every thread adds its partial sum under a lock, or after a barrier", native=True)
def shared(x):
    return torch.ops.mutant_total.run(x, RIGHT)


@operator.variant(
    "lost_updates",
    idea="two threads add to the same number without a lock",
    native=True,
    devices=("cpu",),
    unsupported=large_only,
)
def lost_updates(x):
    return torch.ops.mutant_total.run(x, FAULTY)


@operator.variant(
    "missing_barrier",
    idea="reads shared memory without waiting for the threads that write it",
    native=True,
    devices=("cuda",),
)
def missing_barrier(x):
    return torch.ops.mutant_total.run(x, FAULTY)
