"""The code of each variant of an operator's file: the definitions that it can reach, whatever other variants are."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable

_DYNAMIC = {"*", "__import__", "eval", "exec", "getattr", "globals", "importlib", "locals", "modules", "setattr"}
_DYNAMIC |= {"vars", "variants", "Variant"}
"""Names in a file that may reach a definition, or make a variant, under a name that is not written."""
_WRAPPERS = ("triton", "functools")
"""Modules whose decorators wrap a function and call nothing of the file."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def variant_digests(tree: ast.Module) -> dict[str, str] | None:
    """A hash by variant, which changes with all that the variant can reach in its file; None where that cannot be told.

    Counted with a variant are its function with its decorator, the functions, classes and constants of the file that
    these name, and theirs. Everything that does more than define a name when the file is imported, or that changes one
    later, counts with every variant: imports, calls, loops, other decorated functions, and functions with `global`.
    """
    if any(_written(node) in _DYNAMIC for node in ast.walk(tree)):
        return None
    functions = [(name, number) for number, node in enumerate(tree.body) if (name := _variant_name(node)) is not None]
    definitions: dict[str, list[int]] = {}
    always: list[int] = []
    for number, node in enumerate(tree.body):
        if (number not in {other for _, other in functions}) and _has_effects(node):
            always.append(number)
        for name in _stored(node):
            definitions.setdefault(name, []).append(number)
    uses = sum(_written(node) == "variant" for node in ast.walk(tree))
    if not functions or not len(dict(functions)) == len(functions) == uses:
        return None
    return {name: _digest(tree.body, _reached(tree.body, definitions, [*always, number])) for name, number in functions}


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


def _reached(body: list[ast.stmt], definitions: dict[str, list[int]], first: Iterable[int]) -> set[int]:
    """Numbers of the statements that these can reach by the names in them."""
    reached, pending = set[int](), list(first)
    while pending:
        number = pending.pop()
        if number not in reached:
            reached.add(number)
            names = {inner.id for inner in ast.walk(body[number]) if isinstance(inner, ast.Name)}
            pending += [other for name in names for other in definitions.get(name, ())]
    return reached


def _variant_name(node: ast.stmt) -> str | None:
    """The name of the variant that a function is registered as; None for every other statement."""
    if not isinstance(node, _Function) or len(node.decorator_list) != 1 or _calls(node.args) or _sets_globals(node):
        return None
    call = node.decorator_list[0]
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr != "variant":
        return None
    name = call.args[0] if call.args else None
    return name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else None


def _has_effects(node: ast.stmt) -> bool:
    """Whether a statement may do more than define names without a call."""
    if isinstance(node, _Function):
        return bool(node.decorator_list) or _calls(node.args) or _sets_globals(node)
    if isinstance(node, ast.ClassDef):
        others = [part for part in node.body if not isinstance(part, _Function)]
        return bool(node.decorator_list or node.keywords) or any(map(_calls, others)) or _sets_globals(node)
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return not targets or not all(isinstance(target, ast.Name) for target in targets) or _calls(node)


def _calls(node: ast.AST) -> bool:
    return any(isinstance(inner, ast.Call | ast.NamedExpr) for inner in ast.walk(node))


def _sets_globals(node: ast.AST) -> bool:
    return any(isinstance(inner, ast.Global) for inner in ast.walk(node))


def _stored(node: ast.stmt) -> set[str]:
    """The names that a statement gives a value anywhere in it."""
    stored = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)}
    stored |= {inner.name for inner in ast.walk(node) if isinstance(inner, _Function | ast.ClassDef)}
    imports = (inner.names for inner in ast.walk(node) if isinstance(inner, ast.Import | ast.ImportFrom))
    return stored | {(alias.asname or alias.name).split(".")[0] for names in imports for alias in names}


def _written(node: ast.AST) -> str | None:
    """The name that a variable, an attribute or an import stands for."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.name.split(".")[0] if isinstance(node, ast.alias) else None


def _digest(body: list[ast.stmt], numbers: set[int]) -> str:
    return hashlib.sha256("\n".join(ast.dump(body[number]) for number in sorted(numbers)).encode()).hexdigest()
