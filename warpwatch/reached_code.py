"""The Python code that a call of each variant can reach, in all files of its operator.

Each file is split into its statements. A variant reaches the statement that registers it, the statements that define a
name written there, theirs, and so on, through imports of the operator's other files. With every variant count what may
do more than define names when its file is imported, functions that change what others read, and imported packages.
Code that looks names up or reads files makes the variants unknown that reach it; where code may change names that are
not written, all are unknown. What else a call of one variant leaves behind for another one is not followed.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

_CHANGES_NAMES = {"*", "Variant", "__dict__", "__getattr__", "__init_subclass__", "__set_name__", "__setattr__"}
_CHANGES_NAMES |= {"delattr", "eval", "exec", "globals", "modules", "setattr", "variants"}
"""Names that may give others a value, or make a variant, without naming them."""
_LOOKS_UP = {"CDLL", "LoadLibrary", "Path", "__import__", "_getframe", "attrgetter", "currentframe", "exec_module"}
_LOOKS_UP |= {"fromfile", "get_data", "getattr", "getline", "glob", "import_module", "listdir", "load_library"}
_LOOKS_UP |= {"loadtxt", "locals", "memmap", "methodcaller", "mmap", "module_from_spec", "open", "pathlib", "popen"}
_LOOKS_UP |= {"read_bytes", "read_text", "reload", "run_module", "run_path", "scandir", "spec_from_file_location"}
_LOOKS_UP |= {"subprocess", "system", "vars", "walk"}
"""Names that may read a name, or a file, that is not written beside them."""
_HARMLESS = {"classmethod", "dict", "float", "frozenset", "int", "len", "list", "property", "range", "set"}
_HARMLESS |= {"staticmethod", "str", "tuple", "collections.namedtuple", "contextlib.contextmanager"}
_HARMLESS |= {"dataclasses.dataclass", "dataclasses.field", "functools.cache", "functools.lru_cache"}
_HARMLESS |= {"functools.partial", "functools.wraps", "triton.Config", "triton.autotune", "triton.cdiv"}
_HARMLESS |= {"triton.heuristics", "triton.jit", "triton.next_power_of_2", "typing.TypeVar"}
_HARMLESS |= {"warpwatch.both_directions", "warpwatch.case", "warpwatch.operator.both_directions"}
_HARMLESS |= {"warpwatch.operator.case"}
"""Functions that neither change anything when they are called, nor call what they are given."""
_CALLS_GIVEN = {"functools.partial"}
"""Those whose results call what they were given."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Calls = frozenset[str] | None
"""What runs, by the names written there; None for what may do more than define names and call."""
_Place = tuple[str, int]
"""A file, and the number of one of its statements."""


@dataclass(frozen=True, slots=True)
class _Import:
    """level: dots in front of the module. `import module` has no name."""

    module: str
    name: str | None
    level: int


@dataclass(frozen=True, slots=True)
class _Statement:
    """calls: what runs with it. body: what runs in a call of the function that it defines. variant: what it registers,
    doing no more than that. looks_up: see _LOOKS_UP."""

    digest: str
    names: frozenset[str]
    imports: tuple[_Import, ...]
    calls: _Calls
    body: _Calls
    variant: str | None
    looks_up: bool


@dataclass(frozen=True, slots=True)
class CodeFile:
    """definitions: by name, the numbers of the statements that give it a value."""

    statements: tuple[_Statement, ...]
    definitions: Mapping[str, tuple[int, ...]]


