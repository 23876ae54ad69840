"""Reads `warpwatch.toml`: the folders of operators and native sources, the interpreter that runs them, and benchmark
programs."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from warpwatch.formats import FORMATS

FILE_NAME = "warpwatch.toml"
KNOWN_KEYS = {"contract", "operators", "native", "interpreter", "program"}
PROGRAM_KEYS = {"name", "command", "format", "build", "check", "sources"}
_PROGRAM_LIMIT = 200
_COMMAND_LIMIT = 4000
_NAME = re.compile(r"[A-Za-z_]\w{0,99}")


class ProjectError(ValueError):
    """warpwatch.toml cannot be used; the message names the key and the remedy."""


@dataclass(frozen=True, slots=True)
class Program:
    """A benchmark program of the repository: an operator whose cases are its benchmarks.

    command: for the shell, in the worktree; it prints its results, or writes them to $WARPWATCH_OUTPUT.
    format: one of warpwatch.formats.FORMATS. build: command that runs once before, and leaves what it makes in
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
class Project:
    """The settings of one repository.

    contract: version of the SDK contract that its operator files are written for.
    operators: folder of operator files, relative to the repository's root.
    native: folder with one sub-folder of native sources per operator.
    interpreter: the Python that runs them; None means the worker's own.
    """

    contract: int = 1
    operators: str = "kernels"
    native: str = "csrc"
    interpreter: str | None = None
    programs: tuple[Program, ...] = ()

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
    unknown = sorted(set(values) - KNOWN_KEYS)
    if unknown:
        raise ProjectError(f"{FILE_NAME}: unknown key {unknown[0]!r}; known keys are {', '.join(sorted(KNOWN_KEYS))}")
    contract = values.get("contract", 1)
    if not isinstance(contract, int):
        raise ProjectError(f"{FILE_NAME}: contract must be a whole number")
    interpreter = values.get("interpreter")
    if interpreter is not None and not isinstance(interpreter, str):
        raise ProjectError(f"{FILE_NAME}: interpreter must be a path in quotes")
    folders = _folder(values, "operators", "kernels"), _folder(values, "native", "csrc")
    return Project(contract, *folders, interpreter, _programs(values.get("program", [])))


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
    if values.get("format") not in FORMATS:
        raise ProjectError(f"{where}: format must be one of {', '.join(FORMATS)}")
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


def _folder(values: dict[str, object], key: str, default: str) -> str:
    value = values.get(key, default)
    if not isinstance(value, str) or not value:
        raise ProjectError(f"{FILE_NAME}: {key} must be a folder name in quotes")
    path = PurePosixPath(value)
    if path.is_absolute() or ".." in path.parts:
        raise ProjectError(f"{FILE_NAME}: {key} must be a folder inside the repository, not {value!r}")
    return value
