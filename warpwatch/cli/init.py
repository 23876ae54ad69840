"""`warpwatch init`: looks at a repository, without running its code, and writes a first definition."""

from __future__ import annotations

import ast
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

import typer

from warpwatch import git
from warpwatch.cli.app import app, exit_on
from warpwatch.cli.init_files import (
    IGNORED,
    NATIVE,
    TESTS,
    OperatorSketch,
    ProgramSketch,
    RepositoryFiles,
    distinct_name,
    is_test,
    line_of,
    vendor_of,
)
from warpwatch.cli.init_native import BuildSketch, find_build, find_native_operators
from warpwatch.cli.init_python import (
    REGISTERS,
    PackageFile,
    find_definition,
    find_exports,
    find_functions,
    find_operators,
    read_modules,
    replace_by_entry_points,
)
from warpwatch.cli.init_tests import add_tests
from warpwatch.cli.init_text import DefinitionSketch
from warpwatch.project import FILE_NAME, ProjectError, parse_project

_GOOGLE = re.compile(r"^\s*BENCHMARK(?:_TEMPLATE\w*|_F|_DEFINE_F|_CAPTURE|_MAIN)?\s*\(", re.MULTILINE)
_NVBENCH = re.compile(r"^\s*NVBENCH_BENCH\w*\s*\(", re.MULTILINE)
_TARGET = re.compile(r"\badd_executable\s*\(\s*([\w.-]+)([^)]*)\)")
_ARGUMENTS = {
    "google-benchmark": "--benchmark_repetitions=5 --benchmark_out=$WARPWATCH_OUTPUT --benchmark_out_format=json",
    "nvbench": "--json $WARPWATCH_OUTPUT",
}
MANUAL = Path(__file__).parents[1] / "web" / "static" / "agents" / "AGENTS.md"
LIMIT = 12
"""Operators that are written where --limit is not given: as many as somebody fills in at a sitting."""
NAMES_SHOWN = 20
_FOLDERS = "operators", "warpwatch_operators"
"""Where operator files go, and where they go if the repository has such a folder already."""
_KINDS = "torch.library operators, functions that launch @triton.jit kernels, TORCH_LIBRARY and pybind11 modules"
MOST_SOURCES = 12
"""An operator that imports more files than this is measured by the sources of the whole definition."""


def find_programs(
    files: RepositoryFiles, place: str, package_build: str | None, taken: dict[str, str]
) -> list[ProgramSketch]:
    """Every benchmark program, by file. place: the folder that packages are imported from. package_build: the command
    that builds the packages in place; None where they need none."""
    sketches = [*_pytest_programs(files, place, package_build, taken), *_native_programs(files, taken)]
    return sorted(sketches, key=lambda sketch: (sketch.file, sketch.line))


def _pytest_programs(
    files: RepositoryFiles, place: str, package_build: str | None, taken: dict[str, str]
) -> Iterator[ProgramSketch]:
    ignored = IGNORED - {"scripts", "examples", "example"}
    for file in files.sources({".py"}, ignored):
        # Parsing is slow, and few files hold the word.
        tree = files.tree(file) if "benchmark" in (files.text(file) or "") else None
        nodes = ast.walk(tree) if tree is not None else ()
        lines = [node.lineno for node in nodes if isinstance(node, ast.FunctionDef) and _is_benchmark(node)]
        if lines:
            name = distinct_name(PurePosixPath(file).stem.removeprefix("test_"), file, taken)
            run = f"python -m pytest -q -p no:cacheprovider {shlex.quote(file)} --benchmark-only"
            run += " --benchmark-json=$WARPWATCH_OUTPUT"
            path, build = shlex.quote(place), None
            if package_build is not None:
                # Programs cannot write into the worktree, so the extension is built in a copy of it.
                build = f"cp -r . $WARPWATCH_BUILD/copy && cd $WARPWATCH_BUILD/copy && {package_build}"
                path = f"$WARPWATCH_BUILD/copy/{path}"
                if package_build.startswith("pip install "):
                    build += " --target $WARPWATCH_BUILD/packages"
                    path = "$WARPWATCH_BUILD/packages"
            yield ProgramSketch(name, "pytest-benchmark", file, min(lines), f"PYTHONPATH={path} {run}", build)


