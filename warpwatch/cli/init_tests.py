"""Reads from a package's own tests how its operators are called, and what they are compared with.

A test makes inputs, calls the operator, computes the same in another way and compares both. Its statements are divided
by what they depend on: those that the call needs become `inputs`, the rest of those that the expected result needs
becomes `reference`.
"""

from __future__ import annotations

import ast
import builtins
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from warpwatch.cli.init_files import CallSketch, OperatorSketch, RepositoryFiles, is_test
from warpwatch.cli.init_python import PackageFile, follow_imports, names_used

_COPIES = {"requires_grad_", "clone", "detach", "cuda", "retain_grad"}
"""Methods that the harness makes superfluous: it copies inputs, and says which need gradients."""
_DEVICES = {"device", "DEVICE", "device_type", "torch_device"}
_RANDOM = {"randn": "normal", "rand": "normal", "randint": "integers", "randn_like": "normal", "rand_like": "normal"}
_PROVIDED = {"torch", "device", "dtype", "case", "make"}
_MOST_NUMBERS = 2**24
"""Tests with larger inputs are for GPUs; the quick suite has none of their shapes."""
_SERVING: tuple[tuple[set[str], tuple[int, int]], ...] = (
    ({"b", "bs", "bsz", "batch", "batch_size", "n_batch"}, (1, 16)),
    ({"t", "l", "s", "sl", "seq_len", "seqlen", "seq_length", "length", "n_ctx"}, (2048, 256)),
    ({"hidden_size", "hidden", "hidden_dim", "n", "cols", "columns"}, (4096, 4096)),
    ({"intermediate_size"}, (14336, 14336)),
    ({"vocab_size", "vocab"}, (32000, 32000)),
    ({"num_heads", "heads", "n_heads", "num_q_heads", "hq", "h"}, (32, 32)),
    ({"head_dim", "d", "dim"}, (128, 128)),
)
"""Sizes of two requests of a served model, a prompt of 2048 tokens and 16 of 256, by usual names."""


class _NotUnderstoodError(Exception):
    """Why a test does not tell how an operator is called."""


@dataclass(frozen=True, slots=True)
class _Test:
    module: PackageFile
    node: ast.FunctionDef


def add_tests(
    files: RepositoryFiles, modules: list[PackageFile], operators: Iterable[OperatorSketch]
) -> list[OperatorSketch]:
    """The operators, each with the call that a test of the package makes, or with the reason why there is none."""
    by_name = {module.name: module for module in modules}
    calls: dict[str, list[_Test]] = {}
    for test in _tests(files):
        for name in {_called(test.module, call, by_name) for call in ast.walk(test.node) if isinstance(call, ast.Call)}:
            calls.setdefault(name, []).append(test)
    own_names = {module.file: module.name for module in modules}
    users = _users(modules, by_name)
    operators = list(operators)
    kernels = {f"{own_names.get(operator.file, '')}.{operator.symbol}" for operator in operators}
    pending = [*kernels]
    while pending:
        found = users.get(pending.pop(), set()) - kernels
        kernels |= found
        pending += found
    result = []
    for operator in operators:
        own = f"{own_names.get(operator.file, '')}.{operator.symbol}"
        tested, reason, used = None, "no test calls it", own
        applying = [name for name in users.get(own, set()) & calls.keys() if _is_function(name, by_name)]
        for name in (own, *sorted(applying)):
            for test in calls.get(name, []) if tested is None else ():
                try:
                    tested, used = _read(test, name, by_name, kernels), name
                    break
                except _NotUnderstoodError as error:
                    reason = f"{test.module.file}:{test.node.lineno} {error}"
        if tested is not None and used != own:
            module, _, symbol = used.rpartition(".")
            operator = replace(operator, imports=(f"from {module} import {symbol}",), call=f"{symbol}()")
        result.append(replace(operator, tested=tested, untested="" if tested else reason))
    return result


def _is_function(name: str, by_name: Mapping[str, PackageFile]) -> bool:
    module, _, symbol = name.rpartition(".")
    return isinstance(by_name[module].definitions[symbol], ast.FunctionDef)


