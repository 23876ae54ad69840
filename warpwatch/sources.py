"""What an operator is made from at a commit, as a fingerprint: where two commits have the same one, their numbers
differ by noise alone."""

from __future__ import annotations

import ast
import hashlib
from dataclasses import dataclass
from pathlib import Path

from warpwatch import git
from warpwatch.project import FILE_NAME, Program, Project, ProjectError, parse_project

_SERVICE = {"warpwatch"}
"""Packages that come from the service, whatever a commit holds under that name."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """A commit. description: id of warpwatch.toml. project: what it says. modules: what lies at its root.

    files and natives: ids of what lies in the folders of operators and of native sources, by name.
    """

    description: str | None
    project: Project
    modules: set[str]
    files: dict[str, str]
    natives: dict[str, str]

    @property
    def package(self) -> str:
        """What its operators are imported from."""
        return self.project.operators.strip("/").replace("/", ".")


class Sources:
    """Fingerprints of the operators of one repository. Every commit's folders and every file are read once.

    An operator consists of its file, the files that it imports from the operator folder, the native source folders of
    all of these, the native folders that belong to no operator, and warpwatch.toml. If it imports anything else of its
    repository, its fingerprint is the commit id. Imports by a name that is built at run time are not detected.
    """

    def __init__(self, mirror: Path) -> None:
        self._mirror = mirror
        self._layouts: dict[str, _Layout] = {}
        self._imports: dict[str, set[str]] = {}
        self._fingerprints: dict[tuple[str, str], tuple[str, str] | None] = {}

    def of(self, sha: str, operator: str) -> str | None:
        """The fingerprint of `operator` at the commit with this full id; None where the commit has no such operator."""
        parts = self.parts(sha, operator)
        return None if parts is None else "-".join(parts)

    def parts(self, sha: str, operator: str) -> tuple[str, str] | None:
        """The fingerprints of its Python sources, with warpwatch.toml, and of its native ones; None where there is no
        such operator."""
        if (sha, operator) not in self._fingerprints:
            self._fingerprints[sha, operator] = self._fingerprint(sha, operator, self._layout(sha))
        return self._fingerprints[sha, operator]

    def interpreter(self, sha: str) -> str | None:
        """The Python that the commit asks for; None for the worker's own."""
        return self._layout(sha).project.interpreter

    def paths(self, sha: str, operator: str) -> list[str]:
        """Files and folders that make the operator at the commit; empty where it is the whole commit, or not there at
        all."""
        layout = self._layout(sha)
        program = layout.project.program(operator)
        if program is not None:
            return [*program.sources, FILE_NAME] if program.sources else []
        used = self._used(operator, layout) if f"{operator}.py" in layout.files else None
        if used is None:
            return []
        project = layout.project
        files = [f"{project.operators.strip('/')}/{name}.py" for name in sorted(used)]
        return [*files, *(f"{project.native.strip('/')}/{name}" for name in self._natives(used, layout)), FILE_NAME]

    def _fingerprint(self, sha: str, operator: str, layout: _Layout) -> tuple[str, str] | None:
        program = layout.project.program(operator)
        if program is not None:
            return self._fingerprint_program(sha, program, layout)
        if f"{operator}.py" not in layout.files:
            return None
        used = self._used(operator, layout)
        if used is None:
            return sha, sha
        python = [layout.files[f"{name}.py"] for name in sorted(used)]
        native = [f"{name} {layout.natives[name]}" for name in self._natives(used, layout)]
        return _digest((layout.description, python)), _digest(native)

    def _fingerprint_program(self, sha: str, program: Program, layout: _Layout) -> tuple[str, str]:
        if not program.sources:
            return sha, sha
        files = git.object_ids(self._mirror, [f"{sha}:{path.strip('/')}" for path in program.sources])
        return _digest((program, layout.project.interpreter, files)), _digest([])

    def _used(self, operator: str, layout: _Layout) -> set[str] | None:
        """The operator and what it imports from beside it; None where it imports anything else of its repository."""
        files = layout.files
        used, pending = set[str](), {operator}
        while pending:
            name = pending.pop()
            used.add(name)
            for module in self._imported(files[f"{name}.py"]):
                sibling = _sibling(module, layout.package)
                if sibling is None and module.split(".")[0] in layout.modules:
                    return None
                if sibling is not None and f"{sibling}.py" not in files:
                    # All of the package at once, or something in a folder of its own.
                    return None
                pending |= {sibling} - used if sibling is not None else set()
        return used

    def _natives(self, used: set[str], layout: _Layout) -> list[str]:
        """Folders of native sources, without those of operators that are not used."""
        others = {file.removesuffix(".py") for file in layout.files} - used
        return sorted(name for name in layout.natives if name not in others)

    def _layout(self, sha: str) -> _Layout:
        if sha not in self._layouts:
            root = git.entries(self._mirror, sha, "")
            try:
                project = parse_project(git.read_file(self._mirror, sha, FILE_NAME))
            except ProjectError:
                project = Project()
            files, natives = (git.entries(self._mirror, sha, folder) for folder in (project.operators, project.native))
            modules = {name.removesuffix(".py") for name in root} - _SERVICE
            self._layouts[sha] = _Layout(root.get(FILE_NAME), project, modules, files, natives)
        return self._layouts[sha]

    def _imported(self, blob: str) -> set[str]:
        """Names of all modules that a file may import, relative ones with one dot in front; "." for a file that cannot
        be parsed."""
        if blob not in self._imports:
            try:
                tree = ast.parse(git.git("cat-file", "blob", blob, cwd=self._mirror))
            except (SyntaxError, ValueError):
                self._imports[blob] = {"."}
            else:
                self._imports[blob] = {name for node in ast.walk(tree) for name in _modules(node)}
        return self._imports[blob]


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()


def _modules(node: ast.AST) -> list[str]:
    """Whether what is imported from a package is a module or a name in it cannot be told here, so it counts as a
    module."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        start = "." * node.level + f"{node.module}." if node.module else "." * node.level
        return [start + alias.name for alias in node.names]
    return []


def _sibling(module: str, package: str) -> str | None:
    """Name of the file beside the importing one that `module` is or lies in; empty for the package itself, None for
    what lies elsewhere."""
    if module.startswith("."):
        return module[1:].split(".")[0]
    if module == package:
        return ""
    return module.removeprefix(f"{package}.").split(".")[0] if module.startswith(f"{package}.") else None
