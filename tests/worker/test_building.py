"""Builds in a jail: what compilers make is checked, kept under an address, and seen read-only."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.worker.conftest import Diary, Repository
from warpwatch.contract.words import Status
from warpwatch.worker import levels, sandbox
from warpwatch.worker.building import LIBRARY, BuildRequest, BuiltLibrary, LibraryStore, build
from warpwatch.worker.host import Host
from warpwatch.worker.reporter import Stopped
from warpwatch.worker.tools import Tools

SOURCE = """
#include "common/answer.h"
extern "C" int answer() { return ANSWER; }
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A worktree with one operator that needs no torch."""
    root = tmp_path / "worktree"
    for name, text in {"plain/plain.cpp": SOURCE, "common/answer.h": "#define ANSWER 42\n"}.items():
        path = root / "csrc" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return root


@pytest.fixture
def store(tmp_path: Path) -> LibraryStore:
    return LibraryStore(tmp_path / "libraries")


def make(root: Path, store: LibraryStore, operator: str = "plain", seconds: float = 120) -> BuiltLibrary:
    request = BuildRequest(root, "csrc", operator, "cpu")
    return build(request, store, levels.confinement(store.folder.parent, None), seconds, Diary())


def test_a_library_is_built_once(root: Path, store: LibraryStore, tmp_path: Path) -> None:
    first, again = make(root, store), make(root, store)
    assert (first.reply.status, first.reply.cached) == (Status.OK, False)
    assert (again.reply.status, again.reply.cached, again.folder) == (Status.OK, True, first.folder)
    assert again.reply.code_hash == first.reply.code_hash != ""
    assert again.reply.compile_seconds == first.reply.compile_seconds > 0
    again.lay_out(tmp_path / "laid out")
    assert first.folder is not None
    assert (tmp_path / "laid out" / LIBRARY).samefile(first.folder / LIBRARY)
    assert [path.name for path in store.folder.iterdir()] == [first.folder.name], "nothing unfinished is left"


def test_machine_code_of_an_operator_is_that_of_all_its_libraries(host: Host, repository: Repository) -> None:
    """A commit that changes the second library alone has changed the code of an operator that uses both."""
    sources = {f"csrc/{name}/{name}.cpp": SOURCE.split("\n", 2)[2] for name in ("one", "two")}
    answers = [{"csrc/one/one.cpp": "#define ANSWER 42", "csrc/two/two.cpp": f"#define ANSWER {n}"} for n in (42, 43)]
    shas = [
        repository.commit("an answer", {name: f"{answer[name]}\n{text}" for name, text in sources.items()})
        for answer in answers
    ]
    tools = Tools(host)
    try:
        before, after = (
            checkout.build(["one", "two"], Diary()) for checkout in tools.checkouts(repository.url, shas, Diary())
        )
    finally:
        tools.close()
    assert [reply.status for reply in (before, after)] == [Status.OK, Status.OK]
    assert {kernel.name for kernel in before.resources} == {"one.cpp", "two.cpp"}
    assert "" != before.code_hash != after.code_hash != ""
    assert before.key != after.key


def test_another_source_is_another_library(root: Path, store: LibraryStore) -> None:
    first = make(root, store)
    (root / "csrc" / "common" / "answer.h").write_text("#define ANSWER 43\n")
    second = make(root, store)
    assert (second.reply.status, second.reply.cached) == (Status.OK, False)
    assert second.folder != first.folder


def test_what_is_not_native_is_skipped(root: Path, store: LibraryStore) -> None:
    assert make(root, store, "elsewhere").reply.status is Status.SKIPPED
    assert make(root, store, "../plain").reply.status is Status.SKIPPED


def test_a_compile_error_is_in_the_log(root: Path, store: LibraryStore) -> None:
    (root / "csrc" / "plain" / "plain.cpp").write_text("this_line_is_wrong")
    built = make(root, store)
    assert built.reply.status is Status.BUILD_FAILED
    assert "this_line_is_wrong" in built.reply.log
    assert not list(store.folder.glob("*"))


def test_a_compiler_that_hangs_is_stopped(root: Path, store: LibraryStore, compiler: Path) -> None:
    hang(compiler)
    assert make(root, store, seconds=1).reply.status is Status.BUILD_FAILED
    confinement = levels.confinement(store.folder.parent, None)
    with pytest.raises(Stopped):
        build(BuildRequest(root, "csrc", "plain", "cpu"), store, confinement, 60, Diary(stop_after=2))


@pytest.fixture
def compiler(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A C++ compiler that `spoil` and `hang` change: what a source could do that takes over the compiler.

    It lies outside the worker's folder, which children do not see."""
    path = tmp_path_factory.mktemp("tools") / "bin" / "compiler"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\nexec {shutil.which("g++")} "$@"\n')
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))
    return path


