"""torch's headers are precompiled once, outside of any commit's code, and children use them and cannot change them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.worker.jailed_code import TRY, contents, isolated_host, run
from warpwatch.settings import Settings
from warpwatch.worker import bytecode, headers, templates
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
from torch._inductor import codecache
(header,) = pathlib.Path(codecache._HEADER_DIR).glob("*.gch")
shared = pathlib.Path(os.readlink(header))
attempt(lambda: shared.write_bytes(b"planted"), lambda: shared.unlink(), lambda: shared.chmod(0o777),
        lambda: (shared.parent / "more.h").touch(), lambda: shared.parent.rename(shared.parent.with_name("x")))
"""


@pytest.fixture
def host(tmp_path: Path, user_cache: Path) -> Host:
    return isolated_host(tmp_path / "home")


def test_children_use_headers_that_are_made_once_and_cannot_change_them(
    host: Host, tmp_path: Path, user_cache: Path
) -> None:
    templates.learn(compiles=True)
    assert run(host, tmp_path / "good", COMPILING, 120) == ["2"], "it made none of its own"
    (folder,) = (user_cache / "warpwatch" / "headers").glob("*/torchinductor_*/*")
    before = contents(folder)
    assert len(before) == 2
    assert run(host, tmp_path / "hostile", PLANTING) == ["refused"] * 5
    assert contents(folder) == before


def test_a_later_worker_finds_them_before_anything_compiles(host: Host, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    (folder / "torchinductor_warpwatch" / "precompiled_headers").mkdir(parents=True)
    place = headers.place_of(bytecode.read_interpreter(sys.executable, host.confinement()).key)
    assert headers.prepare(sys.executable, host.confinement(), make=False) is None, "nothing has compiled yet"
    folder.rename(place)
    headers.prepare.cache_clear()
    assert headers.prepare(sys.executable, host.confinement(), make=False) == place


def test_without_namespaces_there_are_none(host: Host) -> None:
    """There a child could write to the folder."""
    open_host = Host(Settings(home=host.home, isolation="network"), "cpu")
    assert headers.prepare(sys.executable, open_host.confinement(), make=True) is None


def test_what_a_failed_compiler_leaves_is_not_kept(
    host: Host, user_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = f'{headers._COMPILE.partition("torch.compile")[0]}os.makedirs("{headers._HEADERS}")'
    monkeypatch.setattr(headers, "_COMPILE", f'{half}\nopen("{headers._HEADERS}/half.h.gch", "w").close()')
    assert headers.prepare(sys.executable, host.confinement(), make=True) is None
    assert [path.name for path in (user_cache / "warpwatch" / "headers").iterdir()] == ["compilers.json"]
