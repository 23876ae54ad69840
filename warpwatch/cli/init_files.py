"""The files of a repository as `warpwatch init` reads them: text alone, nothing is imported or run."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from warpwatch import git
from warpwatch.cli.init_known import KnownFunction
from warpwatch.project import PROTECTED

NATIVE = {".c", ".cc", ".cpp", ".cxx", ".cu"}
VENDORS = {
    *(
        "aipu",
        "amd",
        "arm",
        "ascend",
        "cambricon",
        "enflame",
        "gaudi",
        "gcu",
        "habana",
        "hip",
        "hpu",
        "hygon",
        "iluvatar",
    ),
    *("kunlunxin", "maca", "metal", "metax", "mlu", "mps", "mthreads", "musa", "npu", "rocm", "spacemit", "sunrise"),
    *("sycl", "thead", "tpu", "tsingmicro", "xpu"),
}
"""Words in names of files and folders that are for devices other than CPUs and NVIDIA's GPUs."""
TESTS = {"test", "tests", "testing", "bench", "benchmark", "benchmarks"}
IGNORED = {
    *("build", "cmake", "dist", "doc", "docs", "examples", "example", "extern", "external", "scripts", "site-packages"),
    *("third_party", "3rdparty", "thirdparty", "third-party", "submodules", "vendor"),
}
"""Folders whose files a package does not consist of."""
_SCRIPTS = {"setup", "conftest", "noxfile", "fabfile", "tasks", "__init__", "__main__"}
_NAMESPACES = {"src", "python"}
"""Folders that hold packages, which then need no __init__.py."""
_USUAL_NAME = re.compile(r"[\w.+@ /-]+", re.ASCII)
"""Names of files go into sources, TOML and shell commands; a file with any other name is not read."""
_FILE_BYTES = 2**20
_FILE_LIMIT = 50_000


@dataclass(frozen=True, slots=True)
class CallSketch:
    """How a test of the package calls an operator, and what it compares the result with.

    file, line: where the test is. imports, helpers: lines and definitions that the parts need. parameters: what
    `inputs` makes, which the reference and the call take. lines, reference: statements. call: an expression, with
    CALLED in place of the function, or statements that pick results. cases, serving: sizes of each case. gradients: the
    parameters that the test differentiates. elements: an expression for how many numbers the inputs hold; "" where the
    test does not say.
    """

    file: str
    line: int
    imports: tuple[str, ...]
    helpers: tuple[str, ...]
    parameters: tuple[str, ...]
    lines: tuple[str, ...]
    reference: tuple[str, ...]
    call: str
    cases: tuple[Mapping[str, Any], ...]
    serving: tuple[Mapping[str, Any], ...]
    gradients: tuple[str, ...]
    elements: str


@dataclass(frozen=True, slots=True)
class OperatorSketch:
    """Something that an operator file can measure.

    kind: what it is, in words. file, line: where it is defined. package: the module at the top that it belongs to; ""
    where that is not known. imports: lines of Python. parameters: what it must be given. call: the expression that
    calls it with parameters of these names; None where the source does not say how. symbol: its name in the source.
    called: the dotted name by which Python code calls it, where that is another. tensors: the parameters that the
    source declares or uses as tensors. values: how numbers and indices are made. known: the function of torch that it
    is named after.
    copied: parameters and body of its function, where that is made of torch alone. tested: what a test of the package
    says, and untested why no test says it. sources: the files that it uses;
    none where it uses too many.
    """

    name: str
    kind: str
    file: str
    line: int
    package: str
    imports: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    call: str | None = None
    is_cuda: bool = False
    symbol: str = ""
    called: str = ""
    tensors: tuple[str, ...] = ()
    values: tuple[tuple[str, str], ...] = ()
    known: KnownFunction | None = None
    copied: tuple[str, str] | None = None
    tested: CallSketch | None = None
    untested: str = ""
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProgramSketch:
    """An existing benchmark program. build: None where it needs none, "" where the sources do not say how."""

    name: str
    format: str
    file: str
    line: int
    command: str
    build: str | None = None