def spoil(compiler: Path, script: str) -> None:
    """Has the linker's step run `script` after it."""
    last = f'case "$*" in *-shared*) {script};; esac'
    compiler.write_text(f'#!/bin/sh\n{shutil.which("g++")} "$@" || exit 1\n{last}\n')


def hang(compiler: Path) -> None:
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *-c*) sleep 1000;; esac\nexec {shutil.which("g++")} "$@"\n')


@pytest.mark.parametrize(
    "script",
    [
        "rm library.so; ln -s /etc/passwd library.so",
        "rm library.so; mkfifo library.so",
        "rm library.so; mkdir library.so",
        "rm library.so; truncate -s 2G library.so",
        "rm library.so",
        "d=$PWD; mv $d $d.moved; ln -s $d.moved $d",
    ],
)
def test_only_a_regular_file_becomes_a_library(root: Path, store: LibraryStore, compiler: Path, script: str) -> None:
    """A FIFO would block the parent, a link would give it any file of the host, a huge file its disk."""
    spoil(compiler, script)
    assert make(root, store).reply.status is Status.BUILD_FAILED
    assert not list(store.folder.glob("*"))


def test_compilers_cannot_write_to_worktree_or_store(root: Path, store: LibraryStore, compiler: Path) -> None:
    if levels.strongest_isolation(store.folder.parent) not in ("full", "user"):
        pytest.skip("this host allows no mount namespace")
    victim = make(root, store)
    assert victim.folder is not None
    before = (victim.folder / LIBRARY).read_bytes()
    (root / "csrc" / "plain" / "plain.cpp").write_text(SOURCE + "\n// another source")
    targets = " ".join(map(str, (victim.folder / LIBRARY, root / "csrc" / "common" / "answer.h", root / "new")))
    spoil(compiler, f"for target in {targets}; do rm -f $target; echo spoilt > $target; done; true")
    assert make(root, store).reply.status is Status.OK
    assert (victim.folder / LIBRARY).read_bytes() == before
    assert (root / "csrc" / "common" / "answer.h").read_text() == "#define ANSWER 42\n"
    assert not (root / "new").exists()


def test_a_hostile_interpreter_spoils_its_own_libraries_only(root: Path, store: LibraryStore) -> None:
    """warpwatch.toml names it, so it may be any program of the host: one that runs what lies in the worktree too."""
    honest = make(root, store)
    liar = root / "liar"
    liar.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    liar.chmod(0o755)
    request = BuildRequest(root, "csrc", "plain", "cpu", str(liar))
    shown = (Path(sys.prefix), Path(sys.base_prefix))
    confinement = replace(levels.confinement(store.folder.parent, None), shown=shown)
    assert build(request, store, confinement, 120, Diary()).folder not in (None, honest.folder)
    assert make(root, store).folder == honest.folder


def test_no_compiler_cache_is_shared(root: Path, store: LibraryStore, compiler: Path, tmp_path: Path) -> None:
    environment = sandbox.environment(tmp_path, {"CCACHE_DIR": "/var/cache/ccache", "PATH": os.defpath})
    assert environment["CCACHE_DISABLE"] == "1"
    assert "CCACHE_DIR" not in environment


def test_a_library_in_the_store_is_not_writable(root: Path, store: LibraryStore) -> None:
    """Where no mount namespace protects it, at least no program overwrites it by mistake."""
    folder = make(root, store).folder
    assert folder is not None
    assert not (folder / LIBRARY).stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)
