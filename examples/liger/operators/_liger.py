"""What several operators share: suites of cases, and calls of functions whose signatures changed over the history."""

import inspect

from warpwatch import both_directions, case

ROWS = {
    "quick": both_directions(case(rows=512, k=1024)),
    "full": both_directions(
        case("bf16", rows=2048, k=4096),
        case("bf16", rows=4096, k=8192),
        case("bf16", rows=8192, k=1024),
        case("bf16", rows=1024, k=16384),
    ),
}
"""A matrix of `rows` rows with k columns."""
LOGITS = {
    "quick": both_directions(case(rows=256, vocabulary=4096)),
    "full": both_directions(
        case("bf16", rows=2048, vocabulary=32000),
        case("bf16", rows=4096, vocabulary=32000),
        case("bf16", rows=2048, vocabulary=128256),
        case("bf16", rows=8192, vocabulary=32000),
    ),
}
"""A row of logits or log-probabilities per token."""


def apply(function, *values, **options):
    """function.apply with these values; of the options, those that the commit's forward takes, by position."""
    parameters = list(inspect.signature(function.forward).parameters.values())[1:]
    arguments = list(values)
    for parameter in parameters[len(values) :]:
        if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
            break
        arguments.append(options.get(parameter.name, parameter.default))
    if inspect.Parameter.empty in arguments:
        raise TypeError(f"{function.__name__}.forward takes an argument that this definition does not know")
    return function.apply(*arguments)


def first(result):
    """The first of several results; older commits return it alone."""
    return result[0] if isinstance(result, tuple) else result
