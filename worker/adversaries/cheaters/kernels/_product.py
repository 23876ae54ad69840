"""The operator of every file in this folder: y = a @ b.

It computes much and moves little data, so a variant gains by not computing it.
"""

from warpwatch import Cost, Operator, case

N = 256


def make_operator(name: str, summary: str, sizes: tuple[int, ...] = (N,)) -> Operator:
    """y = a @ b of two square matrices in f32."""
    return Operator(
        name,
        summary,
        inputs=lambda case, make: {"a": make.normal(case["n"], case["n"]), "b": make.normal(case["n"], case["n"])},
        reference=lambda a, b: a @ b,
        cost=lambda case: Cost(flops=2 * case["n"] ** 3, bytes=3 * 4 * case["n"] ** 2),
        cases={"quick": tuple(case(n=n) for n in sizes)},
        depth=lambda case: case["n"],
    )
