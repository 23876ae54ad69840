"""A tree that others laid out is read, written and walked beneath its folder, whatever links it holds."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from warpwatch.worker import headers
from warpwatch.worker.caches import CodeCache
from warpwatch.worker.package_build import PackageBuild
from warpwatch.worker.trees import Limits, Tree, TreeError, TreeSizeError

AT_FDCWD, RENAME_EXCHANGE = -100, 2
SECRET = "the worker may read this"
FOLDERS = ("one", "two", "three", "four")
PATH, NEW = ("/".join((*FOLDERS, name)) for name in ("file", "new"))
LIMITS = Limits(depth=10, files=1000)
Use = Callable[[Tree, Tree], object]
USES: dict[str, Use] = {
    "read": lambda tree, _: tree.read(PATH, 100),
    "walk": lambda tree, _: [entry.name for entry in tree.walk(LIMITS, "/".join(FOLDERS))],
    "entries": lambda tree, _: tree.entries("/".join(FOLDERS)),
    "find": lambda tree, _: tree.find(PATH),
    "read_link": lambda tree, _: tree.read_link(PATH),
    "copy": lambda tree, other: tree.copy(PATH, other, "copy", 100),
    "copy, into it": lambda tree, other: other.copy("own", tree, NEW, 100),
    "copy_all": lambda tree, other: tree.copy_all("one", other, "copies", LIMITS),
    "copy_all, into it": lambda tree, other: other.copy_all("", tree, "/".join(FOLDERS), LIMITS),
    "make_folder": lambda tree, _: tree.make_folder(NEW),
    "make_link": lambda tree, _: tree.make_link(NEW, "anywhere"),
    "rename": lambda tree, _: tree.rename(PATH, "renamed"),
    "remove": lambda tree, _: tree.remove(PATH),
}
"""What can be done to a tree, by the name of the method; the second tree is the worker's, with a file `own`."""


def host_folder(folder: Path) -> Path:
    """A folder of the host that looks like the rest of the path, with a secret at its end."""
    place = folder / "host"
    for names in (FOLDERS[1:], FOLDERS[2:], FOLDERS[3:], ()):
        below = place.joinpath(*names)
        below.mkdir(parents=True, exist_ok=True)
        (below / "file").write_text(SECRET)
    return place


def state(folder: Path) -> list[tuple[str, str]]:
    """What lies below a folder."""
    return sorted(
        (str(path.relative_to(folder)), path.read_text() if path.is_file() else "") for path in folder.rglob("*")
    )


def leaked(*folders: Path) -> list[Path]:
    """Files with the secret in them; links are not followed."""
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return [path for path in files if SECRET in path.read_text()]


def test_every_use_is_attacked() -> None:
    methods = {name for name, value in vars(Tree).items() if callable(value) and not name.startswith("_")}
    assert {use.partition(",")[0] for use in USES} == methods - {"free_bytes"}


@pytest.mark.parametrize("depth", range(len(FOLDERS) + 1))
@pytest.mark.parametrize("use", USES)
def test_no_link_is_followed_at_any_depth(tmp_path: Path, use: str, depth: int) -> None:
    host = host_folder(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "own").write_text("own")
    place = tmp_path / "tree"
    link = place.joinpath(*FOLDERS, "file") if depth == len(FOLDERS) else place.joinpath(*FOLDERS[: depth + 1])
    link.parent.mkdir(parents=True)
    link.symlink_to(host / "file" if depth == len(FOLDERS) else host)
    before = state(host)
    result: object = None
    with suppress(TreeError):
        result = USES[use](Tree(place), Tree(tmp_path / "other"))
    assert SECRET not in str(result)
    assert state(host) == before
    assert leaked(place, tmp_path / "other") == []


@pytest.mark.parametrize("use", ["copy", "copy, into it", "copy_all", "copy_all, into it", "remove"])
def test_links_that_are_swapped_meanwhile_lead_nowhere(tmp_path: Path, use: str) -> None:
    """A thread exchanges a folder of the tree and a link to the host, as fast as it can."""
    host = host_folder(tmp_path)
    before = state(host)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "own").write_text("own")
    place = tmp_path / "tree"
    place.joinpath(*FOLDERS).mkdir(parents=True)
    inner, link = place / "one" / "two", place / "one" / "link"
    link.symlink_to(host)
    libc, ended = ctypes.CDLL(None), threading.Event()

    def swap() -> None:
        paths = os.fsencode(inner), os.fsencode(link)
        while not ended.is_set():
            assert libc.renameat2(AT_FDCWD, paths[0], AT_FDCWD, paths[1], RENAME_EXCHANGE) == 0

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        for number in range(1000):
            other = Tree(tmp_path / "other")
            with suppress(TreeError):
                if use == "copy, into it":
                    other.copy("own", Tree(place), f"{'/'.join(FOLDERS)}/{number}", 100)
                else:
                    USES[use](Tree(place), other)
                    assert leaked(tmp_path / "other") == []
                    other.remove("copy")
    finally:
        ended.set()
        swapping.join()
    assert state(host) == before
    assert leaked(tmp_path / "other") == []


