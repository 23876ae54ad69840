"""Fingerprints of the sources of an operator at a commit: where two commits have the same fingerprint, their numbers
differ by noise alone."""

from __future__ import annotations

import ast
import hashlib
import re
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from warpwatch import git
from warpwatch.contract.spec import DefinitionsVersion
from warpwatch.definitions import mirror_of
from warpwatch.project import FILE_NAME, MeasuredCode, Program, Project, ProjectError, parse_project
from warpwatch.reached_code import CodeFile, read_code, variant_digests
from warpwatch.variant_code import changed_definition

_ALWAYS_NAMED = {"torch", "triton"}
"""Packages whose version is part of every environment; torch brings its own triton."""
_SERVICE = {"warpwatch"}
"""Packages that come from the service, whatever a commit holds under that name."""
_PARSER = threading.Lock()
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_READS_ITSELF = {"__doc__", "__file__", "inspect"}
"""Names in a file that may make its text part of what it does."""
_WORDS = {"idea", "outcome"}
"""Arguments with which a variant describes itself for readers."""
_C_ENDS = (".c", ".cc", ".cpp", ".cu", ".cuh", ".cxx", ".h", ".hh", ".hpp", ".inl")
_HEADERS = "common"
"""The folder of native sources whose headers any operator may include; nothing in it is compiled by itself."""
_INCLUDES = re.compile(r"# ?(?:include|include_next|import)\b(.*)$", re.MULTILINE)
_INCLUDED = re.compile(r""" ?["<]([^"<>]+)[">] ?$""")
_READS_FILES = re.compile(r"__has_include|__has_embed|# ?embed\b|\.incbin|%:|\?\?=")
"""Other ways to reach a file."""
_C_TOKENS = re.compile(
    r"""R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'"""
    r"|(?P<comment>//[^\n]*|/\*.*?\*/)",
    re.DOTALL,
)
"""Literals, which stay as they are, and comments of C++ and CUDA."""


@dataclass(frozen=True, slots=True)
class _PythonFile:
    """imports: names of all modules that it may import, relative ones with one dot in front; "." for a file that cannot
    be parsed. content: a hash of its code without comments, docstrings and the words of its variants; its id where its
    text may be part of what it does. uses: operators whose libraries it names. reads_headers: whether it may read
    headers of all operators as text."""

    imports: frozenset[str]
    content: str
    uses: frozenset[str] = frozenset()
    reads_headers: bool = True


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
        """Package that the operators are imported from."""
        return self.project.operators.strip("/").replace("/", ".")


