"""Finds what C++ and CUDA sources hold: TORCH_LIBRARY and pybind11 modules; and how the repository builds them."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from shlex import quote

from warpwatch.cli.init_files import (
    IGNORED,
    NATIVE,
    TESTS,
    OperatorSketch,
    RepositoryFiles,
    is_test,
    line_of,
    vendor_of,
)
from warpwatch.cli.init_known import known_function
from warpwatch.cli.init_python import parse_schema, registered, safe_name, schema_tensors, split_arguments

_COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_MODULE = re.compile(
    r"\b(PYBIND11_MODULE|NB_MODULE|(?:STABLE_)?TORCH_LIBRARY(?:_FRAGMENT|_EXPAND)?)\s*\(\s*(\w+)\s*,\s*(\w+)"
)
_DEFINED = re.compile(
    r'\b(\w+)\s*\.\s*def\s*\(\s*(?:TORCH_SELECTIVE_\w+\(\s*)?((?:"(?:[^"\\\n]|\\.)*"\s*)+)\)?\s*(?:,\s*&?\s*([\w:]+))?'
)
_REGISTERED = re.compile(
    r'\.\s*op\s*\(\s*"(\w+)::(\w+)[^"]*"\s*(?:,\s*&?\s*([\w:]+)|,\s*(\[[^\]]*\]\s*(?:\(\s*\)\s*)?\{))?'
)
"""Namespace, name, and the function or the start of a lambda without arguments."""
_EXTENSIONS = {"CppExtension", "CUDAExtension", "SyclExtension", "Extension", "Pybind11Extension", "CMakeExtension"}
_BACKENDS = {"scikit_build_core.build", "mesonpy", "maturin", "py_build_cmake.build"}
_CMAKE_MODULE = re.compile(r"\b(?:pybind11_add_module|nanobind_add_module|Python3?_add_library)\s*\(|\bTorch\b")
_SETUP_FILES = ("setup.py", "setup.cfg", "pyproject.toml", "MANIFEST.in")


@dataclass(frozen=True, slots=True)
class BuildSketch:
    """How a commit is built. command: None where nothing is. inputs: globs of what the build reads, beside the
    packages. sources: globs of native sources. modules: dotted names of the native modules, as far as setup.py says,
    each with the paths and globs that it names as sources."""

    command: str | None = None
    inputs: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    modules: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def modules_of(self, file: str) -> list[str]:
        """The modules that setup.py makes of a file; all where it does not say of what it makes them."""
        named = [
            name
            for name, sources in self.modules.items()
            if any(fnmatchcase(file, source) or file.endswith(f"/{source}") for source in sources)
        ]
        return named or [*self.modules]


def find_native_operators(files: RepositoryFiles, build: BuildSketch) -> list[OperatorSketch]:
    """Every operator that native sources register or bind, by file and line."""
    texts = {}
    for file in files.sources(NATIVE, IGNORED | TESTS):
        if is_test(file) or vendor_of(file):
            continue
        # Comments go, and the lines stay.
        texts[file] = _COMMENT.sub(
            lambda m: m[0] if m[0].startswith('"') else "\n" * m[0].count("\n"), files.text(file) or ""
        )
    sketches = [
        sketch
        for file, text in texts.items()
        for sketch in (*_registered(file, text, texts), *_bound(file, text, texts, build))
    ]
    # A function without arguments, such as one that returns a version, computes nothing.
    sketches = [sketch for sketch in sketches if sketch.call is None or sketch.parameters]
    # Each branch of an #if may bind the same function.
    return [*{sketch.called: sketch for sketch in reversed(sketches)}.values()][::-1]


def _registered(file: str, text: str, texts: dict[str, str]) -> Iterator[OperatorSketch]:
    """Operators of the older `torch::RegisterOperators().op(…)`."""
    if "RegisterOperators" in text:
        for match in _REGISTERED.finditer(text):
            if not match[4]:
                yield _of_function(match[1], match[2], (file, line_of(text, match.start())), match[3], texts)


def _bound(file: str, text: str, texts: dict[str, str], build: BuildSketch) -> Iterator[OperatorSketch]:
    """The operators that the blocks of pybind11 and TORCH_LIBRARY define."""
    blocks = list(_MODULE.finditer(text))
    for number, block in enumerate(blocks):
        end = blocks[number + 1].start() if number + 1 < len(blocks) else len(text)
        for match in _DEFINED.finditer(text, block.end(), end):
            if match[1] != block[3]:
                continue
            place = (file, line_of(text, match.start()))
            words = "".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', match[2]))
            if "TORCH_LIBRARY" not in block[1]:
                if re.fullmatch(r"\w+", words):
                    typed = _parameters(match[3], file, texts)
                    names = None if typed is None else [name for _, name in typed]
                    tensors = [name for kind, name in typed or () if kind == "Tensor"]
                    yield _of_module(block[2], words, place, names, tensors, build)
                continue
            namespace = block[2] if block[1] != "TORCH_LIBRARY_EXPAND" else ""
            schema = words if "::" in words.partition("(")[0] else f"{namespace or '_'}::{words}"
            parsed = parse_schema(schema)
            if parsed is not None:
                sketch = registered(*parsed, place, "", ("import torch",), schema_tensors(schema))
                yield sketch if namespace else replace(sketch, kind=f"TORCH_LIBRARY operator {parsed[1]}", call=None)
            elif re.fullmatch(r"\w+", words) and namespace:
                yield _of_function(namespace, words, place, match[3], texts)


def _of_function(
    namespace: str, name: str, place: tuple[str, int], function: str | None, texts: dict[str, str]
) -> OperatorSketch:
    """An operator that is registered without a schema: its arguments are those of the C++ function."""
    typed = _parameters(function, place[0], texts)
    arguments = [(argument, False) for _, argument in typed or ()]
    tensors = tuple(argument for kind, argument in typed or () if kind == "Tensor")
    sketch = registered(namespace, name, arguments, place, "", ("import torch",), tensors)
    return sketch if typed is not None else replace(sketch, call=None)


def _of_module(
    module: str,
    function: str,
    place: tuple[str, int],
    parameters: list[str] | None,
    tensors: list[str],
    build: BuildSketch,
) -> OperatorSketch:
    """A function of a native Python module. Its dotted name stands in setup.py, where it can be told."""
    candidates = [
        name
        for name in (build.modules_of(place[0]) if module == "TORCH_EXTENSION_NAME" else build.modules)
        if module in ("TORCH_EXTENSION_NAME", name.rpartition(".")[2])
    ]
    dotted = candidates[0] if len(candidates) == 1 else ""
    kind = f"function {function}() of the native module {dotted or module}"
    called = f"{dotted or module}.{function}"
    sketch = OperatorSketch(function, kind, *place, dotted.partition(".")[0], symbol=function, called=called)
    if not dotted or parameters is None:
        return sketch
    call = f"{dotted}.{function}({', '.join(parameters)})"
    # Native modules of torch extensions need torch's libraries, which `import torch` loads.
    known = known_function(function, sketch.package, tuple(parameters))
    imports = ("import torch", f"import {dotted}")
    return replace(
        sketch, imports=imports, parameters=tuple(parameters), call=call, known=known, tensors=tuple(tensors)
    )


def _parameters(function: str | None, file: str, texts: dict[str, str]) -> list[tuple[str, str]] | None:
    """The parameters of a C++ function from its definition, each behind the last word of its type; None where there is
    no definition, or several of that name."""
    name = (function or "").rpartition(":")[2]
    if not name:
        return None
    pattern = re.compile(rf"\b{name}\s*\(([^(){{}};]*)\)\s*(?:const\s*|noexcept\s*)*\{{")
    lists = pattern.findall(texts[file]) or [found for text in texts.values() for found in pattern.findall(text)]
    if len(lists) != 1:
        return None
    words = [re.findall(r"\w+", parameter.partition("=")[0], re.ASCII) for parameter in split_arguments(lists[0])]
    typed = [(parts[-2], safe_name(parts[-1])) for parts in words if len(parts) > 1]
    return typed if len({name for _, name in typed}) == len(words) else None


def find_build(files: RepositoryFiles, place: str) -> BuildSketch:
    """How the repository builds its native modules: by a setup.py, by the backend of pyproject.toml, or by CMake."""
    # The folders at the top that hold native sources, and single files at the root.
    tops = {PurePosixPath(name).parts for name in files.sources(NATIVE | {".h", ".hpp", ".cuh"}, IGNORED | TESTS)}
    sources = tuple(sorted({f"{parts[0]}/**" if len(parts) > 1 else parts[0] for parts in tops}))
    for folder in _setup_folders(files):
        if (build := _setup_build(files, folder, sources)) is not None:
            return build
    system = _toml(files).get("build-system")
    if (system.get("build-backend") if isinstance(system, dict) else None) in _BACKENDS:
        command = "pip install --no-build-isolation --no-deps ."
        return BuildSketch(command, (), sources)
    cmake = files.text("CMakeLists.txt")
    if cmake is not None and _CMAKE_MODULE.search(cmake):
        output = "$PWD" if place == "." else f"$PWD/{place}"
        command = f'cmake -S . -B build "-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={output}" && cmake --build build'
        return BuildSketch(command, (), sources)
    return BuildSketch(sources=sources)


def _setup_folders(files: RepositoryFiles) -> list[str]:
    """The folders with a setup.py, "" for the root, the outermost first: bindings may have one of their own."""
    places = (PurePosixPath(name).parts for name in files.sources({".py"}, IGNORED | TESTS))
    folders = ("/".join(parts[:-1]) for parts in places if parts[-1] == "setup.py")
    return sorted(folders, key=lambda folder: (bool(folder), folder.count("/"), folder))


def _setup_build(files: RepositoryFiles, folder: str, sources: tuple[str, ...]) -> BuildSketch | None:
    """How a setup.py builds native modules; None where it builds none."""
    setup = files.tree(_within(folder, "setup.py"))
    nodes = list(ast.walk(setup)) if setup is not None else []
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    named = {_called(node) for node in nodes if isinstance(node, (ast.Attribute, ast.Name))}
    if named & _EXTENSIONS or "ext_modules" in {keyword.arg for call in calls for keyword in call.keywords}:
        assigned = _assigned(nodes)
        modules = {
            name: _named_sources(call, assigned)
            for call in calls
            if _called(call.func) in _EXTENSIONS and (name := _first(call))
        }
        # What CMake reads stands in its own files, so then every file counts.
        is_cmake = "cmake" in (files.text(_within(folder, "setup.py")) or "").lower()
        command = "python setup.py build_ext --inplace"
        command = f"cd {quote(folder)} && {command}" if folder else command
        return BuildSketch(command, () if is_cmake else _inputs(files, nodes, folder), sources, modules)
    return None


def _within(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _inputs(files: RepositoryFiles, setup: list[ast.AST], folder: str) -> tuple[str, ...]:
    """The inputs of a setup.py: the usual files, and every file or folder that it or its pyproject.toml names."""
    texts = [node.value for node in setup if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    names = {text.removeprefix("./").rstrip("/") for text in (*texts, *_texts(_toml(files, folder)))}
    known = {_within(folder, name) for name in _SETUP_FILES} | {_within(folder, name) for name in names}
    named = {name for name in known if name in files.names_set}
    plain = names - {".", "", "doc", "docs", "example", "examples", *TESTS}
    folders = {_within(folder, name) for name in plain} & files.folders
    return (*sorted(named), *sorted(f"{name}/**" for name in folders))


def _texts(value: object) -> list[str]:
    """Every text in a TOML document."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [text for part in value for text in _texts(part)]
    return [value] if isinstance(value, str) else []