def _users(modules: list[PackageFile], by_name: Mapping[str, PackageFile]) -> dict[str, set[str]]:
    """The definitions of the packages that use another, by its name: what applies an autograd function, say."""
    users: dict[str, set[str]] = {}
    for module in modules:
        for name, node in module.definitions.items():
            for used in names_used(module, node):
                users.setdefault(follow_imports(used, by_name), set()).add(f"{module.name}.{name}")
    return users


def _tests(files: RepositoryFiles) -> Iterator[_Test]:
    for file in files.names:
        tree = files.tree(file) if file.endswith(".py") and is_test(file) else None
        if tree is not None:
            module = PackageFile(file, ".", file.removesuffix(".py").replace("/", "."), False, tree)
            for name, node in module.definitions.items():
                if name.startswith("test") and isinstance(node, ast.FunctionDef):
                    yield _Test(module, node)


def _called(module: PackageFile, call: ast.Call, by_name: Mapping[str, PackageFile]) -> str:
    """The dotted name, where it is defined, of the function that a call of a test reaches."""
    name = follow_imports(module.resolve(call.func), by_name).removesuffix(".apply")
    source, _, symbol = name.rpartition(".")
    variable = by_name[source].variables.get(symbol) if source in by_name else None
    # A module may give its function a second name.
    return by_name[source].resolve(variable).removesuffix(".apply") if variable is not None else name


def _read(test: _Test, own: str, by_name: Mapping[str, PackageFile], kernels: set[str]) -> CallSketch:
    """What a test tells of an operator; raises _NotUnderstoodError. kernels: names of what launches kernels."""
    body = [_without_copies(statement) for statement in test.node.body]
    place, call, targets = _find_call(test.module, body, own, by_name)
    expected, number = _expected(body, place, targets)
    aliases = _aliases(body)
    body = [_renamed(statement, aliases) for statement in body]
    call = _renamed(call, aliases)
    needed, _ = _slice(body[:place], _loads(call))
    bound = [index for index, statement in enumerate(body) if _plain_stores(statement) & {*expected}]
    if not bound:
        raise _NotUnderstoodError("computes what it expects in a branch or a loop")
    end = max(bound)
    others, _ = _slice(body[: end + 1], {aliases.get(name, name) for name in expected})
    # Random numbers of the reference are inputs as well, and all that they depend on.
    makers = [
        body[index]
        for index in others
        if any(isinstance(part, ast.Call) and _last(part.func) in _RANDOM for part in ast.walk(body[index]))
    ]
    needed |= _slice(body[:end], set().union(*map(_loads, makers)))[0] | {i for i in others if body[i] in makers}
    if place in needed or place in others:
        raise _NotUnderstoodError("computes what it expects from the result of the call")
    own_part = [body[index] for index in sorted(needed)]
    reference = [body[index] for index in sorted(others - needed)]
    helpers = [
        test.module.definitions[name] for name in set().union(*map(_loads, reference)) & {*test.module.definitions}
    ]
    for name in set().union(*(names_used(test.module, node) for node in (*reference, *helpers))):
        if follow_imports(name, by_name) in kernels:
            raise _NotUnderstoodError(f"compares it with {name.rpartition('.')[2]}, which launches kernels itself")
    return _Writer(test, own_part, reference, call, expected, number, aliases).write()


def _find_call(
    module: PackageFile, body: Sequence[ast.stmt], own: str, by_name: Mapping[str, PackageFile]
) -> tuple[int, ast.Call, list[str]]:
    """The statement that calls the operator, the call, and the names of its results."""
    for place, statement in enumerate(body):
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            value = statement.value.value if isinstance(statement.value, ast.Subscript) else statement.value
            if isinstance(value, ast.Call) and _called(module, value, by_name) == own:
                target = statement.targets[0]
                names = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
                if all(isinstance(name, ast.Name) for name in names):
                    return place, value, [name.id for name in names if isinstance(name, ast.Name)]
    raise _NotUnderstoodError("calls it in a loop, a branch or an expression, not in a statement that keeps the result")


