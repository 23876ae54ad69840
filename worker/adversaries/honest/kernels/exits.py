"""Work that depends on the numbers: it ends early for some, takes turns for others, and is seldom short or long."""

from warpwatch import Cost, Operator, case

operator = Operator(
    "exits",
    "Twice the numbers.",
    inputs=lambda case, make: {"x": make.normal(case["rows"], case["n"])},
    reference=lambda x: 2 * x,
    cost=lambda case: Cost(case["rows"] * case["n"], 2 * case.element_bytes * case["rows"] * case["n"]),
    cases={"quick": (case(rows=32, n=64), case("f64", rows=8, n=32))},
)


def work(x, steps):
    for _ in range(steps):
        x.sort(1)
    return x + x


def share(x):
    """A number from 0 to 1 that the inputs decide, and all are as likely."""
    return float((x[0, 0] * 1000).frac().abs())


@operator.variant("even", idea="up to thirty steps")
def even(x):
    return work(x, int(30 * share(x)))


@operator.variant("seldom_short", idea="short for one in ten")
def seldom_short(x):
    return work(x, 1 if share(x) < 0.1 else 20)


@operator.variant("seldom_long", idea="long for one in ten")
def seldom_long(x):
    return work(x, 20 if share(x) < 0.1 else 1)


@operator.variant("half_and_half", idea="long for every other")
def half_and_half(x):
    return work(x, 20 if share(x) < 0.5 else 1)


@operator.variant("third_short", idea="short for every third")
def third_short(x):
    return work(x, 1 if share(x) < 0.33 else 20)


@operator.variant("leaves_early", idea="leaves at the first row with a large number")
def leaves_early(x):
    for row in x:
        row.sort()
        if float(row[0]) > 1.5:
            break
    return x + x
