"""Calls functions of liger_kernel whose signatures changed over its history."""

import inspect


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