def _is_benchmark(node: ast.FunctionDef) -> bool:
    """Whether this is a test that takes the fixture of pytest-benchmark."""
    arguments = {argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)}
    return node.name.startswith("test") and "benchmark" in arguments


def _native_programs(files: RepositoryFiles, taken: dict[str, str]) -> Iterator[ProgramSketch]:
    targets: set[tuple[str, str]] = set()
    for file in files.sources(NATIVE, IGNORED - {"examples", "example"}):
        text = files.text(file) or ""
        if "benchmark/benchmark.h" in text and (match := _GOOGLE.search(text)):
            form = "google-benchmark"
        elif "nvbench/nvbench.cuh" in text and (match := _NVBENCH.search(text)):
            form = "nvbench"
        else:
            continue
        line = line_of(text, match.end())
        root, target = _target(files, file)
        if target and (root, target) in targets:
            continue
        targets.add((root, target))
        name = distinct_name(target or PurePosixPath(file).stem, file, taken)
        program = f"$WARPWATCH_BUILD/{target or name} {_ARGUMENTS[form]}"
        build = ""
        if target:
            output = "-DCMAKE_BUILD_TYPE=Release -DCMAKE_RUNTIME_OUTPUT_DIRECTORY=$WARPWATCH_BUILD"
            build = f"cmake -S {shlex.quote(root)} -B $WARPWATCH_BUILD {output}"
            build += f" && cmake --build $WARPWATCH_BUILD --target {target}"
        yield ProgramSketch(name, form, file, line, program, build)


def _target(files: RepositoryFiles, file: str) -> tuple[str, str]:
    """The folder of the CMake project that a file belongs to, and the program that is made of it; two empty texts where
    CMakeLists.txt does not name it."""
    lists = [parent / "CMakeLists.txt" for parent in PurePosixPath(file).parents]
    present = [path for path in lists if files.text(str(path)) is not None]
    for path in present:
        for match in _TARGET.finditer(files.text(str(path)) or ""):
            if str(PurePosixPath(file).relative_to(path.parent)) in match[2].split():
                return str(present[-1].parent), match[1]
    return "", ""