class Sources:
    """Fingerprints of the operators of one repository. Every commit's folders and every file are read once.

    An operator consists of its file, the files that it imports from the operator folder, the native source folders of
    all of these and of operators that they name as `uses`, the native folders that belong to no operator, and
    warpwatch.toml. Of the headers in `common` those count that are included. If it imports anything else of its
    repository, its fingerprint is the commit id. Imports by a name that is built at run time are not detected.
    Comments, docstrings, formatting, and the `idea` and `outcome` of a variant make no difference; neither do comments
    and white space of C++ and CUDA.

    What it imports from the packages that warpwatch.toml measures counts by the globs that are declared there.
    definitions: where operators and warpwatch.toml lie, at one version for all commits; None where each commit has its
    own. projects: what warpwatch.toml says at commits where that is known already.
    """

    def __init__(
        self,
        mirror: Path,
        definitions: DefinitionsVersion | None = None,
        projects: Mapping[str, Project] | None = None,
    ) -> None:
        self._projects = projects or {}
        self._measured_mirror = mirror
        self.definitions = definitions
        self._mirror = mirror if definitions is None else mirror_of(mirror, definitions)
        self._layouts: dict[str, _Layout] = {}
        self._files: dict[tuple[str, str], list[tuple[str, str]]] = {}
        self._trees: dict[tuple[str, str], str | None] = {}
        self._python_files: dict[str, _PythonFile] = {}
        self._code_files: dict[str, CodeFile | None] = {}
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

    def variants(self, sha: str, operator: str) -> dict[str, str | None]:
        """A hash by variant of the Python code that its call can reach, with warpwatch.toml; None for one of which that
        cannot be told, and no variant where it cannot be told of any."""
        layout = self._layout(sha)
        is_program = layout.project.program(operator) is not None
        used = self._used(operator, layout) if f"{operator}.py" in layout.files and not is_program else None
        if used is None:
            return {}
        code = {f"{layout.package}.{name}": self._code(layout.files[f"{name}.py"], self._mirror) for name in used}
        if "__init__.py" in layout.files:
            code[f"{layout.package}.__init__"] = self._code(layout.files["__init__.py"], self._mirror)
        if None in code.values():
            return {}
        others: list[tuple[str, str]] = []
        measured = layout.project.measured
        folder = measured.path.strip("/") if measured is not None else ""
        for path, blob in self._matching(sha, measured.sources_of(operator)) if measured is not None else ():
            if not path.endswith(".py"):
                others.append((path, self._content(path, blob)))
                continue
            name = path.removeprefix(f"{folder}/").removesuffix(".py").replace("/", ".")
            code[name] = self._code(blob, self._measured_mirror)
        definitions = [f"{name} {layout.natives[name]}" for name in self._natives(used, layout)]
        rest = _digest((layout.description, others, definitions if self.definitions is not None else ()))
        digests = variant_digests(code, f"{layout.package}.{operator}")
        return {name: None if digest is None else _digest((rest, digest))[:16] for name, digest in digests.items()}

    def changed_variants(self, base_sha: str, head_sha: str, operator: str) -> frozenset[str] | None:
        """Variants whose Python code may differ between two commits; None where it may be any of them."""
        before, after = (self.variants(sha, operator) for sha in (base_sha, head_sha))
        if not before or not after:
            return None
        same = {name for name, digest in before.items() if digest is not None and after.get(name) == digest}
        return frozenset({*before, *after} - same)

    def is_program(self, sha: str, operator: str) -> bool:
        """Whether the operator is a benchmark program at the commit."""
        return self._layout(sha).project.program(operator) is not None

    def changed_definition(self, base_sha: str, head_sha: str, operator: str, files: Iterable[str]) -> str | None:
        """What a patch of these files changes besides the code of the operator's variants, for people; None where it is
        nothing. Its native sources may change, and where definitions lie beside the commits all but warpwatch.toml."""
        layout = self._layout(base_sha)
        file, native = f"{self.folder(base_sha)}/{operator}.py", layout.project.native.strip("/")
        for name in files:
            if self.definitions is not None:
                if name.rpartition("/")[2] == FILE_NAME:
                    return name
            elif name != file and not name.startswith(f"{native}/{operator}/"):
                return name
        if self.definitions is not None or file not in files:
            return None
        texts = [git.read_file(self._mirror, sha, file) for sha in (base_sha, head_sha)]
        try:
            before, after = (parse_python(text or "") for text in texts)
        except (SyntaxError, ValueError):
            return f"{file}, which cannot be parsed"
        place = changed_definition(before, after)
        return None if place is None else f"{file}: {place}"

    def definition(self, sha: str, operator: str) -> str | None:
        """The fingerprint of the operator's definition alone, without the code that it measures."""
        return self._defined(sha, operator, self._layout(sha))

    def operators(self, sha: str) -> list[str]:
        """Names of the operators of a commit; of those in definitions beside it, the ones whose sources it has."""
        names = sorted(
            name.removesuffix(".py")
            for name in self._layout(sha).files
            if name.endswith(".py") and not name.startswith("_")
        )
        named = self._layout(sha).project.with_programs(names)
        return [name for name in named if self.of(sha, name) is not None]

    def dependencies(self, sha: str, operator: str) -> list[str]:
        """Installed modules that an operator's files import by name, at the top level: neither Python's own nor those
        that every environment names, nor what is measured."""
        layout = self._layout(sha)
        used = self._used(operator, layout) if f"{operator}.py" in layout.files else None
        measured = layout.project.measured.packages if layout.project.measured is not None else ()
        own = {*measured, *layout.modules, *_SERVICE, *_ALWAYS_NAMED, *sys.stdlib_module_names, ""}
        imports = (self._read(layout.files[f"{name}.py"]).imports for name in used or ())
        return sorted({module.split(".")[0] for modules in imports for module in modules} - own)

    def measured(self, sha: str) -> MeasuredCode | None:
        """The code of the commit that definitions measure."""
        return self._layout(sha).project.measured

    def folder(self, sha: str) -> str:
        """Where the operators of the commit are defined."""
        return self._layout(sha).project.operators.strip("/")

    def text(self, sha: str, operator: str) -> str | None:
        """The text of the operator's file; None for a program."""
        return git.read_file(self._mirror, self._place(sha), f"{self.folder(sha)}/{operator}.py")

    def runtime(self, sha: str) -> str | None:
        """The Python and the image that the commit asks for; None for the worker's own."""
        return self._layout(sha).project.runtime

    def paths(self, sha: str, operator: str) -> list[str]:
        """Files and folders that make the operator at the commit; empty where it is the whole commit, or not there at
        all. Of definitions beside the commits none is named: they are the same for all of them."""
        layout = self._layout(sha)
        program = layout.project.program(operator)
        if program is not None:
            return [*program.sources, FILE_NAME] if program.sources else []
        measured = layout.project.measured
        if self.definitions is not None and measured is not None:
            return _prefixes(measured, operator)
        used = self._used(operator, layout) if f"{operator}.py" in layout.files else None
        if used is None:
            return []
        project = layout.project
        files = [f"{project.operators.strip('/')}/{name}.py" for name in sorted(used)]
        natives = [f"{project.native.strip('/')}/{name}" for name in self._natives(used, layout)]
        return [*files, *natives, *_prefixes(measured, operator), FILE_NAME]

    def _fingerprint(self, sha: str, operator: str, layout: _Layout) -> tuple[str, str] | None:
        program = layout.project.program(operator)
        if program is not None:
            return self._fingerprint_program(sha, program, layout)
        if f"{operator}.py" not in layout.files:
            return None
        measured = layout.project.measured
        globs = measured.sources_of(operator) if measured is not None else ()
        if self.definitions is not None and not self._matching(sha, globs[:1]):
            return None
        files = [(path, self._content(path, blob)) for path, blob in self._matching(sha, globs)]
        if self.definitions is not None:
            return _digest((self._defined(sha, operator, layout), files)), ""
        used = self._used(operator, layout)
        if used is None:
            return sha, sha
        natives = {name: layout.natives[name] for name in self._natives(used, layout)}
        common = natives.pop(_HEADERS, None)
        own = tuple(natives.items())
        native = [_native_folder(self._mirror, name, item) for name, item in own]
        if common is not None:
            is_whole = not own or any(self._read(layout.files[f"{name}.py"]).reads_headers for name in used)
            native.append(
                _native_folder(self._mirror, _HEADERS, common) if is_whole else _headers(self._mirror, own, common)
            )
        contents = [self._read(layout.files[f"{name}.py"]).content for name in sorted(used)]
        python = layout.description, contents
        return _digest(python if measured is None else (python, files)), _digest(native)

    def _defined(self, sha: str, operator: str, layout: _Layout) -> str | None:
        """The fingerprint of the files that define an operator; the id of their commit where that is all of them."""
        if f"{operator}.py" not in layout.files:
            return None
        used = self._used(operator, layout)
        if used is None:
            return self._place(sha)
        native = [f"{name} {layout.natives[name]}" for name in self._natives(used, layout)]
        files = [layout.files[f"{name}.py"] for name in sorted(used)]
        return _digest(((layout.description, files), native))

    def _matching(self, sha: str, globs: Sequence[str]) -> list[tuple[str, str]]:
        """Path and id of the files of a commit that match one of the globs, by path."""
        files: set[tuple[str, str]] = set()
        for glob in globs:
            prefix = literal_prefix(glob)
            if (sha, prefix) not in self._trees:
                self.prepare([sha], [prefix])
            tree = self._trees[sha, prefix]
            if tree is None:
                continue
            # Most commits leave a folder as it was, so what matches in it is read once.
            if (tree, glob) not in self._files:
                files_below = git.files_below(self._measured_mirror, tree, prefix)
                self._files[tree, glob] = [(path, blob) for path, blob in files_below if matches(path, [glob])]
            files.update(self._files[tree, glob])
        return sorted(files)

    def prepare(self, shas: Sequence[str], prefixes: Iterable[str] | None = None) -> None:
        """Looks up the measured folders of many commits at once, which takes one call of git."""
        if prefixes is None:
            measured = self._layout(shas[0]).project.measured if shas and self.definitions is not None else None
            prefixes = {literal_prefix(glob) for glob in measured.visible()} if measured is not None else ()
        names = [(sha, prefix) for sha in shas for prefix in prefixes if (sha, prefix) not in self._trees]
        ids = git.object_ids(self._measured_mirror, [f"{sha}:{prefix}" for sha, prefix in names])
        self._trees.update(zip(names, ids, strict=True))

    def _place(self, sha: str) -> str:
        """The commit that defines the operators of this one."""
        return sha if self.definitions is None else self.definitions.sha

    def _fingerprint_program(self, sha: str, program: Program, layout: _Layout) -> tuple[str, str]:
        if not program.sources:
            return sha, sha
        files = git.object_ids(self._mirror, [f"{sha}:{path.strip('/')}" for path in program.sources])
        return _digest((program, layout.project.runtime, files)), _digest([])

    def _used(self, operator: str, layout: _Layout) -> set[str] | None:
        """The operator and what it imports from beside it; None where it imports anything else of its repository."""
        files = layout.files
        used, pending = set[str](), {operator}
        while pending:
            name = pending.pop()
            used.add(name)
            for module in self._read(files[f"{name}.py"]).imports:
                sibling = _sibling(module, layout.package)
                measured = layout.project.measured
                if measured is not None and module.split(".")[0] in measured.packages:
                    continue
                if sibling is None and module.split(".")[0] in layout.modules:
                    return None
                if sibling is not None and f"{sibling}.py" not in files:
                    # All of the package at once, or something in a folder of its own.
                    return None
                pending |= {sibling} - used if sibling is not None else set()
        return used

    def _natives(self, used: set[str], layout: _Layout) -> list[str]:
        """Folders of native sources, without those of operators that are not used."""
        libraries = set().union(*(self._read(layout.files[f"{name}.py"]).uses for name in used))
        others = {file.removesuffix(".py") for file in layout.files} - used - libraries
        return sorted(name for name in layout.natives if name not in others)

    def _content(self, path: str, blob: str) -> str:
        """What a measured file counts as: a hash of its code, where comments can be told from code; else its id."""
        mirror = self._measured_mirror
        return self._read(blob, mirror).content if path.endswith(".py") else _native_content(mirror, path, blob)

    def _layout(self, sha: str) -> _Layout:
        sha = self._place(sha)
        if sha not in self._layouts:
            root = git.entries(self._mirror, sha, "")
            project = self._projects.get(sha) or Project()
            if sha not in self._projects:
                with suppress(ProjectError):
                    project = parse_project(git.read_file(self._mirror, sha, FILE_NAME))
            files, natives = (git.entries(self._mirror, sha, folder) for folder in (project.operators, project.native))
            modules = {name.removesuffix(".py") for name in root} - _SERVICE
            description = root.get(FILE_NAME)
            if self.definitions is not None and project.measured is not None:
                # What names the sources of other operators does not change what this one measures.
                measured = project.measured
                how = (project.contract, project.runtime, measured.path, measured.packages, measured.build)
                description = _digest(how)
            self._layouts[sha] = _Layout(description, project, modules, files, natives)
        return self._layouts[sha]

    def _read(self, blob: str, mirror: Path | None = None) -> _PythonFile:
        if blob not in self._python_files:
            try:
                tree = parse_python(git.git("cat-file", "blob", blob, cwd=mirror or self._mirror))
            except (SyntaxError, ValueError, git.GitError):
                # A folder or a submodule may have the name of a Python file, too.
                self._python_files[blob] = _PythonFile(frozenset("."), blob)
            else:
                imports = frozenset(name for node in ast.walk(tree) for name in imported_modules(node))
                content = _content(tree)
                uses = frozenset(name for node in ast.walk(tree) for name in _used_libraries(node))
                reads = content is None or any(_names_headers(node) for node in ast.walk(tree))
                self._python_files[blob] = _PythonFile(imports, content or blob, uses, reads)
        return self._python_files[blob]

    def _code(self, blob: str, mirror: Path) -> CodeFile | None:
        """What variants can reach in a file; None where that cannot be told, or its text may be part of that."""
        if blob not in self._code_files:
            is_code = self._read(blob, mirror).content != blob
            tree = parse_python(git.git("cat-file", "blob", blob, cwd=mirror)) if is_code else ast.Module([], [])
            self._code_files[blob] = read_code(tree) if is_code and _content(tree) is not None else None
        return self._code_files[blob]


