"""The toolchains that this machine offers, by name: interpreters with their packages, compilers and flags; and the
container images that it allows.

`worker.toml` in the home folder of Warpwatch names them:

    images = ["registry.example/kernels/cuda-12@sha256:…"]

    [toolchain.triton-3-7]
    interpreter = "/opt/triton-3.7/bin/python"

    [toolchain.o1]
    variables = { CXXFLAGS = "-O1" }

Without a toolchain a commit is measured with the interpreter that its warpwatch.toml asks for.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warpwatch.contract.spec import TOOLCHAIN_NAME
from warpwatch.project import IMAGE

FILE_NAME = "worker.toml"
_KEYS = {"interpreter", "variables"}
_VARIABLE = re.compile(r"[A-Za-z_]\w*")
_RESERVED = ("WARPWATCH_", "HOME", "TMPDIR")
"""Beginnings of variables that a child gets from its parent alone."""


class ToolchainError(ValueError):
    """worker.toml cannot be used, or lacks a toolchain; the message says what to write."""


OWN_INTERPRETER = ""
"""The worker's own interpreter, whatever a commit asks for."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """The tools that build and run a commit. interpreter: a path, or OWN_INTERPRETER; None means that of the commit.
    variables: environment variables of children, such as CXX, CXXFLAGS and NVCCFLAGS of native builds."""

    name: str
    interpreter: str | None = None
    variables: tuple[tuple[str, str], ...] = ()


OF_COMMIT = Toolchain("of-commit")
"""The interpreter that the commit's warpwatch.toml asks for, and no variables."""


def find_toolchain(home: Path, name: str) -> Toolchain:
    """The toolchain of this name; ToolchainError where worker.toml does not have it."""
    toolchains = read_toolchains(home)
    if name not in toolchains:
        known = ", ".join(toolchains) or "none"
        raise ToolchainError(
            f"this worker has no toolchain {name!r}, it has {known}; write [toolchain.{name}] into {home / FILE_NAME}"
        )
    return toolchains[name]


def read_toolchains(home: Path) -> dict[str, Toolchain]:
    """Every toolchain of this machine in the order of the file; none without one."""
    path, values = home / FILE_NAME, _read(home)
    tables = values.get("toolchain", {})
    if not isinstance(tables, dict):
        raise ToolchainError(f"{path}: write one [toolchain.NAME] table for each toolchain")
    return {name: _toolchain(f"{path}: toolchain.{name}", name, table) for name, table in tables.items()}


def read_images(home: Path) -> tuple[str, ...]:
    """The container images that this machine allows; none without the file."""
    images = _read(home).get("images", [])
    if not isinstance(images, list) or not all(isinstance(image, str) and IMAGE.fullmatch(image) for image in images):
        words = 'images must be a list of images with their digests, such as ["registry.example/cuda@sha256:…"]'
        raise ToolchainError(f"{home / FILE_NAME}: {words}")
    return tuple(images)


def _read(home: Path) -> dict[str, Any]:
    path = home / FILE_NAME
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ToolchainError(f"{path}: {error}") from error
    if set(values) - {"toolchain", "images"}:
        raise ToolchainError(f"{path}: write one [toolchain.NAME] table for each toolchain, `images`, and nothing else")
    return values


def _toolchain(where: str, name: str, table: Any) -> Toolchain:
    if not TOOLCHAIN_NAME.fullmatch(name):
        raise ToolchainError(f"{where}: name it in letters, digits, dots, dashes and underscores")
    if not isinstance(table, dict) or set(table) - _KEYS:
        raise ToolchainError(f"{where}: known keys are {', '.join(sorted(_KEYS))}")
    interpreter, variables = table.get("interpreter"), table.get("variables", {})
    if interpreter is not None and not isinstance(interpreter, str):
        raise ToolchainError(f"{where}: interpreter must be a path in quotes")
    if not isinstance(variables, dict) or not all(isinstance(value, str) for value in variables.values()):
        raise ToolchainError(f"{where}: variables must be a table of texts")
    for variable in variables:
        if not _VARIABLE.fullmatch(variable) or variable.startswith(_RESERVED):
            raise ToolchainError(f"{where}: the variable {variable!r} cannot be set")
    return Toolchain(name, interpreter, tuple(sorted(variables.items())))
