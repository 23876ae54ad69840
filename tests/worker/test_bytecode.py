"""Byte code is made once, outside of any commit's code, and children read it without being able to write it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.worker.jailed_code import CHILD, TRY, contents, isolated_host, run
from warpwatch.settings import Settings
from warpwatch.worker import bytecode
from warpwatch.worker.host import Host

IMPORTING = """
import sys, torch
print(torch.__cached__, sys.pycache_prefix)
"""
PLANTING = f"""{TRY}
import pathlib, sys
folder = pathlib.Path(sys.pycache_prefix)
(compiled,) = folder.rglob("torch/__init__*.pyc")
attempt(lambda: compiled.write_bytes(b"planted"), lambda: compiled.unlink(), lambda: compiled.chmod(0o777),
        lambda: (folder / "planted.pyc").write_bytes(b""), lambda: folder.rename(folder.with_name("other")))
"""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A worker's host, whose interpreter has a small torch without byte code."""
    host = isolated_host(tmp_path / "home")
    package = tmp_path / "packages" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("answer = 42\n")
    (tmp_path / "importing.py").write_text("import torch\n")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.setattr(bytecode, "BOOTSTRAP", tmp_path / "importing.py")
    bytecode.read_interpreter.cache_clear()
    bytecode.prepare.cache_clear()
    return host


def test_a_child_reads_byte_code_and_cannot_plant_any(host: Host, tmp_path: Path) -> None:
    (words,) = run(host, tmp_path / "good", IMPORTING)
    compiled, prefix = words.split()
    assert Path(prefix).parent == host.home / bytecode.FOLDER
    assert Path(compiled).is_file()
    assert Path(compiled).is_relative_to(prefix)
    before = contents(host.home / bytecode.FOLDER)
    assert run(host, tmp_path / "hostile", PLANTING) == ["refused"] * 5
    assert contents(host.home / bytecode.FOLDER) == before


def test_an_interpreter_with_byte_code_needs_none(host: Host, tmp_path: Path) -> None:
    folder = tmp_path / "packages" / "torch" / "__pycache__"
    folder.mkdir()
    (folder / f"__init__.{sys.implementation.cache_tag}.pyc").touch()
    assert run(host, tmp_path / "good", "import sys; print(sys.pycache_prefix)") == ["None"]


def test_other_packages_have_other_byte_code(host: Host, tmp_path: Path) -> None:
    python = host.empty_child(tmp_path).command()[0]
    before = bytecode.prepare(host.home, python, host.confinement())
    installed = tmp_path / "packages" / "more-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: more\nVersion: 1.0\n")
    bytecode.read_interpreter.cache_clear()
    bytecode.prepare.cache_clear()
    after = bytecode.prepare(host.home, python, host.confinement())
    assert before is not None
    assert after is not None
    assert before != after


@pytest.mark.parametrize("program", ["/bin/true", "/bin/false", "/usr/bin/yes"])
def test_a_program_that_is_no_interpreter_gets_none(host: Host, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bytecode, "_LOOK_SECONDS", 1.0)
    assert bytecode.prepare(host.home, program, host.confinement()) is None
    assert not (host.home / bytecode.FOLDER).exists()


def test_without_namespaces_there_is_none(host: Host, tmp_path: Path) -> None:
    """There a child could write to the folder."""
    settings = Settings(home=host.home, isolation="network")
    open_host = Host(settings, "cpu", bootstrap=CHILD)
    assert run(open_host, tmp_path / "good", "import sys; print(sys.pycache_prefix)") == ["None"]