@pytest.mark.parametrize("kind", ["fifo", "folder", "device"])
def test_what_is_no_regular_file_is_not_opened(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "file"
    if kind == "fifo":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    else:
        place.symlink_to("/dev/zero")
    with pytest.raises(TreeError):
        Tree(tmp_path).read("file", 10)
    with pytest.raises(TreeError):
        Tree(tmp_path).copy("file", Tree(tmp_path), "copy", 10)
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("name", ["../file", "/etc/passwd", "one/../../file", "", ".", "a\0b"])
def test_names_stay_beneath(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text(SECRET)
    (tmp_path / "tree" / "one").mkdir(parents=True)
    with pytest.raises(TreeError):
        Tree(tmp_path / "tree").read(name, 100)


def test_a_copy_keeps_times_links_and_the_right_to_execute(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "bin").mkdir(parents=True)
    (source / "empty").mkdir()
    target.mkdir()
    (source / "bin" / "tool").write_text("tool")
    (source / "bin" / "tool").chmod(0o4755)
    (source / "bin" / "data").write_text("data")
    os.utime(source / "bin" / "data", ns=(1, 5))
    (source / "link").symlink_to("bin/tool")
    os.mkfifo(source / "fifo")
    Tree(source).copy_all("", Tree(target), "", LIMITS, 0o444)
    assert (target / "bin" / "tool").stat().st_mode & 0o7777 == 0o555
    data = (target / "bin" / "data").stat()
    assert (data.st_mode & 0o7777, data.st_mtime_ns) == (0o444, 5)
    assert (target / "link").readlink() == Path("bin/tool")
    assert (target / "empty").is_dir()
    assert not (target / "fifo").exists()


def test_too_much_is_refused(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    for number in range(5):
        (tmp_path / "source" / str(number)).write_bytes(bytes(1000))
    for target, limits in (("first", Limits(1, 4)), ("second", Limits(1, 5, 4999))):
        with pytest.raises(TreeSizeError):
            Tree(tmp_path / "source").copy_all("", Tree(tmp_path), target, limits)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE, errno.EIO])
def test_what_the_machine_lacks_is_not_blamed_on_the_tree(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> int:
        raise OSError(number, "the machine's fault")

    (tmp_path / "file").write_text("text")
    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(OSError, match="the machine's fault") as failure:
        Tree(tmp_path).copy("file", Tree(tmp_path), "copy", 100)
    assert not isinstance(failure.value, TreeError)


@pytest.mark.parametrize("lay_out", ["cache", "headers", "probes"])
def test_what_a_new_child_gets_is_not_written_through_its_links(tmp_path: Path, lay_out: str) -> None:
    """A commit may name a program as its interpreter that runs code of the commit before anything is asked of it."""
    host, kept, temp = tmp_path / "host", tmp_path / "kept", tmp_path / "temp"
    for folder in (host, temp, kept / headers._HEADERS, kept / headers._PROBES):
        folder.mkdir(parents=True)
    (kept / "victim").write_text("of the commit")
    (kept / headers._PROBES / "victim").write_text("of the commit")
    (kept / headers._HEADERS / "victim.gch").write_text("header")
    name = {"cache": "jit", "headers": headers._HEADERS, "probes": headers._PROBES}[lay_out].partition("/")[0]
    (temp / name).symlink_to(host)
    put = partial(CodeCache(kept).fill, name="jit") if lay_out == "cache" else partial(headers.lay_out, kept)
    with pytest.raises(TreeError):
        put(temp=Tree(temp))
    assert list(host.iterdir()) == []


def test_a_build_that_was_deleted_is_not_in_use(tmp_path: Path) -> None:
    build = PackageBuild(tmp_path / "build")
    assert not build.renew()
    build.folder.mkdir()
    os.utime(build.folder, (1, 1))
    assert build.renew()
    assert build.folder.stat().st_mtime > 1
