"""torch's headers are precompiled once, outside of any commit's code, and children use them and cannot change them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.worker.jailed_code import isolated_host, run
from warpwatch.settings import Settings
from warpwatch.worker import headers, templates
from warpwatch.worker.host import Host

COMPILING = """
import os, pathlib, tempfile, torch
from torch._inductor import codecache
before = set(os.listdir(codecache._HEADER_DIR)) if os.path.isdir(codecache._HEADER_DIR) else set()
assert torch.equal(torch.compile(lambda x: 2 * x)(torch.ones(3)), torch.full((3,), 2.0))
after = pathlib.Path(codecache._HEADER_DIR)
print(len(before), *sorted(path.name for path in after.iterdir() if path.name not in before and path.is_file()))
"""
PLANTING = """
import os, pathlib
from torch._inductor import codecache
(header,) = pathlib.Path(codecache._HEADER_DIR).glob("*.gch")
shared = pathlib.Path(os.readlink(header))
for change in (lambda: shared.write_bytes(b"planted"), lambda: shared.unlink(), lambda: shared.chmod(0o777),
               lambda: (shared.parent / "more.h").touch(), lambda: shared.parent.rename(shared.parent.with_name("x"))):
    try:
        change()
        print("changed")
    except OSError:
        print("refused")
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
    before = [path.read_bytes() for path in sorted(folder.iterdir())]
    assert run(host, tmp_path / "hostile", PLANTING) == ["refused"] * 5
    assert [path.read_bytes() for path in sorted(folder.iterdir())] == before


def test_a_later_worker_finds_them_before_anything_compiles(host: Host, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    (folder / "torchinductor_warpwatch" / "precompiled_headers").mkdir(parents=True)
    place = headers.place_of("key")
    assert headers.prepare(sys.executable, "key", host.confinement(), make=False) is None, "nothing has compiled yet"
    folder.rename(place)
    headers.prepare.cache_clear()
    assert headers.prepare(sys.executable, "key", host.confinement(), make=False) == place


def test_without_namespaces_there_are_none(host: Host) -> None:
    """There a child could write to the folder."""
    open_host = Host(Settings(home=host.home, isolation="network"), "cpu")
    assert headers.prepare(sys.executable, "key", open_host.confinement(), make=True) is None


def test_what_a_failed_compiler_leaves_is_not_kept(
    host: Host, user_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = f'{headers._COMPILE.partition("torch.compile")[0]}os.makedirs("{headers._HEADERS}")'
    monkeypatch.setattr(headers, "_COMPILE", f'{half}\nopen("{headers._HEADERS}/half.h.gch", "w").close()')
    assert headers.prepare(sys.executable, "key", host.confinement(), make=True) is None
    assert [path.name for path in (user_cache / "warpwatch" / "headers").iterdir()] == ["compilers.json"]
