"""Keeps the code of a measured commit apart from the definitions that measure it.

The packages that warpwatch.toml declares come from the measured commit, and nothing else of it can be imported: its
folder is on no path, so that it cannot bring a `torch`, a `warpwatch` or a module of the definitions. Code of the
commit may still put modules into sys.modules or change what is there; what belongs to the definitions is therefore
remembered when it is loaded, and compared.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from warpwatch.contract.words import Fault

from ..failures import WrongResultError


@dataclass(frozen=True, slots=True)
class MeasuredFolders:
    """Where the measured packages lie, the first folder first, and their names."""

    folders: tuple[Path, ...]
    packages: frozenset[str]


class MeasuredFinder(MetaPathFinder):
    """Finds the declared packages in the measured commit, and nowhere else."""

    def __init__(self, measured: MeasuredFolders) -> None:
        self._measured = measured

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,  # noqa: ARG002 - Python passes it
    ) -> ModuleSpec | None:
        if path is not None or fullname not in self._measured.packages:
            return None
        spec = PathFinder.find_spec(fullname, [str(folder) for folder in self._measured.folders])
        if spec is None:
            # An installed package of the same name would be measured in its place.
            raise ModuleNotFoundError(f"this commit has no module {fullname!r}", name=fullname)
        return spec


class DefinitionsFinder(MetaPathFinder):
    """Finds the modules of the definitions in their own folder, and remembers them."""

    def __init__(self, root: Path, packages: frozenset[str]) -> None:
        self._root = root
        names = {path.name.removesuffix(".py") for path in root.iterdir() if path.is_dir() or path.suffix == ".py"}
        # A folder such as `docs` is no module of theirs where the harness has one of that name.
        self._names = {name for name in names if name.isidentifier() and name not in sys.modules} - packages
        self._loaded: dict[str, ModuleType] = {}

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - Python passes it
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        parent, _, _ = fullname.rpartition(".")
        if fullname.partition(".")[0] not in self._names:
            return None
        # The path of a package can be changed by whoever has the package, so it is not asked.
        spec = PathFinder.find_spec(fullname, [str(self._root.joinpath(*parent.split(".")))])
        if spec is not None:
            locations = spec.submodule_search_locations
            spec.submodule_search_locations = None if locations is None else list(locations)
            spec.loader = _RememberingLoader(spec.loader, self._loaded)
        return spec

    def expect_intact(self) -> None:
        """Raises WrongResultError for modules of the definitions that others put into sys.modules, and puts back what
        was loaded."""
        foreign = [
            name
            for name, module in list(sys.modules.items())
            if name.partition(".")[0] in self._names and module is not self._loaded.get(name)
        ]
        for name in foreign:
            sys.modules.pop(name, None)
            if name in self._loaded:
                sys.modules[name] = self._loaded[name]
        if foreign:
            names = sorted(foreign)[:5]
            message = f"The measured code replaces modules of the definitions: {', '.join(names)}"
            raise WrongResultError(message, Fault.REPLACED_FUNCTION, *names)


class _RememberingLoader(Loader):
    """Loads a module of the definitions and remembers it before its code runs. A folder without __init__.py has no
    loader of its own."""

    def __init__(self, loader: Loader | None, loaded: dict[str, ModuleType]) -> None:
        self._loader = loader if hasattr(loader, "exec_module") else None
        self._loaded = loaded

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec) if self._loader is not None else None

    def exec_module(self, module: ModuleType) -> None:
        self._loaded[module.__name__] = module
        if self._loader is not None:
            self._loader.exec_module(module)

    def __getattr__(self, name: str) -> Any:
        """Sources for tracebacks and compilers."""
        return getattr(self.__dict__["_loader"], name)