@dataclass(frozen=True)
class RepositoryFiles:
    """The files that git tracks or would add. Links are left out: they may lead out of the repository."""

    root: Path
    _texts: dict[str, str | None] = field(default_factory=dict)

    @cached_property
    def names(self) -> list[str]:
        words = ("ls-files", "-z", "--cached", "--others", "--exclude-standard")
        listing = git.git(*words, cwd=self.root, environment=git.checkout_settings(self.root))
        names = sorted({name for name in listing.split("\0") if _USUAL_NAME.fullmatch(name)})[:_FILE_LIMIT]
        return [name for name in names if self._is_plain(name)]

    @cached_property
    def folders(self) -> set[str]:
        return {str(parent) for name in self.names for parent in PurePosixPath(name).parents}

    def _is_plain(self, name: str) -> bool:
        path = self.root
        for part in PurePosixPath(name).parts:
            path /= part
            if path.is_symlink():
                return False
        return path.is_file() and path.stat().st_size <= _FILE_BYTES

    def text(self, name: str) -> str | None:
        """The text of a file; None where there is none."""
        if name not in self._texts:
            is_there = name in self.names_set
            self._texts[name] = (self.root / name).read_text("utf-8", "replace") if is_there else None
        return self._texts[name]

    def tree(self, name: str) -> ast.Module | None:
        """The syntax of a Python file; None where it cannot be parsed."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return ast.parse(self.text(name) or "")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None

    def sources(self, suffixes: set[str], ignored: set[str]) -> Iterator[str]:
        """Files of these kinds outside the ignored folders."""
        for name in self.names:
            path = PurePosixPath(name)
            if path.suffix in suffixes and not ignored & set(path.parts[:-1]):
                yield name

    def module_of(self, name: str) -> tuple[str, str] | None:
        """The folder that a Python file is imported from, and its dotted name; None where it cannot be imported."""
        parts = list(PurePosixPath(name).with_suffix("").parts)
        depths = range(1, len(parts))
        top = next((depth for depth in depths if "/".join([*parts[:depth], "__init__.py"]) in self.names_set), None)
        namespace = 1 if parts[0] in _NAMESPACES and len(parts) > 1 else len(parts) - 1
        start = namespace if top is None else top - 1
        module = parts[start:]
        if len(module) == 1 and module[0] in _SCRIPTS:
            return None
        if module[-1] == "__init__":
            module.pop()
        if module[0] in PROTECTED or not all(part.isidentifier() for part in module):
            return None
        return "/".join(parts[:start]) or ".", ".".join(module)

    @cached_property
    def names_set(self) -> set[str]:
        return set(self.names)


def is_test(name: str) -> bool:
    """Whether a file belongs to tests, by its name or a folder of it."""
    path = PurePosixPath(name)
    is_named = path.stem.startswith("test_") or path.stem.endswith("_test") or path.stem == "conftest"
    return is_named or bool(TESTS & set(path.parts[:-1]))


def vendor_of(name: str) -> str:
    """The word in the path of a file that names another vendor's devices; "" for a file of none. A package as a whole
    is what its user wants to measure, so that folders at the top do not count."""
    *folders, stem = PurePosixPath(name).with_suffix("").parts
    depth = 2 if folders and folders[0] in _NAMESPACES else 1
    words = [word for folder in folders[depth:] for word in re.split(r"[_\W]+", folder.lower())]
    ends = re.split(r"[_\W]+", stem.lower()) if len(folders) >= depth else []
    return next((word for word in [*words, *ends[:1], *ends[-1:]] if word in VENDORS), "")


def line_of(text: str, position: int) -> int:
    """The number of the line that a character stands in."""
    return text.count("\n", 0, position) + 1


def distinct_name(name: str, file: str, taken: dict[str, str]) -> str:
    """A name that no other operator or program has. taken: names, with the file of each; it gets this one, too.

    Of two with one name, the second has in front a folder of its file that the first one's path lacks.
    """
    name = _word(name)[:80] or "operator"
    if name[0].isdigit():
        name = f"n{name}"
    chosen = name
    if name.lower() in taken:
        others = PurePosixPath(taken[name.lower()]).with_suffix("").parts
        own = (_word(part) for part in reversed(PurePosixPath(file).with_suffix("").parts) if part not in others)
        chosen = next((f"{part}_{name}" for part in own if part and not part[0].isdigit()), name)
    number, start = 2, chosen
    while chosen.lower() in taken:
        chosen, number = f"{start}_{number}", number + 1
    taken[chosen.lower()] = file
    return chosen


def _word(text: str) -> str:
    return re.sub(r"\W", "_", text, flags=re.ASCII).strip("_")
