"""Reads `warpwatch.toml`: the folders of operators and native sources, the interpreter that runs them, benchmark
programs, and the packages that operators measure."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from warpwatch.formats import PROGRAM_FORMATS

FILE_NAME = "warpwatch.toml"
KNOWN_KEYS = {"contract", "operators", "native", "interpreter", "container", "measured", "program"}
PROGRAM_KEYS = {"name", "command", "format", "build", "check", "sources"}
_PROGRAM_LIMIT = 200
_COMMAND_LIMIT = 4000
_NAME = re.compile(r"[A-Za-z_]\w{0,99}")
MEASURED_KEYS = {"path", "packages", "sources", "operators", "build", "inputs"}
PROTECTED = {*sys.stdlib_module_names, "warpwatch", "torch", "torchgen", "numpy", "triton", "sympy"}
"""Packages that the harness itself imports: no commit may bring its own."""
REPOSITORY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Names of repositories, which stand in addresses and in names of files."""
REPOSITORY_NAME_REMEDY = "use letters, digits, dots, dashes and underscores, a letter or digit first, 100 at most"
EVERY, NAME = "*", "{operator}"
"""The key of `[measured.operators]` for operators that it does not name, and what stands for an operator's name."""
_PACKAGE = re.compile(r"[A-Za-z_]\w*")
IMAGE = re.compile(r"[a-z0-9][a-z0-9._:/-]{0,250}@sha256:[0-9a-f]{64}")
"""A container image with its digest: a tag may name another image tomorrow."""


class ProjectError(ValueError):
    """warpwatch.toml cannot be used; the message names the key and the remedy."""


class IncompleteCommitError(ProjectError):
    """A commit lacks files that it needs, because git keeps them elsewhere; the message names the first one."""


@dataclass(frozen=True, slots=True)
class Program:
    """A benchmark program of the repository: an operator whose cases are its benchmarks.

    command: for the shell, in the worktree; it prints its results, or writes them to $WARPWATCH_OUTPUT.
    format: one of warpwatch.formats.PROGRAM_FORMATS. build: command that runs once before, and leaves what it makes in
    $WARPWATCH_BUILD. check: command whose exit status says whether the program is right; by default `command`.
    sources: files and folders that it is made of; none means the whole commit.
    """

    name: str
    command: str
    format: str
    build: str | None = None
    check: str | None = None
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MeasuredCode:
    """Code that definitions measure in each commit.

    path: the folder that holds the packages. packages: the modules at its top that operator files may import; all other
    modules come from the definitions or the interpreter. sources: globs of the files whose change may change a result;
    by default the packages. by_operator: the same for single operators, and for all others under EVERY. build: the
    shell command that builds a commit; without it nothing is built. inputs: globs of the files that the build
    reads; by default every file.
    """

    path: str
    packages: tuple[str, ...]
    sources: tuple[str, ...]
    by_operator: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    build: str | None = None
    inputs: tuple[str, ...] = ()

    def sources_of(self, operator: str) -> tuple[str, ...]:
        """The globs of the files that an operator measures, with those that its build reads."""
        own = self.by_operator.get(operator) or self.by_operator.get(EVERY) or self.sources
        return tuple(glob.replace(NAME, operator) for glob in (*own, *self._build_inputs()))

    def visible(self) -> tuple[str, ...]:
        """The globs of all files of a commit that a child may read."""
        globs = (*self.sources, *(glob for group in self.by_operator.values() for glob in group))
        return tuple(glob.replace(NAME, "*") for glob in (*globs, *self._build_inputs()))

    def _build_inputs(self) -> tuple[str, ...]:
        return () if self.build is None else self.inputs or ("**",)


@dataclass(frozen=True, slots=True)
class Project:
    """The settings of one repository.

    contract: version of the SDK contract that its operator files are written for.
    operators: folder of operator files, relative to the repository's root.
    native: folder with one sub-folder of native sources per operator.
    interpreter: the Python that runs them; by default the worker's own, or `python3` of the image.
    image: the container image in which they are built and run; by default the worker's own files.
    measured: the packages that the operators import from the measured commit; None where they are all there is.
    """

    contract: int = 1
    operators: str = "kernels"
    native: str = "csrc"
    interpreter: str | None = None
    measured: MeasuredCode | None = None
    programs: tuple[Program, ...] = ()
    image: str | None = None

    @property
    def runtime(self) -> str | None:
        """Interpreter and image that run the operators; None for the worker's own interpreter."""
        return self.interpreter if self.image is None else f"{self.image} {self.interpreter or ''}".strip()

    @property
    def needs_template(self) -> bool:
        """Whether its children run in the worker's interpreter, and with torch."""
        return self.runtime is None and not self.programs

    def program(self, name: str) -> Program | None:
        """The program of this name; None where the operator is none."""
        return next((program for program in self.programs if program.name == name), None)

    def with_programs(self, operators: list[str]) -> list[str]:
        """The operators in files, and those that are programs."""
        return sorted({*operators, *(program.name for program in self.programs)})


def parse_project(text: str | None) -> Project:
    """The project in the text of a warpwatch.toml; the defaults for None. Raises ProjectError for a wrong value."""
    if text is None:
        return Project()
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ProjectError(f"{FILE_NAME} is not valid TOML: {error}") from error
    _expect_known(values, KNOWN_KEYS, "")
    contract = values.get("contract", 1)
    if not isinstance(contract, int):
        raise ProjectError(f"{FILE_NAME}: contract must be a whole number")
    interpreter = values.get("interpreter")
    if interpreter is not None and not isinstance(interpreter, str):
        raise ProjectError(f"{FILE_NAME}: interpreter must be a path in quotes")
    folders = _folder(values, "operators", "kernels"), _folder(values, "native", "csrc")
    measured = _measured(values["measured"]) if "measured" in values else None
    image = _image(values["container"]) if "container" in values else None
    return Project(contract, *folders, interpreter, measured, _programs(values.get("program", [])), image)


