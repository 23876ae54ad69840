"""Ranks what `warpwatch init` found, and tells which files each operator depends on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from warpwatch.cli.init_files import OperatorSketch, RepositoryFiles, is_test
from warpwatch.cli.init_python import PackageFile, find_definition, find_exports

MOST_SOURCES = 12
"""An operator that imports more files than this is measured by the sources of the whole definition."""


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