def parse_python(source: str | bytes) -> ast.Module:
    """As ast.parse, for threads: two at a time may end in "SystemError: AST constructor recursion depth mismatch"."""
    with _PARSER:
        return ast.parse(source)


@lru_cache(maxsize=2**14)
def _native_folder(mirror: Path, name: str, item: str) -> str:
    """What a file or folder of native sources counts as. Ids tell contents, so that every process reads them once."""
    files = git.files_below(mirror, item, name)
    return f"{name} {_digest([(path, _native_content(mirror, path, blob)) for path, blob in files])}"


@lru_cache(maxsize=2**14)
def _headers(mirror: Path, folders: tuple[tuple[str, str], ...], common: str) -> str:
    """What the headers of all operators count as for one that is built of these folders: those that are included, by
    whatever path, or all where an include has no plain name."""
    headers = git.files_below(mirror, common, _HEADERS)
    pending = [blob for name, item in folders for _, blob in git.files_below(mirror, item, name)]
    reached, included = set(pending), set[tuple[str, str]]()
    while pending:
        names = _included(mirror, pending.pop())
        found = {(path, blob) for path, blob in headers if names is None or path.rpartition("/")[2] in names}
        new = {blob for _, blob in found} - reached
        pending += new
        reached |= new
        included |= found
    return f"{_HEADERS} {_digest([(path, _native_content(mirror, path, blob)) for path, blob in sorted(included)])}"


