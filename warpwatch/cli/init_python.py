"""Finds what Python sources hold: `torch.library` operators, and functions that launch `@triton.jit` kernels."""

from __future__ import annotations

import ast
import keyword
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from warpwatch.cli.init_files import IGNORED, TESTS, OperatorSketch, RepositoryFiles, is_test, vendor_of
from warpwatch.cli.init_known import copied_body, known_function

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_DECORATORS = {"torch.library.custom_op", "torch.library.triton_op"}
_AUTOGRAD = {"torch.autograd.Function", "torch.autograd.function.Function"}
_QUALIFIED = re.compile(r"(\w+)::(\w+(?:\.\w+)?)", re.ASCII)
_SCHEMA = re.compile(r"\s*(?:(\w+)::)?(\w*(?:\.\w+)?)\s*\((.*)\)\s*->.*", re.ASCII | re.DOTALL)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_TENSORS = {"x", "X", "y", "input", "tensor"}
"""Usual names of tensors, without numbers and underlines at their ends."""
_TENSOR_ATTRIBUTES = {"device", "dtype", "is_cuda", "ndim", "new_zeros", "numel", "requires_grad", "shape", "unsqueeze"}
"""Attributes that tell that a parameter without annotation is a tensor."""
_NUMBERS = {"int": "4", "float": "1.0", "bool": "False"}
"""Values for required parameters of these types."""
_INDICES = ("LongTensor", "IntTensor")
"""Types of tensors whose numbers are indices, as annotations and docstrings name them."""
_INDEX = 'make.integers(0, case["n"], case["n"])'
_UNEVEN = re.compile(r"ReLU|SiLU|GeLU|SwiGLU|GeGLU|MoE|RoPE")
"""Names of the field whose capitals are no words of their own."""
REGISTERS = "  # noqa: F401 - it registers the operator"
"""Stands behind an import in an operator file that nothing names."""
_TAKEN_HERE = {"inputs", "reference", "cost", "operator", "measured", "gap", "Operator", "torch"}
"""Names that an operator file itself defines or imports."""