class SketchError(Exception):
    """No definition can be written; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class SketchResult:
    """A definition, and what was found and is not part of it.

    left_out: the operator or program, and why. merits: of each operator of the definition. lower: operators of lower
    rank, beyond the limit. vendors: how many files are for devices of other vendors, by the word that says so.
    """

    definition: DefinitionSketch
    left_out: tuple[tuple[OperatorSketch | ProgramSketch, str], ...] = ()
    merits: tuple[OperatorRank, ...] = ()
    lower: tuple[OperatorSketch, ...] = ()
    vendors: Mapping[str, int] = field(default_factory=dict)


@app.command()
def init(
    folder: Path = typer.Argument(Path(), help="A checkout of the repository."),
    output: Path | None = typer.Option(
        None, help="Folder for the definition beside the history, such as ../definitions; by default the checkout."
    ),
    limit: int = typer.Option(
        LIMIT, min=0, help="Write at most so many operators, those of the highest rank; 0 means all."
    ),
) -> None:
    """Write a first warpwatch.toml and operator files for a repository. Its code is read and never run.

    Public entry points come first, then operators that tests name, then those that launch kernels. Nothing is
    overwritten. What the source does not say is a gap in the files, which fails with its file and line until somebody
    fills it; the list of gaps is printed.
    """
    with exit_on(SketchError, git.GitError, ProjectError, OSError):
        root = _root(folder)
        is_inside = output is None or output.resolve() == root
        place = root if output is None or is_inside else output
        result = sketch(RepositoryFiles(root), is_inside=is_inside, limit=limit)
        texts = result.definition.texts()
        parse_project(texts[FILE_NAME])
        _write(place, texts)
        manual = _write_manual(place) if is_inside and result.definition.operators else None
    _report(result, texts, place)
    _advise(result.definition, root, place, manual, is_inside=is_inside)


def sketch(files: RepositoryFiles, *, is_inside: bool, limit: int = 0) -> SketchResult:
    """The definition of what the files hold. is_inside: whether it will lie in the repository itself; only there it can
    have programs. limit: of operators, 0 for all. Raises SketchError if there is nothing to measure."""
    modules = read_modules(files)
    operators = find_operators(modules)
    path = _path(modules, operators)
    build = find_build(files, path)
    operators = replace_by_entry_points(operators + find_native_operators(files, build), modules)
    taken: dict[str, str] = {}
    operators = _with_distinct_names(operators, taken)
    programs = find_programs(files, path, build.command, taken)
    packages = _packages(modules, operators, path, build)
    chosen, left_out = _choose(modules, operators, path, packages, build)
    if not is_inside:
        left_out += [(program, "programs are run in commits that hold its warpwatch.toml") for program in programs]
    kept = tuple(programs) if is_inside else ()
    if not chosen and not kept and not operators and packages:
        functions = find_functions(modules, path) or [_of_package(modules, packages[0], path)]
        chosen = _with_distinct_names(functions, taken)
    if not chosen and not kept:
        hint = "; leave out --output to write its benchmark programs into the checkout" if programs else ""
        raise SketchError(
            f"{files.root} holds nothing to measure{hint}. Looked for: Python packages, {_KINDS}, and benchmarks of "
            f"pytest-benchmark, Google Benchmark and nvbench, in {len(files.names)} files that git knows"
        )
    ranked = rank(files, modules, add_tests(files, modules, chosen))
    first = ranked[: limit or None]
    written = [operator for operator, _ in first]
    # A build reads the packages as well, so that each change of them may change every operator.
    written = add_sources(written, modules) if build.command is None else written
    vendors = Counter(filter(None, map(vendor_of, files.sources({".py", *NATIVE}, IGNORED | TESTS))))
    return SketchResult(
        _definition(files, written, kept, path, packages, build, is_inside),
        tuple(left_out),
        tuple(merits for _, merits in first),
        tuple(operator for operator, _ in ranked[len(first) :]),
        vendors,
    )


def _with_distinct_names(operators: list[OperatorSketch], taken: dict[str, str]) -> list[OperatorSketch]:
    # The file of fewer folders keeps the plain name: what lies deeper is often a copy for another device.
    ordered = sorted(operators, key=lambda sketch: (sketch.file.count("/"), sketch.file, sketch.line))
    return [replace(sketch, name=distinct_name(sketch.name, sketch.file, taken)) for sketch in ordered]


def _definition(
    files: RepositoryFiles,
    operators: list[OperatorSketch],
    programs: tuple[ProgramSketch, ...],
    path: str,
    packages: list[str],
    build: BuildSketch,
    is_inside: bool,
) -> DefinitionSketch:
    is_taken = "operators" in packages or (is_inside and "operators" in files.folders)
    folder = _FOLDERS[is_taken]
    prefix = "" if path == "." else f"{path}/"
    sources: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    if build.command is not None:
        own = [f"{prefix}{name}/**" for name in packages if f"{prefix}{name}" in files.folders]
        own += [f"{prefix}{name}.py" for name in packages if f"{prefix}{name}.py" in files.names_set]
        sources = tuple(dict.fromkeys([*own, *build.sources]))
        # Without inputs the build reads every file, which is right where it does not say what it reads.
        inputs = tuple(dict.fromkeys([*build.inputs, *sources])) if build.inputs else ()
    has_csrc = is_inside and "csrc" in files.folders
    return DefinitionSketch(
        folder, tuple(operators), programs, path, tuple(packages), sources, build.command, inputs, has_csrc
    )


def _root(folder: Path) -> Path:
    """The checkout that a folder lies in."""
    if folder.is_dir():
        try:
            return Path(git.git("rev-parse", "--show-toplevel", cwd=folder).rstrip("\n")).resolve()
        except git.GitError:
            pass
    raise SketchError(f"{folder} is no checkout of a git repository; clone the repository and name that folder")


def _path(modules: list[PackageFile], operators: list[OperatorSketch]) -> str:
    """The folder from which packages are imported: where most operators are, else most modules of packages."""
    places = {module.file: module.place for module in modules}
    counts = Counter(places[operator.file] for operator in operators)
    counts = counts or Counter(module.place for module in modules if _is_in_package(module))
    return max(sorted(counts), key=lambda place: counts[place], default=".")


def _is_in_package(module: PackageFile) -> bool:
    return module.is_package or "." in module.name


def _packages(modules: list[PackageFile], operators: list[OperatorSketch], path: str, build: BuildSketch) -> list[str]:
    """The packages and modules at `path` that are measured, the one with most operators first."""
    here = [module for module in modules if module.place == path]
    counts = Counter(operator.package for operator in operators)
    files = {operator.file for operator in operators}
    names = {module.package for module in here if _is_in_package(module) or module.file in files}
    pending = set(names)
    while pending:
        # A module of the commit is imported only where `packages` names it.
        imported = {
            target.partition(".")[0]
            for module in here
            if module.package in pending
            for target in module.imports.values()
        }
        pending = imported & {module.package for module in here} - names
        names |= pending
    natives = {name.partition(".")[0] for name in build.modules}
    # A module that is built in place stands beside the packages that import it.
    imported = {target.partition(".")[0] for module in here for target in module.imports.values()}
    names |= natives if path == "." else natives & imported
    return sorted(names, key=lambda name: (-counts[name], name))


def _choose(
    modules: list[PackageFile], operators: list[OperatorSketch], path: str, packages: list[str], build: BuildSketch
) -> tuple[list[OperatorSketch], list[tuple[OperatorSketch | ProgramSketch, str]]]:
    """The operators that the packages hold or load, and the others with the reason why they are left out."""
    places = {module.file: module.place for module in modules}
    loading = [name for name in packages if name in {module.partition(".")[0] for module in build.modules}] or packages
    chosen: list[OperatorSketch] = []
    left_out: list[tuple[OperatorSketch | ProgramSketch, str]] = []
    for operator in operators:
        if not packages:
            left_out.append((operator, "no Python package loads it"))
        elif places.get(operator.file, path) != path:
            left_out.append((operator, f"it is not imported from {path}; write a second definition for it"))
        elif operator.package:
            chosen.append(operator)
        else:
            imports = (*operator.imports, *(f"import {name}{REGISTERS}" for name in loading))
            chosen.append(replace(operator, package=loading[0], imports=imports))
    return chosen, left_out


def _of_package(modules: list[PackageFile], package: str, path: str) -> OperatorSketch:
    """An operator file for a package in which no kernel was found: what to call is a gap as well."""
    file = next(module.file for module in modules if module.place == path and module.package == package)
    return OperatorSketch(package, f"the Python package {package}", file, 1, package, (f"import {package}",))


def _write(place: Path, texts: dict[str, str]) -> None:
    existing = next((place / name for name in texts if (place / name).exists() or (place / name).is_symlink()), None)
    if existing is not None:
        raise SketchError(f"{existing} exists, and nothing is overwritten; move it, or choose another --output")
    for name, text in texts.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)


def _write_manual(place: Path) -> str | None:
    """Writes AGENTS.md, which tells agents how to try, judge and read verdicts; the name of the file. None where there
    is one."""
    path = place / MANUAL.name
    if path.exists() or path.is_symlink():
        typer.echo(f"{path} exists and stays as it is; {MANUAL} is what to add to it")
        return None
    path.write_text(MANUAL.read_text(encoding="utf-8"), encoding="utf-8")
    typer.echo(f"wrote {path}, the manual for agents")
    return path.name


def _report(result: SketchResult, texts: dict[str, str], place: Path) -> None:
    definition = result.definition
    if definition.operators:
        typer.echo(f"packages: {', '.join(definition.packages)}, imported from {definition.path}")
        typer.echo(f"build: {definition.build or 'none'}")
    typer.echo("found:")
    for operator, merits in zip(definition.operators, result.merits, strict=True):
        typer.echo(f"  {operator.file}:{operator.line}  {operator.kind} → {definition.folder}/{operator.name}.py")
        typer.echo(f"    {merits}")
    for program in definition.programs:
        typer.echo(f"  {program.file}:{program.line}  benchmarks of {program.format} → program {program.name}")
    for rest, reason in result.left_out:
        kind = rest.kind if isinstance(rest, OperatorSketch) else f"benchmarks of {rest.format}"
        typer.echo(f"  {rest.file}:{rest.line}  {kind}: left out, {reason}")
    if result.lower:
        names = ", ".join(operator.name for operator in result.lower[:NAMES_SHOWN])
        more = f" and {len(result.lower) - NAMES_SHOWN} more" if len(result.lower) > NAMES_SHOWN else ""
        typer.echo(f"  of lower rank, not written without --limit 0: {names}{more}")
    if result.vendors:
        names = ", ".join(f"{count} of {word}" for word, count in sorted(result.vendors.items()))
        typer.echo(f"  files for devices of other vendors, left out: {names}")
    typer.echo(f"wrote {place / FILE_NAME} and {len(texts) - 1} operator files")
    gaps = list(definition.left_to_fill())
    guessed = definition.guessed
    typer.echo("left to fill:" if gaps or guessed else "left to fill: nothing")
    for file, parts in gaps:
        typer.echo(f"  {place / file}: {parts}")
    if guessed:
        typer.echo(f"  references that follow from a name alone, to compare with the documents: {', '.join(guessed)}")


def _advise(definition: DefinitionSketch, root: Path, place: Path, manual: str | None, *, is_inside: bool) -> None:
    name = shlex.quote(root.name)
    checkout, folder = shlex.quote(str(root)), shlex.quote(str(place.absolute()))
    typer.echo("Then:")
    if definition.operators:
        typer.echo(f"  warpwatch doctor {folder} --repository {checkout}")
    run = f"warpwatch run --repository {checkout} --commits HEAD --kinds check,bench --output {name}.wwb"
    if is_inside:
        folders = [definition.folder] if definition.operators else []
        named = " ".join([FILE_NAME, *folders, *filter(None, [manual])])
        typer.echo(f"  git -C {checkout} add {named} && git -C {checkout} commit -m 'Add Warpwatch definitions'")
        typer.echo(f"  {run}")
    else:
        typer.echo(f"  {run} --definitions {folder}")
        typer.echo(f"  warpwatch repository add {name} {checkout} --definitions {folder}")


@dataclass(frozen=True, slots=True)
class OperatorRank:
    """Why somebody would measure an operator. tests: files of tests that name it."""

    is_public: bool
    tests: int
    launches: bool

    def __str__(self) -> str:
        tests = f"named in {self.tests} file{'s' * (self.tests != 1)} of tests" if self.tests else ""
        words = ["public" if self.is_public else "", tests, "launches kernels" if self.launches else ""]
        return ", ".join(filter(None, words)) or "internal, without tests"


def rank(
    files: RepositoryFiles, modules: list[PackageFile], operators: Iterable[OperatorSketch]
) -> list[tuple[OperatorSketch, OperatorRank]]:
    """The operators: public entry points first, then those with tests, then those that launch kernels."""
    exported = {name.rpartition(".")[2] for name in find_exports(modules)}
    # An autograd function is public where the function that applies it is.
    applied = Counter(
        word
        for module in modules
        for name, node in module.definitions.items()
        if name in exported
        for word in {part.rpartition(".")[2] for part in module.names_in(node)}
    )
    tests = Counter(
        word
        for file in files.names
        if file.endswith(".py") and is_test(file)
        for word in set(re.findall(r"\w+", files.text(file) or "", re.ASCII))
    )
    ranked = []
    for operator in operators:
        symbol = operator.symbol or operator.name
        # What is called through torch.ops or a native module needs no export.
        is_native = PurePosixPath(operator.file).suffix != ".py" or "torch.library" in operator.kind
        is_public = not symbol.startswith("_") and (is_native or symbol in exported or applied[symbol] > 0)
        ranked.append((operator, OperatorRank(is_public, tests[symbol], operator.is_cuda)))
    return sorted(
        ranked,
        key=lambda item: (
            not item[1].is_public,
            "experimental" in item[0].file,
            not item[1].tests,
            not item[1].launches,
            # What is understood as a whole runs at once.
            item[0].known is None and item[0].copied is None,
            item[0].file.count("/"),
            item[0].file,
            item[0].line,
        ),
    )


def add_sources(operators: Iterable[OperatorSketch], modules: list[PackageFile]) -> list[OperatorSketch]:
    """The operators with the Python files whose names they use, their own first.

    A name that an __init__.py hands on leads to the file that defines it, not to all others that it imports.
    """
    by_name = {module.name: module for module in modules}
    by_file = {module.file: module for module in modules}
    result = []
    for operator in operators:
        start = by_file.get(operator.file)
        found: dict[str, None] = {}
        pending = [start] if start is not None else []
        while pending:
            module = pending.pop()
            if module.file not in found:
                found[module.file] = None
                targets = [
                    find_definition(target, by_name) for target in (*module.imports.values(), *module.star_imports)
                ]
                pending += [by_name[target[0]] for target in targets if target is not None]
        is_narrower = 0 < len(found) <= MOST_SOURCES and len(found) < len(modules)
        own, *others = found or [""]
        result.append(replace(operator, sources=(own, *sorted(others)) if is_narrower else ()))
    return result
