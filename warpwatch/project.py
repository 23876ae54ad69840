"""Reads `warpwatch.toml`: the folders of operators and native sources, and the interpreter that runs them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import PurePosixPath

FILE_NAME = "warpwatch.toml"
KNOWN_KEYS = {"contract", "operators", "native", "interpreter"}


class ProjectError(ValueError):
    """warpwatch.toml cannot be used; the message names the key and the remedy."""


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
    return Project(contract, _folder(values, "operators", "kernels"), _folder(values, "native", "csrc"), interpreter)


def _folder(values: dict[str, object], key: str, default: str) -> str:
    value = values.get(key, default)
    if not isinstance(value, str) or not value:
        raise ProjectError(f"{FILE_NAME}: {key} must be a folder name in quotes")
    path = PurePosixPath(value)
    if path.is_absolute() or ".." in path.parts:
        raise ProjectError(f"{FILE_NAME}: {key} must be a folder inside the repository, not {value!r}")
    return value
