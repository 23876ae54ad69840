"""Loads the operator files of a worktree."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

from warpwatch.contract.catalogue import CaseEntry, Catalogue, OperatorEntry, VariantEntry
from warpwatch.contract.words import Status
from warpwatch.operator import CONTRACT, Case, Operator, Variant

from .failures import MESSAGE_LIMIT, Refusal, WrongResultError
from .integrity import TamperGuard, watch


class OperatorFileError(Exception):
    """An operator file loads but is not one; the message names the file and the remedy."""


class Loader:
    """The operators of one worktree; every file is imported at most once, a broken one is tried again when asked for
    again."""

    def __init__(self, root: Path, operators: str, seal: TamperGuard | None = None) -> None:
        self._folder = root / operators
        self._package = ".".join(PurePosixPath(operators).parts)
        self._root = root
        self._loaded: dict[str, Operator] = {}
        self._seal = seal or TamperGuard()
        # First, so that the commit's own packages win over equally named ones of the interpreter's environment.
        sys.path.insert(0, str(root))

    def names(self) -> list[str]:
        """Names of the operator files; those that begin with an underscore are helpers of others."""
        return sorted(path.stem for path in self._folder.glob("*.py") if not path.stem.startswith("_"))

    def load(self, name: str) -> Operator:
        """The operator in <operators>/<name>.py.

        Raises whatever the file raises, OperatorFileError when it is no operator file.
        """
        if name not in self._loaded:
            if name not in self.names():
                raise Refusal(Status.SKIPPED, f"this commit has no operator {name!r}")
            self._ensure_packages()
            # What a file sets for itself is put back without a word: the harness sets what it needs for every case.
            with watch(self._seal, "its file", may_set=True):
                module = importlib.import_module(f"{self._package}.{name}")
            self._loaded[name] = _operator_of(module, name)
        return self._loaded[name]

    def catalogue(self, only: str | None = None) -> Catalogue:
        """Every operator of the commit, or `only` one; one that does not load has an error and nothing else."""
        return Catalogue(CONTRACT, [self._entry(name) for name in self.names() if only in (None, name)])

    def _entry(self, name: str) -> OperatorEntry:
        try:
            return describe(self.load(name))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a file may raise anything, and costs its own entry only
            if isinstance(error, (OperatorFileError, WrongResultError)):
                return OperatorEntry(name, "", [], [], str(error))
            text = "".join(traceback.format_exception(error)).rstrip()
            return OperatorEntry(name, "", [], [], text[-MESSAGE_LIMIT:])

    def _ensure_packages(self) -> None:
        """Makes packages of folders that have no __init__.py, which else would lose against any installed package of
        their name."""
        folder, parts = self._root, self._package.split(".")
        for depth, part in enumerate(parts, start=1):
            folder /= part
            name = ".".join(parts[:depth])
            if name not in sys.modules and not (folder / "__init__.py").exists():
                package = ModuleType(name)
                package.__path__ = [str(folder)]
                sys.modules[name] = package


def find(operator: Operator, variant: str, case: str) -> tuple[Variant, Case]:
    """The variant and case called so; a commit that lacks one of them is a reason to skip and not an error."""
    if variant not in operator.variants:
        raise Refusal(Status.SKIPPED, f"this commit's operator {operator.name} has no variant {variant!r}")
    found = operator.find_case(case)
    if found is None:
        raise Refusal(Status.SKIPPED, f"this commit's operator {operator.name} has no case {case!r}")
    return operator.variants[variant], found


def describe(operator: Operator) -> OperatorEntry:
    """An operator as the catalogue knows it."""
    variants = [VariantEntry(v.name, v.idea, v.outcome, list(v.devices), v.native) for v in operator.variants.values()]
    return OperatorEntry(
        operator.name, operator.summary, variants, [_case_entry(operator, case) for case in operator.all_cases()]
    )


def _case_entry(operator: Operator, case: Case) -> CaseEntry:
    cost = operator.cost(case)
    suites = [name for name, cases in operator.cases.items() if case in cases]
    sizes: dict[str, Any] = {name: list(size) if isinstance(size, tuple) else size for name, size in case.sizes}
    return CaseEntry(
        case.key, sizes, case.precision, case.direction, case.layout, suites, int(cost.flops), int(cost.bytes)
    )


def _operator_of(module: ModuleType, name: str) -> Operator:
    operator = getattr(module, "operator", None)
    if not isinstance(operator, Operator):
        raise OperatorFileError(
            f"{name}.py defines no module-level `operator = Operator(...)`; rename helpers to begin with an underscore"
        )
    if operator.name != name:
        raise OperatorFileError(
            f"{name}.py defines an operator called {operator.name!r}; file and operator must share one name"
        )
    return operator