@lru_cache(maxsize=2**16)
def _included(mirror: Path, blob: str) -> frozenset[str] | None:
    """Last parts of the paths that a native file includes; None where they are not all plain."""
    code = _native_code(mirror, blob)
    if code is None or _READS_FILES.search(code):
        return None
    names = [_INCLUDED.match(line) for line in _INCLUDES.findall(code)]
    return frozenset(name[1].rpartition("/")[2] for name in names if name) if all(names) else None


@lru_cache(maxsize=2**16)
def _native_content(mirror: Path, path: str, blob: str) -> str:
    """A hash of a file of C++ or CUDA without comments; the id of any other file."""
    code = _native_code(mirror, blob) if path.endswith(_C_ENDS) else None
    return blob if code is None else _digest(code)


@lru_cache(maxsize=2**10)
def _native_code(mirror: Path, blob: str) -> str | None:
    """A file of C++ or CUDA without comments; two questions about it read it once."""
    return strip_comments(git.git("cat-file", "blob", blob, cwd=mirror))


def strip_comments(code: str) -> str | None:
    """C++ or CUDA without comments, and with one blank for each run of white space; None where it cannot be read.

    Lines stay lines, which directives end with. What stands in literals stays, also code that is compiled later.
    """
    if "\ufffd" in code:
        return None
    code, between, end = re.sub(r"\\\r?\n", "", code), "", 0
    pieces = list[str]()
    for token in _C_TOKENS.finditer(code):
        between += code[end : token.start()]
        end = token.end()
        if token["comment"]:
            between += " "
        else:
            pieces += [_squeeze(between), token[0]]
            between = ""
    return "".join([*pieces, _squeeze(between + code[end:])]).strip()