def _expected(body: Sequence[ast.stmt], place: int, targets: list[str]) -> tuple[list[str], list[int] | None]:
    """The names that the results are compared with, in order, and which of several results they are."""
    stored = set().union(*map(_stores, body))
    pairs: dict[str, str] = {}
    for statement in body:
        for call in ast.walk(statement):
            if isinstance(call, ast.Call) and _last(call.func).endswith(("close", "allclose", "equal")):
                # Of `expected.allclose(result, 0, tolerance)`, too, what is expected comes before the tolerance.
                receiver = [call.func.value] if isinstance(call.func, ast.Attribute) else []
                names = [name for name in map(_root, [*receiver, *call.args[:3]]) if name]
                for target in set(targets) & {*names}:
                    other = next((name for name in names if name != target and name in stored - {*targets}), None)
                    if other:
                        pairs.setdefault(target, other)
    found = [index for index, target in enumerate(targets) if target in pairs]
    if not found:
        raise _NotUnderstoodError("compares its result with no other variable, by which a reference could be computed")
    is_alone = isinstance(body[place], ast.Assign) and len(targets) == 1
    return [pairs[targets[index]] for index in found], None if is_alone else found


def _aliases(body: Sequence[ast.stmt]) -> dict[str, str]:
    """Names of copies, each with the name of what it copies: `x2 = x` once calls of clone are left out."""
    aliases: dict[str, str] = {}
    for statement in body:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, value = statement.targets[0], statement.value
            if isinstance(target, ast.Name) and isinstance(value, ast.Name) and target.id != value.id:
                aliases.setdefault(target.id, aliases.get(value.id, value.id))
    return aliases


def _slice(body: Sequence[ast.stmt], names: set[str]) -> tuple[set[int], set[str]]:
    """The statements that these names depend on, and the names that none of them binds."""
    needed, chosen = set(names), set[int]()
    for index in range(len(body) - 1, -1, -1):
        statement = body[index]
        if _stores(statement) & needed:
            chosen.add(index)
            needed -= _plain_stores(statement)
            needed |= _loads(statement)
    return chosen, needed