def _toml(files: RepositoryFiles, folder: str = "") -> dict[str, object]:
    try:
        return tomllib.loads(files.text(_within(folder, "pyproject.toml")) or "")
    except (tomllib.TOMLDecodeError, RecursionError):
        return {}


def _assigned(nodes: list[ast.AST]) -> dict[str, list[ast.expr]]:
    """The values that setup.py gives to each name, also by `+=`."""
    assigned: dict[str, list[ast.expr]] = {}
    for node in nodes:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
        )
        for target in targets:
            if isinstance(target, ast.Name) and isinstance(node, (ast.Assign, ast.AugAssign)):
                assigned.setdefault(target.id, []).append(node.value)
    return assigned


def _named_sources(call: ast.Call, assigned: dict[str, list[ast.expr]]) -> tuple[str, ...]:
    """The paths and globs that an extension names as its sources, also by os.path.join and through variables."""
    values = [*call.args[1:2], *(keyword.value for keyword in call.keywords if keyword.arg == "sources")]
    texts: list[str] = []
    expanded: set[str] = set()
    while values:
        value = values.pop()
        if isinstance(value, ast.Call) and _called(value.func) == "join":
            parts = [part.value for part in value.args if isinstance(part, ast.Constant)]
            texts.append("/".join(str(part).strip("/") for part in parts))
        elif isinstance(value, ast.Constant) and isinstance(value.value, str):
            texts.append(value.value)
        elif isinstance(value, ast.Name) and value.id not in expanded:
            expanded.add(value.id)
            values += assigned.get(value.id, [])
        else:
            values += [child for child in ast.iter_child_nodes(value) if isinstance(child, ast.expr)]
    names = (text.removeprefix("./") for text in texts)
    return tuple(name for name in dict.fromkeys(names) if PurePosixPath(name).suffix in NATIVE)


def _called(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _first(call: ast.Call) -> str:
    """The module that an extension is called, where it is a plain text of dotted names."""
    values = [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "name")]
    value = values[0].value if values and isinstance(values[0], ast.Constant) else ""
    return value if isinstance(value, str) and all(part.isidentifier() for part in value.split(".")) else ""