def _squeeze(code: str) -> str:
    return re.sub(r"\s*\n\s*", "\n", re.sub(r"[^\S\n]+", " ", code))


def _prefixes(measured: MeasuredCode | None, operator: str) -> list[str]:
    """Files and folders of the measured code that an operator names."""
    return [literal_prefix(glob) or "." for glob in measured.sources_of(operator)] if measured is not None else []


def literal_prefix(glob: str) -> str:
    """The folder or file in front of the first wildcard of a glob."""
    parts = glob.split("/")
    count = next((index for index, part in enumerate(parts) if any(mark in part for mark in "*?[")), len(parts))
    return "/".join(part for part in parts[:count] if part not in ("", "."))


def matches(path: str, globs: Iterable[str]) -> bool:
    """Whether a path matches one of the globs: `*` stays inside a folder, `**` crosses them, a folder is all in it."""
    return any(_expression(glob).fullmatch(path) is not None for glob in globs)


@lru_cache(maxsize=1024)
def _expression(glob: str) -> re.Pattern[str]:
    tokens = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    words = re.split(r"(\*\*/|\*\*|\*|\?)", glob.removeprefix("./").rstrip("/"))
    return re.compile("".join(tokens.get(word, re.escape(word)) for word in words) + "(?:/.*)?", re.DOTALL)


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()


