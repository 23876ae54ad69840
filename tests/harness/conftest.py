"""One repository and one child for most tests, because importing torch takes long."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.child import Harness, lay_out_libraries

SOURCE = Path(__file__).parent / "repository"
UNLOADABLE = {
    "syntax.py": "def broken(:\n",
    "missing.py": "import a_package_that_nobody_has\n",
    "leaves.py": "import sys\nsys.exit(0)\n",
    "nothing.py": "x = 1\n",
    "misnamed.py": "from kernels.scale import operator\n",
}


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("builds") / "cache"


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's worktree: right and wrong operators, files that do not load, and packages named like the service's."""
    root = tmp_path_factory.mktemp("repository") / "worktree"
    shutil.copytree(SOURCE, root, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in UNLOADABLE.items():
        (root / "kernels" / name).write_text(text)
    return root


@pytest.fixture(scope="session")
def harness(repository: Path, cache: Path) -> Iterator[Harness]:
    """A child on the CPU that all tests share; no test may end it."""
    lay_out_libraries(repository, cache, "native_scale", "native_broken")
    child = Harness(repository, cache)
    yield child
    assert child.stop() == 0, child.log.read_text()
