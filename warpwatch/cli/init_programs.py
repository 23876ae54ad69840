"""Finds benchmark programs that Warpwatch can run: of pytest-benchmark, Google Benchmark and nvbench."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import PurePosixPath

from warpwatch.cli.init_files import IGNORED, NATIVE, ProgramSketch, RepositoryFiles, distinct_name, line_of

_GOOGLE = re.compile(r"^\s*BENCHMARK(?:_TEMPLATE\w*|_F|_DEFINE_F|_CAPTURE|_MAIN)?\s*\(", re.MULTILINE)
_NVBENCH = re.compile(r"^\s*NVBENCH_BENCH\w*\s*\(", re.MULTILINE)
_TARGET = re.compile(r"\badd_executable\s*\(\s*([\w.-]+)([^)]*)\)")
_ARGUMENTS = {
    "google-benchmark": "--benchmark_repetitions=5 --benchmark_out=$WARPWATCH_OUTPUT --benchmark_out_format=json",
    "nvbench": "--json $WARPWATCH_OUTPUT",
}


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