def _content(tree: ast.Module) -> str | None:
    """A hash of what a file does, which its comments, its formatting and its words for readers do not change; None
    where it may read its own text."""
    nodes = list(ast.walk(tree))
    names = {getattr(node, field, None) for node in nodes for field in ("id", "attr", "module", "name")}
    if names & _READS_ITSELF:
        return None
    for node in nodes:
        if isinstance(node, _Documented) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "variant":
            node.keywords = [keyword for keyword in node.keywords if keyword.arg not in _WORDS]
    return _digest(ast.dump(tree))


def imported_modules(node: ast.AST) -> list[str]:
    """Whether what is imported from a package is a module or a name in it cannot be told here, so it counts as a
    module."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        start = "." * node.level + f"{node.module}." if node.module else "." * node.level
        return [start + alias.name for alias in node.names]
    return []


def _used_libraries(node: ast.AST) -> list[str]:
    """The operators in `uses=("matmul", …)`, as far as they are written there."""
    if not isinstance(node, ast.keyword) or node.arg != "uses":
        return []
    return [
        item.value for item in ast.walk(node.value) if isinstance(item, ast.Constant) and isinstance(item.value, str)
    ]


def _names_headers(node: ast.AST) -> bool:
    """Whether it is a path in the folder of headers."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and _HEADERS in node.value.split("/")


def _sibling(module: str, package: str) -> str | None:
    """Name of the file beside the importing one that `module` is or lies in; empty for the package itself, None for
    what lies elsewhere."""
    if module.startswith("."):
        return module[1:].split(".")[0]
    if module == package:
        return ""
    return module.removeprefix(f"{package}.").split(".")[0] if module.startswith(f"{package}.") else None