@dataclass(frozen=True)
class PackageFile:
    """A Python file of a package. place: the folder that it is imported from. name: its dotted name."""

    file: str
    place: str
    name: str
    is_package: bool
    tree: ast.Module

    @property
    def package(self) -> str:
        return self.name.partition(".")[0]

    @cached_property
    def definitions(self) -> dict[str, _Definition]:
        """Functions and classes of the module, also those behind an `if` or `try`."""
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        return {node.name: node for node in _statements(self.tree.body) if isinstance(node, kinds)}

    @cached_property
    def variables(self) -> dict[str, ast.expr]:
        """The values of the variables of the module."""
        assignments = [node for node in _statements(self.tree.body) if isinstance(node, ast.Assign)]
        return {
            target.id: node.value for node in assignments for target in node.targets if isinstance(target, ast.Name)
        }

    @cached_property
    def imports(self) -> dict[str, str]:
        """The dotted names that local names stand for."""
        names: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    names[alias.asname or top] = alias.name if alias.asname else top
            elif isinstance(node, ast.ImportFrom):
                module = self._origin(node)
                names |= {
                    alias.asname or alias.name: f"{module}.{alias.name}" for alias in node.names if alias.name != "*"
                }
        return names

    @cached_property
    def star_imports(self) -> list[str]:
        """The modules all of whose public names are imported."""
        imports = (node for node in _statements(self.tree.body) if isinstance(node, ast.ImportFrom))
        return [self._origin(node) for node in imports if node.names[0].name == "*"]

    def _origin(self, node: ast.ImportFrom) -> str:
        """The dotted name of the module that names are imported from."""
        parts = self.name.split(".")
        base = parts[: len(parts) - node.level + self.is_package] if node.level else []
        return ".".join([*base, *([node.module] if node.module else [])])

    def resolve(self, node: ast.AST) -> str:
        """The dotted name that an expression stands for; "" for anything but a name and its attributes."""
        attributes: list[str] = []
        while isinstance(node, ast.Attribute):
            attributes.insert(0, node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        is_own = node.id in self.definitions or (node.id in self.variables and node.id not in self.imports)
        start = f"{self.name}.{node.id}" if is_own else self.imports.get(node.id, node.id)
        return ".".join([start, *attributes])

    def names_in(self, node: ast.AST) -> set[str]:
        """The dotted names in a definition, with its decorators."""
        return {self.resolve(part) for part in ast.walk(node) if isinstance(part, (ast.Name, ast.Attribute))} - {""}


def read_modules(files: RepositoryFiles) -> list[PackageFile]:
    """The Python modules that a package may consist of."""
    modules = []
    for file in files.sources({".py"}, IGNORED | TESTS):
        if is_test(file) or vendor_of(file):
            continue
        place = files.module_of(file)
        tree = files.tree(file) if place is not None else None
        if place is not None and tree is not None:
            modules.append(PackageFile(file, *place, file.endswith("/__init__.py"), tree))
    return modules


def find_operators(modules: list[PackageFile]) -> list[OperatorSketch]:
    """Every operator in Python sources, by file and line."""
    sketches: list[OperatorSketch] = []
    custom: set[str] = set()
    for module in modules:
        for sketch, definition in _library_operators(module):
            custom.add(definition)
            sketches.append(sketch)
    sketches += _launchers(modules, custom)
    return sketches


def _library_operators(module: PackageFile) -> Iterator[tuple[OperatorSketch, str]]:
    """Operators that the module registers with torch.library, with the dotted name of their function, if any."""
    for name, node in module.definitions.items():
        for decorator in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
            is_custom = isinstance(decorator, ast.Call) and module.resolve(decorator.func) in _DECORATORS
            qualified = _QUALIFIED.fullmatch(_text(decorator.args)) if isinstance(decorator, ast.Call) else None
            if is_custom and qualified and isinstance(node, ast.FunctionDef):
                kind = f"torch.library operator {qualified[0]}"
                sketch = sketch_function(module, node, qualified[2], kind, required(node))
                yield replace(sketch, called=f"torch.ops.{qualified[1]}.{qualified[2]}"), f"{module.name}.{name}"
    libraries = _libraries(module)
    for call in ast.walk(module.tree):
        if not isinstance(call, ast.Call):
            continue
        texts = [_text([argument]) for argument in call.args]
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        if module.resolve(call.func) == "torch.library.define" and len(texts) > 1:
            schema = texts[0] + texts[1]
        elif isinstance(owner, ast.Name) and owner.id in libraries and _attribute(call.func) == "define" and texts:
            schema = f"{libraries[owner.id]}::{texts[0]}"
        else:
            continue
        parsed = parse_schema(schema)
        if parsed is not None:
            imports = ("import torch", f"import {module.name}{REGISTERS}")
            place = (module.file, call.lineno)
            yield registered(*parsed, place, module.package, imports, schema_tensors(schema)), ""


def registered(
    namespace: str,
    name: str,
    arguments: list[tuple[str, bool]],
    place: tuple[str, int],
    package: str,
    imports: tuple[str, ...],
    tensors: tuple[str, ...] = (),
) -> OperatorSketch:
    """An operator that is called through torch.ops. arguments: names, and whether they are given by name. tensors: the
    arguments that are tensors."""
    words = [f"{argument}={argument}" if is_named else argument for argument, is_named in arguments]
    call = f"torch.ops.{namespace}.{name}({', '.join(words)})"
    parameters = tuple(argument for argument, _ in arguments)
    kind = f"torch.library operator {namespace}::{name}"
    return OperatorSketch(
        name.replace(".", "_"),
        kind,
        *place,
        package,
        imports,
        parameters,
        call,
        symbol=name.partition(".")[0],
        called=f"torch.ops.{namespace}.{name}",
        tensors=tensors,
        known=known_function(name, f"{package}_{namespace}", parameters),
    )


def schema_tensors(schema: str) -> tuple[str, ...]:
    """The required arguments of a schema that are tensors."""
    match = _SCHEMA.fullmatch(schema)
    parts = split_arguments(match[3]) if match is not None else []
    typed = [re.findall(r"\w+", part, re.ASCII) for part in parts if "=" not in part and "?" not in part]
    return tuple(safe_name(words[-1]) for words in typed if len(words) > 1 and words[0] == "Tensor")


def parse_schema(schema: str) -> tuple[str, str, list[tuple[str, bool]]] | None:
    """Namespace, name and required arguments of `namespace::name(Tensor x, int k=1) -> Tensor`."""
    match = _SCHEMA.fullmatch(schema)
    if match is None or not match[1] or not match[2]:
        return None
    arguments: list[tuple[str, bool]] = []
    is_named = False
    for argument in split_arguments(match[3]):
        words = re.findall(r"\w+", argument, re.ASCII)
        if argument.strip() == "*":
            is_named = True
        elif words and "=" not in argument:
            arguments.append((safe_name(words[-1]), is_named))
    return match[1], match[2], arguments


def split_arguments(text: str) -> list[str]:
    """The parts of a list between commas outside all brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{<") - (character in ")]}>")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part for part in parts if part.strip()]


def safe_name(name: str) -> str:
    """A parameter's name that Python and the operator file allow."""
    return f"{name}_" if keyword.iskeyword(name) or name in _TAKEN_HERE else name


def _libraries(module: PackageFile) -> dict[str, str]:
    """Variables that hold a torch.library.Library, with its namespace."""
    libraries: dict[str, str] = {}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            namespace = _text(node.value.args)
            if module.resolve(node.value.func) == "torch.library.Library" and re.fullmatch(r"\w+", namespace):
                libraries |= {target.id: namespace for target in node.targets if isinstance(target, ast.Name)}
    return libraries


def _launchers(modules: list[PackageFile], custom: set[str]) -> Iterator[OperatorSketch]:
    """The functions that launch Triton kernels: each autograd function, and each other function that no listed function
    calls."""
    kernels = {name for module in modules for name, node in module.definitions.items() if _is_kernel(module, node)}
    if not kernels:
        return
    places = {
        f"{module.name}.{name}": (module, node) for module in modules for name, node in module.definitions.items()
    }
    places = {name: place for name, place in places.items() if not _is_kernel(*place)}
    launching = {name for name, place in places.items() if _launches(*place, kernels)}
    edges = {name: names_used(*place) & places.keys() - {name} for name, place in places.items()}
    reached = {name: _closure([name], edges) for name in places}
    functions = {
        name for name, (module, node) in places.items() if is_autograd(module, node) and reached[name] & launching
    }
    covered = {other for name in functions | custom for other in reached.get(name, set())}
    # Of two that call each other neither is the other's part.
    inner = {other for name in launching for other in reached[name] if name not in reached[other]}
    for name in sorted(functions | (launching - covered - inner)):
        module, node = places[name]
        yield _launcher(module, node, name in functions)


def is_autograd(module: PackageFile, node: ast.AST) -> bool:
    return isinstance(node, ast.ClassDef) and bool(_AUTOGRAD & {module.resolve(base) for base in node.bases})


def _launcher(module: PackageFile, node: _Definition, is_function: bool) -> OperatorSketch:
    if not isinstance(node, ast.ClassDef):
        kind = f"{node.name}(), which launches @triton.jit kernels"
        return sketch_function(module, node, node.name, kind, required(node), is_cuda=True)
    words = _UNEVEN.sub(lambda match: match[0].capitalize(), node.name.removesuffix("Function") or node.name)
    name = _HUMP.sub("_", words).lower()
    methods = {child.name: child for child in node.body if isinstance(child, ast.FunctionDef)}
    if not is_function or "forward" not in methods:
        kind = f"class {node.name}, which launches @triton.jit kernels"
        return OperatorSketch(name, kind, module.file, node.lineno, module.package, is_cuda=True)
    parameters = required(methods["forward"])[0 if "setup_context" in methods else 1 :]
    kind = f"autograd function {node.name}, which launches @triton.jit kernels"
    return sketch_function(module, node, name, kind, parameters, is_cuda=True)


def sketch_function(
    module: PackageFile, node: _Definition, name: str, kind: str, parameters: list[str], *, is_cuda: bool = False
) -> OperatorSketch:
    """A sketch that imports and calls a function, or applies an autograd function."""
    parameters = [safe_name(parameter) for parameter in parameters]
    local = f"{node.name}_" if node.name in {*_TAKEN_HERE, *parameters} else node.name
    what = node.name if local == node.name else f"{node.name} as {local}"
    call = f"{local}{'.apply' if isinstance(node, ast.ClassDef) else ''}({', '.join(parameters)})"
    imports = (f"from {module.name} import {what}",)
    declared = tensor_parameters(module, node)
    return OperatorSketch(
        name,
        kind,
        module.file,
        node.lineno,
        module.package,
        imports,
        tuple(parameters),
        call,
        is_cuda,
        symbol=node.name,
        tensors=tuple(parameter for parameter in parameters if parameter.removesuffix("_") in declared),
        values=tuple((safe_name(argument), value) for argument, value in _values(module, node).items()),
        known=known_function(name, module.package, tuple(parameters)),
        copied=_copied(module, node, parameters),
    )


def tensor_parameters(module: PackageFile, node: _Definition) -> set[str]:
    """The parameters that are annotated as tensors, and those without annotation that are called or used like one."""
    methods = [child for child in node.body if isinstance(child, ast.FunctionDef) and child.name == "forward"]
    function = node if not isinstance(node, ast.ClassDef) else methods[0] if methods else None
    if function is None:
        return set()
    used = {
        part.value.id
        for part in ast.walk(function)
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.attr in _TENSOR_ATTRIBUTES
    }
    used |= {argument.arg for argument in function.args.args if argument.arg.rstrip("_0123456789") in _TENSORS}
    return {
        argument.arg.removesuffix("_")
        for argument in (*function.args.posonlyargs, *function.args.args)
        if (
            module.resolve(argument.annotation) in {f"torch.{name}" for name in ("Tensor", *_INDICES)}
            if argument.annotation
            else argument.arg in used
        )
    }


def _values(module: PackageFile, node: _Definition) -> dict[str, str]:
    """The required parameters of a function that are numbers by their annotation, or indices by their annotation or
    docstring, as in `row (LongTensor): …`; each with a value of its type."""
    if isinstance(node, ast.ClassDef):
        return {}
    words = ast.get_docstring(node) or ""
    values = {}
    for argument in (*node.args.posonlyargs, *node.args.args):
        if argument.arg in required(node):
            kind = module.resolve(argument.annotation) if argument.annotation is not None else ""
            documented = re.search(rf"^\s*{argument.arg}\s*[(:]\s*(?:torch\.)?(\w+)", words, re.MULTILINE)
            if kind in _NUMBERS:
                values[argument.arg] = _NUMBERS[kind]
            elif {kind.removeprefix("torch."), documented[1] if documented else ""} & {*_INDICES}:
                values[argument.arg] = _INDEX
    return values


def _copied(module: PackageFile, node: _Definition, parameters: list[str]) -> tuple[str, str] | None:
    """Parameters and body of a function that computes with torch alone, for a reference that stays as it is."""
    if not isinstance(node, ast.FunctionDef) or parameters != required(node):
        return None
    body = copied_body(node, {name for part in node.body for name in module.names_in(part)})
    if body is None or module.imports.get("torch") != "torch":
        return None
    bare = ast.parse(f"def f({ast.unparse(node.args)}): ...").body[0]
    assert isinstance(bare, ast.FunctionDef)
    for argument in (*bare.args.posonlyargs, *bare.args.args, *bare.args.kwonlyargs):
        argument.annotation = None
    return ast.unparse(bare.args), body


def find_functions(modules: list[PackageFile], path: str) -> list[OperatorSketch]:
    """Functions of packages in which no kernel was found: those that an __init__.py exports and that take tensors."""
    exported = find_exports(modules)
    sketches = [
        sketch_function(module, node, name, f"function {module.name}.{name}()", required(node))
        for module in modules
        if module.place == path
        for name, node in module.definitions.items()
        if isinstance(node, ast.FunctionDef) and f"{module.name}.{name}" in exported
    ]
    return [sketch for sketch in sketches if sketch.tensors]


def find_exports(modules: list[PackageFile]) -> set[str]:
    """The dotted names, where they are defined, of what each __init__.py defines or imports; no private names."""
    by_name = {module.name: module for module in modules}
    names: set[str] = set()
    for module in modules:
        if module.is_package:
            own = {name: f"{module.name}.{name}" for name in (*_starred(module, by_name), *module.definitions)}
            names |= {
                follow_imports(target, by_name)
                for name, target in (module.imports | own).items()
                if not name.startswith("_")
            }
    return names


def follow_imports(name: str, modules: Mapping[str, PackageFile]) -> str:
    """The dotted name of the definition that a dotted name leads to; of another package, the name itself."""
    found = find_definition(name, modules)
    return ".".join(filter(None, found)) if found is not None else name


def _starred(module: PackageFile, modules: Mapping[str, PackageFile]) -> Iterator[str]:
    """The names that a module imports by a star."""
    for target in module.star_imports:
        if target in modules:
            yield from modules[target].definitions


def find_definition(name: str, modules: Mapping[str, PackageFile]) -> tuple[str, str] | None:
    """The module that a dotted name leads to through imports, and the rest of the name there; None for a name of
    another package."""
    for _ in range(10):
        module, rest = name, ""
        while module and module not in modules:
            module, _, part = module.rpartition(".")
            rest = f"{part}.{rest}" if rest else part
        if not module:
            return None
        if not rest and "." in module:
            # A package may import a function that is called like the module that defines it.
            parent, _, rest = module.rpartition(".")
            if modules[parent].imports.get(rest, name) == name if parent in modules else True:
                return module, ""
            module = parent
        head, _, tail = rest.partition(".")
        source = modules[module]
        if not head or head in source.definitions:
            return module, rest
        stars = (star for star in source.star_imports if star in modules and head in modules[star].definitions)
        star = next(stars, None)
        target = source.imports.get(head) or (f"{star}.{head}" if star else None)
        if target is None or target == name:
            return module, rest
        name = f"{target}.{tail}" if tail else target
    return None


def required(node: _Function) -> list[str]:
    """The parameters without a default that are given by position; all of them where each has a default."""
    names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    return names[: len(names) - len(node.args.defaults)] or names


def _is_kernel(module: PackageFile, node: _Definition) -> bool:
    decorators = (d.func if isinstance(d, ast.Call) else d for d in node.decorator_list)
    return any(module.resolve(decorator) == "triton.jit" for decorator in decorators)


def _launches(module: PackageFile, node: _Definition, kernels: set[str]) -> bool:
    """Whether the code holds `kernel[grid](…)`. The last part of the name decides, because packages export again."""
    return any(
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Subscript)
        and module.resolve(call.func.value).rpartition(".")[2] in kernels
        for call in ast.walk(node)
    )


def names_used(module: PackageFile, node: ast.AST) -> set[str]:
    """Dotted names in a definition, and those in front of an attribute, such as `apply`."""
    names = module.names_in(node)
    return names | {name.rpartition(".")[0] for name in names}


def _closure(start: Iterable[str], edges: dict[str, set[str]]) -> set[str]:
    reached, pending = set[str](), list(start)
    while pending:
        name = pending.pop()
        if name not in reached:
            reached.add(name)
            pending += edges[name]
    return reached


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a module, with those inside `if`, `try` and `with`."""
    for node in body:
        yield node
        if isinstance(node, (ast.If, ast.Try, ast.With)):
            yield from _statements(node.body)
            for name in ("orelse", "finalbody"):
                yield from _statements(getattr(node, name, []))
            for handler in getattr(node, "handlers", []):
                yield from _statements(handler.body)


def _text(arguments: list[ast.expr]) -> str:
    """The first argument where it is a text; else ""."""
    first = arguments[0] if arguments else None
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""


def _attribute(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else ""


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
