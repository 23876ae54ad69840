"""A package that does not know Warpwatch, and definitions of an operator that lie beside it."""

from __future__ import annotations

TOML = """
contract = 1
operators = "operators"

[measured]
path = "src"
packages = ["lib"]
"""
OPERATOR = """
import lib
from operators._sizes import SIZE
from warpwatch import Cost, Operator, case


def inputs(case, make):
    return {"x": make.normal(case["n"])}


def reference(x):
    return x * 2


operator = Operator(
    "twice", "Doubles its input.", inputs=inputs, reference=reference,
    cost=lambda case: Cost(case["n"], 8 * case["n"]), cases={"quick": (case(n=SIZE),)},
)


@operator.variant("torch", idea="one torch call")
def plain(x):
    return x + x


@operator.variant("lib", idea="the package's own")
def own(x):
    return lib.double(x)
"""
CASE = "n=100,f32,fwd"
PACKAGE = "def double(x):\n    return x * 2\n"


def definitions(operator: str = OPERATOR, toml: str = TOML) -> dict[str, str]:
    return {"warpwatch.toml": toml, "operators/twice.py": operator, "operators/_sizes.py": "SIZE = 100\n"}


def package(text: str = PACKAGE) -> dict[str, str]:
    return {"src/lib/__init__.py": text, "README.md": "words"}