def _image(values: object) -> str:
    if not isinstance(values, dict):
        raise ProjectError(f"{FILE_NAME}: container must be a table, `[container]`")
    _expect_known(values, {"image"}, "container.")
    image = values.get("image")
    if not isinstance(image, str) or not IMAGE.fullmatch(image):
        raise ProjectError(f'{FILE_NAME}: container.image must be an image with its digest, "NAME@sha256:…", in quotes')
    return image


def _programs(values: object) -> tuple[Program, ...]:
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise ProjectError(f"{FILE_NAME}: program must be written as [[program]] with the keys below it")
    if len(values) > _PROGRAM_LIMIT:
        raise ProjectError(f"{FILE_NAME}: more than {_PROGRAM_LIMIT} programs; let one run several benchmarks")
    programs = tuple(_program(number, value) for number, value in enumerate(values, start=1))
    names = [program.name for program in programs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ProjectError(f"{FILE_NAME}: two programs are called {twice!r}; give each its own name")
    return programs


def _program(number: int, values: dict[str, Any]) -> Program:
    name = values.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ProjectError(f"{FILE_NAME}: program {number}: name must be letters, digits and underscores in quotes")
    where = f"{FILE_NAME}: program {name}"
    unknown = sorted(set(values) - PROGRAM_KEYS)
    if unknown:
        raise ProjectError(f"{where}: unknown key {unknown[0]!r}; known keys are {', '.join(sorted(PROGRAM_KEYS))}")
    if values.get("format") not in PROGRAM_FORMATS:
        raise ProjectError(f"{where}: format must be one of {', '.join(PROGRAM_FORMATS)}")
    commands = {key: values.get(key) for key in ("command", "build", "check")}
    for key, command in commands.items():
        if command is None and key != "command":
            continue
        if not isinstance(command, str) or not command.strip() or len(command) > _COMMAND_LIMIT or "\0" in command:
            raise ProjectError(f"{where}: {key} must be a command in quotes, of at most {_COMMAND_LIMIT} characters")
    sources = values.get("sources", [])
    if not isinstance(sources, list):
        raise ProjectError(f"{where}: sources must be a list of files and folders")
    paths = tuple(_folder({"sources": path}, "sources", "") for path in sources)
    return Program(name, str(commands["command"]), values["format"], commands["build"], commands["check"], paths)


def _expect_known(values: Mapping[str, object], known: set[str], table: str) -> None:
    unknown = sorted(set(values) - known)
    if unknown:
        raise ProjectError(
            f"{FILE_NAME}: unknown key {table + unknown[0]!r}; known keys are {', '.join(sorted(known))}"
        )


def _measured(values: object) -> MeasuredCode:
    if not isinstance(values, dict):
        raise ProjectError(f"{FILE_NAME}: measured must be a table, `[measured]`")
    _expect_known(values, MEASURED_KEYS, "measured.")
    path = _folder(values, "path", ".")
    packages = _texts(values.get("packages"), "measured.packages", "module names")
    for package in packages:
        if not _PACKAGE.fullmatch(package):
            raise ProjectError(f"{FILE_NAME}: measured.packages names {package!r}, which is no module at the top level")
        if package in PROTECTED:
            raise ProjectError(
                f"{FILE_NAME}: measured.packages names {package!r}, which the harness itself imports; it cannot be "
                "measured from a commit"
            )
    if not packages:
        raise ProjectError(f'{FILE_NAME}: measured.packages must name what is measured, such as ["einops"]')
    prefix = "" if path == "." else f"{path}/"
    whole = tuple(name for package in packages for name in (f"{prefix}{package}/**", f"{prefix}{package}.py"))
    by_operator = values.get("operators", {})
    if not isinstance(by_operator, dict):
        raise ProjectError(f"{FILE_NAME}: measured.operators must be a table from operators to globs")
    build = values.get("build")
    if build is not None and (not isinstance(build, str) or not build.strip()):
        raise ProjectError(f"{FILE_NAME}: measured.build must be a shell command in quotes")
    return MeasuredCode(
        path,
        packages,
        _texts(values.get("sources"), "measured.sources", "globs") or whole,
        {str(name): _texts(globs, f"measured.operators.{name}", "globs") for name, globs in by_operator.items()},
        build,
        _texts(values.get("inputs"), "measured.inputs", "globs"),
    )


def _texts(values: object, key: str, what: str) -> tuple[str, ...]:
    if values is None:
        return ()
    if not isinstance(values, list) or not all(isinstance(value, str) and value for value in values):
        raise ProjectError(f"{FILE_NAME}: {key} must be a list of {what} in quotes")
    for value in values:
        if PurePosixPath(value).is_absolute() or ".." in PurePosixPath(value).parts or "\0" in value:
            raise ProjectError(f"{FILE_NAME}: {key} must lie inside the repository, not {value!r}")
    return tuple(values)


def _folder(values: Mapping[str, object], key: str, default: str) -> str:
    value = values.get(key, default)
    if not isinstance(value, str) or not value:
        raise ProjectError(f"{FILE_NAME}: {key} must be a folder name in quotes")
    path = PurePosixPath(value)
    if path.is_absolute() or ".." in path.parts:
        raise ProjectError(f"{FILE_NAME}: {key} must be a folder inside the repository, not {value!r}")
    return str(path) if key == "path" else value