def read_code(tree: ast.Module) -> CodeFile | None:
    """Reads a file, whose tree has lost the words that are for readers alone; None where it may change names that it
    does not write, or register variants that cannot be told."""
    body = [part for node in tree.body for part in _split(node)]
    futures = [ast.dump(node) for node in body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    helpers = {node.name: calls for node in body if isinstance(node, _Function) and (calls := _registering(node))}
    statements = tuple(_read(node, helpers, futures) for node in body)
    definitions: dict[str, tuple[int, ...]] = {}
    for number, node in enumerate(body):
        for name in _stored(node):
            definitions[name] = (*definitions.get(name, ()), number)
    written = Counter(map(_written, ast.walk(tree)))
    registered = [row.variant for row in statements if row.variant is not None]
    uses = sum(written[name] - 1 for name in helpers) + written["variant"] - len(helpers)
    is_told = len({*registered}) == len(registered) == uses and not _CHANGES_NAMES & written.keys()
    is_told = is_told and _registries(tree) <= {name for node in body if _is_operator(node) for name in _stored(node)}
    return CodeFile(statements, definitions) if is_told else None


def variant_digests(files: Mapping[str, CodeFile | None], operator: str) -> dict[str, str | None]:
    """A hash by variant of an operator, which changes with all that the variant can reach; None for one of which that
    cannot be told, and no variant at all where it cannot be told of any.

    files: all of the operator, by the names that they are imported by; None for one that cannot be read, or may read
    its own text. An `__init__` counts as a whole, as does any file that is not imported by its name.
    """
    known = {name: file for name, file in files.items() if file is not None}
    return _Reach(known).digests(operator) if len(known) == len(files) else {}


class _Reach:
    def __init__(self, files: Mapping[str, CodeFile]) -> None:
        self._files = files

    def digests(self, operator: str) -> dict[str, str | None]:
        loaded = self._loaded(operator)
        others = sorted(self._files.keys() - loaded.keys())
        always = [place for name in (*loaded, *others) for place in self._always(name, is_whole=name in others)]
        files = self._files.items()
        imports = [(name, item) for name, file in files for row in file.statements for item in row.imports]
        modules = {(self._module(name, item), item.name or "") for name, item in imports}
        packages = sorted(item for item in modules if not self._is_plain(*item))
        order = list(dict.fromkeys(name for name, _ in always))
        digests: dict[str, str | None] = {}
        for number, row in enumerate(self._files[operator].statements):
            if row.variant is not None:
                reached = self._reached([*always, (operator, number)])
                contents = [(name, self._files[name].statements[other].digest) for name, other in reached or ()]
                digests[row.variant] = None if reached is None else _digest((packages, order, contents))
        return digests

    def _is_plain(self, module: str, name: str) -> bool:
        """Whether an import runs no code but the operator's, Python's own and the service's."""
        is_own = module in self._files or f"{module}.{name}" in self._files
        return is_own or module.partition(".")[0] in {"warpwatch", *sys.stdlib_module_names}

    def _loaded(self, operator: str) -> dict[str, None]:
        """The files that are imported by their names, in the order of the imports."""
        loaded, pending = dict[str, None](), [operator]
        while pending:
            name = pending.pop()
            if name in self._files and name not in loaded:
                loaded[name] = None
                for item in (item for row in reversed(self._files[name].statements) for item in row.imports):
                    pending += [f"{self._module(name, item)}.{item.name}", self._module(name, item)]
        return loaded

    def _module(self, file: str, item: _Import) -> str:
        """The whole name of the module of an import."""
        parts = file.split(".")
        parts = parts[: len(parts) - item.level] if item.level else []
        return ".".join([*parts, *filter(None, [item.module])])

    def _always(self, name: str, *, is_whole: bool) -> Iterator[_Place]:
        """The statements of a file that count with every variant: all of them in a file that is never imported by its
        name, but which the project counts."""
        for number, row in enumerate(self._files[name].statements):
            if is_whole or row.calls is None or not all(self._is_harmless(name, call) for call in row.calls):
                yield name, number

    def _is_harmless(self, file: str, call: str, depth: int = 4) -> bool:
        """Whether this calls a known function, or one that only defines names. `()` stands behind what is called
        twice, as a decorator with arguments is."""
        name, _, attributes = call.removesuffix("()").partition(".")
        numbers = self._files[file].definitions.get(name)
        if numbers is None or len(numbers) > 1 or depth == 0:
            return numbers is None and call == name in _HARMLESS
        row = self._files[file].statements[numbers[0]]
        for item in row.imports:
            module = self._module(file, item)
            if module in self._files:
                is_name = item.name is not None and not attributes and call == name
                return is_name and self._is_harmless(module, str(item.name), depth - 1)
            whole = ".".join(filter(None, [module, item.name, attributes]))
            return whole in _HARMLESS and not (call.endswith("()") and whole in _CALLS_GIVEN)
        is_plain = row.body is not None and call == name
        return is_plain and all(self._is_harmless(file, inner, depth - 1) for inner in row.body or ())

    def _reached(self, first: Iterable[_Place]) -> list[_Place] | None:
        """All that these statements reach, in order; None where one of them may reach more."""
        reached, pending = set[_Place](), list(first)
        while pending:
            file, number = place = pending.pop()
            if place in reached:
                continue
            reached.add(place)
            row = self._files[file].statements[number]
            if row.looks_up:
                return None
            pending += [(file, other) for name in row.names for other in self._files[file].definitions.get(name, ())]
            for item in row.imports:
                places = self._imported(self._module(file, item), item.name)
                if places is None:
                    return None
                pending += places
        return sorted(reached)

    def _imported(self, module: str, name: str | None) -> list[_Place] | None:
        """The statements that an imported name stands for: those that define it, or the whole of a module. None for a
        name that a file of the operator has from elsewhere."""
        whole = module if name is None else f"{module}.{name}"
        places = (
            [(whole, number) for number in range(len(self._files[whole].statements))] if whole in self._files else []
        )
        if name is None or module not in self._files:
            return places
        return places + [(module, number) for number in self._files[module].definitions.get(name, ())] or None


def _split(node: ast.stmt) -> list[ast.stmt]:
    """An import of several names as one for each, so that another name is no change of these."""
    if isinstance(node, ast.Import):
        return [ast.Import([alias]) for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [ast.ImportFrom(node.module, [alias], node.level) for alias in node.names]
    return [node]


def _read(node: ast.stmt, helpers: Mapping[str, _Calls], futures: list[str]) -> _Statement:
    nodes = list(ast.walk(node))
    variant, calls = _registered(node, helpers)
    is_plain = isinstance(node, _Function) and not node.decorator_list and not _own_names(nodes) & _HARMLESS
    return _Statement(
        _digest((futures, ast.dump(node))),
        frozenset(inner.id for inner in nodes if isinstance(inner, ast.Name)),
        tuple(item for inner in nodes for item in _imports(inner)),
        calls,
        _body_calls(node.body) if is_plain and isinstance(node, _Function) else None,
        variant,
        any(map(_may_look_up, nodes)),
    )


def _may_look_up(node: ast.AST) -> bool:
    name = _written(node)
    is_of_triton = isinstance(node, ast.Attribute) and _dotted(node) in ("tl.load", "triton.language.load")
    return name in _LOOKS_UP or (name == "load" and not is_of_triton)


def _registered(node: ast.stmt, helpers: Mapping[str, _Calls]) -> tuple[str | None, _Calls]:
    """The variant that a statement registers and does no more, and what runs with it."""
    calls: list[_Calls]
    if isinstance(node, _Function) and len(node.decorator_list) == 1 and _is_variant(node.decorator_list[0]):
        call, calls = node.decorator_list[0], [_function_calls(node, [])]
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _dotted(node.value.func) in helpers:
        call, calls = node.value, [helpers[str(_dotted(node.value.func))]]
    else:
        return None, _statement_calls(node)
    assert isinstance(call, ast.Call)
    name = call.args[0] if call.args else None
    if isinstance(name, ast.Constant) and isinstance(name.value, str):
        return name.value, _union([*calls, _called(*_arguments(call))])
    return None, None


def _registering(node: ast.FunctionDef | ast.AsyncFunctionDef) -> _Calls:
    """What a call of this function runs, if it registers the variant that its first argument names and does no more."""
    others = [part for part in node.body if not isinstance(part, ast.Expr) or not isinstance(part.value, ast.Call)]
    calls = [part.value for part in node.body if isinstance(part, ast.Expr) and isinstance(part.value, ast.Call)]
    if len(calls) != 1 or not _is_variant(calls[0].func) or node.decorator_list:
        return None
    make = calls[0].func
    assert isinstance(make, ast.Call)
    names = [_dotted(make.args[0]) if make.args else None, node.args.args[0].arg if node.args.args else ""]
    if names[0] != names[1]:
        return None
    return _union([frozenset({"str"}), _body_calls(others), _called(*_arguments(calls[0]), *_arguments(make))])


def _is_variant(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "variant"


def _is_operator(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _written(node.value.func) == "Operator"


def _registries(tree: ast.Module) -> set[str | None]:
    """What variants are registered with, by name."""
    return {
        _dotted(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "variant"
    }


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _union(parts: Iterable[_Calls]) -> _Calls:
    found = list(parts)
    return None if None in found else frozenset[str]().union(*filter(None, found))


def _body_calls(body: Iterable[ast.stmt]) -> _Calls:
    return _union(map(_statement_calls, body))


def _statement_calls(node: ast.stmt) -> _Calls:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return _function_calls(node, node.decorator_list)
        case ast.ClassDef(keywords=[]):
            return _union([_called(*node.bases), _decorators(node.decorator_list), _body_calls(node.body)])
        case ast.Assign(targets=targets) if all(map(_is_name, targets)):
            return _called(node.value)
        case ast.AnnAssign(target=ast.Name()):
            return _called(node.annotation, node.value)
        case ast.Return():
            return _called(node.value)
        case ast.Import() | ast.ImportFrom() | ast.Pass() | ast.Expr(value=ast.Constant()):
            return frozenset()
    return None


def _function_calls(node: ast.FunctionDef | ast.AsyncFunctionDef, decorators: list[ast.expr]) -> _Calls:
    """What runs when a function is defined; None for one whose calls may change what others read."""
    return None if _shares(node) else _union([_decorators(decorators), _called(node.args, node.returns)])


def _decorators(decorators: Iterable[ast.expr]) -> _Calls:
    calls: list[_Calls] = []
    for decorator in decorators:
        is_call = isinstance(decorator, ast.Call)
        name = _dotted(decorator.func) if isinstance(decorator, ast.Call) else _dotted(decorator)
        calls += [_called(decorator), frozenset({f"{name}()" if is_call else name}) if name else None]
    return _union(calls)


def _called(*nodes: ast.AST | None) -> _Calls:
    """What expressions call, without the functions in them, which they only define."""
    calls, pending = set[str](), list(nodes)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Call):
            name = _dotted(node.func)
            if name is None:
                return None
            calls.add(name)
        if node is not None:
            pending += [node.args] if isinstance(node, ast.Lambda) else ast.iter_child_nodes(node)
    return frozenset(calls)


def _dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute):
        start = _dotted(node.value)
        return None if start is None else f"{start}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else None


def _is_name(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) or (isinstance(node, ast.Tuple) and all(map(_is_name, node.elts)))


def _shares(node: ast.AST) -> bool:
    """Whether a function may give a value to a global name, or to a part of what is not its own."""
    nodes = list(ast.walk(node))
    own = _own_names(nodes)
    for inner in nodes:
        root = inner
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        is_stored = isinstance(inner, ast.Attribute | ast.Subscript) and not isinstance(inner.ctx, ast.Load)
        if isinstance(inner, ast.Global) or (is_stored and not (isinstance(root, ast.Name) and root.id in own)):
            return True
    return False


def _own_names(nodes: Iterable[ast.AST]) -> set[str]:
    """The arguments and variables of a function."""
    arguments = {node.arg for node in nodes if isinstance(node, ast.arg)}
    return arguments | {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _imports(node: ast.AST) -> list[_Import]:
    if isinstance(node, ast.Import):
        return [_Import(alias.name, None, 0) for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [_Import(node.module or "", alias.name, node.level) for alias in node.names]
    return []


def _stored(node: ast.AST) -> set[str]:
    """The names of the file that a statement gives a value; names inside functions and classes are none of them."""
    if isinstance(node, _Function | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.alias):
        return {(node.asname or node.name).split(".")[0]}
    if isinstance(node, ast.Name):
        return {node.id} if isinstance(node.ctx, ast.Store) else set()
    return set[str]().union(*map(_stored, ast.iter_child_nodes(node)))


def _written(node: ast.AST) -> str | None:
    """The name that a variable, an attribute, a function or an import has."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, _Function):
        return node.name
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.name.split(".")[-1] if isinstance(node, ast.alias) else None


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]