def _stores(statement: ast.AST) -> set[str]:
    """The names that a statement binds or changes in place, gradients aside."""
    names = set()
    for node in ast.walk(statement):
        if isinstance(node, (ast.Name, ast.Subscript, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            names |= {_root(node)} if not (isinstance(node, ast.Attribute) and node.attr == "grad") else set()
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _last(node.value.func).endswith("_"):
            method = node.value.func
            names |= {_root(method)} | {_root(argument) for argument in node.value.args}
    return names - {"", "torch", "nn", "init"}


def _bound(statement: ast.stmt) -> set[str]:
    """The names that a statement binds whichever way its branches go."""
    if isinstance(statement, ast.If):
        return set.intersection(*(set().union(*map(_bound, body)) for body in (statement.body, statement.orelse)))
    if isinstance(statement, (ast.For, ast.While, ast.Try)):
        return set()
    return _stores(statement)


def _plain_stores(statement: ast.stmt) -> set[str]:
    """The names that a statement binds anew, whatever they were."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    nodes = [node for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
    return {node.id for node in nodes if isinstance(node.ctx, ast.Store)}


def _loads(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)}


def _root(node: ast.AST) -> str:
    """The variable that an expression starts at, such as x of `x.float()[0]`; "" for any other."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


class _WithoutCopies(ast.NodeTransformer):
    """Leaves out copies, moves to the device and marks for gradients; random numbers are made by `make`."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute):
            values = [*node.args, *(keyword.value for keyword in node.keywords)]
            moves = node.func.attr == "to" and values and all(_root(value) in _DEVICES for value in values)
            if (node.func.attr in _COPIES and not isinstance(node.func.value, ast.Name)) or moves:
                return node.func.value
            if node.func.attr in _COPIES and _root(node.func) not in ("torch", "copy"):
                return node.func.value
            if _root(node.func) == "torch" and node.func.attr in _RANDOM:
                return _made(node, node.func.attr)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Name("device", ast.Load()) if node.value in ("cuda", "cuda:0") else node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name("device", node.ctx) if node.id in _DEVICES else node


def _without_copies(node: ast.stmt) -> ast.stmt:
    # A statement is transformed in a copy, because several operators may be called by one test.
    copy = ast.parse(ast.unparse(node)).body[0]
    result: ast.stmt = ast.fix_missing_locations(_WithoutCopies().visit(copy))
    return result


def _made(node: ast.Call, name: str) -> ast.AST:
    """make.normal or make.integers in place of a random function of torch."""
    named = {keyword.arg: keyword.value for keyword in node.keywords}
    words = [ast.unparse(argument) for argument in node.args]
    if name.endswith("_like"):
        return ast.parse(f"make.normal(*{words[0]}.shape)", mode="eval").body
    bounds: list[str] = []
    if name == "randint":
        while words and len(bounds) < 2 and not isinstance(node.args[len(bounds)], (ast.Tuple, ast.List)):
            bounds.append(words.pop(0))
        bounds += [ast.unparse(named[key]) for key in ("low", "high") if key in named]
        bounds = ["0", *bounds] if len(bounds) == 1 else bounds
    shape = named.get("size", node.args[-1] if len(words) == 1 else None)
    if isinstance(shape, (ast.Tuple, ast.List)):
        words = [ast.unparse(part) for part in shape.elts]
    elif shape is not None and len(words) == 0:
        words = [f"*{ast.unparse(shape)}"]
    text = f"make.{_RANDOM[name]}({', '.join([*bounds, *words])})"
    dtype = ast.unparse(named["dtype"]) if "dtype" in named else "torch.float32"
    if name == "randn" and dtype in ("torch.float32", "torch.float"):
        text += ".float()"
    return ast.parse(f"torch.sigmoid({text})" if name == "rand" else text, mode="eval").body


class _Renamed(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        is_read = isinstance(node.ctx, ast.Load)
        return ast.Name(self._names.get(node.id, node.id), node.ctx) if is_read else node


def _renamed(node: Any, names: Mapping[str, str]) -> Any:
    return ast.fix_missing_locations(_Renamed(names).visit(node))


def _parameters(test: _Test) -> dict[str, list[ast.expr]]:
    """The values of each parameter of a test, row by row; those of one decorator have one length."""
    values: dict[str, list[ast.expr]] = {}
    for decorator in test.node.decorator_list:
        if isinstance(decorator, ast.Call) and _last(decorator.func) == "parametrize" and len(decorator.args) > 1:
            names, rows = decorator.args[0], decorator.args[1]
            if isinstance(names, ast.Constant):
                words = [word.strip() for word in str(names.value).split(",") if word.strip()]
            else:
                words = [str(part.value) for part in getattr(names, "elts", []) if isinstance(part, ast.Constant)]
            if isinstance(rows, ast.ListComp):
                rows = rows.generators[0].iter
            if isinstance(rows, ast.Name):
                rows = test.module.variables.get(rows.id, rows)
            for row in getattr(rows, "elts", []):
                cells = row.args if isinstance(row, ast.Call) and _last(row.func) == "param" else [row]
                if len(cells) == 1 and len(words) > 1:
                    cells = getattr(cells[0], "elts", [])
                if len(cells) == len(words):
                    for word, cell in zip(words, cells, strict=True):
                        values.setdefault(word, []).append(cell)
    return values


def _literal(node: ast.AST) -> Any:
    try:
        return ast.literal_eval(ast.unparse(node))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _is_size(value: Any) -> bool:
    parts = value if isinstance(value, tuple) else (value,)
    return bool(parts) and all(type(part) is int and part >= 0 for part in parts)


class _Writer:
    """Writes the parts of an operator file from the divided statements of a test."""

    def __init__(
        self,
        test: _Test,
        inputs: list[ast.stmt],
        reference: list[ast.stmt],
        call: ast.Call,
        expected: list[str],
        numbers: list[int] | None,
        aliases: Mapping[str, str],
    ) -> None:
        self._test, self._call = test, call
        self._inputs, self._reference = inputs, reference
        self._expected = [aliases.get(name, name) for name in expected]
        self._numbers = numbers
        self._imports: dict[str, None] = {}
        self._helpers: dict[str, str] = {}

    def write(self) -> CallSketch:
        arguments = {argument.arg for argument in self._test.node.args.args}
        local = arguments.union(*map(_stores, [*self._inputs, *self._reference]))
        bound = {*arguments}
        for statement in self._inputs:
            early = (_loads(statement) & local) - bound - _stores(statement)
            if early:
                raise _NotUnderstoodError(f"binds {min(early)} in a way that is not followed")
            bound |= _stores(statement)
        interface = self._interface(local)
        unsure = {*interface} - arguments.union(*map(_bound, self._inputs))
        if unsure:
            raise _NotUnderstoodError(f"makes {min(unsure)} in a branch alone")
        sizes, constants, rows = self._sizes()
        for statement in (*self._inputs, *self._reference):
            self._provide(_loads(statement) - local - {*sizes} - _arguments(statement))
        self._provide({name for name in _loads(self._call) - local if name != _root(self._call.func)})
        lines = [f'{name} = case["{name}"]' for name in sizes]
        lines += [f"{name} = {value}" for name, value in constants.items()]
        used = set().union(*map(_loads, self._inputs)) | {*interface}
        lines += ["device = make.integers(0, 2, 1).device"] if "device" in used else []
        lines += ["dtype = make.normal(1).dtype"] if "dtype" in used else []
        lines += [ast.unparse(statement) for statement in self._inputs if not self._is_size_line(statement)]
        made = ", ".join(f'"{name}": {name}' for name in interface)
        lines.append(f"return {{{made}}}")
        results = ", ".join(self._expected)
        reference = [*map(ast.unparse, self._reference), f"return {results}"]
        if "device" in set().union(*map(_loads, self._reference)):
            tensor = next((name for name in self._tensors() if name in interface), None)
            reference.insert(0, f"device = {tensor}.device")
        return CallSketch(
            self._test.module.file,
            self._test.node.lineno,
            tuple(self._imports),
            tuple(self._helpers.values()),
            tuple(interface),
            lines=tuple(lines),
            reference=tuple(reference),
            call=self._call_text(),
            cases=tuple(rows),
            serving=tuple(self._serving(rows[0])),
            gradients=tuple(name for name in interface if name in self._differentiated()),
            elements=self._elements({*sizes}),
        )

    def _interface(self, local: set[str]) -> list[str]:
        """The names that `inputs` hands to the call and to the reference."""
        made = set().union(*map(_stores, self._inputs)) | {a.arg for a in self._test.node.args.args}
        needed, free = _slice(self._reference, {*self._expected})
        del needed
        # Statements of the reference may read a name before they bind it.
        wanted = (_loads(self._call) | free) & made
        if not wanted & set().union(*map(_stores, self._inputs)):
            raise _NotUnderstoodError("gives it nothing that the test makes")
        return sorted(wanted, key=lambda name: (name not in local, name))

    def _is_size_line(self, statement: ast.stmt) -> bool:
        is_plain = isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
        return is_plain and type(_literal(statement.value)) is int  # type: ignore[attr-defined]

    def _sizes(self) -> tuple[list[str], dict[str, str], list[dict[str, Any]]]:
        """The sizes of a case, the values of other parameters, and the sizes of two cases."""
        given = _parameters(self._test)
        arguments = [argument.arg for argument in self._test.node.args.args]
        used = set().union(*map(_loads, [*self._inputs, *self._reference, self._call]))
        fixtures = [name for name in arguments if name not in given and name in used and name not in _PROVIDED]
        if fixtures:
            raise _NotUnderstoodError(f"takes the fixture {fixtures[0]}")
        literal = {name: [_literal(value) for value in values] for name, values in given.items() if name in used}
        sizes = [name for name in arguments if name in literal and all(map(_is_size, literal[name]))]
        constants = {
            name: ast.unparse(given[name][0])
            for name in arguments
            if name in used and name in given and name not in (*sizes, *_PROVIDED)
        }
        own = {
            statement.targets[0].id: _literal(statement.value)  # type: ignore[attr-defined]
            for statement in self._inputs
            if self._is_size_line(statement)
        }
        rows = [
            {name: literal[name][min(index, len(literal[name]) - 1)] for name in sizes} | own
            for index in range(max([len(literal[name]) for name in sizes], default=1))
        ]
        rows = [row for row in rows if _numbers_of(row) <= _MOST_NUMBERS]
        rows.sort(key=_numbers_of)
        if not sizes and not own:
            raise _NotUnderstoodError("has no sizes as parameters")
        if not rows:
            raise _NotUnderstoodError(f"has no case of at most {_MOST_NUMBERS} numbers")
        distinct = [row for index, row in enumerate(rows) if row not in rows[:index]]
        return [*sizes, *own], constants, distinct[:2]

    def _provide(self, names: Iterable[str]) -> None:
        """Imports, or copies from the module of the test, what the statements use."""
        module = self._test.module
        for name in sorted(names):
            if name in _PROVIDED or hasattr(builtins, name) or name in self._helpers:
                continue
            definition, variable, target = module.definitions.get(name), module.variables.get(name), None
            target = module.imports.get(name)
            if isinstance(definition, (ast.FunctionDef, ast.ClassDef)):
                self._helpers[name] = ast.unparse(definition)
                needed = _loads(definition) - _stores(definition) - _arguments(definition)
                if needed & {"device", "dtype"}:
                    raise _NotUnderstoodError(f"uses {name}, which takes the device from its file")
                self._provide(needed)
            elif target is not None:
                if target.split(".")[0] in {"test", "tests", *module.name.split(".")[:1]}:
                    raise _NotUnderstoodError(f"uses {target}, which no package holds")
                head, _, last = target.rpartition(".")
                line = f"import {target}" if not head else f"from {head} import {last}"
                self._imports[line if last == name else f"{line} as {name}"] = None
            elif variable is not None:
                self._helpers[name] = f"{name} = {ast.unparse(variable)}"
                self._provide(_loads(variable))
            else:
                raise _NotUnderstoodError(f"uses {name}, which its file does not define")

    def _call_text(self) -> str:
        text = ast.unparse(self._call)
        name = ast.unparse(self._call.func)
        text = "CALLED" + text.removeprefix(name)
        if self._numbers is None:
            return text
        picked = ", ".join(f"results[{number}]" for number in self._numbers)
        return f"results = {text}\nreturn {picked}"

    def _tensors(self) -> list[str]:
        """The inputs that are random floating-point numbers."""
        made = [s for s in self._inputs if isinstance(s, ast.Assign) and "make.normal(" in ast.unparse(s)]
        return [name for statement in made for name in sorted(_plain_stores(statement))]

    def _differentiated(self) -> set[str]:
        """The names that the test marks for gradients, by the names of what they copy."""
        text = [statement for statement in self._test.node.body if "requires_grad" in ast.unparse(statement)]
        marked = set().union(*(_stores(statement) | _loads(statement) for statement in text))
        return marked & {*self._tensors()}

    def _elements(self, sizes: set[str]) -> str:
        """An expression for how many numbers the inputs hold, as far as their shapes are written out."""
        calls = [node for part in self._inputs for node in ast.walk(part) if isinstance(node, ast.Call)]
        made = [call for call in calls if ast.unparse(call.func) == "make.normal" and _loads(call) <= {*sizes, "make"}]
        terms = [f"math.prod([{', '.join(map(ast.unparse, call.args))}])" for call in made]
        counts = Counter(terms)
        return " + ".join(f"{count} * {term}" if count > 1 else term for term, count in counts.items())

    def _serving(self, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The sizes of two requests; none where no size has a usual name of a batch or a length."""
        lower = {name.lower() for name in row}
        # Without heads of their own, h and v are the hidden size and the vocabulary.
        is_model = "v" in lower and not lower & {"d", "k", "head_dim"}
        special = {"h": (4096, 4096), "v": (32000, 32000)} if is_model else {"k": (128, 128), "v": (128, 128)}
        for index in (0, 1):
            sizes = {}
            for name, value in row.items():
                usual = next((values for names, values in _SERVING if name.lower() in names), None)
                usual = special.get(name.lower(), usual)
                sizes[name] = value if usual is None or isinstance(value, tuple) else usual[index]
            if sizes != row:
                yield sizes


def _numbers_of(row: Mapping[str, Any]) -> int:
    parts = [value if isinstance(value, tuple) else (value,) for value in row.values()]
    return math.prod(max(1, number) for numbers in parts for number in numbers)


def _arguments(definition: ast.AST) -> set[str]:
    nodes = [node for node in ast.walk(definition) if isinstance(node, ast.arg)]
    return {node.arg for node in nodes} | {
        node.name for node in ast.walk(definition) if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }
