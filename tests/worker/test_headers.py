"""torch's headers are precompiled once, outside of any commit's code, and children use them and cannot change them."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.worker.jailed_code import TRY, contents, isolated_host, run
from warpwatch.settings import Settings
from warpwatch.worker import bytecode, headers
from warpwatch.worker.host import Host

COMPILING = """
import os, torch
from torch._inductor import codecache
before = set(os.listdir(codecache._HEADER_DIR))
assert torch.equal(torch.compile(lambda x: 2 * x)(torch.ones(3)), torch.full((3,), 2.0))
print(len(before), *sorted(set(os.listdir(codecache._HEADER_DIR)) - before - {"locks"}))
"""
PLANTING = f"""{TRY}
import os, pathlib
(header,) = pathlib.Path(os.environ["TMPDIR"], "{headers._HEADERS}").glob("*.gch")
shared = pathlib.Path(os.readlink(header))
attempt(lambda: shared.write_bytes(b"planted"), lambda: shared.unlink(), lambda: shared.chmod(0o777),
        lambda: (shared.parent / "more.h").touch(), lambda: shared.parent.rename(shared.parent.with_name("x")))
"""

PRECOMPILED = f"""
import os, pathlib
made = ("header.h.gch", "header.h")
for name in (*("{headers._HEADERS}/" + name for name in made), "{headers._PROBES}/probe", "{headers._DONE}"):
    file = pathlib.Path(os.environ["TMPDIR"], name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("precompiled")
"""
"""Leaves what torch's compiler leaves, without its 15 seconds."""

MAKING = f"""
import os, pathlib
folder = pathlib.Path(os.environ["TMPDIR"], "{headers._HEADERS}")
folder.mkdir(parents=True)
(folder / "header.h.gch").touch()
print("made")
"""


@pytest.fixture
def host(tmp_path: Path, user_cache: Path) -> Host:
    return isolated_host(tmp_path / "home")


@pytest.mark.nightly
def test_children_compile_with_headers_that_were_made_once(host: Host, tmp_path: Path, user_cache: Path) -> None:
    host.precompile_headers(None, lambda: None)
    assert run(host, tmp_path / "good", COMPILING, 120) == ["2"], "it made none of its own"
    (folder,) = (user_cache / "warpwatch" / "headers").glob("*/torchinductor_*/*")
    assert len(contents(folder)) == 2


def test_children_find_headers_that_were_made_once_and_cannot_change_them(
    host: Host, tmp_path: Path, user_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headers, "_COMPILE", PRECOMPILED)
    host.precompile_headers(None, lambda: None)
    (folder,) = (user_cache / "warpwatch" / "headers").glob("*/torchinductor_*/*")
    before = contents(folder)
    assert len(before) == 2
    assert run(host, tmp_path / "hostile", PLANTING) == ["refused"] * 5
    assert contents(folder) == before


def test_a_later_worker_finds_them_before_anything_compiles(host: Host, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    (folder / "torchinductor_warpwatch" / "precompiled_headers").mkdir(parents=True)
    place = headers._place(sys.executable, host.confinement())
    assert place is not None
    place.parent.mkdir(parents=True)
    assert headers.find(sys.executable, host.confinement()) is None, "nothing has compiled yet"
    folder.rename(place)
    assert headers.find(sys.executable, host.confinement()) == place


def test_once_a_child_had_to_make_its_own_they_are_made_for_the_next(
    host: Host, tmp_path: Path, user_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[object, ...]] = []
    monkeypatch.setattr(headers, "make", lambda *words: made.append(words))
    assert run(host, tmp_path / "first", MAKING) == ["made"]
    assert made == []
    assert run(host, tmp_path / "second", MAKING) == ["made"]
    assert made == [(sys.executable, host.confinement())]


def test_without_namespaces_there_are_none(host: Host) -> None:
    """There a child could write to the folder."""
    open_host = Host(Settings(home=host.home, isolation="network"), "cpu")
    headers.make(sys.executable, open_host.confinement())
    assert headers.find(sys.executable, open_host.confinement()) is None


def test_nothing_is_kept_of_what_was_stopped(host: Host, user_cache: Path) -> None:
    host.precompile_headers(None, lambda: "the worker stops")
    assert host.find_headers(None) is None


def test_what_a_failed_compiler_leaves_is_not_kept(
    host: Host, user_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = f'{headers._COMPILE.partition("torch.compile")[0]}os.makedirs("{headers._HEADERS}")'
    monkeypatch.setattr(headers, "_COMPILE", f'{half}\nopen("{headers._HEADERS}/half.h.gch", "w").close()')
    headers.make(sys.executable, host.confinement())
    assert headers.find(sys.executable, host.confinement()) is None
    assert not [*(user_cache / "warpwatch").rglob("*")]


def test_another_compiler_has_headers_of_its_own(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    python = (sys.executable, host.confinement())
    state, place = bytecode.read_interpreter(*python), headers._place(*python)
    version, *cpu = state.tools
    assert cpu
    monkeypatch.setattr(headers, "read_interpreter", lambda *_: replace(state, tools=(f"{version} of tomorrow", *cpu)))
    assert headers._place(*python) not in (None, place)
    monkeypatch.setattr(headers, "read_interpreter", lambda *_: replace(state, tools=()))
    assert headers._place(*python) is None
