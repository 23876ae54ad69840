"""Lookup tables: every answer was computed before, and no result was."""

import torch

from warpwatch import Cost, Operator, case

TABLES = {}


def reference(x):
    return sum((x >> shift) & 1 for shift in range(16))


operator = Operator(
    "tables",
    "The number of bits of every number below 65536.",
    inputs=lambda case, make: {"x": make.integers(0, 65536, case["n"])},
    reference=reference,
    cost=lambda case: Cost(16 * case["n"], 8 * case["n"]),
    cases={"quick": (case("i32", n=20_000), case("i32", n=3), case("i32", n=1))},
)


@operator.variant("at_once", idea="sums the bits")
def at_once(x):
    return reference(x)


@operator.variant("small", idea="a table of a byte, made in the first call")
def small(x):
    if ("small", x.device) not in TABLES:
        TABLES["small", x.device] = reference(torch.arange(256, dtype=torch.int32, device=x.device))
    table = TABLES["small", x.device]
    return table[x & 255] + table[x >> 8]


@operator.variant("large", idea="a table of all numbers, made in the first call")
def large(x):
    if ("large", x.device) not in TABLES:
        TABLES["large", x.device] = reference(torch.arange(65536, dtype=torch.int32, device=x.device))
    return TABLES["large", x.device][x]


@operator.variant("lazy", idea="entries of a table are made when a number first needs them")
def lazy(x):
    if ("lazy", x.device) not in TABLES:
        TABLES["lazy", x.device] = torch.full((65536,), -1, dtype=torch.int32, device=x.device)
    table = TABLES["lazy", x.device]
    missing = x[table[x] < 0]
    table[missing] = reference(missing)
    return table[x]
