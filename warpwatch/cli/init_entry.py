"""Finds the exported functions through which the users of a package reach the operators that `warpwatch init` found."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping

from warpwatch.cli.init_files import OperatorSketch
from warpwatch.cli.init_python import (
    PackageFile,
    find_exports,
    follow_imports,
    is_autograd,
    names_used,
    required,
    sketch_function,
    tensor_parameters,
)


def replace_by_entry_points(operators: list[OperatorSketch], modules: list[PackageFile]) -> list[OperatorSketch]:
    """The operators, with exported functions of tensors in place of the internal operators that they call.

    Often only a kernel's wrapper can call it, because the wrapper sorts, pads and casts. An exported function that
    calls an entry point is not a second one to the same operator.
    """
    by_name = {module.name: module for module in modules}
    exported = find_exports(modules)
    callers: dict[str, set[str]] = defaultdict(set)
    entries: dict[str, tuple[PackageFile, ast.FunctionDef]] = {}
    passages: set[str] = set()
    for module in modules if operators else ():
        for name, node in (module.variables | module.definitions).items():
            dotted = f"{module.name}.{name}"
            for used in names_used(module, node):
                callers[follow_imports(used, by_name)].add(dotted)
            if dotted in exported and isinstance(node, ast.FunctionDef) and tensor_parameters(module, node):
                entries[dotted] = module, node
            elif not isinstance(node, ast.ClassDef) or is_autograd(module, node):
                passages.add(dotted)
    own_names = {module.file: module.name for module in modules}
    reached: dict[str, list[OperatorSketch]] = {}
    kept = []
    for operator in operators:
        own = f"{own_names[operator.file]}.{operator.symbol}" if operator.file in own_names else ""
        found = set() if own in entries else set(_entries({own, operator.called}, callers, entries, passages))
        for name in sorted(found):
            reached.setdefault(name, []).append(operator)
        kept += [] if found else [operator]
    return [_sketch_entry(*entries[name], called) for name, called in reached.items() if name in entries] + kept


def _entries(
    names: set[str], callers: Mapping[str, set[str]], entries: Mapping[str, object], passages: set[str]
) -> Iterator[str]:
    """The nearest entry points that call one of these names, directly or through passages."""
    seen, pending = set(names), [name for name in names if name]
    while pending:
        for caller in callers.get(pending.pop(), set()) - seen:
            seen.add(caller)
            if caller in entries:
                yield caller
            elif caller in passages:
                pending.append(caller)


def _sketch_entry(module: PackageFile, node: ast.FunctionDef, called: list[OperatorSketch]) -> OperatorSketch:
    is_cuda = all(operator.is_cuda for operator in called)
    first, *others = called
    more = f" and {len(others)} more" if others else ""
    action = "launches @triton.jit kernels" if is_cuda else f"calls {first.called or first.symbol}{more}"
    kind = f"{node.name}(), which {action}"
    return sketch_function(module, node, node.name, kind, required(node), is_cuda=is_cuda)
