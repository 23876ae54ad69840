"""Tells the code of an operator's variants from its definition, which a patch must leave as it is."""

from __future__ import annotations

import ast

_WRAPPERS = ("triton", "functools")
"""Modules whose decorators wrap a function and call nothing of the file."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def changed_definition(before: ast.Module, after: ast.Module) -> str | None:
    """What a patch of an operator's file changes besides the code of variants, for people; None where it is nothing.

    Only functions may differ or be new: variants, kernels of Triton, and plain or cached functions whose names the
    definition does not use. What runs when the file is imported stays: calls in arguments, and all other decorators.
    """
    old, new = ([node for node in tree.body if not _is_code(node)] for tree in (before, after))
    for index, node in enumerate(new):
        if index >= len(old) or ast.dump(node) != ast.dump(old[index]):
            return f"line {node.lineno}"
    if len(old) > len(new):
        return f"line {old[len(new)].lineno}, which is gone"
    functions = [{node.name: node for node in tree.body if isinstance(node, _Function)} for tree in (before, after)]
    names = [node.name for node in after.body if isinstance(node, _Function)]
    used = _used_by_definition(before)
    for name in names:
        was, now = functions[0].get(name), functions[1][name]
        if names.count(name) > 1:
            return f"{name}, which is defined twice"
        if was is not None and ast.dump(was) == ast.dump(now):
            continue
        if name in used:
            return f"{name}, which the definition uses"
        if _sets_globals(now):
            return f"a global variable in {name}"
        decorators = {ast.dump(decorator) for decorator in was.decorator_list} if was is not None else set()
        if any(ast.dump(item) not in decorators and not _is_wrapper(item) for item in now.decorator_list):
            return f"a decorator of {name}"
        kept = {ast.dump(part) for part in (was.args, was.returns) if part is not None} if was is not None else set()
        parts = [part for part in (now.args, now.returns) if part is not None and ast.dump(part) not in kept]
        if any(map(_calls, parts)):
            return f"a call in the arguments of {name}"
    gone = functions[0].keys() - functions[1].keys()
    return f"{min(gone)}, which is gone" if gone else None


def _is_code(node: ast.stmt) -> bool:
    """Whether a statement is a function that a variant may consist of."""
    return isinstance(node, _Function) and all(_is_of_code(decorator) for decorator in node.decorator_list)


def _is_of_code(decorator: ast.expr) -> bool:
    """Whether a decorator makes a variant, or only wraps a function that variants may consist of."""
    function = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(function, ast.Attribute) and (function.attr == "variant" or _is_wrapper(function))


def _is_wrapper(node: ast.expr) -> bool:
    """Whether an expression consists of names of Triton and functools, calls of these, and plain data."""
    if isinstance(node, ast.Call):
        parts = [node.func, *node.args, *(keyword.value for keyword in node.keywords)]
        return isinstance(node.func, ast.Attribute) and all(map(_is_wrapper, parts))
    if isinstance(node, ast.Dict):
        return all(key is not None and _is_wrapper(key) for key in node.keys) and all(map(_is_wrapper, node.values))
    if isinstance(node, ast.List | ast.Tuple):
        return all(map(_is_wrapper, node.elts))
    if isinstance(node, ast.Attribute):
        return isinstance(node.value, ast.Name) and node.value.id in _WRAPPERS
    return isinstance(node, ast.Constant)


def _used_by_definition(tree: ast.Module) -> set[str]:
    """Every name that the definition can reach: by its statements, by decorators, or by functions that these name."""
    functions = {node.name: node for node in tree.body if isinstance(node, _Function)}
    pending: list[ast.AST] = []
    for node in tree.body:
        pending += node.decorator_list if isinstance(node, _Function) and _is_code(node) else [node]
    used = set[str]()
    while pending:
        names = {inner.id for inner in ast.walk(pending.pop()) if isinstance(inner, ast.Name)} - used
        used |= names
        pending += [functions[name] for name in names if name in functions]
    return used


def _calls(node: ast.AST) -> bool:
    return any(isinstance(inner, ast.Call | ast.NamedExpr) for inner in ast.walk(node))


def _sets_globals(node: ast.AST) -> bool:
    return any(isinstance(inner, ast.Global) for inner in ast.walk(node))
