"""What an operator is made from at a commit, as a fingerprint: where two commits have the same one, their numbers differ by noise alone."""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path
from typing import Any

from db.reads.asked import Asked, Place, read_asked_before
from db.reads.query import Session
from warpwatch import git
from warpwatch.project import FILE_NAME, Project, ProjectError, parse_project

_SERVICE = {"warpwatch"}
"""Packages that come from the service, whatever a commit holds under that name."""


class Sources:
    """Fingerprints of the operators of one repository. Every commit's folders and every file are read once.

    An operator is its file, its folder of native sources, whatever lies in the native folder and belongs to no operator, and
    warpwatch.toml. One that imports another operator is all operators, and one that imports anything else of its repository is the
    whole commit. Modules that are imported by a name made at run time are not seen.
    """

    def __init__(self, mirror: Path) -> None:
        self._mirror = mirror
        self._layouts: dict[str, tuple[Project, dict[str, str], dict[str, str]]] = {}
        self._imports: dict[str, set[str]] = {}

    def of(self, sha: str, operator: str) -> str | None:
        """The fingerprint of `operator` at the commit with this full id; None where the commit has no such operator."""
        project, files, natives = self._layout(sha)
        file = files.get(f"{operator}.py")
        if file is None:
            return None
        imported = self._imported(file) & self._own_modules(sha)
        package = project.operators.split("/")[0]
        if imported - {package}:
            return sha
        if imported:
            files_used, natives_used = files, natives
        else:
            operators = {name.removesuffix(".py") for name in files} - {operator}
            files_used = {f"{operator}.py": file}
            natives_used = {name: tree for name, tree in natives.items() if name not in operators}
        (toml,) = git.object_ids(self._mirror, [f"{sha}:{FILE_NAME}"])
        return hashlib.sha256(repr((toml, sorted(files_used.items()), sorted(natives_used.items()))).encode()).hexdigest()

    def _layout(self, sha: str) -> tuple[Project, dict[str, str], dict[str, str]]:
        """The project's description, and the ids of what lies in its folder of operators and in that of native sources."""
        if sha not in self._layouts:
            try:
                project = parse_project(git.read_file(self._mirror, sha, FILE_NAME))
            except ProjectError:
                project = Project()
            files, natives = (git.entries(self._mirror, sha, folder) for folder in (project.operators, project.native))
            self._layouts[sha] = (project, files, natives)
        return self._layouts[sha]

    def _own_modules(self, sha: str) -> set[str]:
        names = git.entries(self._mirror, sha, "")
        return {name.removesuffix(".py") for name in names} - _SERVICE | {"."}

    def _imported(self, blob: str) -> set[str]:
        """First parts of the names of all modules that a file imports, "." for relative ones and for a file that cannot be parsed."""
        if blob not in self._imports:
            try:
                tree = ast.parse(git.git("cat-file", "blob", blob, cwd=self._mirror))
            except (SyntaxError, ValueError):
                self._imports[blob] = {"."}
            else:
                self._imports[blob] = {name for node in ast.walk(tree) for name in _modules(node)}
        return self._imports[blob]


class Earlier:
    """What was asked for at commits before those of a submission, whose jobs are gone through from the oldest commit on."""

    def __init__(self, session: Session, mirror: Path, oldest: git.CommitInfo) -> None:
        self._sources = Sources(mirror)
        self._asked = read_asked_before(session, oldest.sha, oldest.ordinal)

    def unchanged_since(self, place: Place, operator: str, sha: str, spec: dict[str, Any]) -> str | None:
        """The nearest earlier commit whose numbers are this one's too: the same was asked for there, of the same sources."""
        before = self._asked.get(place)
        if (
            before is not None
            and before.asks_for(spec)
            and self._sources.of(before.sha, operator) == self._sources.of(sha, operator)
        ):
            return before.sha
        self._asked[place] = Asked(sha, spec)
        return None


def _modules(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name.split(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return ["." if node.level else (node.module or "").split(".")[0]]
    return []
