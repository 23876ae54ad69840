"""bench/same_code.py: what is kept of compiled code, and what is not."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from bench import compiled_launches
from bench.compiled_launches import Compiled
from bench.same_code import TritonHistory
from warpwatch import git
from warpwatch.definitions import newest_version, parse_source

DEFINITIONS = {
    "warpwatch.toml": 'contract = 1\noperators = "operators"\n[measured]\npackages = ["whole"]\n'
    'operators = {double = ["whole/double.py"]}\n',
    "operators/double.py": "import whole\n",
}
PACKAGE = {"whole/__init__.py": 'raise ImportError("needs the rest")\n', "whole/double.py": "ANSWER = 2\n"}


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_what_could_not_be_compiled_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository, definitions, cache = (tmp_path / name for name in ("repository", "definitions", "cache"))
    write(definitions, DEFINITIONS)
    write(repository, PACKAGE)
    name = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    for words in (("init", "-q"), ("add", "."), (*name, "commit", "-qm", "Add whole")):
        git.git(*words, cwd=repository)
    sha = git.git("rev-parse", "HEAD", cwd=repository).strip()
    mirror = git.update_mirror(str(repository), cache)
    version = newest_version(parse_source(str(definitions)), cache)
    files = ["whole/__init__.py", "whole/double.py"]
    results = [
        Compiled("", "the process ended", []),
        Compiled("", "no memory", files),
        Compiled("code", "", files),
    ]
    monkeypatch.setattr(compiled_launches, "compile_in_fork", lambda *_: results.pop(0))
    codes = []
    for repeats in (2, 1, 1):
        history = TritonHistory(mirror, cache, version, "quick", 2, [])
        identities = [history.identity(sha, "double") for _ in range(repeats)]
        codes += [identity.code for identity in identities if identity is not None]
    assert (codes, results) == ([None, None, "code", "code"], [])
    assert history.uncounted == {"double": {"whole/__init__.py"}}


def test_a_bare_package_runs_no_init(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, PACKAGE)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    compiled_launches.import_bare(tmp_path, ["whole"])
    assert importlib.import_module("whole.double").ANSWER == 2
