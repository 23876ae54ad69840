"""What a child shares with its host and with the children before and after it: files that it reads, places where
programs and libraries are looked for, and folders that the parent writes into for it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from tests.security.conftest import Intruder
from tests.security.test_compilers import is_shut_in
from tests.worker.conftest import bare_templates as bare_templates
from tests.worker.test_building import SOURCE, make
from tests.worker.test_building import root as root
from tests.worker.test_building import store as store
from warpwatch.worker import headers, sandbox
from warpwatch.worker.building import LibraryStore
from warpwatch.worker.caches import cache_of
from warpwatch.worker.trees import Tree, TreeError

pytestmark = pytest.mark.usefixtures("bare_templates")


def lines_of(path: str) -> list[str]:
    try:
        return [line.strip() for line in Path(path).read_text().splitlines() if len(line) > 8]
    except OSError:
        return []


@pytest.mark.parametrize("way", ['#include "{path}"', 'asm(".incbin \\"{path}\\"");'])
def test_passwords_of_the_host_are_in_no_log_and_no_library(root: Path, store: LibraryStore, way: str) -> None:
    """A compile error quotes the lines that it is about, and an assembler includes any file as it is."""
    if not is_shut_in(store.folder.parent):
        pytest.skip("this host allows no mount namespace")
    paths = [path for path in ("/etc/shadow", "/etc/gshadow", "/etc/sudoers") if lines_of(path)]
    text = "".join(f'#if __has_include("{path}")\n{way.format(path=path)}\n#endif\n' for path in paths)
    (root / "csrc" / "plain" / "plain.cpp").write_text(SOURCE + text)
    built = make(root, store)
    library = b"" if built.folder is None else (built.folder / "library.so").read_bytes()
    quoted = [line for path in paths for line in lines_of(path) if line in built.reply.log or line.encode() in library]
    assert quoted == []


@pytest.mark.parametrize("name", ["PATH", "LD_LIBRARY_PATH", "PYTHONPATH"])
@pytest.mark.parametrize("value", [":/usr/lib", "/usr/lib:", "/usr/lib::/lib", ".:/usr/lib", "/usr/lib:lib", ""])
def test_no_program_or_library_is_looked_for_in_the_worktree(name: str, value: str) -> None:
    """An empty entry, as `$X:/folder` leaves without X, is the current folder, which is that of the commit."""
    found = sandbox.environment(Path("/temp"), {name: value}).get(name)
    assert found is None or all(entry.startswith("/") for entry in found.split(":"))


LEASES = """
import fcntl, os, signal
signal.signal(signal.SIGIO, signal.SIG_IGN)
for kind in (fcntl.F_WRLCK, fcntl.F_RDLCK):
    try:
        fcntl.fcntl(os.open("kernel.py", os.O_RDONLY), 1024, kind)
        print("leased")
    except OSError:
        pass
print("done")
"""


def test_no_lease_on_a_file_delays_others(kernel: Intruder) -> None:
    """Whoever opens a file with a lease waits up to 45 s for its holder, even where that cannot write to the file:
    one commit would stop the worker, and every child that starts, at each file that they open."""
    folder = kernel.home / "worktrees" / "own"
    folder.mkdir(parents=True)
    (folder / "kernel.py").write_text("x")
    if kernel.user is not None:
        os.chown(folder / "kernel.py", kernel.user, kernel.user)
    assert kernel.attack(LEASES, folder=str(folder), visible=[str(folder)]) == "done"


# Folders that the parent writes into


@pytest.mark.parametrize("place", ["jit", "jit/triton", "jit/triton/kernel"])
def test_the_parent_fills_no_folder_through_a_link(tmp_path: Path, place: str) -> None:
    """warpwatch.toml may name an interpreter that runs what lies in the worktree, while the parent lays out what
    earlier children of the commit compiled: both by the commit's own choice."""
    cache = cache_of(tmp_path, "content")
    (cache.folder / "triton").mkdir(parents=True)
    (cache.folder / "triton" / "kernel").write_text("of the commit's choice")
    host, temp = tmp_path / "host", tmp_path / "temp"
    (host / "triton").mkdir(parents=True)
    (host / "kernel").write_text("of the host")
    link = temp / place
    link.parent.mkdir(parents=True)
    link.symlink_to(host / "kernel" if place.endswith("kernel") else host)
    with contextlib.suppress(TreeError):
        cache.fill(Tree(temp), "jit")
    assert {path.name: path.read_text() for path in host.rglob("*") if path.is_file()} == {"kernel": "of the host"}


@pytest.mark.parametrize("place", ["torchinductor_warpwatch", "jit"])
def test_the_parent_lays_out_no_headers_through_a_link(tmp_path: Path, place: str) -> None:
    made, host, temp = tmp_path / "made", tmp_path / "host", tmp_path / "temp"
    for folder in (headers._HEADERS, headers._PROBES):
        (made / folder).mkdir(parents=True)
        (made / folder / "header.h").write_text("header")
    host.mkdir()
    temp.mkdir()
    (temp / place).symlink_to(host)
    with contextlib.suppress(TreeError):
        headers.lay_out(made, Tree(temp))
    assert list(host.rglob("*")) == []
