"""Caches of compilers at run time: kept for the same code, never for another, whatever kernel code puts into them."""

from __future__ import annotations

import os
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from tests.worker.conftest import Repository
from warpwatch.worker import caches, checkout
from warpwatch.worker.caches import CodeCache, cache_of, remove_unused
from warpwatch.worker.mirrors import mirror_commit
from warpwatch.worker.tools import Tools
from warpwatch.worker.trees import Tree, TreeError


@pytest.fixture
def cache(tmp_path: Path) -> CodeCache:
    return cache_of(tmp_path, "tree")


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / "triton" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def at(folder: Path) -> tuple[Tree, str]:
    """The folder as a child's temporary folder and a name in it."""
    return Tree(folder.parent), folder.name


def content(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_what_one_child_compiled_the_next_one_has(cache: CodeCache, tmp_path: Path) -> None:
    """With its times, which ninja compares."""
    first = write(tmp_path / "first", kernel="machine code")
    os.utime(first / "triton" / "kernel", ns=(1, 5))
    cache.keep(*at(first))
    cache.fill(*at(tmp_path / "second"))
    assert content(tmp_path / "second") == {"kernel": "machine code"}
    assert (tmp_path / "second" / "triton" / "kernel").stat().st_mtime_ns == 5
    cache.keep(*at(write(tmp_path / "second", more="of it", kernel="changed code")))
    assert content(cache.folder) == {"kernel": "changed code", "more": "of it"}


def test_another_content_has_a_cache_of_its_own(cache: CodeCache, tmp_path: Path) -> None:
    cache.keep(*at(write(tmp_path / "first", kernel="machine code")))
    cache_of(tmp_path, "another tree").fill(*at(tmp_path / "second"))
    assert content(tmp_path / "second") == {}
    assert cache_of(tmp_path, "a", "b") != cache_of(tmp_path, "ab")


def test_each_model_of_a_gpu_makes_its_own_choices(
    repository: Repository, good: str, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = mirror_commit(tools.host.settings, tools.host.confinement().isolation, repository.url, good)
    folders = []
    for model in ("one", "another", "one"):
        monkeypatch.setattr(checkout, "read_model", lambda _device, model=model: model)
        with closing(checkout.Checkout(tools.host, commit)) as opened:
            assert opened._cache is not None
            folders.append(opened._cache.folder)
    assert folders[0] == folders[2] != folders[1]


def test_only_regular_files_are_kept(cache: CodeCache, tmp_path: Path) -> None:
    """A link would show the next child a file of the host, or write through it; a FIFO would block the parent."""
    folder = write(tmp_path / "child", kernel="machine code")
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "folder").symlink_to("/etc")
    os.mkfifo(folder / "fifo")
    cache.keep(*at(folder))
    assert content(cache.folder) == {"kernel": "machine code"}
    assert not (cache.folder / "folder").exists()


def test_a_link_in_place_of_the_folder_is_not_followed(cache: CodeCache, tmp_path: Path) -> None:
    """The next child would find the files of the host that the parent may read."""
    host = write(tmp_path / "host", password="secret")
    (tmp_path / "child").symlink_to(host)
    cache.keep(*at(tmp_path / "child"))
    assert not cache.folder.exists()


def test_a_link_on_the_way_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "folder").symlink_to("/etc")
    tree = Tree(tmp_path)
    for read in (
        lambda: tree.copy("folder/passwd", tree, "copy", 2**20),
        lambda: tree.read("folder/passwd", 2**20),
    ):
        with pytest.raises(TreeError):
            read()


def test_a_lock_left_behind_is_not_kept(cache: CodeCache, tmp_path: Path) -> None:
    """torch waits for ever for the lock file of an extension that a killed process left."""
    cache.keep(*at(write(tmp_path / "child", kernel="machine code", lock="", other_lock="")))
    assert content(cache.folder) == {"kernel": "machine code"}


@pytest.mark.parametrize("flood", ["files", "bytes", "folders"])
def test_a_flood_is_refused(cache: CodeCache, tmp_path: Path, flood: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "child", kernel="machine code")
    monkeypatch.setattr(caches, "LIMIT_FILES", 50)
    if flood == "bytes":
        with (folder / "huge").open("wb") as file:
            file.truncate(caches.LIMIT_BYTES)
    elif flood == "files":
        for number in range(60):
            (folder / str(number)).touch()
    else:
        for number in range(60):
            (folder / str(number)).mkdir()
    with pytest.raises(OSError, match=r"more than"):
        cache.keep(*at(folder))
    assert content(cache.folder) == {}


def test_a_deep_tree_is_cut(cache: CodeCache, tmp_path: Path) -> None:
    """A thousand folders in each other would end the recursion of a walk, and then the worker."""
    folder = write(tmp_path / "child", kernel="machine code")
    before = Path.cwd()
    os.chdir(folder)
    try:
        for _ in range(1500):
            os.mkdir("d")  # noqa: PTH102 - the path is longer than any path may be
            os.chdir("d")
    finally:
        os.chdir(before)
    cache.keep(*at(folder))
    # Neither could pytest remove it.
    subprocess.run(["rm", "-r", str(folder)], check=True)
    assert content(cache.folder) == {"kernel": "machine code"}


def test_a_child_without_compilations_leaves_nothing(cache: CodeCache, tmp_path: Path) -> None:
    cache.keep(*at(tmp_path / "nothing"))
    assert not cache.folder.exists()


def test_the_least_recently_used_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "LIMIT_CACHES", 2)
    for number in range(4):
        folder = write(cache_of(tmp_path, str(number)).folder, kernel=str(number))
        os.utime(folder, ns=(number, number))
    # Being used counts.
    cache_of(tmp_path, "0").fill(*at(tmp_path / "child"))
    remove_unused(tmp_path)
    assert {text for folder in (tmp_path / "jit").iterdir() for text in content(folder).values()} == {"0", "3"}
