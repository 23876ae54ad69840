"""A repository with one operator, `probe`, whose variants each meet the fate they are named after."""

from __future__ import annotations

OPERATOR = """
import ctypes
import torch
from warpwatch import Cost, Operator, case


def inputs(case, make):
    return {"x": make.normal(case["n"])}


operator = Operator(
    "probe", "Doubles its input.", inputs=inputs, reference=lambda x: x * 2,
    cost=lambda case: Cost(case["n"], 8 * case["n"]),
    cases={"quick": (case(n=100), case(n=101), case(n=102)), "full": (case(n=1000),)},
)


@operator.variant("ok", idea="right")
def ok(x):
    return x * 2


@operator.variant("wrong", idea="off by one")
def wrong(x):
    return x * 2 + 1


@operator.variant("raise", idea="raises")
def raises(x):
    raise RuntimeError("no such luck")


@operator.variant("segfault", idea="reads nowhere")
def segfault(x):
    print("about to die", flush=True)
    ctypes.string_at(0)


@operator.variant("loop", idea="never returns")
def loop(x):
    while True:
        pass


@operator.variant("memory", idea="wants a lot")
def memory(x):
    return torch.ones(2**36)


@operator.variant("unsupported", idea="cannot", unsupported=lambda case, device: "not on a " + device)
def unsupported(x):
    return x


@operator.variant("last", idea="right, after all that")
def last(x):
    return x + x
"""
DAMAGE = (
    OPERATOR
    + """

damaged = False


@operator.variant("culprit", idea="leaves damage behind")
def culprit(x):
    global damaged
    damaged = True
    return x * 2


@operator.variant("victim", idea="dies of another's damage")
def victim(x):
    return ctypes.string_at(0) if damaged else x * 2


scribbled = False


@operator.variant("scribbler", idea="right, and writes where it should not")
def scribbler(x):
    global scribbled
    scribbled = True
    return x * 2


@operator.variant("scribbled", idea="wrong where another wrote")
def scribbled_on(x):
    return x * 3 if scribbled else x * 2


@operator.variant("wrong_too", idea="wrong whoever ran before")
def wrong_too(x):
    return x * 4
"""
)
SECOND = OPERATOR.replace('"probe"', '"second"')
TOML = "contract = 1\n"
NATIVE_OPERATOR = (
    OPERATOR
    + """

@operator.variant("native", idea="does not compile", native=True)
def native(x):
    return torch.ops.probe.forward(x)
"""
)


def files() -> dict[str, str]:
    """A good repository, as {path: text}."""
    return {"warpwatch.toml": TOML, "kernels/probe.py": OPERATOR}
