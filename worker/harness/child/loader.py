"""Loads the operator files of a worktree."""

from __future__ import annotations

import importlib
import re
import sys
import traceback
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

from warpwatch.contract.catalogue import CaseEntry, Catalogue, OperatorEntry, VariantEntry
from warpwatch.contract.words import Status
from warpwatch.operator import CONTRACT, Case, Operator, Variant

from ..failures import MESSAGE_LIMIT, Refusal, WrongResultError
from ..guards.integrity import TamperGuard, watch
from .measured import DefinitionsFinder, MeasuredFinder, MeasuredFolders


class OperatorFileError(Exception):
    """A file loads but defines no proper operator; the message names the file and the remedy."""


class Loader:
    """The operators of one worktree. A file that loads is imported once; a broken one is imported again on request."""

    def __init__(
        self,
        root: Path,
        operators: str,
        guard: TamperGuard | None = None,
        measured: MeasuredFolders | None = None,
    ) -> None:
        self._folder = root / operators
        self._package = ".".join(PurePosixPath(operators).parts)
        self._root = root
        self._loaded: dict[str, Operator] = {}
        self._guard = guard or TamperGuard()
        self._definitions = DefinitionsFinder(root, measured.packages) if measured is not None else None
        if measured is not None and self._definitions is not None:
            sys.meta_path[:0] = [MeasuredFinder(measured), self._definitions]
            # What a build installed beside the packages, behind everything that the harness or a reference may import.
            sys.path += [str(folder) for folder in measured.folders[:-1]]
        else:
            # First on the path, so that the commit's packages win over equally named ones of the interpreter's
            # environment.
            sys.path.insert(0, str(root))

    def names(self) -> list[str]:
        """Names of the operator files, sorted; files that begin with an underscore are helpers."""
        return sorted(path.stem for path in self._folder.glob("*.py") if not path.stem.startswith("_"))

    def load(self, name: str) -> Operator:
        """The operator in <operators>/<name>.py.

        Raises Refusal for a missing file, OperatorFileError for a file without an operator, or what the file raises.
        """
        if name not in self._loaded:
            if name not in self.names():
                raise Refusal(Status.SKIPPED, f"This commit has no operator {name!r}")
            if self._definitions is None:
                self._ensure_packages()
            # A file may change settings; they are restored, and the harness sets what it needs for every case.
            with watch(self._guard, "The operator file", may_set=True):
                module = importlib.import_module(f"{self._package}.{name}")
                if self._definitions is not None:
                    self._definitions.expect_intact()
            operator = getattr(module, "operator", None)
            if not isinstance(operator, Operator):
                raise OperatorFileError(
                    f"{name}.py defines no module-level `operator = Operator(...)`: define it, or begin the file name "
                    "of a helper with an underscore"
                )
            if operator.name != name:
                raise OperatorFileError(
                    f"{name}.py defines an operator called {operator.name!r}: give file and operator the same name"
                )
            if self._definitions is not None:
                self._guard.protect(operator)
            self._loaded[name] = operator
        return self._loaded[name]

    def catalogue(self, only: str | None = None) -> Catalogue:
        """Every operator of the commit, or `only` one; an entry that does not load has an error and empty lists."""
        return Catalogue(CONTRACT, [self._entry(name) for name in self.names() if only in (None, name)])

    def _entry(self, name: str) -> OperatorEntry:
        try:
            return describe(self.load(name))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a file may raise anything, which must not affect other entries.
            if isinstance(error, (OperatorFileError, WrongResultError)):
                return OperatorEntry(name, "", [], [], str(error))
            text = "".join(traceback.format_exception(error)).rstrip()
            missing = _missing_module(error, self._folder)
            return OperatorEntry(name, "", [], [], text[-MESSAGE_LIMIT:], missing_module=missing)

    def _ensure_packages(self) -> None:
        """Makes packages of folders without __init__.py; otherwise an installed package of that name would win."""
        folder, parts = self._root, self._package.split(".")
        for depth, part in enumerate(parts, start=1):
            folder /= part
            name = ".".join(parts[:depth])
            if name not in sys.modules and not (folder / "__init__.py").exists():
                package = ModuleType(name)
                package.__path__ = [str(folder)]
                sys.modules[name] = package


_MISSING_NAME = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")
"""Python's message where a module exists and lacks a name, which Python 3.11 keeps nowhere else."""


def _missing_module(error: BaseException, folder: Path) -> str | None:
    """The module that an import did not find, or the module and the name that an import in `folder` did not find in it;
    None for any other error.

    A module that imports a name which another lacks is broken, and so is a package that imports a module which it lacks
    itself; a definition that does so belongs to other commits.
    """
    if isinstance(error, ModuleNotFoundError):
        importers = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
        own, name = (importers[-1] if importers else "").partition(".")[0], error.name or ""
        return None if own == name.partition(".")[0] else error.name
    missing = _MISSING_NAME.match(str(error)) if isinstance(error, ImportError) else None
    if missing is None or error.__traceback__ is None:
        return None
    *_, (last, _) = traceback.walk_tb(error.__traceback__)
    return f"{missing[2]}.{missing[1]}" if Path(last.f_code.co_filename).is_relative_to(folder) else None


def find(operator: Operator, variant: str, case: str) -> tuple[Variant, Case]:
    """The variant and case by name and key; raises Refusal with status skipped when the commit lacks one of them."""
    if variant not in operator.variants:
        raise Refusal(Status.SKIPPED, f"This commit's operator {operator.name} has no variant {variant!r}")
    matching_case = operator.find_case(case)
    if matching_case is None:
        raise Refusal(Status.SKIPPED, f"This commit's operator {operator.name} has no case {case!r}")
    return operator.variants[variant], matching_case


def describe(operator: Operator) -> OperatorEntry:
    """The catalogue entry of an operator."""
    variants = [
        VariantEntry(v.name, v.idea, v.outcome, list(v.devices), v.native, v.since) for v in operator.variants.values()
    ]
    cases = [case_entry(operator, case) for case in operator.all_cases()]
    return OperatorEntry(
        operator.name,
        operator.summary,
        variants,
        cases,
        uses=list(operator.uses),
        timeout_factor=operator.timeout_factor,
        questions=list(operator.questions),
    )


def case_entry(operator: Operator, case: Case) -> CaseEntry:
    """The catalogue entry of a case; one that is not declared is of no suite."""
    cost = operator.cost_of(case)
    suites = [name for name, cases in operator.cases.items() if case in cases]
    sizes: dict[str, Any] = {name: list(size) if isinstance(size, tuple) else size for name, size in case.sizes}
    return CaseEntry(
        case.key, sizes, case.precision, case.direction, case.layout, suites, int(cost.flops), int(cost.bytes)
    )
